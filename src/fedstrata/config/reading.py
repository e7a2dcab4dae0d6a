"""Read an experiment from a file or a mapping, check it, and write it. Neither torch nor any data is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from numbers import Integral
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedstrata.base.errors import DataError, ExperimentError, FedstrataError, PartitionError, RecordError
from fedstrata.base.files import parse_toml, read_file
from fedstrata.base.key_errors import explain, nearest, unknown
from fedstrata.base.limits import (
    DEPTH,
    EXPERIMENT_BYTES,
    MAX_CLIENTS,
)
from fedstrata.base.quoting import dotted, shown
from fedstrata.config.hyperparameters import (
    NO_METHOD,
    algorithm_from,
    keys_of_algorithm,
    personal_from,
    with_named_objects,
)
from fedstrata.config.tables import OWN_TEST, AlgorithmTable, Experiment, PersonalTable
from fedstrata.data import DATASETS, Location, client_values, find, has_own_test, holds_features
from fedstrata.models import MODELS
from fedstrata.objective import check_objective_names
from fedstrata.partition import keys_of

Source = Path | str | Mapping[str, Any] | None
"""A file, the keys themselves, or the experiment that the library carries."""

TABLE_MODEL = "mlp"
"""The network of a table of features for which the experiment names none."""

_SELECTORS = {
    "partition": ("scheme", "iid"),
    "model": ("name", ""),
    "algorithm": ("name", "strata"),
    "personal": ("method", "none"),
}
"""The tables in which one key decides what the other keys mean: this key and its default."""


def load_experiment(
    source: Source = None,
    sets: Sequence[str] = (),
    *,
    tables: Mapping[str, Any] | None = None,
    find_data: bool = True,
) -> Experiment:
    """Read and check an experiment.

    Args:
        source: A file, a mapping of the same keys, or None for the experiment that the library carries.
        sets: Changes as ``"dotted.key=value"``, the value as in TOML, or else a plain string. One that names another
            partition, model or algorithm drops the options that the source has for its own.
        tables: Tables that replace those of the source. As in a source that is a mapping, ``algorithm`` may be an
            object of an algorithm or its class, and ``model`` what makes a network.
        find_data: Whether data that cannot be found are an error. What is made of a finished run needs none.

    Returns:
        The experiment, with every default written out.

    Raises:
        InputError: When a key or value is wrong. The message is one line with the key, its value and what is expected.
    """
    given = dict(source) if isinstance(source, Mapping) else _read_file(source)
    given = _as_in_file(with_named_objects({**given, **(tables or {})}))
    # `algorithm = "ifca"` is short for `algorithm = {name = "ifca"}`, and likewise for models and partitions.
    short = {table: {key: given[table]} for table, (key, _) in _SELECTORS.items() if isinstance(given.get(table), str)}
    given = _as_in_file(_override({**given, **short}, [_parse_set(text) for text in sets]))
    try:
        draft = Experiment.model_validate(given)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, given, Experiment)) from None
    experiment = _resolve(draft)
    # Last, as it may have to download.
    if not find_data:
        return experiment
    location = _find_data(experiment)
    experiment = _with_network(experiment, location)
    if "partition" not in draft.model_fields_set and location.client_column:
        # The clients are as given as their data, and so is their order in Python.
        order = "given" if location.kind == "memory" else "ascending"
        natural = {"scheme": "natural", "column": location.client_column, "order": order}
        experiment = experiment.model_copy(update={"partition": natural})
    return _with_data(experiment, location)


def plain_keys(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as plain JSON values, every default written out."""
    return experiment.model_dump(mode="json", exclude_none=True)


def completed_keys(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of an older experiment with the defaults of those that it did not have."""
    try:
        return plain_keys(load_experiment(keys, find_data=False))
    # Then they are compared as they are, which names what differs.
    except FedstrataError:
        return keys


def dumps(experiment: Experiment) -> str:
    """Return the text of a file that `load_experiment` reads as the same experiment."""
    keys = experiment.model_dump(exclude_none=True)
    return tomli_w.dumps({key: value for key, value in keys.items() if value != {}})


def _read_file(source: Path | str | None) -> dict[str, Any]:
    """Read the keys of an experiment file."""
    if source is None:
        return parse_toml((files("fedstrata") / "default.toml").read_bytes())
    try:
        content = read_file(Path(os.path.realpath(source)), EXPERIMENT_BYTES)
    except (OSError, ValueError, RecordError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExperimentError(f"{shown(str(source))}: expected the path of an experiment file: {reason}") from None
    try:
        return parse_toml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ExperimentError(f"{source}: line {line} is not UTF-8; save the file as UTF-8") from None
    # For too long numbers, the parser of TOML raises an error of Python's own.
    except ValueError as error:
        raise ExperimentError(f"{source}: not TOML: {error}") from None


def _as_in_file(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Turn mappings into dicts with texts as keys, tuples into lists, and numpy's whole numbers into Python's."""
    if len(path) > DEPTH:
        raise ExperimentError(f"{dotted(path)}: expected at most {DEPTH} levels of tables and lists, found more")
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str | Integral)]:
            raise ExperimentError(f"{dotted((*path, shown(wrong[0])))}: expected a key that is a string")
        return {str(key): _as_in_file(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_in_file(item, (*path, "[]")) for item in value]
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


def _parse_set(text: str) -> tuple[list[str], Any]:
    """Split one `--set` into its key and its value."""
    key, equals, value = text.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys) or len(keys) > DEPTH or len(text) > EXPERIMENT_BYTES:
        raise ExperimentError(f"--set {shown(text)}: expected KEY=VALUE with a dotted key, such as local.lr=0.1")
    # `--set algorithm=ifca` is short for `--set algorithm.name=ifca`.
    if keys[0] in _SELECTORS and len(keys) == 1 and not value.lstrip().startswith("{"):
        keys = [keys[0], _SELECTORS[keys[0]][0]]
    return keys, parse_value(value)


def parse_value(text: str) -> Any:
    """Read a value as in TOML; what is not TOML is plain text."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _override(given: dict[str, Any], pairs: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """Replace some keys. A new partition, model or algorithm first drops the options of the old."""
    given = dict(given)
    for (table, *rest), value in pairs:
        selector, default = _SELECTORS.get(table, ("", ""))
        current = given.get(table, {})
        if rest == [selector] and isinstance(current, dict) and current.get(selector, default) != value:
            given[table] = {}
    for keys, value in pairs:
        given = _replace(given, keys, value)
    return given


def _replace(given: dict[str, Any], keys: list[str], value: Any, above: tuple[str, ...] = ()) -> dict[str, Any]:
    key, *rest = keys
    if not rest:
        return {**given, key: value}
    inner = given.get(key, {})
    path = (*above, key)
    if not isinstance(inner, dict):
        raise ExperimentError(f"{dotted((*path, *rest))}: expected a key, but {dotted(path)} is no table")
    return {**given, key: _replace(inner, rest, value, path)}


def _resolve(draft: Experiment) -> Experiment:
    """Fill in what depends on the names: the network of the data, the defaults of partition and algorithm."""
    scheme = draft.scheme
    known = DATASETS.get(draft.data.name)
    if known is not None:
        scheme.check(clients=draft.data.clients, classes=known.classes)
        # Before anything is made whose size grows with the clients. Whether the samples suffice is known later.
        samples = known.samples * draft.data.copies
        if samples and draft.data.clients > samples:
            raise PartitionError(
                f"data.clients = {draft.data.clients}: expected at most {samples}, as {known.name} has so many samples"
            )
    model = draft.model.model_copy(update={"name": draft.model.name or (known.model if known else "")})
    # Whether its options fit is known once torch may be imported.
    if model.name and model.name not in MODELS and ":" not in model.name:
        raise ExperimentError(unknown("model.name", model.name, "model", [*MODELS, "'package.module:factory'"]))
    local = draft.local.completed()
    check_objective_names(loss=local.loss, metric=local.metric or "accuracy", transform=local.transform)
    for other, options in draft.algorithms.items():
        keys = dict(options)
        if "name" in options:
            _check_personal(keys.pop("personal", {}), f"algorithms.{other}.personal")
        algorithm_from(str(keys.pop("name", other)), keys, f"algorithms.{other}")
    # The keys that [algorithms] has for the algorithm of the run belong to it; those of [algorithm] come first.
    name = draft.algorithm.name
    others = dict(draft.algorithms)
    own = others.pop(name, {}) if "name" not in others.get(name, {}) else {}
    algorithm = algorithm_from(name, {**own, **draft.algorithm.options})
    keys = keys_of_algorithm(algorithm)
    method = draft.personal_of()
    personal = {} if method is None else keys_of_algorithm(method)
    return draft.model_copy(
        update={
            "partition": keys_of(scheme),
            "model": model,
            "local": local,
            "server": draft.server.completed,
            "algorithm": AlgorithmTable.model_validate({"name": name, **_as_in_file(keys)}),
            "personal": PersonalTable.model_validate({"method": draft.personal.method, **_as_in_file(personal)}),
            "algorithms": others,
        }
    )


def _check_personal(table: Any, place: str) -> None:
    """Refuse a table ``[algorithms.<other>.personal]`` that no run could have."""
    if not isinstance(table, Mapping):
        raise ExperimentError(f"{place} = {shown(table)}: expected a table, such as {{method = 'best'}}")
    keys = dict(table)
    personal_from(str(keys.pop("method", NO_METHOD)), keys, place)


def _find_data(experiment: Experiment) -> Location:
    """Find the data."""
    name = experiment.data.name
    try:
        return find(name, experiment.data.root)
    except DataError as error:
        near = "" if name in DATASETS else nearest(name, DATASETS)
        raise DataError(f"data.name = {shown(name)}: {error}{near and f'; {near}'}") from None


def _with_network(experiment: Experiment, location: Location) -> Experiment:
    """Fill in the network of a table of features; refuse other data of the user's own without a network."""
    if experiment.model.name:
        return experiment
    if experiment.data.tokens or not holds_features(location, experiment.reading):
        raise ExperimentError(
            f"model.name: expected a network, as data.name = {shown(location.name)} is no table of features and has "
            f"none of its own; name one of {', '.join(MODELS)}, or 'package.module:factory'"
        )
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"name": TABLE_MODEL})})


def _with_data(experiment: Experiment, location: Location) -> Experiment:
    """Fill in the keys of ``[data]`` that were not given and depend on what the files hold."""
    given = experiment.data.model_fields_set
    found: dict[str, Any] = {}
    if "clients" not in given and experiment.partition["scheme"] == "natural":
        found["clients"] = _count_clients(location, experiment.partition["column"])
    # Of digits, and of data of the user's own, clients take all samples there are.
    if "samples" not in given and (location.info is None or location.info.samples > 0):
        found["samples"] = 0
    folds = experiment.data.folds
    if (folds or "test" not in given) and location.info is None and has_own_test(location):
        if folds:
            raise ExperimentError(
                f"data.folds = {folds}: expected data without test samples of their own, found some; leave data.folds "
                "out, or mark all samples for training"
            )
        found["test"] = OWN_TEST
    return experiment.model_copy(update={"data": experiment.data.model_copy(update=found)})


def _count_clients(location: Location, column: str) -> int:
    """Return the number of values of a column, which are the clients."""
    count = len(client_values(location, column))
    if count > MAX_CLIENTS:
        raise PartitionError(
            f"partition.column = {shown(column)}: {location.name} has {count:,} values of it; expected at most "
            f"{MAX_CLIENTS:,} clients, so name a column of clients"
        )
    return count
