"""What takes longer to make than most tests take, made once in this process.

The script of Plotly is five megabytes of every page, and no test reads them but those that open pages in a browser.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fedstrata.data import libraries
from fedstrata.models import registry
from fedstrata.report import template

PLOTLY = "/* Plotly */"
"""Stands for the script of Plotly."""

_settings = registry._settings
_KNOWN: dict[tuple[str, Callable[..., Any], str], dict[str, Any]] = {}


def settings(name: str, factory: Callable[..., Any], with_shape: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a network, whose schema takes milliseconds to make."""
    asked = (name, factory, repr(given))
    if asked not in _KNOWN:
        _KNOWN[asked] = _settings(name, factory, with_shape, given)
    return dict(_KNOWN[asked])


registry._settings = settings
template.templates = cache(template.templates)
template.get_plotlyjs = lambda: PLOTLY  # type: ignore[attr-defined]  # which it imports
libraries.read_digits = cache(libraries.read_digits)
