"""In which order clusters merged, and where the dendrogram was cut: of algorithms that agglomerate clients."""

from typing import Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram, linkage
from scipy.spatial.distance import squareform

from fedstrata.report.arrays import Matrix
from fedstrata.report.charts.matrices import is_similarity
from fedstrata.report.clusters import Clusters, Comparison
from fedstrata.report.drawing import RULE, Chart, Figure, axis, client_ticks, figure, rounded, threshold
from fedstrata.report.words import MEASURES, slug

LINKAGES = ("average", "complete", "single", "ward", "weighted")
"""The methods of agglomerative clustering that can be drawn."""


def dendrogram_charts(clusters: Clusters) -> list[Chart]:
    """One for each matrix of a clustering; none for algorithms without linkage and cut."""
    records = clusters.records
    method = records.setting("algorithm", "linkage")
    if method not in LINKAGES or records.setting("algorithm", "cut") is None:
        return []
    charts = []
    for comparison in clusters.comparisons:
        for matrix in comparison.matrices:
            if len(matrix.clients) < 2 or is_similarity(matrix) or not np.isfinite(matrix.values).all():
                continue
            decision = records.decisions.get(matrix.node)
            cuts = {each.layer: each.value for each in decision.values if each.name == "cut"} if decision else {}
            cut = cuts.get(matrix.layer, cuts.get(None))
            rule = "Clients that merge below the cut form one cluster."
            if cut is None:
                rule = "No step is clear enough to cut."
            text = f"{MEASURES.get(matrix.measure, matrix.measure)}; {method} linkage. {rule}"
            name = f"dendrogram-{matrix.node}-{slug(matrix.measure)}-{slug(matrix.layer)}"
            title = f"Round {matrix.round}, {matrix.layer}: dendrogram of the clients"
            charts.append(Chart(name, title, text, _dendrogram(clusters, comparison, matrix, method, cut)))
    return charts


def _dendrogram(clusters: Clusters, comparison: Comparison, matrix: Matrix, method: str, cut: float | None) -> Figure:
    distances = (matrix.values + matrix.values.T).astype(np.float64) / 2
    np.fill_diagonal(distances, 0.0)
    drawn: dict[str, Any] = dendrogram(
        linkage(squareform(distances, checks=False), method), no_plot=True, color_threshold=0
    )
    # SciPy puts leaf i at 10 i + 5.
    corners = [[(x - 5) / 10 for x in elbow] for elbow in drawn["icoord"]]
    heights = [rounded(elbow) for elbow in drawn["dcoord"]]
    order = [matrix.clients[place] for place in drawn["leaves"]]
    labels = dict(enumerate(comparison.at.labels))
    strokes: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for across, up, exact in zip(corners, heights, drawn["dcoord"], strict=True):
        below = order[int(np.ceil(across[0] - 1e-9)) : int(across[3]) + 1]
        nodes = {labels[client] for client in below if client in labels}
        merged = cut is None or exact[1] <= cut
        x, y = strokes.setdefault(clusters.colour(nodes.pop()) if merged and len(nodes) == 1 else RULE, ([], []))
        x += [*across, None]
        y += [*up, None]
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x[:-1],
            "y": y[:-1],
            "line": {"color": colour, "width": 2},
            "hoverinfo": "skip",
        }
        for colour, (x, y) in strokes.items()
    ]
    colours = [clusters.colour(labels[client]) if client in labels else RULE for client in order]
    leaves = {"marker": {"symbol": "square", "size": 9, "color": colours}, "hoverinfo": "skip"}
    tops = {"marker": {"size": 5, "color": RULE}, "hovertemplate": "merge at %{y}<extra></extra>"}
    traces.append(_points(list(range(len(order))), [0.0] * len(order), leaves))
    traces.append(_points([(x[1] + x[2]) / 2 for x in corners], [y[1] for y in heights], tops))
    top = 1.08 * max([elbow[1] for elbow in drawn["dcoord"]] + ([cut] if cut is not None else [])) or 1.0
    horizontal = axis(
        "client", range=[-0.6, len(order) - 0.4], showgrid=False, zeroline=False, **client_ticks(order, 25)
    )
    layout: Figure = {"xaxis": horizontal, "yaxis": axis("distance", range=[0, top]), "hovermode": "closest"}
    if cut is not None:
        rule, words = threshold(cut, f"cut at {cut:.4g}")
        layout |= {"shapes": [rule], "annotations": [words]}
    return figure(traces, 320, **layout, showlegend=False)


def _points(x: list[float] | list[int], y: list[float | None] | list[float], look: Figure) -> Figure:
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, **look}
