"""From a file or a mapping to a checked experiment, and back."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedstrata.config.tables import Experiment, Method, Model, algorithm_from, too_large
from fedstrata.config.toml import bounded, parse
from fedstrata.data import DATASETS, find
from fedstrata.errors import DataError, ExperimentError, PartitionError
from fedstrata.key_errors import explain, nearest, unknown
from fedstrata.limits import DEPTH, EXPERIMENT_BYTES, OPTION, OPTIONS, irregular
from fedstrata.models import MODELS
from fedstrata.partition import keys_of
from fedstrata.quoting import dotted, shown

Source = Path | str | Mapping[str, Any] | None
"""A file, the keys themselves, or the experiment that the library carries."""

SELECTORS = {"partition": ("scheme", "iid"), "model": ("name", ""), "algorithm": ("name", "strata")}
"""Tables whose other keys mean something only for the thing that this one names, and what it is by default."""


GIVEN = ("shape", "classes", "seed")
"""What every network is given, so that no option of a network can have this name."""


def load(source: Source = None, sets: Sequence[str] = ()) -> Experiment:
    """Read and check an experiment; neither torch nor any data is read.

    Args:
        source: a file, a mapping of the same keys, or None for the experiment that the library carries.
        sets: ``"dotted.key=value"``, the value as in TOML, or else a plain string. One that names another
            partition, model or algorithm drops the options that the source has for its own.

    Returns:
        The experiment, with every default written out.

    Raises:
        InputError: in one line, with the key, its value and what is allowed.
    """
    if len(sets) > OPTIONS:
        raise ExperimentError(f"--set: expected at most {OPTIONS:,} keys, found {len(sets):,}; use a file")
    if isinstance(source, Mapping):
        bounded(source)
    given = _plain(source) if isinstance(source, Mapping) else _read(source)
    given = _override(given, [_pair(text) for text in sets])
    bounded(given)
    try:
        experiment = Experiment.model_validate(given)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, given, Experiment)) from None
    experiment = _resolve(experiment)
    # Last, as it may have to download.
    _find(experiment)
    return experiment


def dumps(experiment: Experiment) -> str:
    """The text of a file that `load` reads as the same experiment."""
    keys = experiment.model_dump(exclude_none=True)
    return tomli_w.dumps({key: value for key, value in keys.items() if value != {}})


def _read(source: Path | str | None) -> dict[str, Any]:
    if source is None:
        return tomllib.loads((files("fedstrata") / "default.toml").read_text(encoding="utf-8"))
    path = Path(source)
    try:
        if reason := irregular(path):
            raise ExperimentError(f"{shown(str(source))}: expected the path of an experiment file: {reason}")
        # The size is what is read, not what the system says: a file of the system's own says 0.
        with path.open("rb") as file:
            content = file.read(EXPERIMENT_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ExperimentError(f"{shown(str(source))}: expected the path of an experiment file: {reason}") from None
    if len(content) > EXPERIMENT_BYTES:
        raise ExperimentError(
            f"{source}: expected an experiment file of at most {EXPERIMENT_BYTES:,} bytes, found more"
        )
    try:
        text = content.decode("utf-8-sig")
        return parse(text)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ExperimentError(f"{source}: line {line} is not UTF-8; save the file as UTF-8") from None
    # The parser of TOML meets too long numbers with an error of Python's own.
    except ValueError as error:
        reason = str(error).replace("end of document", f"line {len(text.splitlines())}, the end")
        raise ExperimentError(f"{source}: not TOML: {reason}") from None


def _plain(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Mappings as dicts and tuples as lists, as a file would have them."""
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise ExperimentError(f"{dotted((*path, shown(wrong)))}: expected a key that is a string")
        return {key: _plain(item, (*path, key)) for key, item in value.items()}
    return [_plain(item, path) for item in value] if isinstance(value, list | tuple) else value


def _pair(text: str) -> tuple[list[str], Any]:
    """The key and the value of one `--set`."""
    key, equals, value = text.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys) or len(keys) > DEPTH:
        raise ExperimentError(f"--set {shown(text)}: expected KEY=VALUE with a dotted key, such as local.lr=0.1")
    try:
        parsed = parse(f"value = {value}")
    except ValueError:
        return keys, value
    return keys, parsed["value"] if parsed.keys() == {"value"} else value


def _override(given: dict[str, Any], pairs: list[tuple[list[str], Any]]) -> dict[str, Any]:
    """The keys with some of them replaced; in any order, as the options of what is renamed go first."""
    given = dict(given)
    for (table, *rest), value in pairs:
        selector, default = SELECTORS.get(table, ("", ""))
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
    inner, path = given.get(key, {}), (*above, key)
    if not isinstance(inner, dict):
        raise ExperimentError(f"{dotted((*path, *rest))}: expected a key, but {dotted(path)} is no table")
    return {**given, key: _replace(inner, rest, value, path)}


def _resolve(draft: Experiment) -> Experiment:
    """Fill in what depends on the names: the network of the data, the defaults of partition and algorithm."""
    scheme, known = draft.scheme, DATASETS.get(draft.data.name)
    if known is not None:
        scheme.check(clients=draft.data.clients, classes=known.classes)
        # Before anything of the size of the clients is made; whether the samples suffice is known once they are read.
        if known.samples and draft.data.clients > known.samples:
            raise PartitionError(
                f"data.clients = {draft.data.clients}: expected at most {known.samples}, as {known.name} has "
                f"{known.samples} samples"
            )
    model = draft.model.model_copy(update={"name": draft.model.name or (known.model if known else "")})
    _check(model)
    for name, keys in draft.algorithms.items():
        algorithm_from(name, keys, f"algorithms.{name}")
    # What [algorithms] says of the algorithm that is run belongs to it; [algorithm] itself has the last word.
    name, others = draft.algorithm.name, dict(draft.algorithms)
    algorithm = algorithm_from(name, {**others.pop(name, {}), **draft.algorithm.options})
    fields = type(algorithm).__pydantic_fields__  # type: ignore[attr-defined]  # every algorithm is such a dataclass
    values = {field.alias or name: getattr(algorithm, name) for name, field in fields.items()}
    keys = {key: value for key, value in values.items() if value is not None}
    return draft.model_copy(
        update={
            "partition": keys_of(scheme),
            "model": model,
            "algorithm": Method.model_validate({"name": name, **_plain(keys)}),
            "algorithms": others,
        }
    )


def _check(model: Model) -> None:
    """Refuse a network that cannot exist; whether its options fit is known once torch may be imported."""
    if model.name and model.name not in MODELS and ":" not in model.name:
        raise ExperimentError(unknown("model.name", model.name, "model", [*MODELS, "'package.module:factory'"]))
    for key, value in model.options.items():
        if key in GIVEN:
            raise ExperimentError(f"model.{key}: unknown key; a network gets its {key} from the experiment")
        items = value if isinstance(value, list) else [value]
        said = f"{dotted(('model', key))} = {shown(value)}"
        if not all(isinstance(item, str | int | float) for item in items):
            raise ExperimentError(f"{said}: expected a number, a string, true, false or a list of these")
        if problem := too_large(value, OPTION):
            raise ExperimentError(f"{said}: {problem}")


def _find(experiment: Experiment) -> None:
    """Refuse data that are not there, and data of the user's own without a network."""
    name = experiment.data.name
    try:
        find(name, experiment.data.root)
    # Of the system: a name that is too long, a folder that may not be read.
    except (DataError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        near = "" if name in DATASETS else nearest(name, DATASETS)
        raise DataError(f"data.name = {shown(name)}: {reason}{near and f'; {near}'}") from None
    if not experiment.model.name:
        raise ExperimentError(
            f"model.name: expected a network, as data.name = {shown(name)} has none of its own; "
            f"name one of {', '.join(MODELS)}, or 'package.module:factory'"
        )
