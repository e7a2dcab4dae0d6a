"""From run folders to a comparison."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedstrata.base.errors import RecordError
from fedstrata.build.problem import objective_of
from fedstrata.comparison.document import Comparison, RunFailure, write_comparison
from fedstrata.comparison.judge import Judge
from fedstrata.config import Experiment, dumps
from fedstrata.records.arrays import last_scores
from fedstrata.records.client_models import ClientModels
from fedstrata.records.folder import Folder
from fedstrata.report.comparison.folder import Document, JobCount, Outcome

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
    experiments: Mapping[Path, Experiment], out: Path, failures: Mapping[Path, RunFailure], jobs: JobCount | None
) -> Comparison:
    """Write down what came of a comparison. A run whose records cannot be compared counts as failed.

    Args:
        experiments: The experiments of all runs, by their folders.
        out: The folder of the comparison.
        failures: Why runs are not finished, by their folders; all others are.
        jobs: The number of shared jobs; None where the runs shared none.
    """
    keys = {folder: _common_keys(tomllib.loads(dumps(each))) for folder, each in experiments.items()}
    runs = list[Outcome]()
    for folder, experiment in experiments.items():
        failure = failures.get(folder)
        if failure is None:
            try:
                outcome = read_outcome(experiment.title, experiment.seed, folder)
                # The settings of a sweep may have other data on purpose.
                _refuse_other_data(outcome, [run for run in runs if keys[run.folder] == keys[folder]])
            except RecordError as error:
                failure = RunFailure.of(error)
        if failure is not None:
            outcome = Outcome(experiment.title, experiment.seed, folder, **asdict(failure))
        runs.append(outcome)
    first = next(iter(experiments.values()))
    folds = first.data.folds
    # The settings of a sweep may train otherwise.
    same_training = len({str(each) for each in keys.values()}) == 1
    judge = Judge(runs, objective_of(first).metric_info, folds, same_training=same_training)
    same_clients = all(each.partition["scheme"] == "natural" for each in experiments.values())
    records = [record for run in runs if run.summary is not None if (record := Folder(run.folder).data()) is not None]
    document = Document(
        experiment=_shared_keys(list(keys.values())),
        jobs=jobs,
        runs=tuple(replace(run, folder=Path(os.path.relpath(run.folder, out))) for run in runs),
        table=judge.table,
        differences=judge.differences,
        metric=judge.metric,
        clients=records[0].names if records else (),  # All runs of a comparison have the same clients.
        # What looks wrong with their data, each line once.
        warnings=tuple(dict.fromkeys(line for record in records for line in record.warnings)),
        same_clients=same_clients,
        overlap=judge.overlap,
        folds=folds,
        sites=judge.sites if same_clients or len({run.seed for run in runs}) == 1 else (),
    )
    return write_comparison(Comparison(out, document))


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


def read_outcome(name: str, seed: int, folder: Path) -> Outcome:
    """The outcome of a finished run, from its folder."""
    records = Folder(folder)
    summary = records.summary()
    # Where the metric of a client is not defined, as R² of one sample, its score is unknown.
    known = {client: score for client, (_, score) in last_scores(folder).items()}
    if not known:
        raise RecordError(
            f"{folder / 'clients'}: expected the last score of at least one client, found none that is known; run "
            "again, with more test samples of each client or another local.metric if its metric is not defined"
        )
    return Outcome(name, seed, folder, summary, known, one_model=_has_one_model(records, summary))


def _has_one_model(records: Folder, summary: Mapping[str, Any]) -> bool:
    """Whether a run trained one model for all clients: FedAvg, or one that looked for groups and never had two."""
    looked = any(node.why for node in records.tree())
    one_group = (looked or summary["algorithm"] == "fedavg") and all(each["clusters"] <= 1 for each in records.rounds())
    if not one_group or "personal" in summary:
        return False
    try:
        used = ClientModels.read(records.path).record.clients
    except RecordError:
        return False  # Nothing is said of models that are gone.
    return not any(each.personal for each in used)
