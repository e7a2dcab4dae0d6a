"""Accuracy, clusters, bytes and seconds over the rounds."""

from collections.abc import Sequence

import numpy as np

from fedstrata.report.colours import PALETTE
from fedstrata.report.groups import Groups
from fedstrata.report.pictures.drawing import (
    BAND,
    MEAN,
    RULE,
    THIRD,
    WORST,
    Figure,
    axis,
    clean,
    dotted,
    figure,
    line,
    time,
)
from fedstrata.report.records import Records, Round
from fedstrata.report.words import DASH, told

STROKES = ((MEAN, "solid"), (WORST, "dot"), (THIRD, "dash"))
"""Colour and dash of curves that stand side by side: told apart without colours too."""


def accuracy(records: Records) -> Figure:
    """Mean, worst client and the middle 80 % of the clients, with the splits; and every other way of using models."""
    rounds = records.rounds
    low, high = [], []
    for each in rounds:
        scores = records.scores.get(each.round)
        held = scores.accuracy[np.isfinite(scores.accuracy)] if scores is not None else np.empty(0)
        low.append(float(np.quantile(held, 0.1)) if held.size else None)
        high.append(float(np.quantile(held, 0.9)) if held.size else None)
    edge = {"line": {"width": 0}, "mode": "lines", "hoverinfo": "skip"}
    band = f"10{DASH}90 % of clients"
    traces = [
        line(rounds, low, band, MEAN, showlegend=False, **edge),
        line(rounds, high, band, MEAN, fill="tonexty", fillcolor=BAND, **edge),
        line(rounds, (r.acc_client for r in rounds), "mean", MEAN),
        line(rounds, (r.acc_worst for r in rounds), "worst client", WORST, line=dotted(WORST)),
    ]
    for place, name in enumerate(dict.fromkeys(name for each in rounds for name in each.others), start=2):
        colour = PALETTE[place % len(PALETTE)]
        values = (each.others.get(name) for each in rounds)
        traces.append(line(rounds, values, name, colour, line={"color": colour, "width": 2, "dash": "dash"}))
    bottom, top = _extent([trace["y"] for trace in traces])
    marks, rules = _splits(rounds, top)
    vertical = axis("accuracy", range=[bottom, top + 0.03 * (top - bottom)], hoverformat=".3f")
    return figure([*traces, *marks], 340, xaxis=time(rounds), yaxis=vertical, shapes=rules)


def _extent(curves: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    values = [value for curve in curves for value in curve if value is not None] or [0.0, 1.0]
    return max(0.0, np.floor(10 * min(values)) / 10), min(1.0, np.ceil(10 * max(values)) / 10 + 0.05)


def _splits(rounds: Sequence[Round], height: float) -> tuple[list[Figure], list[Figure]]:
    """A mark to point at and a rule for each round in which a node was split."""
    split = [each for each in rounds if each.splits]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [each.round for each in split],
        "y": [height] * len(split),
        "text": ["<br>".join(clean(told(event)) for event in each.splits) for each in split],
        "name": "split",
        "marker": {"symbol": "triangle-down", "size": 10, "color": RULE},
        "hovertemplate": "%{text}<extra></extra>",
    }
    rules = [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": each.round, "x1": each.round, "layer": "below"}
        | {"line": {"color": RULE, "width": 1, "dash": "dash"}}
        for each in split
    ]
    return ([marks] if split else []), rules


def by_cluster(groups: Groups) -> Figure | None:
    """Mean accuracy of the clients of each final cluster."""
    records = groups.records
    if len(groups.finals) < 2 or not records.scores:
        return None
    traces = []
    for node in groups.finals:
        members = [client for client, label in groups.label.items() if label == node]
        means: list[float | None] = []
        for each in records.rounds:
            scores = records.scores.get(each.round)
            held = scores.accuracy[np.isin(scores.client, members)] if scores is not None else np.empty(0)
            held = held[np.isfinite(held)]
            means.append(float(held.mean()) if held.size else None)
        traces.append(line(records.rounds, means, f"node {node}", groups.colour(node)))
    bottom, top = _extent([trace["y"] for trace in traces])
    vertical = axis("accuracy", range=[bottom, top], hoverformat=".3f")
    return figure(traces, 340, xaxis=time(records.rounds), yaxis=vertical)


def clusters(records: Records) -> Figure:
    """How many clusters there were, and how far they agree with the hidden truth."""
    rounds = records.rounds
    steps = {"color": MEAN, "width": 2, "shape": "hv"}
    traces = [line(rounds, (float(r.clusters) for r in rounds), "clusters", MEAN, line=steps)]
    most = max(r.clusters for r in rounds)
    whole = {"dtick": 1} if most < 8 else {"nticks": 6}
    layout: Figure = {
        "xaxis": time(rounds),
        "yaxis": axis("clusters", range=[0, 1.15 * most + 0.2], hoverformat="d", **whole),
    }
    if any(r.ari is not None for r in rounds):
        stroke = dotted(WORST) | {"shape": "hv"}
        traces.append(line(rounds, (r.ari for r in rounds), "ARI (right axis)", WORST, yaxis="y2", line=stroke))
        least = min(0.0, *(r.ari for r in rounds if r.ari is not None))
        right = {"overlaying": "y", "side": "right", "showgrid": False, "zeroline": False, "hoverformat": ".3f"}
        layout["yaxis2"] = axis("ARI", **right, range=[least, 1.08], tickmode="linear", tick0=0, dtick=0.25)
        layout["margin"] = {"l": 52, "r": 52, "t": 36, "b": 44}
    return figure(traces, 280, **layout)


def traffic(records: Records) -> Figure:
    """Bytes since the first round: down to the clients, up from them, and of data that only a simulation may send."""
    rounds = records.rounds
    columns = {"down": [r.bytes_down for r in rounds], "up": [r.bytes_up for r in rounds]}
    if any(r.bytes_data for r in rounds):
        columns["data"] = [r.bytes_data for r in rounds]
    traces = [
        line(rounds, np.cumsum(values).tolist(), name, colour, line={"color": colour, "width": 2, "dash": dash})
        for (name, values), (colour, dash) in zip(columns.items(), STROKES, strict=False)
    ]
    total = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B", hoverformat=".4~s")
    return figure(traces, 280, xaxis=time(rounds), yaxis=total)


def seconds(records: Records) -> Figure:
    """Seconds that each round took, and what of them the clients and the server did."""
    rounds = records.rounds
    columns = {
        "the round": [r.seconds for r in rounds],
        "training": [r.seconds_training for r in rounds],
        "the server": [r.seconds_server for r in rounds],
    }
    traces = [
        line(rounds, values, name, colour, line={"color": colour, "width": 2, "dash": dash})
        for (name, values), (colour, dash) in zip(columns.items(), STROKES, strict=True)
        if any(value is not None for value in values)
    ]
    spent = axis("seconds", rangemode="tozero", hoverformat=".3~s", ticksuffix="s")
    return figure(traces, 280, xaxis=time(rounds), yaxis=spent)
