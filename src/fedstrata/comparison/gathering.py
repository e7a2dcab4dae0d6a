"""From run folders to a comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.comparison.document import Comparison, write
from fedstrata.comparison.ledger import Jobs
from fedstrata.comparison.table import Failure, Outcome
from fedstrata.config import Experiment, dumps, folder_of
from fedstrata.config.folder import numbered, vacant
from fedstrata.errors import RecordError
from fedstrata.records import Folder

FREE = ("algorithm", "algorithms", "seed", "engine", "probe")
"""What runs that are compared may differ in."""


def finished(folder: Path) -> bool:
    """Whether a folder is that of a finished run; the summary is the last thing that one writes."""
    return (folder / "summary.json").is_file()


def conclude(experiments: Sequence[Experiment], out: Path, failures: Mapping[Path, Failure], jobs: Jobs) -> Comparison:
    """Write down what came of a comparison.

    Args:
        experiments: of all runs.
        out: folder of the comparison.
        failures: by run folder; all other runs are finished.
        jobs: that were shared.
    """
    runs = []
    for experiment in experiments:
        folder = folder_of(out, experiment)
        outcome = Outcome(experiment.algorithm.name, experiment.seed, folder)
        failure = failures.get(folder)
        runs.append(replace(outcome, **asdict(failure)) if failure else _told(outcome))
    return write(Comparison(out, _common(tomllib.loads(dumps(experiments[0]))), tuple(runs), jobs))


def tabulate(folders: Sequence[Path], out: Path | None = None) -> Comparison:
    """Compare finished runs.

    Args:
        folders: of the runs. Those of one algorithm with different keys are told apart by these.
        out: folder of the comparison; None is ``runs/compare``, numbered from the second on.

    Raises:
        RecordError: when one of them is no finished run, when they are not of one experiment but for algorithm and
            seed, when two are the same run, or when the folder holds something.
    """
    folder_out = numbered("compare", resume=False) if out is None else out
    vacant(folder_out)
    settings = {folder: _settings(folder) for folder in folders}
    first = _common(settings[folders[0]])
    for folder, found in settings.items():
        own = _common(found)
        wrong = [key for key in {**first, **own} if own.get(key) != first.get(key)]
        if wrong:
            raise RecordError(
                f"expected runs of one experiment, found another {wrong[0]!r} in {folder} than in {folders[0]}; "
                "compare runs that differ in algorithm and seed only"
            )
    names, runs = _called(settings), list[Outcome]()
    for folder, found in settings.items():
        run = Outcome(names[folder], found["seed"], folder)
        same = [other.folder for other in runs if (other.algorithm, other.seed) == (run.algorithm, run.seed)]
        if same:
            twice = f"{run.algorithm} with seed {run.seed}"
            raise RecordError(f"expected different runs, found {twice} in {same[0]} and in {folder}; leave one out")
        runs.append(_told(run))
    return write(Comparison(folder_out, first, tuple(runs)))


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an experiment that all runs of a comparison have in common, wherever the data lie."""
    common = {key: value for key, value in settings.items() if key not in FREE}
    return {**common, "data": {key: value for key, value in common["data"].items() if key != "root"}}


def _settings(folder: Path) -> dict[str, Any]:
    """The experiment of a run."""
    try:
        found = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"expected a run folder at {folder}, found no experiment.toml to read: {error}") from None
    Folder(folder).summary()
    return found


def _called(settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """What the algorithm of each run is called: its name, with the keys in which it differs from others of the name."""
    called, methods = {}, {folder: found["algorithm"] for folder, found in settings.items()}
    for folder, own in methods.items():
        rivals = [other for other in methods.values() if other["name"] == own["name"]]
        apart = [key for key, value in own.items() if any(rival.get(key) != value for rival in rivals)]
        called[folder] = " ".join([own["name"], *(f"{key}={own[key]}" for key in apart)])
    return called


def _told(run: Outcome) -> Outcome:
    """A run with what its folder says."""
    summary = Folder(run.folder).summary()
    last = run.folder / "clients" / f"{summary['rounds']:05d}.parquet"
    try:
        scores = pq.read_table(last, columns=["client", "accuracy"])
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"expected the scores of the clients in {last}, found: {error}; leave the run out") from None
    return replace(run, summary=summary, clients=dict(zip(*scores.to_pydict().values(), strict=True)))
