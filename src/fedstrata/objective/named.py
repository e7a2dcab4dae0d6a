"""The losses, metrics and transforms by name, and functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fedstrata.base.errors import ExperimentError, FedstrataError, UserCodeError, first_line, users_trace
from fedstrata.base.key_errors import unknown
from fedstrata.base.quoting import shown
from fedstrata.base.registry import Registry, load_users_object
from fedstrata.base.resources import resource_error
from fedstrata.objective.metric_info import METRIC_INFOS

_T = TypeVar("_T")

LOSSES: Registry[Callable[..., Any]] = Registry(
    {name: f"fedstrata.objective.losses:{name}" for name in ("cross_entropy", "mse", "mae", "huber", "bce")}
)
"""The function of each loss: outputs and targets to the mean loss of a batch, a scalar."""

METRICS: Registry[Callable[..., Any]] = Registry({name: f"fedstrata.objective.metrics:{name}" for name in METRIC_INFOS})
"""The function of each metric: outputs and targets of one client to a number. `METRIC_INFOS` describes them."""

TRANSFORMS: Registry[Callable[..., Any]] = Registry(
    {name: f"fedstrata.objective.transforms:{name}" for name in ("none", "flip", "crop", "crop_flip", "noise")}
)
"""The function of each transform: the inputs of a batch to the inputs that are trained on, of the same shape."""

KINDS: Mapping[str, Registry[Callable[..., Any]]] = {"loss": LOSSES, "metric": METRICS, "transform": TRANSFORMS}
"""The functions of an objective, by the key that names them."""


def check_objective_names(**names: str) -> None:
    """Refuse a name that stands for nothing. A user's module is not imported here.

    Args:
        names: By key (``loss``, ``metric``, ``transform``), a registered name or ``"package.module:function"``.

    Raises:
        ExperimentError: For the first such name.
    """
    for key, name in names.items():
        module, _, attribute = name.partition(":")
        if name not in KINDS[key] and not (module and attribute):
            raise ExperimentError(unknown(f"local.{key}", name, key, [*KINDS[key], "'package.module:function'"]))


def function_of(key: str, name: str) -> Callable[..., Any]:
    """Import the function that a key names.

    Raises:
        ExperimentError: When there is none.
    """
    if name in KINDS[key]:
        return KINDS[key][name]
    try:
        found: Callable[..., Any] = load_users_object(name)
    except ValueError as error:
        raise ExperimentError(f"local.{key} = {shown(name)} names no function: {error}") from error.__cause__
    if not callable(found):
        raise ExperimentError(f"local.{key} = {shown(name)}: expected a function, found {type(found).__name__}")
    return found


def call(key: str, name: str, *given: Any) -> Any:
    """Call the function that a key names.

    Raises:
        UserCodeError: When a function of the user's own fails, with the part of the traceback that is the user's.
    """
    function = function_of(key, name)
    if name in KINDS[key]:
        return function(*given)
    return in_user_code(f"local.{key} = {shown(name)}", function, *given)


def in_user_code(place: str, function: Callable[..., _T], *given: Any) -> _T:
    """Call a function of the user's own.

    Args:
        place: The key and the value that name it, for the message.
        function: The function.
        given: Its arguments.

    Raises:
        UserCodeError: When it fails, with the part of the traceback that is the user's.
    """
    try:
        return function(*given)
    except FedstrataError:
        raise
    except Exception as error:
        # Too little memory is no fault of the user's code; it is told as everywhere else.
        if resource_error(error) is not None:
            raise
        raise UserCodeError(f"{place} failed: {first_line(error)}", users_trace(error)) from error
