"""What the page says of a client that a reader asks about: how it does, who is close to it, what its model confuses."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.schema import ALL_CLIENTS, Round
from fedstrata.report.catalogue import SIMILARITIES, compared_by
from fedstrata.report.charts.groups import class_names, has_classes
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BLUE,
    ORANGE,
    RULE,
    SEQUENTIAL,
    Figure,
    axis,
    clean,
    figure,
    line,
    metric_axis,
    round_axis,
    rounded,
    shortened,
)
from fedstrata.report.gains import compare, stands_out
from fedstrata.report.paired import PairedDifference
from fedstrata.report.reader import ClientMatrix, RunRecords
from fedstrata.report.words import joined, plural

MOST_CLIENTS = 300
"""Clients that the page has details of; of more, they would be most of the page."""

MOST_ROUNDS = 60
"""Rounds of a client's curve; of longer runs, as many that are evenly apart, the last one included."""

MOST_PAIRS = 60_000
"""Pairs of classes of all clients on a page: half a megabyte. Of more, the page has the sentences alone."""

MOST_CLASSES = 30
"""Classes of a confusion matrix that can still be told apart. Of more, those are shown that are confused most."""

_VERDICTS = {
    "better": "Yes, clearly better than with {reference}: {value}.",
    "worse": "No, clearly worse than with {reference}: {value}.",
    "unclear": "With {reference} it would have {value}; that is no clear difference.",
}
"""Whether a client is better off than with a reference."""

_VERDICTS_WITHOUT_NOISE = {
    "better": "Yes, better than with {reference}: {value}.",
    "worse": "No, worse than with {reference}: {value}.",
    "unclear": "With {reference} it would have the same, {value}.",
}
"""Whether a client is better off than with a reference, where nobody knows how much of a difference is chance."""

MOST_CLOSE = 3
"""Clients that are named as the closest ones."""


def client_details(clusters: Clusters) -> dict[str, Any] | None:
    """Return what the page shows of each client: some facts in sentences, and what its pictures show.

    The pictures are the same for all clients but for the client's own curve and the pairs of classes that its model
    confuses, which are beside its facts. None where there are too many clients, or no scores.
    """
    records = clusters.records
    if not records.scores or len(clusters.node_of) > MOST_CLIENTS:
        return None
    rounds = shown_rounds([each for each in records.rounds if each.round in records.scores])
    curves = _curves(clusters, rounds)
    means = [_mean(values) for values in zip(*curves.values(), strict=True)]
    confused = _confused(records)
    pairs = confused if sum(map(len, confused.values())) <= MOST_PAIRS else {}
    return {
        "figure": _figure(rounds, means, clusters.metric),
        "confusion": _confusion_figures(records) if pairs else None,
        "clients": {
            str(client): {
                "name": clusters.names.of(client),
                "facts": facts_of(clusters, client, confused.get(client)),
                "curve": rounded(curve),
                "pairs": pairs[client].ravel().tolist() if client in pairs else [],
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


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _figure(rounds: list[Round], means: list[float | None], metric: MetricInfo) -> Figure:
    everyone = line(rounds, means, "mean of all clients", RULE, dash="dash")
    one = line(rounds, [None] * len(rounds), "this client", ORANGE)
    return figure([everyone, one], 260, xaxis=round_axis(rounds), yaxis=metric_axis(metric, rangemode="tozero"))


def _confused(records: RunRecords) -> dict[int, NDArray[int64]]:
    """Return the class, the predicted class and the number of samples, (pairs, 3), of each client."""
    found = records.confusion
    if found is None or not len(found.client):
        return {}
    order = np.argsort(found.client, kind="stable")
    table = np.stack([found.truth, found.predicted, found.samples], axis=1)[order]
    clients, starts = np.unique(found.client[order], return_index=True)
    return dict(zip(clients.tolist(), np.split(table, starts[1:]), strict=True))


def _names_of_classes(records: RunRecords) -> list[str]:
    """Return the names of the classes; their numbers where nothing else is known."""
    known = records.client_descriptions
    names = class_names(known) if known is not None and has_classes(known) else []
    found = records.confusion
    most = 0 if found is None or not len(found.client) else 1 + int(max(found.truth.max(), found.predicted.max()))
    return [*names, *map(str, range(len(names), most))]


def _confusion_figures(records: RunRecords) -> dict[str, Any]:
    """Return the empty pictures of a client's confusions, and what fills them."""
    cells: Figure = {
        "type": "heatmap",
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": " %"},
    }
    bare: Figure = {"showgrid": False, "zeroline": False, "ticks": ""}
    shared: Figure = {"hovermode": "closest", "margin": {"l": 60, "r": 8, "t": 8, "b": 44}}
    matrix = figure(
        [cells],
        360,
        xaxis=axis("class that the model says", **bare),
        yaxis=axis("true class", autorange="reversed", **bare),
        plot_bgcolor="rgba(125, 135, 147, 0.15)",
        **shared,
    )
    told = {"hovertemplate": "%{hovertext}<extra></extra>"}
    marker = {"symbol": "line-ew", "size": 14, "color": ORANGE, "line": {"width": 3, "color": ORANGE}}
    shares = figure(
        [
            {**told, "type": "bar", "marker": {"color": BLUE}},
            {**told, "type": "scatter", "mode": "markers", "marker": marker},
        ],
        280,
        xaxis=axis("class", **bare),
        yaxis=axis("recognised", range=[0, 104], ticksuffix=" %"),
        showlegend=False,
        **shared,
    )
    names = _names_of_classes(records)
    return {
        "matrix": matrix,
        "shares": shares,
        "classes": [clean(name) for name in names],
        "ticks": [clean(shortened(name)) for name in names],
        "everyone": _everyone(records, len(names)),
        "most": MOST_CLASSES,
    }


def _everyone(records: RunRecords, size: int) -> list[float | None]:
    """Return the share of the test samples of each class, in percent, that the clients' models recognise, (size,)."""
    found = records.confusion
    assert found is not None  # there are no pictures without it
    of_class = np.bincount(found.truth, weights=found.samples, minlength=size)
    same = found.truth == found.predicted
    right = np.bincount(found.truth[same], weights=found.samples[same], minlength=size)
    return [round(100 * hit / all_of, 1) if all_of else None for hit, all_of in zip(right, of_class, strict=True)]


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
        ("Better off?", _better_off(clusters, client)),
        ("Mistakes", _mistakes(clusters, client, pairs)),
        ("Closest", _closest(clusters, client)),
    ]
    return [(name, text) for name, text in found if text]


def _place(clusters: Clusters, client: int) -> str:
    node = clusters.node_of[client]
    if node < 0:
        return "It is not in the federation."
    if not clusters.clustered:
        return ""
    if client in clusters.pending:
        return f"It waits for a cluster, at node {node}."
    others = sum(other == node for at, other in clusters.node_of.items() if at not in clusters.pending) - 1
    return f"It is in node {node} with {plural(others, 'other client')}." if others else f"It is alone in node {node}."


def _how_well(clusters: Clusters, client: int) -> str:
    """Say how well a client does, and whether that is worse than the mean."""
    if client not in clusters.measured:
        return ""
    samples, value = clusters.measured[client]
    metric = clusters.metric
    text = f"Its {metric.name} is {metric.text(value)} on {plural(samples, 'test sample')}"
    mean = clusters.records.final("acc_client")
    if mean is None:
        return f"{text}."
    text = f"{text}; the mean of all clients is {metric.text(mean)}"
    if not metric.share_of_samples or metric.gain(value, mean) >= 0:
        return f"{text}."
    if stands_out(samples, value, mean, len(clusters.measured), metric):
        return f"{text}, so that it is clearly {metric.worse}."
    return f"{text}. The difference may be chance."


def _better_off(clusters: Clusters, client: int) -> str:
    """Compare a client's metric with what it would have otherwise, where runs of these are known."""
    if client not in clusters.measured:
        return ""
    samples, value = clusters.measured[client]
    metric = clusters.metric
    verdicts = _VERDICTS if metric.share_of_samples else _VERDICTS_WITHOUT_NOISE
    told = []
    for name, reference in clusters.records.references.items():
        other = reference.by_client.get(client)
        if other is not None:
            pair = clusters.pairs[name].get(client)
            words = {
                "reference": clusters.reference_text(name),
                "value": f"{metric.name} {metric.text(other)}",
            }
            told.append(verdicts[compare(samples, value, other, metric, pair)].format_map(words))
            if pair is not None:
                told.append(_interval(pair, metric))
    if not told and clusters.clustered and clusters.records.summary is not None:
        return "Not known: there is no run of one model for all, or of training alone, on the same clients."
    return " ".join(told)


def _interval(pair: PairedDifference, metric: MetricInfo) -> str:
    """Say by how much a client is better off, and how sure that is."""
    low, high = metric.gain_text(pair.low), metric.gain_text(pair.high)
    return f"The gain is {metric.gain_text(pair.by)} (95 % interval: {low} to {high})."


def _mistakes(clusters: Clusters, client: int, pairs: NDArray[int64] | None) -> str:
    """Say which class a client's model recognises least, and what it takes it for."""
    records = clusters.records
    if pairs is None:
        return _why_no_mistakes(clusters, client)
    names = _names_of_classes(records)
    truth, predicted, samples = pairs.T
    wrong = truth != predicted
    if not wrong.any():
        return f"None: it recognises the class of all {plural(int(samples.sum()), 'test sample')}."
    missed = np.bincount(truth[wrong], weights=samples[wrong], minlength=len(names)).astype(int)
    held = np.bincount(truth, weights=samples, minlength=len(names)).astype(int)
    worst = int(np.argmax(missed))
    of_worst = np.flatnonzero(wrong & (truth == worst))
    most = of_worst[np.argmax(samples[of_worst])]
    told = f"It takes {missed.sum()} of {plural(int(samples.sum()), 'test sample')} for another class."
    recognised = f"{held[worst] - missed[worst]} of its {held[worst]} are recognised"
    return (
        f"{told} Class {names[worst]} is missed most often: {recognised}, and {samples[most]} taken for class "
        f"{names[predicted[most]]}."
    )


def _why_no_mistakes(clusters: Clusters, client: int) -> str:
    """Say why the classes that a client confuses are not known; nothing where networks learn no classes."""
    records = clusters.records
    known = records.client_descriptions
    if records.summary is None or client not in clusters.measured or (known is not None and not has_classes(known)):
        return ""
    if known is None:
        return "Which classes its model confuses is not known: on real devices, test samples stay with the clients."
    return "Which classes its model confuses is not recorded."


def _closest(clusters: Clusters, client: int) -> str:
    """Name the closest clients by the latest matrix that has this one."""
    known = [matrix for matrix in clusters.records.matrices if client in matrix.clients and len(matrix.clients) > 2]
    if not known:
        return ""
    latest = max(known, key=lambda matrix: (matrix.round, matrix.node != ALL_CLIENTS))
    names = [f"{clusters.names.of(other)} ({value:.2g})" for other, value in _neighbours(latest, client)]
    layers = "all layers" if latest.layer == "all" else latest.layer
    compared = compared_by(latest.measure)
    if not names:
        return ""
    meaning = f"{compared[:1].lower()}{compared[1:]}"
    return f"{joined(names)}. In brackets: {meaning}. Compared: {layers} in round {latest.round}."


def _neighbours(matrix: ClientMatrix, client: int) -> list[tuple[int, float]]:
    place = matrix.clients.index(client)
    values = matrix.values[place]
    order = np.argsort(-values if matrix.measure in SIMILARITIES else values, kind="stable")
    found = [(matrix.clients[other], float(values[other])) for other in order if other != place]
    return [(other, value) for other, value in found if isfinite(value)][:MOST_CLOSE]
