"""From run folders to a comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, folder_lock, parse_toml, read_file, root_folder
from fedstrata.build.problem import objective_of
from fedstrata.comparison.document import Comparison, RunFailure, write_comparison
from fedstrata.config import Experiment, dumps, folder_of
from fedstrata.config.folders import experiment_file_of, next_run_folder, require_new_folder
from fedstrata.config.hyperparameters import NO_METHOD
from fedstrata.config.selection import labels_of
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.arrays import last_scores
from fedstrata.records.folder import Folder
from fedstrata.report.comparison.folder import JobCount, Outcome
from fedstrata.results.run import Run

_MAY_DIFFER = ("algorithm", "algorithms", "personal", "label", "seed", "engine", "probe", "records", "report")
"""The tables in which the runs of a comparison may differ."""

_DATA_MAY_DIFFER = ("root", "memory")
"""The keys of ``[data]`` that say where the data are, and no more."""


def finished(folder: Path, rounds: int) -> bool:
    """Whether a folder is that of a run that has finished as many rounds; its summary is the last file that it writes.

    Raises:
        RecordError: When the summary is damaged.
    """
    return (folder / "summary.json").exists() and int(Folder(folder).summary()["rounds"]) >= rounds


def conclude(
    experiments: Sequence[Experiment], out: Path, failures: Mapping[Path, RunFailure], jobs: JobCount
) -> Comparison:
    """Write down what came of a comparison. A run whose records cannot be compared counts as failed.

    Args:
        experiments: The experiments of all runs.
        out: The folder of the comparison.
        failures: Why runs are not finished, by their folders; all others are.
        jobs: The number of shared jobs.
    """
    keys = {folder_of(out, each): _common_keys(tomllib.loads(dumps(each))) for each in experiments}
    runs = list[Outcome]()
    for experiment, (folder, common) in zip(experiments, keys.items(), strict=True):
        failure = failures.get(folder)
        if failure is None:
            try:
                outcome = _read_outcome(experiment.title, experiment.seed, folder)
                # The settings of a sweep may have other data on purpose.
                _refuse_other_data(outcome, [run for run in runs if keys[run.folder] == common])
            except RecordError as error:
                failure = RunFailure.of(error)
        if failure is not None:
            outcome = Outcome(experiment.title, experiment.seed, folder, **asdict(failure))
        runs.append(outcome)
    return _written(out, _shared_keys(list(keys.values())), runs, objective_of(experiments[0]).metric_info, jobs)


def tabulate(runs: Sequence[Run | Path | str], out: Path | str | None = None) -> Comparison:
    """Compare finished runs.

    Args:
        runs: The runs, or their folders. Runs of one algorithm with different keys are told apart by these.
        out: The folder of the comparison; None is ``runs/compare``, numbered from the second on.

    Raises:
        RecordError: When one of them is no finished run, when they differ in more than algorithm and seed, when two
            are the same run, or when the folder of the comparison holds something.
    """
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    folder_out = next_run_folder("compare", resume=False) if out is None else Path(out)
    require_new_folder(folder_out)
    experiments = [_read_experiment(folder) for folder in folders]
    first = _common_keys(experiments[0])
    found = list[Outcome]()
    for folder, experiment, name in zip(folders, experiments, _names(experiments), strict=True):
        common = _common_keys(experiment)
        wrong = [key for key in {**first, **common} if common.get(key) != first.get(key)]
        if wrong:
            raise RecordError(
                f"expected runs of one experiment, found another {wrong[0]!r} in {folder} than in {folders[0]}; "
                "compare runs that differ in algorithm, personal method and seed only"
            )
        if Folder(folder).metric() != Folder(folders[0]).metric():
            raise RecordError(
                f"expected runs with one metric, found another metric.json in {folder} than in {folders[0]}; compare "
                "runs with the same"
            )
        run = _read_outcome(name, experiment["seed"], folder)
        _refuse_other_data(run, found)
        same = [other.folder for other in found if (other.algorithm, other.seed) == (run.algorithm, run.seed)]
        if same:
            twice = f"{run.algorithm} with seed {run.seed}"
            raise RecordError(f"expected different runs, found {twice} in {same[0]} and in {folder}; leave one out")
        found.append(run)
    metric = Folder(folders[0]).metric()
    with folder_lock(root_folder(folder_out)):
        return _written(folder_out, first, found, metric, None)


def _written(
    out: Path, common: Mapping[str, Any], runs: Sequence[Outcome], metric: MetricInfo, jobs: JobCount | None
) -> Comparison:
    """Write a comparison, with the names of its clients and what looks wrong with their data, each line once."""
    found = [Folder(run.folder).data() for run in runs if run.summary is not None]
    records = [record for record in found if record is not None]
    warnings = tuple(dict.fromkeys(line for record in records for line in record.warnings))
    names = records[0].names if records else ()  # All runs of a comparison have the same clients.
    return write_comparison(Comparison(out, common, tuple(runs), jobs, warnings, names, metric=metric))


def _refuse_other_data(run: Outcome, runs: Sequence[Outcome]) -> None:
    """Refuse a run whose clients had other samples than in an earlier run with its seed: files may have changed.

    Raises:
        RecordError: When their digests are known and differ.
    """
    own = (run.summary or {}).get("data_digest")
    for other in runs:
        known = (other.summary or {}).get("data_digest")
        if other.seed == run.seed and own and known and own != known:
            raise RecordError(
                f"expected runs on the same data, found other samples of its clients in {run.folder} than in "
                f"{other.folder}; run one of them again"
            )


def _common_keys(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that all runs of a comparison have in common, wherever the data lie."""
    common = {key: value for key, value in experiment.items() if key not in _MAY_DIFFER}
    return {**common, "data": {key: value for key, value in common["data"].items() if key not in _DATA_MAY_DIFFER}}


def _shared_keys(experiments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys that have one value in all experiments; the others are the settings of a sweep."""
    first, *others = experiments
    shared = dict[str, Any]()
    for name, value in first.items():
        if isinstance(value, dict):
            tables = [other.get(name, {}) for other in others]
            shared[name] = {key: own for key, own in value.items() if all(each.get(key) == own for each in tables)}
        elif all(other.get(name) == value for other in others):
            shared[name] = value
    return shared


def _read_experiment(folder: Path) -> dict[str, Any]:
    """The keys of a run's experiment file."""
    path = experiment_file_of(folder)
    try:
        return parse_toml(read_file(path, MOST_BYTES_OF_EXPERIMENT))
    except ValueError as error:
        raise RecordError(f"{path}: expected the experiment of a run, found: {error}; run again") from None


def _names(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each run in the table: its label, or that of its algorithm with the keys in which it differs."""
    keys = list[dict[str, Any]]()
    for experiment in experiments:
        personal = experiment.get("personal", {})
        if personal.get("method", NO_METHOD) == NO_METHOD:
            personal = {}
        keys.append({**experiment["algorithm"], **{f"personal.{key}": value for key, value in personal.items()}})
    pairs = zip(experiments, labels_of(keys), strict=True)
    return [str(experiment.get("label") or label) for experiment, label in pairs]


def _read_outcome(name: str, seed: int, folder: Path) -> Outcome:
    """The outcome of a finished run, from its folder."""
    summary = Folder(folder).summary()
    # Where the metric of a client is not defined, as R² of one sample, its score is unknown.
    known = {client: score for client, (_, score) in last_scores(folder).items()}
    if not known:
        raise RecordError(
            f"{folder / 'clients'}: expected the last score of at least one client, found none that is known; run "
            "again, with more test samples of each client or another local.metric if its metric is not defined"
        )
    return Outcome(name, seed, folder, summary, known)
