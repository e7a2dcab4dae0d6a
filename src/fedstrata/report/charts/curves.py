"""What is drawn over the rounds: scores, clusters with their clients, costs, gaps of layers, and other metrics."""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.schema import Round, Scores
from fedstrata.report.catalogue import WORDS, compared_by, event_text
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BARE,
    BLUE,
    ORANGE,
    PALETTE,
    RULE,
    STYLES,
    WHITE_DOT,
    Chart,
    Figure,
    axis,
    band,
    chart,
    clean,
    client_ticks,
    dash_of,
    figure,
    heat_map,
    layer_colour,
    line,
    metric_axis,
    points,
    round_axis,
)
from fedstrata.report.reader import RunRecords
from fedstrata.report.words import DASH, capital, slug

_Curve = tuple[int | None, str | None]
"""The node and the layer of a metric: each pair has a curve of its own."""


MOST_NAMED = 30
"""Clusters beyond which their names do not fit beside a chart."""

MOST_ROWS = 1_000
"""The number of clients that the map of membership has room for. Of more, evenly spaced ones are drawn."""


def score_charts(clusters: Clusters) -> list[Chart]:
    """Draw the metric of all clients, and of each final cluster where there are several."""
    metric = clusters.metric
    name = slug(metric.name)
    charts = [chart("scores", scores(clusters.records), name, metric=metric, clustered=clusters.clustered)]
    if by_cluster := scores_by_cluster(clusters):
        charts.append(chart("scores-by-cluster", by_cluster, f"{name}-by-cluster", metric=metric))
    return charts


def scores(records: RunRecords) -> Figure:
    """Draw the mean, the worst client, the middle 80 % of the clients, the splits, and other ways to use models."""
    rounds = records.rounds
    held = [_known(records.scores.get(each.round)) for each in rounds]
    low = [float(np.quantile(values, 0.1)) if values.size else None for values in held]
    high = [float(np.quantile(values, 0.9)) if values.size else None for values in held]
    traces = [
        *band(rounds, low, high, f"10{DASH}90 % of clients", BLUE),
        line(rounds, (each.acc_client for each in rounds), "mean", BLUE),
        line(rounds, (each.acc_worst for each in rounds), "worst client", ORANGE, dash="dot"),
    ]
    for place, name in enumerate(dict.fromkeys(name for each in rounds for name in each.other_uses), start=2):
        values = (each.other_uses.get(name) for each in rounds)
        traces.append(line(rounds, values, name, PALETTE[place % len(PALETTE)], dash="dash"))
    bottom, top = _extent(traces, records.metric)
    marks, rules = _splits(rounds, top)
    vertical = metric_axis(records.metric, range=[bottom, top + 0.03 * (top - bottom)])
    return figure([*traces, *marks], 340, xaxis=round_axis(rounds), yaxis=vertical, shapes=rules)


def scores_by_cluster(clusters: Clusters) -> Figure | None:
    """Draw the mean metric of the clients of each final cluster."""
    records = clusters.records
    if len(clusters.finals) < 2 or not records.scores:
        return None
    traces = []
    for place, node in enumerate(clusters.finals):
        members = [client for client, label in clusters.node_of.items() if label == node]
        held = [_known(records.scores.get(each.round), members) for each in records.rounds]
        means = [float(values.mean()) if values.size else None for values in held]
        traces.append(line(records.rounds, means, f"node {node}", clusters.colour(node), dash=dash_of(place)))
    vertical = metric_axis(records.metric, range=list(_extent(traces, records.metric)))
    return figure(traces, 340, xaxis=round_axis(records.rounds), yaxis=vertical)


def cluster_charts(clusters: Clusters) -> list[Chart]:
    """Draw the number of clusters, and their clients; nothing where all clients were in one cluster all the time."""
    changes = (len(set(each.labels)) > 1 or each.pending for each in clusters.records.rounds)
    if not clusters.clustered or not any(changes):
        return []
    known = any(each.ari is not None for each in clusters.records.rounds)
    counts = {"shown": f"{MOST_ROWS:,}", "clients": f"{len(clusters.order):,}"}
    return [
        chart("clusters", cluster_count(clusters.records), ari=known),
        chart("membership", membership_map(clusters), many=len(clusters.order) > MOST_ROWS, counts=counts),
    ]


def cluster_count(records: RunRecords) -> Figure:
    """Draw the number of clusters, and their agreement with the ground truth where it is known."""
    rounds = records.rounds
    most = max(each.clusters for each in rounds)
    traces = [line(rounds, (float(each.clusters) for each in rounds), "clusters", BLUE, shape="hv")]
    whole = {"dtick": 1} if most < 8 else {"nticks": 6}
    layout: Figure = {
        "xaxis": round_axis(rounds),
        "yaxis": axis("clusters", range=[0, 1.15 * most + 0.2], hoverformat="d", **whole),
    }
    known = [each.ari for each in rounds if each.ari is not None]
    if known:
        values = (each.ari for each in rounds)
        traces.append(line(rounds, values, "ARI (right axis)", ORANGE, dash="dot", shape="hv", yaxis="y2"))
        right = {"overlaying": "y", "side": "right", **BARE, "hoverformat": ".3f"}
        steps = {"range": [min(0.0, *known), 1.08], "tickmode": "linear", "tick0": 0, "dtick": 0.25}
        layout["yaxis2"] = axis("ARI", **right, **steps)
        layout["margin"] = {"l": 52, "r": 52, "t": 36, "b": 44}
    return figure(traces, 280, **layout)


def membership_map(clusters: Clusters) -> Figure:
    """Draw the node of every client in every round, clients in the order of the final clusters, at most `MOST_ROWS`."""
    rounds = clusters.records.rounds
    count = min(len(clusters.order), MOST_ROWS)
    order = [clusters.order[place * len(clusters.order) // count] for place in range(count)]
    nodes = {label for each in rounds for label in each.labels if label >= 0} or {0}
    width = max(nodes) - min(nodes) + 1
    scale = [[(node - min(nodes) + side) / width, clusters.colour(node)] for node in sorted(nodes) for side in (0, 1)]
    numbers = [each.round for each in rounds]
    # A client that comes later has no label before, and one that is not in the federation a negative one.
    rows_of_labels = [[each.labels[client] if client < len(each.labels) else -1 for each in rounds] for client in order]
    cells = heat_map(
        [[label if label >= 0 else None for label in row] for row in rows_of_labels],
        "round %{x}<br>client %{customdata[0]}<br>node %{z}",
        scale,
        x=numbers,
        y=list(range(len(order))),
        zmin=min(nodes) - 0.5,
        zmax=max(nodes) + 0.5,
        showscale=False,
        xgap=1 if len(rounds) <= 60 else 0,
        ygap=1 if len(order) <= 60 else 0,
    )
    rows = {client: row for row, client in enumerate(order)}
    names_of_rows = [clusters.names.of(client) for client in order]
    pending = [(each.round, client) for each in rounds for client in each.pending if client in rows]
    texts = [f"round {number}<br>client {clean(clusters.names.of(client))}<br>pending" for number, client in pending]
    numbers_of, rows_of = [number for number, _ in pending], [rows[client] for _, client in pending]
    crosses = points(numbers_of, rows_of, texts, symbol="x", size=8, **WHITE_DOT) | {"name": "pending"}
    names = []
    for node in clusters.finals:
        own = [row for row, client in enumerate(order) if clusters.node_of[client] == node]
        if own:
            beside = {"x": rounds[-1].round + 0.5, "y": sum(own) / len(own), "text": str(node)}
            place = {"xanchor": "left", "yanchor": "middle", "xshift": 6}
            names.append({**beside, **place, "showarrow": False, "font": {"size": 12}})
    drawn = figure(
        [cells, crosses] if pending else [cells],
        100 + min(max(15 * len(order), 120), 640),
        hovermode="closest",
        xaxis=round_axis(rounds, showgrid=False),
        yaxis=axis("client", autorange="reversed", **BARE, **client_ticks(names_of_rows)),
        margin={"l": 52, "r": 48, "t": 30 if pending else 12, "b": 44},
        annotations=names if len(names) <= MOST_NAMED else [],
        showlegend=bool(pending),
    )
    return drawn | {"rows": [clean(name) for name in names_of_rows], "columns": numbers}


def cost_charts(clusters: Clusters) -> list[Chart]:
    """Draw the bytes since the first round, and the seconds of each round with the clients' and the server's part."""
    rounds = clusters.records.rounds
    sent = {"down": [each.bytes_down for each in rounds], "up": [each.bytes_up for each in rounds]}
    if any(each.bytes_data for each in rounds):
        sent["data"] = [each.bytes_data for each in rounds]  # which only a simulation sends
    so_far = {name: np.cumsum(values).tolist() for name, values in sent.items()}
    took = {
        "whole round": [each.seconds for each in rounds],
        "training": [each.seconds_training for each in rounds],
        "server": [each.seconds_server for each in rounds],
    }
    total = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B", hoverformat=".4~s")
    duration = axis("seconds", rangemode="tozero", hoverformat=".3~s", ticksuffix="s")
    return [chart("bytes", _costs(rounds, so_far, total)), chart("seconds", _costs(rounds, took, duration))]


def _costs(rounds: Sequence[Round], columns: Mapping[str, Sequence[float | None]], vertical: Figure) -> Figure:
    traces = [
        line(rounds, values, name, colour, dash=dash)
        for (name, values), (colour, dash) in zip(columns.items(), STYLES, strict=False)
        if any(value is not None for value in values)
    ]
    return figure(traces, 280, xaxis=round_axis(rounds), yaxis=vertical)


def _known(scores: Scores | None, members: Sequence[int] | None = None) -> NDArray[float64]:
    """Return the known metrics of all clients or of some."""
    if scores is None:
        return np.empty(0)
    held = scores.accuracy if members is None else scores.accuracy[np.isin(scores.client, members)]
    return held[np.isfinite(held)]


def _extent(traces: Sequence[Figure], metric: MetricInfo) -> tuple[float, float]:
    """Return the range of an axis of the metric, within what it can be: in tenths, or with some room on both sides."""
    known = [value for trace in traces for value in trace["y"] if value is not None] or [0.0, 1.0]
    least, most = metric.bounds
    if isfinite(least) and isfinite(most):
        tenths = 10 / (most - least)
        # Where all values are the largest that there is, an axis needs some room below them.
        bottom = min(np.floor(tenths * min(known)) / tenths, most - 1 / tenths)
        top = (np.ceil(tenths * max(known)) + 0.5) / tenths
    else:
        room = 0.05 * (max(known) - min(known)) or 0.05 * abs(known[0]) or 0.05
        bottom = min(known) - room
        top = max(known) + room
    return max(least, bottom), min(most, top)


def _splits(rounds: Sequence[Round], height: float) -> tuple[list[Figure], list[Figure]]:
    """Draw a mark to point at and a line for each round in which a node was split."""
    split = [each for each in rounds if each.splits]
    if not split:
        return [], []
    numbers = [each.round for each in split]
    texts = ["<br>".join(clean(event_text(dict(event))) for event in each.splits) for each in split]
    marks = points(numbers, [height] * len(split), texts, symbol="triangle-down", size=10, color=RULE)
    rule = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    dashed = {"line": {"color": RULE, "width": 1, "dash": "dash"}}
    return [marks | {"name": "split"}], [{**rule, **dashed, "x0": number, "x1": number} for number in numbers]


def layer_charts(clusters: Clusters) -> list[Chart]:
    """Draw for each measure the gaps of all layers over the rounds."""
    records = clusters.records
    return [
        chart("gap", gap_curves(records, name), f"gap-{slug(name)}", measure=name, compared=compared_by(name))
        for name in dict.fromkeys(gap.measure for gaps in records.gaps.values() for gap in gaps)
    ]


def gap_curves(records: RunRecords, measure: str) -> Figure:
    """Draw the gap of every layer over the rounds, with layers coloured by their depth."""
    by_layer: dict[str, dict[int, float]] = {gap.layer: {} for gaps in records.gaps.values() for gap in gaps}
    for number, gaps in records.gaps.items():
        for gap in gaps:
            if gap.measure == measure:
                by_layer[gap.layer][number] = gap.gap
    traces = [
        line(records.rounds, held.values(), layer, layer_colour(depth, len(by_layer)), x=list(held))
        for depth, (layer, held) in enumerate(by_layer.items())
        if held
    ]
    vertical = axis("gap", zeroline=True, zerolinewidth=2, hoverformat=".3f")
    return figure(traces, 300, xaxis=round_axis(records.rounds), yaxis=vertical, showlegend=True)


def metric_charts(clusters: Clusters) -> list[Chart]:
    """Draw a chart for every metric that was not always zero, with a curve for each node or layer."""
    metrics = [metric for each in clusters.records.rounds for metric in each.metrics]
    names = dict.fromkeys(metric.name for metric in metrics)
    known = [name for name in WORDS["value"] if name in names]
    charts = []
    for name in dict.fromkeys([*known, *names]):
        if any(metric.value for metric in metrics if metric.name == name):
            title = capital(name.replace("_", " "))
            charts.append(
                Chart(f"metric-{slug(name)}", title, WORDS["value"].get(name, ""), metric_curves(clusters, name))
            )
    return charts


def metric_curves(clusters: Clusters, name: str) -> Figure:
    """Draw one metric over the rounds, and the threshold that it is compared with."""
    rounds = clusters.records.rounds
    by_round = {
        each.round: {(metric.node, metric.layer): metric.value for metric in each.metrics if metric.name == name}
        for each in rounds
    }
    curves = list(dict.fromkeys(curve for found in by_round.values() for curve in found))
    traces = []
    for place, curve in enumerate(curves):
        values = [by_round[each.round].get(curve) for each in rounds]
        label, colour = _style(clusters, name, curve, curves)
        traces.append(line(rounds, values, label, colour, dash=dash_of(place), hovertemplate="%{y:.4~g}"))
        known = [False, *(value is not None for value in values), False]
        if len(rounds) > 1 and (False, True, False) in zip(known, known[1:], known[2:], strict=False):
            traces[-1]["mode"] = "lines+markers"  # a single point between two gaps makes no line
    bound = _threshold(clusters, name)
    if bound is not None:
        label = f"{WORDS['threshold'][name]} = {bound:.4g}"
        traces.append(line(rounds, [bound] * len(rounds), label, RULE, dash="dash", hoverinfo="skip"))
    return figure(traces, 300, xaxis=round_axis(rounds), yaxis=axis(rangemode="tozero"))


def _style(clusters: Clusters, name: str, curve: _Curve, curves: list[_Curve]) -> tuple[str, str]:
    """Return the name and the colour of a curve."""
    node, layer = curve
    if node is not None:
        return f"node {node}", clusters.colour(node)
    if layer is not None:
        layers = [each for _, each in curves if each is not None]
        return layer, layer_colour(layers.index(layer), len(layers))
    return name, BLUE


def _threshold(clusters: Clusters, name: str) -> float | None:
    """Return the threshold of a metric, as it is set or as all nodes had it; None where it is 0 or unknown."""
    key = WORDS["threshold"].get(name, "")
    setting = clusters.records.setting("algorithm", key)
    if isinstance(setting, int | float):
        return float(setting) or None
    values = [node.criteria.get(key) for node in clusters.records.tree]
    found = {value for value in values if value is not None}
    return found.pop() if len(found) == 1 else None
