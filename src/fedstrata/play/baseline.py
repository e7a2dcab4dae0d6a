"""The baseline of a run: FedAvg on the same clients, which says what grouping gained against one model for all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.base.files import root_folder
from fedstrata.base.folder_lock import folder_lock
from fedstrata.config import Experiment
from fedstrata.config.baseline import BASELINE
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records import Folder
from fedstrata.records.final_scores import last_scores, read_right_samples
from fedstrata.report.gains import gain
from fedstrata.report.paired import paired_differences
from fedstrata.report.references import reference_text
from fedstrata.report.words import duration, plural


def add_baseline(out: Path, baseline: Path, metric: MetricInfo) -> dict[str, Any]:
    """Write into the summary of a run what it gained over its baseline.

    Args:
        out: The folder of the run, which is finished.
        baseline: The folder of the baseline, which is finished.
        metric: The metric of both.

    Returns:
        The summary of the run.
    """
    own = last_scores(out)
    other = last_scores(baseline)
    pairs = paired_differences(read_right_samples(out), read_right_samples(baseline))
    found = gain(own, {client: value for client, (_, value) in other.items()}, metric, pairs)
    with folder_lock(root_folder(out)):
        folder = Folder(out)
        summary = folder.summary()
        baseline_summary = Folder(baseline).summary()
        mean, other_mean = summary["acc_client"], baseline_summary["acc_client"]
        summary |= {
            "baseline_acc_client": other_mean,
            "baseline_acc_worst": baseline_summary["acc_worst"],
            "baseline_gain": None if mean is None or other_mean is None else metric.gain(mean, other_mean),
            "baseline_better": len(found.better),
            "baseline_worse": len(found.worse),
            "baseline_seconds": baseline_summary["seconds"],
            "baseline_gains": {str(client): pair._asdict() for client, pair in pairs.items()},
        }
        folder.write_summary(summary)
    return summary


def gain_text(summary: Mapping[str, Any], metric: MetricInfo, baseline: Experiment) -> str:
    """Say what a run gained over its baseline, in one line for the terminal."""
    other = reference_text(BASELINE, baseline.model_dump(include={"personal"}))
    found = summary["baseline_gain"]
    gained = "unknown"
    if found is not None:
        gained = f"{metric.name} {metric.gain_text(abs(found))} {metric.better if found >= 0 else metric.worse}"
    better = plural(summary["baseline_better"], "client")
    took = duration(summary["baseline_seconds"])
    return f"gain over {other}: {gained}; {better} better off, {summary['baseline_worse']} worse off ({took})"
