"""What was given in Python as objects, such as an algorithm or a loss, as an experiment names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.base.registry import name_of_object
from fedstrata.config.hyperparameters import ALGORITHM_METHODS, keys_of_algorithm
from fedstrata.objective.named import KINDS


def with_named_objects(given: Mapping[str, Any]) -> dict[str, Any]:
    """Write objects as an experiment names them: algorithms, networks, and the functions of an objective.

    Args:
        given: The tables of an experiment. ``algorithm`` and ``model``, or its key ``name``, may be objects, and so may
            the keys ``loss``, ``metric`` and ``transform`` of the table ``local``.

    Raises:
        ExperimentError: When an object is no algorithm, or the class of an algorithm can be named by nobody.
    """
    named = dict(given)
    algorithm = given.get("algorithm")
    if algorithm is not None and not isinstance(algorithm, str | Mapping):
        named["algorithm"] = algorithm_table(algorithm)
    model = given.get("model")
    if isinstance(model, Mapping) and callable(model.get("name")):
        named["model"] = {**model, "name": name_of_object(model["name"])}
    # A network is callable, too.
    elif callable(model):
        named["model"] = {"name": name_of_object(model)}
    local = given.get("local")
    if isinstance(local, Mapping):
        named["local"] = {key: _named_function(key, value) for key, value in local.items()}
    return named


def objective_sets(objective: Mapping[str, Any]) -> list[str]:
    """Return the changes of an experiment that give it a loss, a metric or a transform, as ``"local.key=value"``.

    Args:
        objective: The name of each, or the function itself, by its key in ``[local]``. None changes nothing.
    """
    names = {key: _named_function(key, value) for key, value in objective.items() if value is not None}
    return [f"local.{key}={name}" for key, name in names.items()]


def _named_function(key: str, value: Any) -> Any:
    """Return the name of a function of an objective that was given itself; other values stay as they are."""
    if key not in KINDS or not callable(value):
        return value
    return KINDS[key].name_of(value) or name_of_object(value, unnamed=key)


def algorithm_table(algorithm: Any) -> dict[str, Any]:
    """Return the table of an experiment that makes an algorithm again.

    Args:
        algorithm: An object of an algorithm, or its class, which stands for its defaults.

    Raises:
        ExperimentError: When it is neither, or its class is inside of a function.
    """
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if not is_dataclass(kind) or not all(callable(getattr(kind, method, None)) for method in ALGORITHM_METHODS):
        raise ExperimentError(
            f"algorithm = {algorithm!r:.80}: expected a name, a table, or a dataclass with "
            f"{', '.join(ALGORITHM_METHODS)}; see docs/methods/adding.md"
        )
    keys = {} if isinstance(algorithm, type) else keys_of_algorithm(algorithm)
    return {"name": _name_of(kind), **keys}


def _name_of(kind: type[Any]) -> str:
    """Return the name by which the class of an algorithm is found again."""
    registered = ALGORITHMS.name_of(getattr(kind, "made_by", kind))
    if registered is not None:
        return registered
    if "<locals>" in kind.__qualname__:
        raise ExperimentError(
            f"algorithm: the class {kind.__qualname__} is inside of a function, so that no run folder can name it; "
            "move it to the top of its module"
        )
    return f"{kind.__module__}:{kind.__qualname__}"
