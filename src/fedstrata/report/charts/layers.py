"""How clearly each layer of the network separates the ground-truth groups: over the rounds, and layer by layer."""

from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BLUE,
    ORANGE,
    Chart,
    Figure,
    axis,
    clean,
    figure,
    layer_colour,
    line,
    round_axis,
    rounded,
)
from fedstrata.report.reader import Records
from fedstrata.report.words import MEASURES, slug


def layer_charts(clusters: Clusters) -> list[Chart]:
    """For each measure the gap of all layers over the rounds, and their profile."""
    records = clusters.records
    charts = []
    for name in dict.fromkeys(gap.measure for gaps in records.gaps.values() for gap in gaps):
        text = f"{MEASURES.get(name, name)}. A layer above 0 separates the groups; higher is clearer."
        charts.append(Chart(f"gap-{slug(name)}", f"Gap over the rounds: {name}", text, gap_curves(records, name)))
        text = f"{MEASURES.get(name, name)}. A layer without a bar (0 or less) does not separate the groups."
        charts.append(Chart(f"profile-{slug(name)}", f"Layer profile: {name}", text, layer_profile(records, name)))
    return charts


def gap_curves(records: Records, measure: str) -> Figure:
    """The gap of every layer over the rounds, with layers coloured by their depth."""
    layers = _layers(records)
    by_layer = {layer: _gaps_of(records, layer, measure) for layer in layers}
    traces = [
        line(records.rounds, held.values(), layer, layer_colour(depth, len(layers)), x=list(held))
        for depth, (layer, held) in enumerate(by_layer.items())
        if held
    ]
    vertical = axis("gap", zeroline=True, zerolinewidth=2, hoverformat=".3f")
    return figure(traces, 300, xaxis=round_axis(records.rounds), yaxis=vertical, showlegend=True)


def layer_profile(records: Records, measure: str) -> Figure:
    """The gap of every layer in the round of the first split and in the last round (LayerCFL, Fig. 5 and 8).

    A bar ends at 0 where the gap is negative, as in the paper; the text at the pointer has the value itself.
    """
    first = next((each.round for each in records.rounds if each.splits), None)
    shown = {max(records.gaps): f"round {max(records.gaps)}"}
    if first is not None:
        shown[first] = f"round {first}, the first split"
    layers = _layers(records)
    traces = []
    for number, colour in zip(sorted(shown), (ORANGE, BLUE), strict=False):
        held = {gap.layer: gap.gap for gap in records.gaps.get(number, ()) if gap.measure == measure}
        values = rounded(held.get(layer) for layer in layers)
        traces.append(
            {
                "type": "bar",
                "x": [clean(layer) for layer in layers],
                "y": [value if value is None else max(value, 0.0) for value in values],
                "customdata": values,
                "name": shown[number],
                "marker": {"color": colour},
                "hovertemplate": "%{x}: %{customdata}<extra>" + shown[number] + "</extra>",
            }
        )
    across = axis("layer", type="category")
    vertical = axis("gap, at least 0", rangemode="tozero")
    return figure(traces, 300, xaxis=across, yaxis=vertical, hovermode="closest", showlegend=True)


def _layers(records: Records) -> list[str]:
    return list(dict.fromkeys(gap.layer for gaps in records.gaps.values() for gap in gaps))


def _gaps_of(records: Records, layer: str, measure: str) -> dict[int, float]:
    """The gap of a layer by one measure, by round."""
    return {
        number: gap.gap
        for number, gaps in records.gaps.items()
        for gap in gaps
        if (gap.layer, gap.measure) == (layer, measure)
    }
