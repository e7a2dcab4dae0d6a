"""The metrics that the algorithm recorded over the rounds, and the tests that decided."""

from collections.abc import Mapping
from typing import NamedTuple

from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import BLUE, RULE, Chart, Figure, axis, figure, layer_colour, line, round_axis
from fedstrata.report.reader import Metric
from fedstrata.report.words import METRICS, THRESHOLDS, capital, slug

OF_TESTS = ("p", "level")
"""Metrics that the chart of the tests shows."""

Curve = tuple[int | None, str | None]
"""The node and the layer of a metric: each pair has a curve of its own."""


class NodeTest(NamedTuple):
    """A test of a node, which is split only if p is at most the level."""

    node: int
    round: int
    p: float
    level: float


def metric_charts(clusters: Clusters) -> list[Chart]:
    """A chart for every metric that was not always zero, with a curve for each node or layer."""
    metrics = [metric for found in clusters.records.metrics.values() for metric in found]
    names = dict.fromkeys(metric.name for metric in metrics)
    known = [name for name in METRICS if name in names]
    tested = OF_TESTS if find_tests(clusters) else ()
    charts = []
    for name in dict.fromkeys([*known, *names]):
        if name not in tested and any(metric.value for metric in metrics if metric.name == name):
            title = capital(name.replace("_", " "))
            charts.append(Chart(f"metric-{slug(name)}", title, METRICS.get(name, ""), metric_curves(clusters, name)))
    return charts


def metric_curves(clusters: Clusters, name: str) -> Figure:
    """One metric over the rounds, and the threshold that it is compared with."""
    rounds = clusters.records.rounds
    by_round = {
        number: {(metric.node, metric.layer): metric.value for metric in found if metric.name == name}
        for number, found in clusters.records.metrics.items()
    }
    curves = list(dict.fromkeys(curve for found in by_round.values() for curve in found))
    traces = []
    for curve in curves:
        values = [by_round[each.round].get(curve) for each in rounds]
        label, colour = _style(clusters, name, curve, curves)
        traces.append(line(rounds, values, label, colour, hovertemplate="%{y:.4~g}"))
        if len(rounds) > 1 and _has_lone_point(values):
            traces[-1]["mode"] = "lines+markers"  # a single point between two gaps makes no line
    bound = _threshold(clusters, name)
    if bound is not None:
        label = f"{THRESHOLDS[name]} = {bound:.4g}"
        traces.append(line(rounds, [bound] * len(rounds), label, RULE, dash="dash", hoverinfo="skip"))
    return figure(traces, 300, xaxis=round_axis(rounds), yaxis=axis(rangemode="tozero"))


def _style(clusters: Clusters, name: str, curve: Curve, curves: list[Curve]) -> tuple[str, str]:
    """The name and the colour of a curve."""
    node, layer = curve
    if node is not None:
        return f"node {node}", clusters.colour(node)
    if layer is not None:
        layers = [each for _, each in curves if each is not None]
        return layer, layer_colour(layers.index(layer), len(layers))
    return name, BLUE


def _has_lone_point(values: list[float | None]) -> bool:
    """Whether a known value has unknown ones, or nothing, on both sides."""
    known = [False, *(value is not None for value in values), False]
    return any(here and not known[place] and not known[place + 2] for place, here in enumerate(known[1:-1]))


def _threshold(clusters: Clusters, name: str) -> float | None:
    """The threshold of a metric, as it is set or as all nodes had it; None where there is none, or where it is 0."""
    key = THRESHOLDS.get(name, "")
    setting = clusters.records.setting("algorithm", key)
    if isinstance(setting, int | float):
        return float(setting) or None
    values = [value for decision in clusters.records.decisions.values() for value in decision.values]
    found = {each.value for each in values if each.name == key and each.value is not None}
    return found.pop() if len(found) == 1 else None


def p_value_charts(clusters: Clusters) -> list[Chart]:
    """The p-value of every test with the level that it must not exceed; nothing where there was none."""
    tests = find_tests(clusters)
    if not tests:
        return []
    traces: list[Figure] = []
    for node in sorted({test.node for test in tests}):
        own = [test for test in tests if test.node == node]
        colour = clusters.colour(node)
        shared = {
            "type": "scatter",
            "x": [test.round for test in own],
            "hovertext": [
                f"node {node}, round {test.round}<br>p = {test.p:.2g}, level {test.level:.2g}" for test in own
            ],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
        labels = {"mode": "markers+text", "text": [str(node)] * len(own), "textposition": "middle right"}
        dash = {"symbol": "line-ew", "size": 16, "color": colour, "line": {"color": colour, "width": 2}}
        traces.append({**shared, **labels, "y": [test.p for test in own], "marker": {"size": 9, "color": colour}})
        traces.append({**shared, "mode": "markers", "y": [test.level for test in own], "marker": dash})
    vertical = axis("p-value", type="log", hoverformat=".2g", dtick="D2", tickformat=".2~g")
    across = round_axis(clusters.records.rounds)
    text = (
        "A dot is the p-value of a test (how often chance alone gives such a result) of the node named next to it. The "
        "dash in its colour is the significance level. A node is split only if the dot is not above the dash."
    )
    if not _recorded_in_rounds(clusters):
        text += " For each node, the last test is shown."
    return [Chart("tests", "Tests", text, figure(traces, 300, hovermode="closest", xaxis=across, yaxis=vertical))]


def find_tests(clusters: Clusters) -> list[NodeTest]:
    """All tests that the rounds recorded; otherwise the last one of each node, which the tree keeps."""
    records = clusters.records
    if _recorded_in_rounds(clusters):
        found = [(number, metrics) for number, metrics in records.metrics.items()]
    else:
        rounds = {each.node: each.matrices[0].round for each in clusters.comparisons}
        found = [(rounds[node], each.values) for node, each in records.decisions.items() if node in rounds]
    return [test for number, metrics in found for test in _tests(number, metrics)]


def _tests(number: int, metrics: tuple[Metric, ...]) -> list[NodeTest]:
    """The tests among the metrics of a round: those that have a p-value and a level for the same node."""
    levels = {metric.node: metric.value for metric in metrics if metric.name == "level"}
    found = []
    for metric in metrics:
        level = levels.get(metric.node)
        if metric.name == "p" and metric.node is not None and metric.value is not None and level is not None:
            found.append(NodeTest(metric.node, number, metric.value, level))
    return found


def _recorded_in_rounds(clusters: Clusters) -> bool:
    metrics: Mapping[int, tuple[Metric, ...]] = clusters.records.metrics
    return any(metric.name == "p" and metric.node is not None for found in metrics.values() for metric in found)
