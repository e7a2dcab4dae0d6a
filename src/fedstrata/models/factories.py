"""What makes a network that is a user's own, and how it is called."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedstrata.base.errors import ModelError
from fedstrata.base.lazy_torch import torch

if TYPE_CHECKING:
    Factory = Callable[..., torch.nn.Module]
    """A function or class that takes (shape, classes), or nothing, and options."""


def called_with_shape(factory: Factory | torch.nn.Module, name: str) -> Factory:
    """Return a factory that takes (shape, classes) for one that takes nothing but options, or for a network."""
    if isinstance(factory, torch.nn.Module):
        network = factory
        return lambda shape, classes: copy.deepcopy(network)
    parameters = list(inspect.signature(factory).parameters.values())
    first = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]
    anything = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = [p.name for p in first if p.default is p.empty]
    if anything or len(needed) == 2:
        return factory
    if needed:
        raise ModelError(
            f"model {name!r} needs {needed[0]!r} alone; expected a factory of (shape, classes), or one that needs "
            "nothing"
        )
    ignored = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in ("_shape", "_classes")]
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters if p.kind is not p.VAR_KEYWORD]
    rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]

    def make_without_shape(shape: tuple[int, ...], classes: int, **settings: Any) -> torch.nn.Module:
        return factory(**settings)

    # The options are read from the signature.
    make_without_shape.__signature__ = inspect.Signature([*ignored, *options, *rest])  # type: ignore[attr-defined]
    return make_without_shape
