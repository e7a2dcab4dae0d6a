"""Accuracy, bytes and seconds over the rounds."""

from collections.abc import Sequence

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.records.schema import Round, Scores
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BLUE,
    ORANGE,
    PALETTE,
    RULE,
    STYLES,
    Chart,
    Figure,
    axis,
    band,
    clean,
    figure,
    line,
    round_axis,
)
from fedstrata.report.reader import Records
from fedstrata.report.words import DASH, split_text


def accuracy_charts(clusters: Clusters) -> list[Chart]:
    """The accuracy of all clients, and of each final cluster where there are several."""
    text = "Share of the test samples that are classified correctly, from 0 to 1; higher is better. "
    text += "The band holds the middle 80 % of the clients. A good run has a narrow band near the mean."
    splits = " Dashed lines mark splits." if clusters.clustered else ""
    charts = [Chart("accuracy", "All clients", text + splits, accuracy(clusters.records))]
    if by_cluster := cluster_accuracy(clusters):
        text = "Mean accuracy of the clients that are in each cluster now."
        charts.append(Chart("accuracy-by-cluster", "Final clusters", text, by_cluster))
    return charts


def cost_charts(clusters: Clusters) -> list[Chart]:
    """What the run cost."""
    tensors = "Bytes of tensors since the first round, without headers. An absent client counts on the way down."
    clock = "Wall-clock seconds of each round, and the parts of it."
    return [
        Chart("bytes", "Bytes", tensors, traffic(clusters.records)),
        Chart("seconds", "Seconds", clock, seconds(clusters.records)),
    ]


def accuracy(records: Records) -> Figure:
    """Mean, worst client and the middle 80 % of the clients, with the splits; and every other way to use the models."""
    rounds = records.rounds
    held = [_accuracies(records.scores.get(each.round)) for each in rounds]
    low = [float(np.quantile(values, 0.1)) if values.size else None for values in held]
    high = [float(np.quantile(values, 0.9)) if values.size else None for values in held]
    traces = [
        *band(rounds, low, high, f"10{DASH}90 % of clients", BLUE),
        line(rounds, (each.acc_client for each in rounds), "mean", BLUE),
        line(rounds, (each.acc_worst for each in rounds), "worst client", ORANGE, dash="dot"),
    ]
    for place, name in enumerate(dict.fromkeys(name for each in rounds for name in each.other_accuracies), start=2):
        values = (each.other_accuracies.get(name) for each in rounds)
        traces.append(line(rounds, values, name, PALETTE[place % len(PALETTE)], dash="dash"))
    bottom, top = _extent(traces)
    marks, rules = _splits(rounds, top)
    vertical = axis("accuracy", range=[bottom, top + 0.03 * (top - bottom)], hoverformat=".3f")
    return figure([*traces, *marks], 340, xaxis=round_axis(rounds), yaxis=vertical, shapes=rules)


def cluster_accuracy(clusters: Clusters) -> Figure | None:
    """Mean accuracy of the clients of each final cluster."""
    records = clusters.records
    if len(clusters.finals) < 2 or not records.scores:
        return None
    traces = []
    for node in clusters.finals:
        members = [client for client, label in clusters.node_of.items() if label == node]
        held = [_accuracies(records.scores.get(each.round), members) for each in records.rounds]
        means = [float(values.mean()) if values.size else None for values in held]
        traces.append(line(records.rounds, means, f"node {node}", clusters.colour(node)))
    vertical = axis("accuracy", range=list(_extent(traces)), hoverformat=".3f")
    return figure(traces, 340, xaxis=round_axis(records.rounds), yaxis=vertical)


def traffic(records: Records) -> Figure:
    """Bytes since the first round: down to the clients, up from them, and of data that only a simulation may send."""
    rounds = records.rounds
    columns = {"down": [each.bytes_down for each in rounds], "up": [each.bytes_up for each in rounds]}
    if any(each.bytes_data for each in rounds):
        columns["data"] = [each.bytes_data for each in rounds]
    traces = [
        line(rounds, np.cumsum(values).tolist(), name, colour, dash=dash)
        for (name, values), (colour, dash) in zip(columns.items(), STYLES, strict=False)
    ]
    total = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B", hoverformat=".4~s")
    return figure(traces, 280, xaxis=round_axis(rounds), yaxis=total)


def seconds(records: Records) -> Figure:
    """Seconds that each round took, and the clients' and the server's part of them."""
    rounds = records.rounds
    columns = {
        "whole round": [each.seconds for each in rounds],
        "training": [each.seconds_training for each in rounds],
        "server": [each.seconds_server for each in rounds],
    }
    traces = [
        line(rounds, values, name, colour, dash=dash)
        for (name, values), (colour, dash) in zip(columns.items(), STYLES, strict=True)
        if any(value is not None for value in values)
    ]
    vertical = axis("seconds", rangemode="tozero", hoverformat=".3~s", ticksuffix="s")
    return figure(traces, 280, xaxis=round_axis(rounds), yaxis=vertical)


def _accuracies(scores: Scores | None, members: Sequence[int] | None = None) -> NDArray[float64]:
    """The known accuracies of all clients or of some."""
    if scores is None:
        return np.empty(0)
    held = scores.accuracy if members is None else scores.accuracy[np.isin(scores.client, members)]
    return held[np.isfinite(held)]


def _extent(traces: Sequence[Figure]) -> tuple[float, float]:
    """The range of an axis of accuracies, in tenths within 0 and 1."""
    known = [value for trace in traces for value in trace["y"] if value is not None] or [0.0, 1.0]
    return max(0.0, np.floor(10 * min(known)) / 10), min(1.0, np.ceil(10 * max(known)) / 10 + 0.05)


def _splits(rounds: Sequence[Round], height: float) -> tuple[list[Figure], list[Figure]]:
    """A mark to point at and a line for each round in which a node was split."""
    split = [each for each in rounds if each.splits]
    if not split:
        return [], []
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [each.round for each in split],
        "y": [height] * len(split),
        "text": ["<br>".join(clean(split_text(dict(event))) for event in each.splits) for each in split],
        "name": "split",
        "marker": {"symbol": "triangle-down", "size": 10, "color": RULE},
        "hovertemplate": "%{text}<extra></extra>",
    }
    rules = [
        {
            "type": "line",
            "yref": "paper",
            "x0": each.round,
            "x1": each.round,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "line": {"color": RULE, "width": 1, "dash": "dash"},
        }
        for each in split
    ]
    return [marks], rules
