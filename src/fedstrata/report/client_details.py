"""What the page says of a client that a reader asks about: its metric by round, and who it is close to."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from fedstrata.metric_info import MetricInfo
from fedstrata.records.schema import ALL_CLIENTS, Round
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import ORANGE, RULE, Figure, figure, line, metric_axis, round_axis, rounded
from fedstrata.report.reader import ClientMatrix
from fedstrata.report.references import ALGORITHMS, compare
from fedstrata.report.words import COMPARED_BY, SIMILARITIES, joined, plural

MOST_CLIENTS = 300
"""Clients that the page has details of; of more, they would be most of the page."""

MOST_ROUNDS = 60
"""Rounds of a client's curve; of longer runs, as many that are evenly apart, the last one included."""

_VERDICTS = {"better": "clearly worse", "worse": "clearly better", "unclear": "no clear difference"}
"""What a reference is to a client that this run serves better, worse, or neither."""

_VERDICTS_WITHOUT_NOISE = {"better": "worse", "worse": "better", "unclear": "no difference"}
"""The same where nobody knows how much of a difference is chance."""

MOST_CLOSE = 3
"""Clients that are named as the closest ones."""


def client_details(clusters: Clusters) -> dict[str, Any] | None:
    """Return what the page shows of each client: a sentence or two, and the figure of its metric.

    The figure is one for all clients, whose own curves are beside their sentences. None where there are too many
    clients, or no scores.
    """
    records = clusters.records
    if not records.scores or len(clusters.node_of) > MOST_CLIENTS:
        return None
    rounds = shown_rounds([each for each in records.rounds if each.round in records.scores])
    curves = _curves(clusters, rounds)
    means = [_mean(values) for values in zip(*curves.values(), strict=True)]
    return {
        "figure": _figure(rounds, means, clusters.metric),
        "clients": {
            str(client): {"name": clusters.names.of(client), "text": text_of(clusters, client), "curve": rounded(curve)}
            for client, curve in curves.items()
        },
    }


def shown_rounds(rounds: list[Round]) -> list[Round]:
    """Return some rounds that are evenly apart, the last one included."""
    step = -(-len(rounds) // MOST_ROUNDS)
    return rounds[::-1][::step][::-1]


def _curves(clusters: Clusters, rounds: list[Round]) -> dict[int, list[float | None]]:
    """Return the metric of each client in some rounds; null where it has none."""
    curves: dict[int, list[float | None]] = {client: [None] * len(rounds) for client in clusters.node_of}
    for place, each in enumerate(rounds):
        scores = clusters.records.scores[each.round]
        for client, value in zip(scores.client.tolist(), scores.accuracy.tolist(), strict=True):
            if client in curves and isfinite(value):
                curves[client][place] = value
    return curves


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _figure(rounds: list[Round], means: list[float | None], metric: MetricInfo) -> Figure:
    everyone = line(rounds, means, "mean of all clients", RULE)
    one = line(rounds, [None] * len(rounds), "this client", ORANGE)
    return figure([everyone, one], 260, xaxis=round_axis(rounds), yaxis=metric_axis(metric, rangemode="tozero"))


def text_of(clusters: Clusters, client: int) -> str:
    """Say how a client does, in which cluster, whom it is closest to, and whether it is better off than otherwise."""
    return " ".join(filter(None, (_place(clusters, client), _closest(clusters, client), _better_off(clusters, client))))


def _place(clusters: Clusters, client: int) -> str:
    node = clusters.node_of[client]
    if node < 0:
        return "It is not in the federation."
    if not clusters.clustered:
        return ""
    others = sum(other == node for other in clusters.node_of.values()) - 1
    return f"It is in node {node} with {plural(others, 'other client')}." if others else f"It is alone in node {node}."


def _closest(clusters: Clusters, client: int) -> str:
    """Name the closest clients by the latest matrix that has this one."""
    known = [matrix for matrix in clusters.records.matrices if client in matrix.clients and len(matrix.clients) > 2]
    if not known:
        return ""
    latest = max(known, key=lambda matrix: (matrix.round, matrix.node != ALL_CLIENTS))
    names = [f"{clusters.names.of(other)} ({value:.2g})" for other, value in _neighbours(latest, client)]
    layers = "all layers" if latest.layer == "all" else latest.layer
    compared = COMPARED_BY.get(latest.measure, latest.measure).split(";")[0]
    return f"{compared} in {layers} is closest to: {joined(names)} (round {latest.round})." if names else ""


def _neighbours(matrix: ClientMatrix, client: int) -> list[tuple[int, float]]:
    place = matrix.clients.index(client)
    values = matrix.values[place]
    order = np.argsort(-values if matrix.measure in SIMILARITIES else values, kind="stable")
    found = [(matrix.clients[other], float(values[other])) for other in order if other != place]
    return [(other, value) for other, value in found if isfinite(value)][:MOST_CLOSE]


def _better_off(clusters: Clusters, client: int) -> str:
    """Compare a client's metric with what it would have otherwise, where runs of these are known."""
    if client not in clusters.measured:
        return ""
    samples, value = clusters.measured[client]
    metric = clusters.metric
    verdicts = _VERDICTS if metric.share_of_samples else _VERDICTS_WITHOUT_NOISE
    told = [f"Its {metric.name} is {metric.text(value)} on {plural(samples, 'test sample')}"]
    for name, reference in clusters.records.references.items():
        other = reference.by_client.get(client)
        if other is not None:
            verdict = verdicts[compare(samples, value, other, metric)]
            told.append(f"With {ALGORITHMS[name]}, it is {metric.text(other)}: {verdict}")
    return f"{'. '.join(told)}."
