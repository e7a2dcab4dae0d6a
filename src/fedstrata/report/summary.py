"""The summary of a run in rows, and what its reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.catalogue import WORDS, fill
from fedstrata.report.words import NO_NAMES, ClientNames, brief, plural, ranges


def summary_rows(
    summary: Mapping[str, Any], metric: MetricInfo, names: ClientNames = NO_NAMES
) -> list[tuple[str, str, str]]:
    """Return the numbers and names of a summary: the key, the value, and what it is where the key does not say it.

    Args:
        summary: The summary.
        metric: The metric of the run.
        names: The names of its clients.
    """
    rows = []
    for key, value in summary.items():
        if key in ("attack", "privacy") and isinstance(value, Mapping):
            rows += _condition_rows(key, value, metric, names)
        if key == "probabilities" and isinstance(value, Mapping):
            rows += _probability_rows(value)
        if isinstance(value, Mapping | list):
            continue
        known = WORDS["measure"].get("other" if key.startswith("acc_") and key not in WORDS["measure"] else key)
        if known and key != "acc_best_round" and (value is None or isinstance(value, int | float)):
            rows.append((key, "-" if value is None else metric.text(value), fill(known, {"metric": metric})))
        elif key == "baseline_gain" and isinstance(value, int | float):
            rows.append((key, metric.gain_text(value), "by how much it is better than FedAvg: what grouping gained"))
        elif isinstance(value, float):
            rows.append((key, f"{value:.4g}", ""))
        else:
            rows.append((key, "-" if value is None else str(value), ""))
    return rows


def _probability_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return how good the probability of the second of two classes is; nothing of more classes."""
    if len(found["classes"]) != 2:
        return []
    lacking = sum(each["roc_auc"] is None for each in found["clients"])
    without = f"; none for {plural(lacking, 'client')} alone, with samples of one class" if lacking else ""
    named = f"the probability of {found['classes'][1]!r} for {found['samples']:,} test samples"
    return [
        ("roc_auc", brief(found["roc_auc"]), f"area under the ROC curve of {named}; 0.5 is chance{without}"),
        ("brier", brief(found["brier"]), f"mean squared error of {named}; 0.25 is that of 50 % for all"),
    ]


def _condition_rows(
    table: str, found: Mapping[str, Any], metric: MetricInfo, names: ClientNames
) -> list[tuple[str, str, str]]:
    """Return the rows of clients that attack, or of differential privacy: without them the others are misread."""
    if table == "privacy":
        delta = found.get("delta")
        return [("privacy.epsilon", brief(found.get("epsilon")), f"for any one client, at delta {brief(delta)}")]
    attackers = found.get("clients", [])
    texts = {"acc_honest": "mean over clients that do not attack", "acc_honest_worst": "worst of these clients"}
    rows = [("attack.clients", names.listed(attackers), "these attack; all rows but attack.* are about all clients")]
    return rows + [
        (f"attack.{key}", metric.text(found[key]), f"{metric.name}, {text}")
        for key, text in texts.items()
        if found.get(key) is not None
    ]


def stage_cost(summary: Mapping[str, Any], name: str) -> float | None:
    """Return what the personal stage of a run cost, which is not in the sums of its rounds; None where there was none.

    Args:
        summary: The summary of the run.
        name: What is counted: "seconds", "bytes_down", "bytes_up" or "samples".
    """
    stage = summary.get("personal")
    value = stage.get(name) if isinstance(stage, Mapping) else None
    return value if isinstance(value, int | float) else None


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """Return what the reader of a run's results must know: divergence, rejected answers, and training cut short."""
    rounds = (summary.get("diverged") or {}).get("rounds", [])
    rejected = summary.get("rejected", 0)
    found = []
    if rounds:
        several = "rounds" if len(rounds) > 1 else "round"
        share = f"{len(rounds)} of {summary.get('rounds')} rounds ({several} {ranges(rounds)})"
        found.append(f"training diverged in {share}; lower local.lr")
    if rejected:
        answers = "1 answer was" if rejected == 1 else f"{rejected} answers were"
        found.append(f"{answers} rejected; the events of the rounds say whose and why")
    if unfinished := summary.get("unfinished"):
        found.append(
            f"training is far from done: over the last {unfinished['rounds']} rounds the loss still fell from "
            f"{unfinished['loss_before']:.3g} to {unfinished['loss']:.3g}; extend the run with more rounds"
        )
    return found
