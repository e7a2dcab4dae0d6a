"""The experiments of a sweep: every combination of some values of some keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedstrata.base.errors import ExperimentError
from fedstrata.base.files import parse_toml
from fedstrata.base.quoting import shown
from fedstrata.config.reading import Source, load_experiment, parse_value
from fedstrata.config.selection import check_seeds, comparison_folder
from fedstrata.config.tables import Experiment

SWEPT_TABLES = ("algorithm", "personal", "local", "server", "cohort", "model")
"""The tables whose keys a sweep may vary. All its runs have the same clients with the same samples."""

SWEPT_DATA_KEYS = ("categories", "impute", "indicators", "inputs", "public", "scale", "size", "statistics")
"""The keys of ``[data]`` that a sweep may vary: every client has the same samples, whatever is read of them."""

_Grid = Mapping[str, Sequence[Any]]
"""The values of each key, by the dotted name of the key."""


class SweepPlan(NamedTuple):
    """What a sweep runs.

    Attributes:
        experiments: An experiment for each seed and setting, all settings of the first seed first.
        settings: The value of each key, by the label of the setting and the name of the key.
        folder: The folder of the sweep.
        grid: The values of each key as texts of TOML, by the dotted name of the key.
    """

    experiments: tuple[Experiment, ...]
    settings: Mapping[str, Mapping[str, Any]]
    folder: Path
    grid: Mapping[str, tuple[str, ...]]


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read the keys and values of a grid.

    Args:
        texts: Texts such as ``"local.lr=0.01,0.05"``. Values are as in TOML, or else plain texts.

    Raises:
        ExperimentError: When a text is of another form, or a key is given twice.
    """
    grid = dict[str, list[Any]]()
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key or not values.strip():
            raise ExperimentError(
                f"--grid {shown(text)}: expected KEY=VALUE,VALUE with a dotted key, such as local.lr=0.01,0.05"
            )
        if key in grid:
            raise ExperimentError(f"--grid {shown(text)}: {key} is given twice; put all its values into one --grid")
        grid[key] = _values(values)
    return grid


def _values(text: str) -> list[Any]:
    """The values between commas: as in TOML, and what is not TOML as plain text."""
    try:
        parsed = parse_toml(f"values = [{text}]")
        if parsed.keys() == {"values"}:
            return list(parsed["values"])
    except ValueError:
        pass
    return [parse_value(part.strip()) for part in text.split(",")]


def choose_sweep(
    source: Source,
    grid: _Grid,
    seeds: Iterable[int] | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
) -> SweepPlan:
    """Choose the experiments of a sweep and its folder.

    Args:
        source: The experiment, as `load_experiment` takes it.
        grid: The values of each key, by its dotted name: keys of the tables `SWEPT_TABLES`, but for ``local.metric``,
            and those of ``[data]`` in `SWEPT_DATA_KEYS`.
        seeds: The seeds that each setting is run with; None is `Experiment.default_seeds`.
        sets: Changes for all settings, as `load_experiment` takes them.
        out: The folder of the sweep; None is ``runs/<file>-sweep``, numbered from the second on.
        resume: Whether to go on with the sweep in the folder. Runs that it does not hold yet are added.

    Raises:
        InputError: When the experiment, a key, a value or a seed is wrong, or two settings have other metrics. Also
            when the folder holds something (to start) or no run of the sweep (to resume).
    """
    base = load_experiment(source, sets)
    _check_grid(grid)
    chosen = check_seeds(seeds, base, prod(map(len, grid.values())))
    # Every combination, the last key changing fastest.
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    settings = {_label(setting): setting for setting in combinations}
    experiments = [
        load_experiment(
            source,
            [*sets, *(f"{key}={_toml(value)}" for key, value in setting.items())],
            tables={"label": label},
        )
        for label, setting in settings.items()
    ]
    _require_one_metric(experiments)
    runs, folder = comparison_folder(experiments, chosen, source, "sweep", out, resume=resume)
    return SweepPlan(runs, settings, folder, {key: tuple(map(_toml, values)) for key, values in grid.items()})


def _check_grid(grid: _Grid) -> None:
    """Refuse keys by which no setting could be chosen fairly, and values that are no list."""
    for key, values in grid.items():
        table, _, name = key.partition(".")
        fits = table in SWEPT_TABLES or (table == "data" and name in SWEPT_DATA_KEYS)
        if not fits or key == "local.metric":
            known = [*SWEPT_TABLES, *(f"data.{name}" for name in SWEPT_DATA_KEYS)]
            raise ExperimentError(
                f"--grid {key}: expected a key of {', '.join(known)}, but for local.metric: settings are compared by "
                "one metric on the same samples; seeds have the option --seeds 0,1,2"
            )
        if isinstance(values, str) or not isinstance(values, Collection):
            raise ExperimentError(f"--grid {key}: expected a list of values, found {shown(values)}")


def _require_one_metric(experiments: Sequence[Experiment]) -> None:
    """Refuse settings whose accuracies are those of other metrics, as the default follows from the loss."""
    metrics = list(dict.fromkeys(each.local.metric or "accuracy" for each in experiments))
    if len(metrics) > 1:
        raise ExperimentError(
            f"--grid local.loss: expected losses with one metric, found {' and '.join(metrics)}; name one for all "
            "settings by --set local.metric=NAME"
        )


def _label(setting: Mapping[str, Any]) -> str:
    """A name such as ``"lr=0.05 k=4"``; keys whose last parts are equal are written out."""
    last = [key.rpartition(".")[2] for key in setting]
    names = [key if last.count(short) > 1 else short for key, short in zip(setting, last, strict=True)]
    return " ".join(f"{name}={_text(value)}" for name, value in zip(names, setting.values(), strict=True))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    """A value as TOML writes it, in one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
