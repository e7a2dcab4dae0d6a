"""From run folders to a comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, folder_lock, parse_toml, read_file, refuse_links, root_folder
from fedstrata.build.problem import objective_of
from fedstrata.comparison.document import Comparison, JobCount, Outcome, RunFailure, RunKey, value_of, write_comparison
from fedstrata.config import Experiment, dumps, folder_of
from fedstrata.config.folders import next_run_folder, require_new_folder
from fedstrata.config.hyperparameters import NO_METHOD
from fedstrata.config.selection import labels_of
from fedstrata.objective.metric_info import METRIC_FILE, MetricInfo
from fedstrata.records.arrays import last_scores
from fedstrata.records.folder import Folder
from fedstrata.records.schema import RUN_FOLDER_ENTRIES
from fedstrata.report.comparison.folder import read_document
from fedstrata.report.comparison.words import COLUMNS
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
    experiments: Sequence[Experiment], out: Path, failures: Mapping[RunKey, RunFailure], jobs: JobCount
) -> Comparison:
    """Write down what came of a comparison. Finished runs of before that are not named any more stay in the table.

    Args:
        experiments: The experiments of all runs.
        out: The folder of the comparison.
        failures: Why runs are not finished; all others are.
        jobs: The number of shared jobs.
    """
    keys = {folder_of(out, each): _common_keys(tomllib.loads(dumps(each))) for each in experiments}
    runs = list[Outcome]()
    left_out = dict[Path, str]()
    for experiment, (folder, common) in zip(experiments, keys.items(), strict=True):
        key = RunKey(experiment.seed, experiment.title)
        if key in failures:
            runs.append(Outcome(key.algorithm, key.seed, folder, **asdict(failures[key])))
            continue
        try:
            outcome = _read_outcome(key.algorithm, key.seed, folder)
            # The settings of a sweep may have other data on purpose.
            _refuse_other_data(outcome, [run for run in runs if keys[run.folder] == common])
            runs.append(outcome)
        except RecordError as error:
            left_out[folder] = str(error)
    kept = list[Outcome]()
    for run in _runs_of_before(out, keys):
        try:
            _refuse_other_data(run, runs)
            kept.append(run)
        except RecordError as error:
            left_out[run.folder] = str(error)
    runs = [*kept, *runs]
    warnings, names = _about_data(runs)
    metric = objective_of(experiments[0]).metric_info
    common = _shared_keys(list(keys.values()))
    return write_comparison(Comparison(out, common, tuple(runs), jobs, left_out, warnings, names, metric=metric))


def _runs_of_before(out: Path, keys: Mapping[Path, Mapping[str, Any]]) -> Iterator[Outcome]:
    """The finished runs in the table of a comparison that it does not name any more, if their other keys are equal.

    Args:
        out: The folder of the comparison.
        keys: The keys of each run with which it goes on that all runs have in common, by its folder.
    """
    try:
        document = read_document(out)
    except RecordError:
        return
    # The settings of a sweep are those of its grid.
    before = () if document.sweep else document.runs
    common = next(iter(keys.values()))
    for run in before:
        folder = out / run.folder
        if run.summary is not None and folder not in keys:
            with suppress(RecordError):
                outcome = _read_outcome(run.algorithm, run.seed, folder)
                if _common_keys(_read_experiment(folder)) == common:
                    yield outcome


def tabulate(runs: Sequence[Run | Path | str], out: Path | str | None = None) -> Comparison:
    """Compare finished runs.

    Args:
        runs: The runs, or their folders. Runs of one algorithm with different keys are told apart by these. A run that
            is damaged or not finished is left out.
        out: The folder of the comparison; None is ``runs/compare``, numbered from the second on.

    Raises:
        RecordError: When none of them is a finished run, when they differ in more than algorithm and seed, when two
            are the same run, or when the folder of the comparison holds something.
    """
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    folder_out = next_run_folder("compare", resume=False) if out is None else Path(out)
    require_new_folder(folder_out)
    experiments = dict[Path, Mapping[str, Any]]()
    outcomes = dict[Path, Outcome]()
    left_out = dict[Path, str]()
    for folder in folders:
        try:
            keys = _read_experiment(folder)
            outcomes[folder] = _read_outcome(keys["algorithm"]["name"], keys["seed"], folder)
            experiments[folder] = keys
        except RecordError as error:
            left_out[folder] = str(error)
    if not experiments:
        raise RecordError(next(iter(left_out.values())))
    if len(set(folders)) < len(folders):
        raise RecordError("expected different runs, found one more than once; leave it out")
    first_folder, *_ = experiments
    first = _common_keys(experiments[first_folder])
    names = _names(experiments)
    kept = list[Outcome]()
    for folder, experiment in experiments.items():
        common = _common_keys(experiment)
        wrong = [key for key in {**first, **common} if common.get(key) != first.get(key)]
        if wrong:
            raise RecordError(
                f"expected runs of one experiment, found another {wrong[0]!r} in {folder} than in {first_folder}; "
                "compare runs that differ in algorithm, personal method and seed only"
            )
        run = replace(outcomes[folder], algorithm=names[folder])
        _refuse_other_data(run, kept)
        same = [other.folder for other in kept if (other.algorithm, other.seed) == (run.algorithm, run.seed)]
        if same:
            twice = f"{run.algorithm} with seed {run.seed}"
            raise RecordError(f"expected different runs, found {twice} in {same[0]} and in {folder}; leave one out")
        kept.append(run)
    with folder_lock(root_folder(folder_out)):
        warnings, clients = _about_data(kept)
        metric = _metric_of(kept)
        return write_comparison(
            Comparison(folder_out, first, tuple(kept), None, left_out, warnings, clients, metric=metric)
        )


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


def _metric_of(runs: Sequence[Outcome]) -> MetricInfo:
    """The metric of finished runs, which is that of all of them.

    Raises:
        RecordError: When a function of the user's own was described in another way for some of them.
    """
    first, *others = [Folder(run.folder).metric() for run in runs]
    for run, metric in zip(runs[1:], others, strict=True):
        if metric != first:
            raise RecordError(
                f"expected runs with one metric, found another {METRIC_FILE} in {run.folder} than in "
                f"{runs[0].folder}; run them again with the same description of the metric"
            )
    return first


def _about_data(runs: Sequence[Outcome]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What looks wrong with the data of finished runs, each line once, and the names of their clients.

    All runs of a comparison have the same clients.
    """
    found = [Folder(run.folder).data() for run in runs if run.summary is not None]
    records = [record for record in found if record is not None]
    warnings = dict.fromkeys(line for record in records for line in record.warnings)
    return tuple(warnings), records[0].names if records else ()


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
    path = folder / "experiment.toml"
    refuse_links(folder, RUN_FOLDER_ENTRIES)
    try:
        keys = parse_toml(read_file(path, MOST_BYTES_OF_EXPERIMENT))
    except (OSError, ValueError) as error:
        raise RecordError(f"expected a run folder at {folder}, found no experiment to read: {error}") from None
    tables = (keys.get("algorithm"), keys.get("data"))
    if not all(isinstance(table, dict) and "name" in table for table in tables) or "seed" not in keys:
        raise RecordError(
            f"{path}: expected the experiment of a run, with its algorithm, data and seed; restore it or run again"
        )
    return keys


def _names(experiments: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """The name of each run in the table: its label, or that of its algorithm with the keys in which it differs."""
    keys = list[dict[str, Any]]()
    for experiment in experiments.values():
        personal = experiment.get("personal", {})
        if personal.get("method", NO_METHOD) == NO_METHOD:
            personal = {}
        keys.append({**experiment["algorithm"], **{f"personal.{key}": value for key, value in personal.items()}})
    pairs = zip(experiments.items(), labels_of(keys), strict=True)
    return {folder: str(experiment.get("label") or label) for (folder, experiment), label in pairs}


def _read_outcome(name: str, seed: int, folder: Path) -> Outcome:
    """The outcome of a finished run, from its folder."""
    summary = Folder(folder).summary()
    Folder(folder).metric()  # which is refused where it is damaged
    path = folder / "summary.json"
    try:
        measures = {key: value_of(summary, key) for key in COLUMNS}
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path}: expected the summary of a run, found {error!r}; restore it or run again") from None
    # Where the metric of a client is not defined, as R² of one sample, its score is unknown.
    known = {client: score for client, (_, score) in last_scores(folder).items()}
    if not known:
        raise RecordError(
            f"{folder / 'clients'}: expected the last score of at least one client, found none that is known; run "
            "again, with more test samples of each client or another local.metric if its metric is not defined"
        )
    for key, value in measures.items():
        finite = isinstance(value, int | float) and isfinite(value)
        if not finite and (key, value) != ("ari", None):  # a partition without true groups has none
            raise RecordError(f"{path}: expected a number for {key}, found {value!r}; restore it or run again")
    return Outcome(name, seed, folder, summary, known)
