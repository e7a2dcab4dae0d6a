"""How far each layer of the network separates the hidden groups: over the rounds, and in profile."""

from fedstrata.report.pictures.drawing import MEAN, WORST, Figure, Plot, axis, clean, figure, known, line, shade, time
from fedstrata.report.records import Records
from fedstrata.report.words import measure, slug


def layers(records: Records) -> list[Plot]:
    """For each measure the curves of all layers, and their profile."""
    plots = []
    for name in dict.fromkeys(gap.measure for gap in records.gaps):
        plots.append(Plot(f"gap-{slug(name)}", f"Gap over the rounds: {name}", measure(name), curves(records, name)))
        text = f"{measure(name)}; what is below zero does not separate the groups, and is drawn as zero."
        plots.append(Plot(f"profile-{slug(name)}", f"Layer profile: {name}", text, profile(records, name)))
    return plots


def curves(records: Records, measured: str) -> Figure:
    """The gap of every layer over the rounds, layers coloured by their depth."""
    found = _layers(records)
    traces = []
    for depth, layer in enumerate(found):
        rows = [gap for gap in records.gaps if (gap.measure, gap.layer) == (measured, layer)]
        if rows:
            at = [gap.round for gap in rows]
            traces.append(line(records.rounds, (gap.gap for gap in rows), layer, shade(depth, len(found)), x=at))
    vertical = axis("gap", zeroline=True, zerolinewidth=2, hoverformat=".3f")
    return figure(traces, 300, xaxis=time(records.rounds), yaxis=vertical, showlegend=True)


def profile(records: Records, measured: str) -> Figure:
    """The gap of every layer in the round of the first split and in the last one (LayerCFL, Fig. 5 and 8).

    A bar ends at zero where the gap is negative, as in the paper; the hover text has the value itself.
    """
    first = next((each.round for each in records.rounds if each.splits), None)
    last = max(gap.round for gap in records.gaps)
    shown = {last: f"round {last}"} | ({first: f"round {first}, the first split"} if first is not None else {})
    traces = []
    for number, colour in zip(sorted(shown), (WORST, MEAN), strict=False):
        held = {gap.layer: gap.gap for gap in records.gaps if (gap.round, gap.measure) == (number, measured)}
        values = known(held.get(layer) for layer in _layers(records))
        traces.append(
            {
                "type": "bar",
                "x": [clean(layer) for layer in _layers(records)],
                "y": [value if value is None else max(value, 0.0) for value in values],
                "customdata": values,
                "name": shown[number],
                "marker": {"color": colour},
                "hovertemplate": "%{x}: %{customdata}<extra>" + shown[number] + "</extra>",
            }
        )
    across, vertical = axis("layer", type="category"), axis("gap, at least 0", rangemode="tozero")
    return figure(traces, 300, xaxis=across, yaxis=vertical, hovermode="closest", showlegend=True)


def _layers(records: Records) -> list[str]:
    return list(dict.fromkeys(gap.layer for gap in records.gaps))
