"""What the algorithm watched to decide: its own figures over the rounds."""

from collections.abc import Mapping

from fedstrata.report.groups import Groups
from fedstrata.report.pictures.drawing import MEAN, RULE, Figure, Plot, axis, figure, line, shade, time
from fedstrata.report.pictures.trials import OF_NODE, TESTED, trials
from fedstrata.report.words import capital, slug

STEADY = "stability "
THRESHOLDS = {"mean_norm": "eps1", "max_norm": "eps2", "stability": "epsilon", "hopkins": "threshold"}
"""The key of the algorithm that a figure is held against."""
MEANINGS = {
    "stability": "How much the updates of a layer turn from round to round; it is stable below the threshold.",
    "weights used": "Share of the weights that stability looks at.",
    "mean_norm": "Length of the mean update; a node has come to rest where it is below its threshold.",
    "max_norm": "The longest update; there may be groups in a node where it is above its threshold.",
    "hopkins": "Clustering tendency of the predictions; above the threshold clients are clustered.",
    "shared_layers": "Layers that clients of a cluster share; the others are personal.",
    "triggers": "Clusterings so far.",
    "groups_first": "Groups that the first stage found.",
    "radius2": "Widest radius of the second stage.",
    "chosen": "Models that somebody chose.",
    "moved": "Clients that went to another cluster.",
    "left_out": "Updates that did not count, because they were not made from the model of the client's cluster.",
}
"""What the figures of the algorithms mean, in the order in which they are shown."""

Curves = dict[str, tuple[str, str]]
"""Name of a figure -> what its curve is called, and its colour."""


def watched(groups: Groups) -> list[Plot]:
    """A picture for every family of figures that was not always zero; a curve for each node or layer."""
    plots, tested = [], bool(trials(groups))
    for family, curves in _families(groups).items():
        values = [each.figures.get(name) for each in groups.records.rounds for name in curves]
        if any(values) and not (family in TESTED and tested):
            title = capital(family.replace("_", " "))
            drawn = _drawn(groups, family, curves)
            plots.append(Plot(f"watched-{slug(family)}", title, MEANINGS.get(family, ""), drawn))
    return plots


def _families(groups: Groups) -> dict[str, Curves]:
    names = dict.fromkeys(name for each in groups.records.rounds for name in each.figures)
    layers = [name for name in names if name.startswith(STEADY)]
    families: dict[str, Curves] = {}
    for name in names:
        if found := OF_NODE.fullmatch(name):
            families.setdefault(found[1], {})[name] = (f"node {found[2]}", groups.colour(int(found[2])))
        elif name in layers:
            colour = shade(layers.index(name), len(layers))
            families.setdefault("stability", {})[name] = (name.removeprefix(STEADY), colour)
        else:
            families[name] = {name: (name, MEAN)}
    first = [name for name in MEANINGS if name in families]
    return {name: families[name] for name in dict.fromkeys([*first, *families])}


def _drawn(groups: Groups, family: str, curves: Curves) -> Figure:
    rounds = groups.records.rounds
    hover = "%{y:.4~g}"
    traces = [
        line(rounds, (each.figures.get(name) for each in rounds), called, colour, hovertemplate=hover)
        for name, (called, colour) in curves.items()
    ]
    for trace in traces if len(rounds) > 1 else ():
        held = [False, *(value is not None for value in trace["y"]), False]
        # A point between two holes makes no line.
        if any(
            here and not before and not after for before, here, after in zip(held, held[1:], held[2:], strict=False)
        ):
            trace["mode"] = "lines+markers"
    bound = _threshold(groups, family)
    if bound is not None:
        key = THRESHOLDS[family]
        stroke = {"color": RULE, "width": 1.5, "dash": "dash"}
        traces.append(line(rounds, [bound] * len(rounds), f"{key} = {bound:.4g}", RULE, line=stroke, hoverinfo="skip"))
    return figure(traces, 300, xaxis=time(rounds), yaxis=axis(rangemode="tozero"))


def _threshold(groups: Groups, family: str) -> float | None:
    """What a figure is held against: as it is set, or as all nodes were last judged by; None where that is 0."""
    key = THRESHOLDS.get(family, "")
    keys = groups.records.settings.get("algorithm")
    value = keys.get(key) if isinstance(keys, Mapping) else None
    if isinstance(value, int | float):
        return float(value) or None
    found = {bound for node in groups.records.tree if (bound := node.criteria.get(key)) is not None}
    return found.pop() if len(found) == 1 else None
