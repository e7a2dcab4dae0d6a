"""Flower, imported at its first use: it comes with an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedstrata.errors import InputError


def flower() -> Any:
    """Flower's module of messages and records.

    Raises:
        InputError: when it is not installed.
    """
    try:
        return import_module("flwr.app")
    except ImportError as error:
        raise InputError(
            f"expected Flower 1.41, found {error}; install it by: pip install 'fedstrata[flower]'"
        ) from None
