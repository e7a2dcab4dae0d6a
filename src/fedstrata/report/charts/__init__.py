"""The charts of a run, as Plotly figures in plain JSON form: the page draws them, and so does the export.

A chart is a function in one of the modules here. It stands in the list that the function of its group returns. The
section of the page that shows a group is the table of its name in ``words.toml``, which also has the words of charts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedstrata.report.charts.curves import cluster_charts, cost_charts, layer_charts, metric_charts, score_charts
from fedstrata.report.charts.groups import describe_clusters, group_charts
from fedstrata.report.charts.matrices import matrix_slider, split_charts
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import Chart

CHART_GROUPS: Mapping[str, Callable[[Clusters], list[Chart]]] = {
    "metric": score_charts,
    "groups": group_charts,
    "clusters": cluster_charts,
    "splits": split_charts,
    "metrics": metric_charts,
    "layers": layer_charts,
    "cost": cost_charts,
}
"""The groups of charts; each makes its charts, or none. The section "decisions" shows both splits and metrics."""

__all__ = ["CHART_GROUPS", "all_charts", "describe_clusters", "matrix_slider"]


def all_charts(clusters: Clusters) -> dict[str, list[Chart]]:
    """Return the charts of a run by group; a name that an earlier chart has gets a number."""
    found: dict[str, list[Chart]] = {}
    taken: Counter[str] = Counter()
    for group, make in CHART_GROUPS.items():
        found[group] = []
        for chart in make(clusters) if clusters.records.rounds else ():
            taken[chart.name] += 1
            number = taken[chart.name]
            found[group].append(chart if number == 1 else replace(chart, name=f"{chart.name}-no-{number}"))
    return found
