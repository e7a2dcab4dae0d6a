"""The client-by-client matrices: those behind a split, and all of them round by round.

For the slider through the rounds, the page gets the half of a matrix above the diagonal as 16-bit numbers: a tenth of
what Plotly's JSON would take.
"""

from base64 import b64encode
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.records.arrays import ClientMatrix
from fedstrata.records.schema import ALL_CLIENTS
from fedstrata.report.catalogue import COMPARABLE, COMPARED_BY, SIMILARITIES, compared_by, event_text
from fedstrata.report.clusters import Clusters, SplitMatrices
from fedstrata.report.drawing import (
    BARE,
    COLOUR_BAR,
    SEQUENTIAL,
    Chart,
    Figure,
    axis,
    chart,
    clean,
    client_ticks,
    figure,
    heat_map,
    rounded,
)
from fedstrata.report.words import capital, slug

MOST_SHOWN = 6
"""Matrices of one decision that are shown; with more, the one that decided would be hard to find."""

CLOSE_IS_LOW = [[place, colour] for place, (_, colour) in zip((0, 0.3, 0.65, 1), SEQUENTIAL[::-1], strict=True)]
"""Colour scale of distances: darker means closer."""

SCALES = {True: SEQUENTIAL, False: CLOSE_IS_LOW}
"""The colour scale of similarities, and of distances."""

_STRIP = 0.045
"""The width of the strips in the colours of the clusters, as a share of a matrix."""

MOST_BOLD = 8
"""Parts of a split up to which bold lines stand between them; of more, the lines would hide the cells."""

_LEVELS = 65534
"""Levels between the smallest and the largest value of the slider's matrices; one more code stands for no value."""


def split_charts(clusters: Clusters) -> list[Chart]:
    """Draw the matrices by which nodes were split. The slider has all others."""
    charts = []
    for split in clusters.splits:
        matrices = _of_layer(split)
        rest = len(matrices) - MOST_SHOWN
        charts += [_split_chart(clusters, matrix, split, rest) for matrix in matrices[:MOST_SHOWN]]
    return charts


def matrix_slider(clusters: Clusters) -> dict[str, Any] | None:
    """Return the data of the slider: views (a layer by a measure), the matrices of each round, an empty heat map.

    None where there is nothing to go through: no matrix, or only those of one round that the charts of splits show.
    """
    matrices = clusters.records.matrices
    by_round: dict[int, list[ClientMatrix]] = {}
    for matrix in matrices:
        by_round.setdefault(matrix.round, []).append(matrix)
    elsewhere = {id(matrix) for split in clusters.splits for matrix in _of_layer(split)[:MOST_SHOWN]}
    if not by_round or (len(by_round) == 1 and elsewhere.issuperset(map(id, matrices))):
        return None
    order = sorted({client for matrix in matrices for client in matrix.clients}, key=clusters.client_rank)
    places = {client: place for place, client in enumerate(order)}
    views = list(dict.fromkeys(map(_view_of, matrices)))
    return {
        "figure": _square(_heat_map(len(order), True, ""), clusters, order, _cluster_strips(clusters, order)),
        "views": [_view(matrices, view) for view in views],
        "frames": [
            {
                "round": number,
                "parts": [_encode(matrix, views.index(_view_of(matrix)), places) for matrix in found],
                "texts": _outcomes(clusters, number, {matrix.node for matrix in found} - {ALL_CLIENTS}),
            }
            for number, found in sorted(by_round.items())
        ],
    }


def is_similarity(matrix: ClientMatrix) -> bool:
    """Return whether more is closer. For an unknown measure the diagonal tells: the distance to oneself is 0."""
    if matrix.measure in COMPARED_BY:
        return matrix.measure in SIMILARITIES
    return bool(np.nan_to_num(np.diagonal(matrix.values)).sum() > len(matrix.values) / 2)


def _of_layer(split: SplitMatrices) -> list[ClientMatrix]:
    """Return the matrices of the layer that decided; all where it is not known which one did."""
    matrices = [matrix for matrix in split.matrices if matrix.layer == split.event.layer]
    return matrices or list(split.matrices)


def _split_chart(clusters: Clusters, matrix: ClientMatrix, split: SplitMatrices, rest: int) -> Chart:
    into = split.event.into
    labels = dict(enumerate(split.at.labels))
    side = {
        client: clusters.find_ancestor(labels[client], into) if client in labels else None for client in matrix.clients
    }

    def rank(place: int) -> tuple[int, ...]:
        client = matrix.clients[place]
        child = side[client]
        return (into.index(child) if child in into else len(into), *clusters.client_rank(client))

    places = sorted(range(len(matrix.clients)), key=rank)
    clients = [matrix.clients[place] for place in places]
    boundaries = [end for end, (one, two) in enumerate(pairwise(clients), start=1) if side[one] != side[two]]
    trace = _matrix_trace(clusters, matrix, places)
    shapes = [*_cluster_strips(clusters, clients), *_boundary_lines(boundaries, len(clients))]
    return chart(
        "split",
        _square(trace, clusters, clients, shapes),
        f"split-{matrix.node}-{slug(matrix.measure)}-{slug(matrix.layer)}",
        split_in=split.at.round,
        into=into,
        rest=rest,
        round=matrix.round,
        node=matrix.node,
        layer=matrix.layer,
        compared=compared_by(matrix.measure),
    )


def _matrix_trace(clusters: Clusters, matrix: ClientMatrix, places: Sequence[int]) -> Figure:
    """Draw a matrix with its rows and columns in some order."""
    hover = f"clients %{{customdata[0]}} and %{{customdata[1]}}<br>{clean(matrix.measure)}"
    trace = _heat_map(len(places), is_similarity(matrix), hover)
    values = matrix.values[np.ix_(places, places)].astype(float64)
    trace["z"] = [rounded(row) for row in _without_diagonal(values)]
    # Cosines share one scale on the whole page: a group without a pattern looks even next to one that was split.
    alike = [other for other in clusters.records.matrices if other.measure == matrix.measure]
    if span := _span(alike if matrix.measure in COMPARABLE else [matrix]):
        trace["zmin"], trace["zmax"] = span
    return trace


def _span(matrices: Sequence[ClientMatrix]) -> tuple[float, float] | None:
    """Return the smallest and the largest value of some matrices of one measure; None where no two values differ.

    Distances start at 0 and end at their own maximum, for updates shrink from round to round.
    """
    values = np.concatenate([_without_diagonal(matrix.values).ravel() for matrix in matrices])
    held = values[np.isfinite(values)]
    if not held.size or held.min() == held.max():
        return None
    return float(held.min()) if is_similarity(matrices[0]) else 0.0, float(held.max())


def _without_diagonal(values: NDArray[float64]) -> NDArray[float64]:
    """Return a matrix without its diagonal, which says nothing and would take half of the colours."""
    return np.where(np.eye(len(values), dtype=bool), np.nan, values)


def _heat_map(size: int, similarity: bool, hover: str) -> Figure:
    """Draw an empty heat map of so many clients, with a colour bar."""
    bar = {**COLOUR_BAR, "len": 0.9, "tickfont": {"size": 11}, "nticks": 6}
    places = list(range(size))
    return heat_map(None, f"{hover} %{{z}}", SCALES[similarity], x=places, y=places, colorbar=bar)


def _square(trace: Figure, clusters: Clusters, clients: list[int], shapes: list[Figure]) -> Figure:
    """Draw a heat map of clients against clients, with room for the strips in the colours of the clusters."""
    m = len(clients)
    edge = -0.5 - _STRIP * m
    names = [clusters.names.of(client) for client in clients]
    shared: dict[str, Any] = {**BARE, "constrain": "domain", **client_ticks(names, 25)}
    drawn = figure(
        [trace],
        420,
        hovermode="closest",
        xaxis=axis(range=[edge, m - 0.5], **shared),
        yaxis=axis(range=[m - 0.5, edge], scaleanchor="x", **shared),
        showlegend=False,
        plot_bgcolor="rgba(125, 135, 147, 0.3)",
        margin={"l": 40, "r": 8, "t": 8, "b": 36},
        shapes=shapes,
    )
    shown = [clean(name) for name in names]
    return drawn | {"square": True, "rows": shown, "columns": shown}


def _cluster_strips(clusters: Clusters, clients: list[int]) -> list[Figure]:
    """Draw a strip in the colour of the final cluster along both axes."""
    m = len(clients)
    nodes = [clusters.node_of.get(client, -1) for client in clients]
    ends = [0, *(place for place, (one, two) in enumerate(pairwise(nodes), start=1) if one != two), m]
    outer = -0.5 - _STRIP * m
    inner = -0.5 - 0.25 * _STRIP * m
    shapes: list[Figure] = []
    for start, end in pairwise(ends) if m else ():
        strip = {"type": "rect", "line": {"width": 0}, "fillcolor": clusters.colour(nodes[start])}
        shapes.append({**strip, "x0": start - 0.5, "x1": end - 0.5, "y0": outer, "y1": inner})
        shapes.append({**strip, "y0": start - 0.5, "y1": end - 0.5, "x0": outer, "x1": inner})
    return shapes


def _boundary_lines(boundaries: list[int], m: int) -> list[Figure]:
    """Draw lines between the parts of a split, white under black: seen on the darkest and on the palest cells."""
    shapes: list[Figure] = []
    black, white = (2, 5) if len(boundaries) <= MOST_BOLD else (1, 2)
    for end, (colour, width) in product(boundaries, (("#ffffff", white), ("#111111", black))):
        line = {"type": "line", "line": {"color": colour, "width": width}}
        shapes.append({**line, "x0": end - 0.5, "x1": end - 0.5, "y0": -0.5, "y1": m - 0.5})
        shapes.append({**line, "y0": end - 0.5, "y1": end - 0.5, "x0": -0.5, "x1": m - 0.5})
    return shapes


def _view_of(matrix: ClientMatrix) -> tuple[str, str, bool]:
    """Return with which others the slider shows a matrix: the layer, the measure, and whether it is of all clients."""
    return matrix.layer, matrix.measure, matrix.node == ALL_CLIENTS


def _view(matrices: Sequence[ClientMatrix], view: tuple[str, str, bool]) -> Figure:
    """Say how the slider shows the matrices of a view."""
    layer, measure, of_all = view
    similarity = is_similarity(next(each for each in matrices if _view_of(each) == view))
    return {
        "name": f"{layer}, {measure}" + (", all clients" if of_all else ""),
        "text": compared_by(measure),
        "hover": clean(measure),
        "similar": similarity,
        "range": _span([each for each in matrices if each.measure == measure]) if measure in COMPARABLE else None,
        "colorscale": SCALES[similarity],
    }


def _encode(matrix: ClientMatrix, view: int, places: dict[int, int]) -> dict[str, Any]:
    """Return the half of a matrix above the diagonal, as levels between its smallest and its largest value."""
    clients = sorted(matrix.clients, key=places.__getitem__)
    rows = [matrix.clients.index(client) for client in clients]
    values = matrix.values[np.ix_(rows, rows)].astype(float64)
    values = values[np.triu_indices(len(rows), 1)]
    finite = np.isfinite(values)
    low, high = (float(values[finite].min()), float(values[finite].max())) if finite.any() else (0.0, 0.0)
    levels = np.rint((np.where(finite, values, low) - low) / ((high - low) or 1.0) * _LEVELS)
    codes = np.where(finite, levels, _LEVELS + 1).astype("<u2")
    return {
        "view": view,
        "node": matrix.node,
        "clients": [places[client] for client in clients],
        "low": low,
        "high": high,
        "codes": b64encode(codes.tobytes()).decode(),
    }


def _outcomes(clusters: Clusters, number: int, nodes: set[int]) -> list[str]:
    """Return what was decided about some nodes in a round, in words."""
    splits = {split.event.node: split for split in clusters.splits}
    texts = []
    for node in sorted(nodes):
        found = splits.get(node)
        if found and found.matrices[0].round == number:
            later = f" in round {found.at.round}" if found.at.round != number else ""
            texts.append(f"{capital(event_text(dict(found.event)))}{later}")
        elif clusters.alive(node, number):
            texts.append(f"Node {node} was not split")
    # A clustering of all clients splits nodes that have no matrix of their own.
    events = clusters.records.rounds[number - 1].splits
    return texts + [capital(event_text(dict(event))) for event in events if event.node not in splits]
