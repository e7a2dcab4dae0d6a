"""The experiment of the baseline: one model for all clients, which says what grouping gains."""

from __future__ import annotations

from fedstrata.config.tables import AlgorithmTable, EngineTable, Experiment, ProbeTable, RecordsTable, ReportTable

BASELINE_ALGORITHM = "fedavg"
"""The algorithm of the baseline."""


def baseline_of(experiment: Experiment, engine: EngineTable) -> Experiment | None:
    """The experiment of the baseline of a run; None where none is asked for, or the run is one of FedAvg itself.

    Args:
        experiment: The experiment of the run.
        engine: Its engine, with the choice that "auto" led to.
    """
    if not experiment.report.baseline or experiment.algorithm.name == BASELINE_ALGORITHM:
        return None
    changes = {
        "algorithm": AlgorithmTable(name=BASELINE_ALGORITHM),
        "algorithms": {},
        "label": None,
        "engine": engine,
        "probe": ProbeTable(),
        "records": RecordsTable(),
        "report": ReportTable(),
    }
    return experiment.model_copy(update=changes)
