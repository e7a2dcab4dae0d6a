"""The measures of a round and of a whole run, from scores and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

import torch

from fedstrata.clustering import ari, purity
from fedstrata.core import CLIENT, SHARED, VALIDATION, Score
from fedstrata.objective.metric_info import ACCURACY, MetricInfo

_SUMMED = ("bytes_down", "bytes_up", "seconds", "seconds_training", "seconds_server")
"""Measures that the summary has as sums over the rounds."""


_FEWEST_ROUNDS = 10
"""Whoever asks for fewer rounds expects no end of training."""

_UNFINISHED = 0.1
"""Training is far from done if the loss falls over the last fifth of the rounds by so much of its whole fall."""


def complete(
    record: Mapping[str, Any],
    labels: torch.Tensor,
    truth: torch.Tensor | None,
    scores: Mapping[str, Score],
    metric: MetricInfo = ACCURACY,
) -> dict[str, Any]:
    """Add the measures to the record of a round.

    Args:
        record: What was known before the models were evaluated.
        labels: The cluster of each client, (n,); -1 is a pending client.
        truth: The ground-truth group of each client, (n,); None where there is none.
        scores: The scores of each evaluation, by all clients that are in the federation. `CLIENT` is what the
            measures are of; of the others the mean is recorded. A score that is not finite is unknown: it counts
            neither in a mean nor as the worst.
        metric: What the scores are.
    """
    score = scores[CLIENT]
    known = score.correct.isfinite()
    own = labels[score.clients]
    clusters = [(own == cluster) & known for cluster in own.unique().tolist() if cluster >= 0]
    pooled = [_weighted_mean(score, members) for members in clusters if members.any()]
    measures: dict[str, Any] = {
        "acc_client": _mean(score),
        "acc_weighted": _weighted_mean(score, known) if known.any() else None,
        "acc_cluster": sum(pooled) / len(pooled) if pooled else None,
        "acc_worst": min(_known_values(score).tolist(), key=metric.quality, default=None),
        "loss": float(score.loss.double().mean()),
        "ari": None if truth is None else ari(own, truth[score.clients]),
        "purity": None if truth is None else purity(own, truth[score.clients]),
    }
    for name, other in scores.items():
        if name != CLIENT:
            measures[f"acc_{name}"] = _mean(other)
    return {**record, **measures}


def _known_values(score: Score) -> torch.Tensor:
    """The scores that are known, (s,) float64."""
    return score.values[score.values.isfinite()]


def _mean(score: Score) -> float | None:
    """The mean over the clients whose score is known; None where there is none."""
    values = _known_values(score)
    return float(values.mean()) if len(values) else None


def _weighted_mean(score: Score, members: torch.Tensor) -> float:
    """The mean over some clients, (s,) bool, weighted by their test samples."""
    return float(score.correct[members].sum()) / int(score.samples[members].sum())


def summarise(
    rounds: Sequence[Mapping[str, Any]],
    truth: torch.Tensor | None,
    metric: MetricInfo = ACCURACY,
    *,
    all_score: bool = True,
) -> dict[str, Any]:
    """Return the measures of a whole run: those of its last round, sums over the rounds, and the best round.

    Args:
        rounds: The records of all rounds.
        truth: The ground-truth group of each client, (n,); None where there is none.
        metric: The metric of the run.
        all_score: Whether all clients score the models of every round. Otherwise nobody knows which round was best.
    """
    last = rounds[-1]
    measures = [key for key in last if key.startswith("acc_")]
    return {
        **{key: last[key] for key in ("clusters", "ari", "purity", *measures)},
        **(_best_rounds(rounds, metric) if all_score else {"acc_best": None, "acc_best_round": None}),
        **{key: sum(record[key] for record in rounds) for key in _SUMMED},
        "bytes_data": sum(record.get("bytes_data", 0) for record in rounds),
        "rounds": last["round"],
        "rejected": sum(len(record["rejected"]) for record in rounds),
        "diverged": _divergence(rounds),
        **(_unfinished(rounds) if all_score else {}),
        "rounds_to_partition": _rounds_to_partition(rounds),
        "truth": None if truth is None else truth.tolist(),
    }


def _best_rounds(rounds: Sequence[Mapping[str, Any]], metric: MetricInfo) -> dict[str, Any]:
    """Return the best round, and the one that validation would select."""
    best = max(rounds, key=lambda record: metric.quality(record["acc_client"]))  # The first of equals.
    found = {"acc_best": best["acc_client"], "acc_best_round": best["round"]}
    # The round that validation would select, the first of equals, and its metric on the test data.
    key = f"acc_{VALIDATION}"
    if key in rounds[-1]:
        selected = max(rounds, key=lambda record: metric.quality(record.get(key)))
        found |= {"selected_round": selected["round"], "acc_selected": selected["acc_client"]}
    return found


def diverged(summary: Mapping[str, Any]) -> bool:
    """Return whether training diverged in every round of a run, so that its models cannot be used."""
    rounds = summary.get("diverged", {}).get("rounds", ())
    return bool(rounds) and len(rounds) == summary["rounds"]


def diverged_at_end(summary: Mapping[str, Any]) -> bool:
    """Return whether training diverged in the last round of a run, so that its last models cannot be used."""
    return summary["rounds"] in summary.get("diverged", {}).get("rounds", ())


def _divergence(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rounds in which training diverged, and how many clients sent numbers that are not finite in them.

    It has diverged too where all answers were rejected, such as for their norms: no model has moved.
    """
    diverged_rounds = []
    clients = set[int]()
    for record in rounds:
        events = record.get("events", ())
        answered = set(record.get("cohort", ())) - set(record.get("absent", ()))
        all_rejected = bool(answered) and answered <= set(record["rejected"])
        if not all_rejected and not any(event["kind"] == "diverged" for event in events):
            continue
        diverged_rounds.append(record["round"])
        for event in events:
            if event.get("reason") == "not finite":
                clients.update(event["clients"])
    return {"rounds": diverged_rounds, "clients": len(clients)}


def _unfinished(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far the loss fell over the last fifth of the rounds, where training was far from done; else nothing.

    It was so if the loss fell by more than a tenth of all that it has fallen. Where the distance from its limit shrinks
    by the same factor in each fifth, at least an eighth of its way was left. The loss is that of the test samples, the
    mean over the clients: the clients' training losses are not recorded.
    """
    if f"acc_{SHARED}" in rounds[-1] and f"acc_{SHARED}" not in rounds[0]:
        # The last round has the scores of personal models.
        rounds = rounds[:-1]
    losses = [float(loss) for record in rounds if (loss := record.get("loss")) is not None and isfinite(loss)]
    span = len(losses) // 5
    if len(losses) < max(_FEWEST_ROUNDS, len(rounds)):
        return {}
    before, after = (fmean(part) for part in (losses[-2 * span : -span], losses[-span:]))
    if before - after <= _UNFINISHED * max(losses[0] - after, 0.0):
        return {}
    return {"unfinished": {"rounds": span, "loss_before": before, "loss": after}}


def _rounds_to_partition(rounds: Sequence[Mapping[str, Any]]) -> int:
    """Return the first round from which the labels stay those of the last round. The ids of tree nodes never change."""
    first = rounds[-1]["round"]
    for record in reversed(rounds):
        if record["labels"] != rounds[-1]["labels"]:
            break
        first = record["round"]
    return int(first)
