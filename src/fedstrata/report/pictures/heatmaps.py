"""The client-by-client matrices behind the decisions, one by one."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.report.groups import Decision, Groups
from fedstrata.report.pictures.drawing import Figure, Plot, axis, clean, figure, known, ticks
from fedstrata.report.records import Matrix
from fedstrata.report.words import listed, measure, slug

SHOWN = 6  # matrices of one examination; more layers would bury the one that decided
NEAR = [[0, "#f3f6fa"], [0.35, "#b5cfe8"], [0.7, "#4a86c2"], [1, "#12365f"]]
FAR = [[place, colour] for place, (_, colour) in zip((0, 0.3, 0.65, 1), reversed(NEAR), strict=True)]
ANGULAR = ("cos", "dcos")
"""Measures that mean the same in every round, and so have one scale on the whole page."""


def decisions(groups: Groups, split: bool) -> list[Plot]:
    """What the nodes were split by that were, or what the others were last examined with."""
    plots = []
    for decision in groups.decisions:
        if (decision.event is not None) == split:
            shown = telling(decision)
            rest = len(shown) - SHOWN
            more = f" {rest} more in matrices/{shown[0].round:05d}.npz." if rest > 0 else ""
            plots += [_plot(groups, matrix, decision, more) for matrix in shown[:SHOWN]]
    return plots


def telling(decision: Decision) -> list[Matrix]:
    """The matrices of the layer that decided; all where it is not known which one did."""
    return [matrix for matrix in decision.matrices if matrix.layer == decision.layer] or list(decision.matrices)


def _plot(groups: Groups, matrix: Matrix, decision: Decision, more: str) -> Plot:
    labels = decision.at.labels
    into: list[int] = list(decision.event.get("into", [])) if decision.event else []
    side = {client: groups.below(labels[client], into) if client < len(labels) else None for client in matrix.clients}
    rank = {
        client: (into.index(child) if child in into else len(into), *groups.final_rank(client))
        for client, child in side.items()
    }
    places = sorted(range(len(matrix.clients)), key=lambda place: rank[matrix.clients[place]])
    clients = [matrix.clients[place] for place in places]
    values = matrix.values[np.ix_(places, places)].astype(float64)
    ends = [end for end, (one, two) in enumerate(pairwise(clients), start=1) if into and side[one] != side[two]]
    title = f"Round {decision.at.round}, node {matrix.node}, {matrix.layer}: "
    if into:
        sizes = [sum(groups.below(label, into) == child for label in labels) for child in into]
        title += f"split into {listed(sizes)} clients"
    else:
        title += "not split"
    seen = f" Seen in round {matrix.round}." if matrix.round != decision.at.round else ""
    text = f"{measure(matrix.measure)}; darker is closer.{seen}{more}"
    name = f"{'split' if into else 'kept'}-{matrix.node}-{slug(matrix.measure)}-{slug(matrix.layer)}"
    return Plot(name, title, text, _heat(groups, matrix.measure, clients, values, ends))


def similar(matrix: Matrix) -> bool:
    """Whether more is closer; of unknown measures the diagonal tells: distances from oneself are 0."""
    if matrix.measure in (*ANGULAR, "likeness"):
        return True
    return bool(np.nan_to_num(np.diagonal(matrix.values)).sum() > len(matrix.values) / 2)


def others(values: NDArray[float64]) -> NDArray[float64]:
    """The matrix without its diagonal, which says nothing and would take half of the colours."""
    return np.where(np.eye(len(values), dtype=bool), np.nan, values)


def span(matrices: tuple[Matrix, ...]) -> tuple[float, float] | None:
    """The ends of the colour scale of some matrices of one measure; None where no two values differ.

    Distances start at 0 and end at their own maximum, for updates shrink from round to round.
    """
    held = np.concatenate([found[np.isfinite(found)] for found in (others(matrix.values) for matrix in matrices)])
    if not held.size or held.min() == held.max():
        return None
    return float(held.min()) if similar(matrices[0]) else 0.0, float(held.max())


def scale(groups: Groups, matrix: Matrix) -> tuple[float, float] | None:
    """The ends of the colour scale of a matrix.

    Cosines share one on the whole page, so that a group that holds together looks even beside one that was split.
    """
    shared = tuple(other for other in groups.records.matrices if other.measure == matrix.measure)
    return span(shared if matrix.measure in ANGULAR else (matrix,))


def heat(size: int, similarity: bool, hover: str) -> Figure:
    """An empty heat map of so many clients, and the bar of its colours."""
    return {
        "type": "heatmap",
        "x": list(range(size)),
        "y": list(range(size)),
        "hovertemplate": f"{hover} %{{z}}<extra></extra>",
        "colorscale": NEAR if similarity else FAR,
        "colorbar": {"thickness": 10, "len": 0.9, "outlinewidth": 0, "tickfont": {"size": 11}, "nticks": 6},
    }


def square(trace: Figure, clients: list[int], shapes: list[Figure]) -> Figure:
    """A heat map of clients against clients, with a margin for the strips in the clusters' colours."""
    m = len(clients)
    edge = _edge(m)
    shared: dict[str, Any] = {"showgrid": False, "zeroline": False, "constrain": "domain", **ticks(clients, 25)}
    across, down = axis(range=[-0.5 - edge, m - 0.5], **shared), axis(range=[m - 0.5, -0.5 - edge], **shared)
    drawn = figure([trace], 420, hovermode="closest", xaxis=across, yaxis=down | {"scaleanchor": "x"}, showlegend=False)
    drawn["layout"] |= {
        "plot_bgcolor": "rgba(125, 135, 147, 0.3)",
        "margin": {"l": 40, "r": 8, "t": 8, "b": 36},
        "shapes": shapes,
    }
    return drawn | {"square": True, "rows": clients, "columns": clients}


def strips(groups: Groups, clients: list[int]) -> list[Figure]:
    """A strip in the colour of the final cluster along both axes."""
    m, edge = len(clients), _edge(len(clients))
    labels = [groups.label.get(client, -1) for client in clients]
    cuts = [0, *(place for place, (one, two) in enumerate(pairwise(labels), start=1) if one != two), m]
    shapes: list[Figure] = []
    outer, inner = -0.5 - edge, -0.5 - 0.25 * edge
    for start, end in pairwise(cuts) if m else ():
        filled = {"type": "rect", "line": {"width": 0}, "fillcolor": groups.colour(labels[start])}
        shapes.append(filled | {"x0": start - 0.5, "x1": end - 0.5, "y0": outer, "y1": inner})
        shapes.append(filled | {"y0": start - 0.5, "y1": end - 0.5, "x0": outer, "x1": inner})
    return shapes


def _edge(m: int) -> float:
    return 0.045 * m


def _heat(groups: Groups, name: str, clients: list[int], values: NDArray[float64], ends: list[int]) -> Figure:
    matrix, m = Matrix(0, 0, name, "", values, clients), len(clients)
    trace = heat(m, similar(matrix), f"clients %{{customdata[0]}} and %{{customdata[1]}}<br>{clean(name)}")
    trace["z"] = [known(row) for row in others(values)]
    if ends_of_scale := scale(groups, matrix):
        trace["zmin"], trace["zmax"] = ends_of_scale
    shapes = strips(groups, clients)
    for end in ends:
        # White under black: seen on the darkest and on the palest cells.
        for colour, width in (("#ffffff", 5), ("#111111", 2)):
            rule = {"type": "line", "line": {"color": colour, "width": width}}
            shapes.append(rule | {"x0": end - 0.5, "x1": end - 0.5, "y0": -0.5, "y1": m - 0.5})
            shapes.append(rule | {"y0": end - 0.5, "y1": end - 0.5, "x0": -0.5, "x1": m - 0.5})
    return square(trace, clients, shapes)
