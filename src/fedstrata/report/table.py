"""The clients as rows of a table, and the clusters' means over them."""

from collections import Counter
from itertools import chain, pairwise
from math import inf, isfinite
from typing import Any

import numpy as np

from fedstrata.report.groups import Groups


def means(groups: Groups) -> dict[int, float]:
    """The mean accuracy of each final cluster's clients by the newest scores."""
    scores = groups.scores
    if scores is None:
        return {}
    found = {}
    for node in groups.finals:
        held = scores.accuracy[[groups.label.get(client) == node for client in scores.client.tolist()]]
        held = held[np.isfinite(held)]
        if held.size:
            found[node] = float(held.mean())
    return found


def clients(groups: Groups) -> list[dict[str, Any]]:
    """A row per client, the least accurate first and those without an accuracy last."""
    records, scores = groups.records, groups.scores
    truth = (records.summary or {}).get("truth") or []
    measured: dict[int, tuple[int, float, float]] = {}
    if scores is not None:
        figures = zip(scores.samples.tolist(), scores.accuracy.tolist(), scores.loss.tolist(), strict=True)
        measured = dict(zip(scores.client.tolist(), figures, strict=True))
    counts = {
        name: Counter(chain.from_iterable(getattr(each, name) for each in records.rounds))
        for name in ("cohort", "absent", "rejected")
    }
    rows, moved = [], _moves(groups)
    for client, node in groups.label.items():
        samples, accuracy, loss = measured.get(client, (None, None, None))
        row = {
            "client": client,
            "node": node,
            "truth": truth[client] if client < len(truth) else None,
            "samples": samples,
            "accuracy": accuracy,
            "loss": loss,
        }
        rows.append(row | {name: count[client] for name, count in counts.items()} | {"moved": moved[client]})
    return sorted(rows, key=_accuracy)


def _moves(groups: Groups) -> Counter[int]:
    """How often each client went to a cluster that was not split off from its own."""
    moved: Counter[int] = Counter()
    for before, after in pairwise(groups.records.rounds):
        for client, (one, two) in enumerate(zip(before.labels, after.labels, strict=False)):
            moved[client] += min(one, two) >= 0 and groups.below(two, [one]) is None
    return moved


def _accuracy(row: dict[str, Any]) -> float:
    value = row["accuracy"]
    return value if value is not None and isfinite(value) else inf
