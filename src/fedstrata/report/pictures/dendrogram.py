"""How groups merged, and where the tree of merges was cut: of algorithms that agglomerate clients."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram as arrange
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from fedstrata.report.groups import Decision, Groups
from fedstrata.report.pictures.drawing import RULE, Figure, Plot, axis, figure, level, ticks
from fedstrata.report.pictures.heatmaps import similar
from fedstrata.report.records import Matrix
from fedstrata.report.words import measure, slug


def dendrograms(groups: Groups) -> list[Plot]:
    """One for each matrix of a clustering; none for algorithms without linkage and cut."""
    keys = groups.records.settings.get("algorithm")
    if not isinstance(keys, Mapping) or not {"linkage", "cut"} <= set(keys):
        return []
    nodes = {node.id: node.criteria for node in groups.records.tree}
    plots = []
    for decision in groups.decisions:
        for matrix in decision.matrices:
            if len(matrix.clients) < 2 or similar(matrix) or not np.isfinite(matrix.values).all():
                continue
            cut = _cut(nodes.get(matrix.node, {}), matrix.layer)
            text = f"{measure(matrix.measure)}; {keys['linkage']} linkage. "
            text += (
                "What merges below the cut is one group." if cut is not None else "No step was clear enough to cut at."
            )
            name = f"merges-{matrix.node}-{slug(matrix.measure)}-{slug(matrix.layer)}"
            title = f"Round {matrix.round}, {matrix.layer}: who merges with whom"
            plots.append(Plot(name, title, text, _tree(groups, decision, matrix, keys["linkage"], cut)))
    return plots


def _cut(criteria: Mapping[str, float | None], layer: str) -> float | None:
    """The cut of a clustering: the one, or that of its pre-cluster (AdaCFL)."""
    found = re.fullmatch(r".* of pre-cluster (\d+)", layer)
    return criteria.get(f"cut {found[1]}" if found else "cut")


def _tree(groups: Groups, decision: Decision, matrix: Matrix, link: str, cut: float | None) -> Figure:
    distances = (matrix.values + matrix.values.T).astype(np.float64) / 2
    np.fill_diagonal(distances, 0.0)
    merges = linkage(squareform(distances, checks=False), link)
    drawn: dict[str, Any] = arrange(merges, no_plot=True, color_threshold=0)
    # SciPy stands leaf i at 10 i + 5.
    corners = [[(x - 5) / 10 for x in elbow] for elbow in drawn["icoord"]]
    order = [matrix.clients[place] for place in drawn["leaves"]]
    strokes: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for across, up in zip(corners, drawn["dcoord"], strict=True):
        below = order[int(np.ceil(across[0] - 1e-9)) : int(across[3]) + 1]
        nodes = {decision.at.labels[client] for client in below if client < len(decision.at.labels)}
        merged = cut is None or up[1] <= cut
        colour = groups.colour(nodes.pop()) if merged and len(nodes) == 1 else RULE
        x, y = strokes.setdefault(colour, ([], []))
        x += [*across, None]
        y += [*(float(f"{height:.4g}") for height in up), None]
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x": x[:-1], "y": y[:-1], "line": {"color": colour, "width": 2}}
        | {"hoverinfo": "skip"}
        for colour, (x, y) in strokes.items()
    ]
    labels = decision.at.labels
    leaves = [groups.colour(labels[client]) if client < len(labels) else RULE for client in order]
    traces.append(
        {"type": "scatter", "mode": "markers", "x": list(range(len(order))), "y": [0.0] * len(order)}
        | {"marker": {"symbol": "square", "size": 9, "color": leaves}, "hoverinfo": "skip"}
    )
    tops = [((across[1] + across[2]) / 2, up[1]) for across, up in zip(corners, drawn["dcoord"], strict=True)]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _ in tops],
            "y": [float(f"{y:.4g}") for _, y in tops],
            "marker": {"size": 5, "color": RULE},
            "hovertemplate": "merge at %{y}<extra></extra>",
        }
    )
    top = 1.08 * max([height for _, height in tops] + ([cut] if cut is not None else [])) or 1.0
    across_axis = axis("client", range=[-0.6, len(order) - 0.4], showgrid=False, zeroline=False, **ticks(order, 25))
    layout: Figure = {"xaxis": across_axis, "yaxis": axis("distance", range=[0, top]), "hovermode": "closest"}
    if cut is not None:
        rule, words = level(cut, f"cut at {cut:.4g}")
        layout |= {"shapes": [rule], "annotations": [words]}
    return figure(traces, 320, **layout, showlegend=False)
