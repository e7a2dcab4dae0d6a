"""From names and keys of an experiment to algorithms and personal methods, and back from objects to names and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import is_pydantic_dataclass

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.base.key_errors import explain, unknown
from fedstrata.base.quoting import dotted, shown
from fedstrata.base.registry import load_users_object, name_of_object
from fedstrata.core import Algorithm
from fedstrata.objective.objective import KINDS
from fedstrata.personal import PERSONAL, PersonalMethod

NO_METHOD = "none"
"""The value of ``personal.method`` that stands for no models of the clients' own."""

ALGORITHM_METHODS = ("init", "plan", "update", "assign", "evaluations")
"""The methods of an algorithm, as `fedstrata.core.Algorithm` describes them."""


def algorithm_from(name: str, keys: dict[str, Any], place: str = "algorithm") -> Algorithm[Any]:
    """Make an algorithm with its hyper-parameters.

    Args:
        name: The name of a registered algorithm, or ``"package.module:Class"``.
        keys: Its hyper-parameters.
        place: The place of these keys in the experiment, for the message.

    Raises:
        ExperimentError: When there is no such algorithm, or its keys do not fit.
    """
    made: Algorithm[Any] = _with_keys(_algorithm_class(name, place), name, keys, place, chosen_by="name")
    return made


def personal_from(method: str, keys: dict[str, Any], place: str = "personal") -> PersonalMethod | None:
    """Make a personal method with its keys; None for "none".

    Args:
        method: The name of a registered method, or "none".
        keys: Its keys.
        place: The place of these keys in the experiment, for the message.

    Raises:
        ExperimentError: When there is no such method, or its keys do not fit.
    """
    if method == NO_METHOD:
        if keys:
            found = dotted([next(iter(keys))])
            raise ExperimentError(f"{place}.{found}: expected no key beside {place}.method = 'none'; name a method")
        return None
    if method not in PERSONAL:
        raise ExperimentError(unknown(f"{place}.method", method, "method", [NO_METHOD, *PERSONAL]))
    made: PersonalMethod = _with_keys(PERSONAL[method], method, keys, place, chosen_by="method")
    return made


def _with_keys(kind: type[Any], name: str, keys: dict[str, Any], place: str, *, chosen_by: str) -> Any:
    """Make an object of a dataclass whose fields are the keys of a table.

    Args:
        kind: The dataclass.
        name: The name of it in the experiment.
        keys: The keys.
        place: The place of the keys in the experiment, for the message.
        chosen_by: The key of the table that has the name.

    Raises:
        ExperimentError: When the keys do not fit.
    """
    known = [field.name for field in fields(kind)]
    wrong = [key for key in keys if key not in known]
    # A class of pydantic says itself what is wrong with a key.
    if wrong and not is_pydantic_dataclass(kind):
        raise ExperimentError(unknown(f"{place}.{dotted([wrong[0]])}", wrong[0], "key", known))
    try:
        return kind(**keys)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, keys, kind, place, chosen_by)) from None
    # What a user's own class raises about its keys.
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{place}: {name} refuses its keys: {' '.join(str(error).split())}") from error


def keys_of_algorithm(algorithm: Algorithm[Any] | PersonalMethod) -> dict[str, Any]:
    """Return the keys of an algorithm or method as an experiment file has them; keys that are None are left out."""
    kind = type(algorithm)
    names = {field.name: field.name for field in fields(kind)}  # type: ignore[arg-type]  # it is a dataclass
    if is_pydantic_dataclass(kind):
        names = {name: field.alias or name for name, field in kind.__pydantic_fields__.items()}
    values = {key: getattr(algorithm, name) for name, key in names.items()}
    return {key: value for key, value in values.items() if value is not None}


def _algorithm_class(name: str, place: str) -> type[Any]:
    """Find the class of an algorithm.

    Args:
        name: The name of a registered algorithm, or ``"package.module:Class"``.
        place: The place of its keys in the experiment, for the message.
    """
    key = "algorithm.name" if place == "algorithm" else place
    if name not in ALGORITHMS and ":" not in name:
        raise ExperimentError(unknown(key, name, "algorithm", [*ALGORITHMS, "'package.module:Class'"]))
    try:
        kind = load_users_object(name) if name not in ALGORITHMS else ALGORITHMS[name]
    # An entry point may lead to a module that is gone.
    except (ValueError, ImportError, AttributeError) as error:
        raise ExperimentError(f"{key} = {shown(name)} names no algorithm: {error}") from error
    _require_algorithm(kind, f"{key} = {shown(name)}")
    return kind


def _require_algorithm(kind: Any, place: str) -> None:
    """Refuse what is no class of an algorithm."""
    missing = [method for method in ALGORITHM_METHODS if not callable(getattr(kind, method, None))]
    if not isinstance(kind, type) or not is_dataclass(kind) or missing:
        lacks = f" without {', '.join(missing)}" if missing else ""
        raise ExperimentError(
            f"{place}: expected a dataclass with {', '.join(ALGORITHM_METHODS)}, found {kind!r:.60}{lacks}; "
            "see docs/methods/adding.md"
        )


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
    _require_algorithm(kind, f"algorithm = {algorithm!r:.80}")
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
