"""From run folders to a comparison."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.comparison.document import Comparison, write
from fedstrata.comparison.ledger import Jobs
from fedstrata.comparison.table import Failure, Outcome, Who, measured
from fedstrata.config import Experiment, dumps, folder_of
from fedstrata.config.folder import numbered, vacant
from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, parse_toml, read_file, refuse_links, root_folder
from fedstrata.folder_lock import folder_lock
from fedstrata.records import Folder
from fedstrata.records.schema import ENTRIES
from fedstrata.report.comparison import COLUMNS

MOST_BYTES = 512 * 2**20
"""A larger file of scores is not read."""

FREE = ("algorithm", "algorithms", "seed", "engine", "probe", "records")
"""What runs that are compared may differ in."""


def finished(folder: Path) -> bool:
    """Whether a folder is that of a finished run; the summary is the last thing that one writes."""
    return (folder / "summary.json").is_file()


def conclude(experiments: Sequence[Experiment], out: Path, failures: Mapping[Who, Failure], jobs: Jobs) -> Comparison:
    """Write down what came of a comparison.

    Args:
        experiments: of all runs.
        out: folder of the comparison.
        failures: why runs are not finished; all others are.
        jobs: that were shared.
    """
    runs, left_out = list[Outcome](), dict[Path, str]()
    for experiment in experiments:
        folder = folder_of(out, experiment)
        who = Who(experiment.seed, experiment.algorithm.name)
        outcome = Outcome(who.algorithm, who.seed, folder)
        if who in failures:
            runs.append(replace(outcome, **asdict(failures[who])))
            continue
        try:
            runs.append(replace(outcome, **_told(folder)._asdict()))
        except RecordError as error:
            left_out[folder] = str(error)
    return write(Comparison(out, _common(tomllib.loads(dumps(experiments[0]))), tuple(runs), jobs, left_out))


def tabulate(folders: Sequence[Path], out: Path | None = None) -> Comparison:
    """Compare finished runs.

    Args:
        folders: of the runs. Those of one algorithm with different keys are told apart by these. One that is damaged
            or not finished is left out.
        out: folder of the comparison; None is ``runs/compare``, numbered from the second on.

    Raises:
        RecordError: when none of them is a finished run, when they are not of one experiment but for algorithm and
            seed, when two are the same run, or when the folder holds something.
    """
    folder_out = numbered("compare", resume=False) if out is None else out
    vacant(folder_out)
    settings, said, left_out = dict[Path, Mapping[str, Any]](), dict[Path, _Told](), dict[Path, str]()
    for folder in folders:
        try:
            settings[folder], said[folder] = _settings(folder), _told(folder)
        except RecordError as error:
            left_out[folder] = str(error)
    if not settings:
        raise RecordError(next(iter(left_out.values())))
    origin, *_ = settings
    first, names, runs = _common(settings[origin]), _called(settings), list[Outcome]()
    for folder, found in settings.items():
        own = _common(found)
        wrong = [key for key in {**first, **own} if own.get(key) != first.get(key)]
        if wrong:
            raise RecordError(
                f"expected runs of one experiment, found another {wrong[0]!r} in {folder} than in {origin}; "
                "compare runs that differ in algorithm and seed only"
            )
        run = Outcome(names[folder], found["seed"], folder, *said[folder])
        same = [other.folder for other in runs if (other.algorithm, other.seed) == (run.algorithm, run.seed)]
        if same:
            twice = f"{run.algorithm} with seed {run.seed}"
            raise RecordError(f"expected different runs, found {twice} in {same[0]} and in {folder}; leave one out")
        runs.append(run)
    with folder_lock(root_folder(folder_out)):
        return write(Comparison(folder_out, first, tuple(runs), left_out=left_out))


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an experiment that all runs of a comparison have in common, wherever the data lie."""
    common = {key: value for key, value in settings.items() if key not in FREE}
    return {**common, "data": {key: value for key, value in common["data"].items() if key != "root"}}


def _settings(folder: Path) -> dict[str, Any]:
    """The experiment of a run."""
    path = folder / "experiment.toml"
    refuse_links(folder, ENTRIES)
    try:
        found = parse_toml(read_file(path, MOST_BYTES_OF_EXPERIMENT))
    except (OSError, ValueError) as error:
        raise RecordError(f"expected a run folder at {folder}, found no experiment to read: {error}") from None
    tables = (found.get("algorithm"), found.get("data"))
    if not all(isinstance(table, dict) and "name" in table for table in tables) or "seed" not in found:
        raise RecordError(
            f"{path}: expected the experiment of a run, with its algorithm, data and seed; restore it or run again"
        )
    return found


def _called(settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """What the algorithm of each run is called: its name, with the keys in which it differs from others of the name."""
    called, methods = {}, {folder: found["algorithm"] for folder, found in settings.items()}
    for folder, own in methods.items():
        rivals = [other for other in methods.values() if other["name"] == own["name"]]
        apart = [key for key, value in own.items() if any(rival.get(key) != value for rival in rivals)]
        called[folder] = " ".join([own["name"], *(f"{key}={own[key]}" for key in apart)])
    return called


class _Told(NamedTuple):
    """What the folder of a finished run says."""

    summary: Mapping[str, Any]
    clients: Mapping[int, float]


def _told(folder: Path) -> _Told:
    summary, path = Folder(folder).summary(), folder / "summary.json"
    try:
        measures = {key: measured(summary, key) for key in COLUMNS}
        last = folder / "clients" / f"{summary['rounds']:05d}.parquet"
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: expected the summary of a run, found {error!r}; restore it or run again") from None
    for key, value in measures.items():
        if not _finite(value) and (key, value) != ("ari", None):  # which a partition without hidden truth has not
            raise RecordError(f"{path}: expected a number for {key}, found {value!r}; restore it or run again")
    try:
        table = pq.read_table(io.BytesIO(read_file(last, MOST_BYTES)), columns=["client", "accuracy"])
        clients, accuracies = table.to_pydict().values()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RecordError(
            f"expected the scores of the clients in {last}, found: {error}; restore it or run again"
        ) from None
    if not all(map(_finite, accuracies)):
        raise RecordError(f"{last}: expected an accuracy for every client, found others; restore it or run again")
    return _Told(summary, dict(zip(clients, accuracies, strict=True)))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)
