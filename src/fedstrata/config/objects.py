"""Objects in the place of names: an algorithm or a network that was given in Python, as an experiment names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import ALGORITHM_METHODS, keys_of_algorithm
from fedstrata.errors import ExperimentError
from fedstrata.models import name_of_object


def with_named_objects(given: Mapping[str, Any]) -> dict[str, Any]:
    """Write objects under ``algorithm`` and ``model`` as tables that name them and hold their keys.

    Raises:
        ExperimentError: When an object is no algorithm and no network, or its class can be named by nobody.
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
    return named


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
            f"{', '.join(ALGORITHM_METHODS)}; see docs/adding.md"
        )
    keys = {} if isinstance(algorithm, type) else keys_of_algorithm(algorithm)
    return {"name": _name_of(kind), **keys}


def _name_of(kind: type[Any]) -> str:
    """Return the name by which the class of an algorithm is found again."""
    registered = ALGORITHMS.name_of(kind)
    if registered is not None:
        return registered
    if "<locals>" in kind.__qualname__:
        raise ExperimentError(
            f"algorithm: the class {kind.__qualname__} is inside of a function, so that no run folder can name it; "
            "move it to the top of its module"
        )
    return f"{kind.__module__}:{kind.__qualname__}"
