"""What the page says of a client that a reader asks about: how it does, who is close to it, what its model confuses."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.schema import ALL_CLIENTS, Round
from fedstrata.report.catalogue import SIMILARITIES, compared_by, say
from fedstrata.report.charts.groups import class_names, classes_of, has_classes
from fedstrata.report.clusters import Clusters
from fedstrata.report.differences import FEW
from fedstrata.report.drawing import ORANGE, RULE, Figure, figure, line, metric_axis, round_axis, rounded
from fedstrata.report.reader import RunRecords
from fedstrata.report.references import reference_text, stands_out

MOST_CLIENTS = 300
"""Clients that the page has details of; of more, they would be most of the page."""

MOST_ROUNDS = 60
"""Rounds of a client's curve; of longer runs, as many that are evenly apart, the last one included."""

MOST_CLOSE = 3
"""Clients that are named as the closest ones."""


def client_details(clusters: Clusters) -> dict[str, Any] | None:
    """Return what the page shows of each client: some facts in sentences, and its curve.

    The picture is the same for all clients but for the client's own curve, which is beside its facts. None where there
    are too many clients, or no scores.
    """
    records = clusters.records
    if not records.scores or len(clusters.node_of) > MOST_CLIENTS:
        return None
    rounds = shown_rounds([each for each in records.rounds if each.round in records.scores])
    curves = _curves(clusters, rounds)
    known = [[value for value in values if value is not None] for values in zip(*curves.values(), strict=True)]
    means = [sum(values) / len(values) if values else None for values in known]
    confused = _confused(records)
    return {
        "figure": _figure(rounds, means, clusters.metric),
        "clients": {
            str(client): {
                "name": clusters.names.of(client),
                "facts": facts_of(clusters, client, confused.get(client)),
                "curve": rounded(curve),
            }
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


def _figure(rounds: list[Round], means: list[float | None], metric: MetricInfo) -> Figure:
    everyone = line(rounds, means, "mean of all clients", RULE, dash="dash")
    one = line(rounds, [None] * len(rounds), "this client", ORANGE, mode="lines+markers")
    return figure([everyone, one], 260, xaxis=round_axis(rounds), yaxis=metric_axis(metric, rangemode="tozero"))


def _confused(records: RunRecords) -> dict[int, NDArray[int64]]:
    """Return the class, the predicted class and the number of samples, (pairs, 3), of each client; {} of numbers."""
    found = classes_of(records)
    if found is None:
        return {}
    table, samples = np.unique(np.stack(found, axis=1), axis=0, return_counts=True)
    clients, starts = np.unique(table[:, 0], return_index=True)
    return dict(zip(clients.tolist(), np.split(np.column_stack([table[:, 1:], samples]), starts[1:]), strict=True))


def _names_of_classes(records: RunRecords) -> list[str]:
    """Return the names of the classes; their numbers where nothing else is known."""
    known = records.client_descriptions
    names = class_names(known) if known is not None and has_classes(known) else []
    found = classes_of(records)
    most = 0 if found is None else 1 + int(max(found[1].max(), found[2].max()))
    return [*names, *map(str, range(len(names), most))]


def facts_of(clusters: Clusters, client: int, pairs: NDArray[int64] | None = None) -> list[tuple[str, str]]:
    """Return what is known of a client: a word or two, and the sentence that they begin.

    Args:
        clusters: The clusters of the run.
        client: The client.
        pairs: The class, the predicted class and the number of its test samples, (pairs, 3); None where unknown.
    """
    found = [
        ("Group", _place(clusters, client)),
        ("How well", _how_well(clusters, client)),
        ("Better off?", _better_off(clusters, client, pairs)),
        ("Mistakes", _mistakes(clusters, client, pairs)),
        ("Closest", _closest(clusters, client)),
    ]
    return [(name, text) for name, text in found if text]


def _place(clusters: Clusters, client: int) -> str:
    node = clusters.node_of[client]
    pending = clusters.pending
    others = sum(other == node for at, other in clusters.node_of.items() if at not in pending) - 1
    return say("client", "place", node=node, clustered=clusters.clustered, pending=client in pending, others=others)


def _how_well(clusters: Clusters, client: int) -> str:
    """Say how well a client does, and whether that is worse than the mean."""
    if client not in clusters.measured:
        return ""
    samples, value = clusters.measured[client]
    metric = clusters.metric
    mean = clusters.records.final("acc_client")
    clearly_worse = mean is not None and stands_out(samples, value, mean, len(clusters.measured), metric)
    words = {"metric": metric, "value": value, "samples": samples, "mean": mean}
    return say("client", "how_well", **words, clearly_worse=clearly_worse)


def _better_off(clusters: Clusters, client: int, pairs: NDArray[int64] | None) -> str:
    """Compare a client's metric with what it would have otherwise, where runs of these are known."""
    if client not in clusters.measured:
        return ""
    metric = clusters.metric
    fewest = None if pairs is None else int(np.bincount(pairs[:, 0], pairs[:, 2])[np.unique(pairs[:, 0])].min())
    told = []
    for name, reference in clusters.records.references.items():
        other = reference.by_client.get(client)
        if other is None:
            continue
        words = {"metric": metric, "other": other, "reference": reference_text(name, clusters.records.settings)}
        words |= {"found": clusters.gains[name].of(client), "effect": clusters.effects[name].get(client)}
        told.append(say("client", "better_off", **words))
    if told and fewest is not None and fewest < FEW:
        told.append(say("client", "few_samples", fewest=fewest))
    if not told and clusters.clustered and clusters.records.summary is not None:
        return say("client", "better_off_unknown")
    return " ".join(told)


def _mistakes(clusters: Clusters, client: int, pairs: NDArray[int64] | None) -> str:
    """Say which class a client's model recognises least, and what it takes it for; nothing without classes."""
    records = clusters.records
    if pairs is None:
        known = records.client_descriptions
        if records.summary is None or client not in clusters.measured or (known is not None and not has_classes(known)):
            return ""
        return say("client", "mistakes_on_devices" if known is None else "mistakes_unknown")
    truth, predicted, samples = pairs.T
    wrong = truth != predicted
    if not wrong.any():
        return say("client", "no_mistakes", samples=int(samples.sum()))
    names = _names_of_classes(records)
    missed = np.bincount(truth[wrong], weights=samples[wrong], minlength=len(names)).astype(int)
    worst = int(np.argmax(missed))
    held = int(samples[truth == worst].sum())
    of_worst = np.flatnonzero(wrong & (truth == worst))
    most = of_worst[np.argmax(samples[of_worst])]
    return say(
        "client",
        "mistakes",
        missed=missed.sum(),
        samples=int(samples.sum()),
        worst=names[worst],
        right=held - missed[worst],
        held=held,
        most=samples[most],
        taken_for=names[predicted[most]],
    )


def _closest(clusters: Clusters, client: int) -> str:
    """Name the closest clients by the latest matrix that has this one."""
    known = [matrix for matrix in clusters.records.matrices if client in matrix.clients and len(matrix.clients) > 2]
    if not known:
        return ""
    latest = max(known, key=lambda matrix: (matrix.round, matrix.node != ALL_CLIENTS))
    values = latest.values[latest.clients.index(client)]
    order = np.argsort(-values if latest.measure in SIMILARITIES else values, kind="stable")
    others = [place for place in order if latest.clients[place] != client and isfinite(values[place])]
    names = [f"{clusters.names.of(latest.clients[place])} ({values[place]:.2g})" for place in others[:MOST_CLOSE]]
    if not names:
        return ""
    layers = "all layers" if latest.layer == "all" else latest.layer
    meaning = compared_by(latest.measure)
    meaning = meaning[:1].lower() + meaning[1:]
    return say("client", "closest", names=names, meaning=meaning, layers=layers, round=latest.round)
