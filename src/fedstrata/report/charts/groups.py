"""What distinguishes the clusters: the classes and the mean inputs of their clients, as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.records.schema import ClientDescriptions
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BARE,
    COLOUR_BAR,
    SEQUENTIAL,
    Chart,
    Figure,
    axis,
    chart,
    clean,
    figure,
    heat_map,
    rounded,
    shortened,
)
from fedstrata.report.reader import RunRecords
from fedstrata.report.words import capital, joined

MOST_CLUSTERS = 24
"""Clusters that are described; of more, the rows could not be told apart."""

MOST_FEATURES = 12
"""Features of a table that are shown: those in which the clusters differ most."""

MOST_NAMED = 3
"""Classes or features that a sentence names."""

LEAST_DIFFERENCE = 0.05
"""Shares of a class that differ by less are taken as equal, and so are those within three standard errors."""

LEAST_DEVIATION = 0.5
"""Means of a feature that differ by less, in standard deviations of all samples, are taken as equal."""

_MOST_TICKS = 40
"""Names below the columns of a chart; of more columns, every second, third, ... has one."""

_LETTER_PIXELS = 7
"""The width of a letter below a chart."""

DEVIATIONS = [[0, "#a3480b"], [0.5, "#f3f6fa"], [1, "#12365f"]]
"""Colour scale of deviations from the mean of all: orange is less, blue is more."""


def describe_clusters(clusters: Clusters) -> dict[int, str]:
    """Return a sentence for each final cluster: what distinguishes its clients' data from that of all others.

    There is none where there is one cluster, or nothing is known of the data.
    """
    known = clusters.records.client_descriptions
    if known is None or not 1 < len(clusters.finals) <= MOST_CLUSTERS:
        return {}
    if not has_classes(known) and known.mean_inputs is None:
        return {}
    found = {}
    for node in clusters.finals:
        others = [client for client in clusters.order if clusters.node_of[client] not in (node, -1)]
        found[node] = _sentence(known, clients_of(clusters, node), others)
    return found


def clients_of(clusters: Clusters, node: int) -> list[int]:
    """Return the clients of a final cluster."""
    return [client for client in clusters.order if clusters.node_of[client] == node]


def _sentence(known: ClientDescriptions, own: Sequence[int], others: Sequence[int]) -> str:
    """Say which classes, or which features, a cluster's clients have more or less of than all others."""
    differences = _class_differences(known, own, others)
    inputs = known.mean_inputs
    if inputs is not None and inputs.ndim == 2:
        differences += _feature_differences(known, inputs, own, others)
    elif inputs is not None and _images_differ(inputs, own, others):
        differences.append("its images look different on average (see the mean images)")
    if differences:
        return capital(f"{'; '.join(differences)}.")
    same = "Its classes are as frequent as in the other clusters"
    if not has_classes(known):
        same = "The means of its features are as in the other clusters"
    if inputs is not None and inputs.ndim == 4:
        return f"{same}; see the mean images." if has_classes(known) else "See the mean images."
    return f"{same}."


def _images_differ(means: NDArray[np.float32], own: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether the mean image of some clients is further from that of others than theirs are from it."""
    if len(own) < 2:
        return False
    mean = means[list(own)].mean(axis=0)
    within = np.square(means[list(own)] - mean).sum() / (len(own) - 1)
    return bool(np.square(mean - means[list(others)].mean(axis=0)).sum() > within)


def has_classes(known: ClientDescriptions) -> bool:
    """Return whether samples are of several classes; those with numbers as targets are recorded as of one."""
    return bool(known.class_counts.shape[1] > 1)


def classes_of(records: RunRecords) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the client, the class and the predicted class of each test sample, (s,) each; None of other data."""
    found = records.predictions
    known = records.client_descriptions
    numbers = known is not None and not has_classes(known)
    if found is None or numbers or not len(found.client) or not found.of_classes:
        return None
    return found.client, found.truth.astype(np.int64), found.predicted.astype(np.int64)


def _class_differences(known: ClientDescriptions, own: Sequence[int], others: Sequence[int]) -> list[str]:
    here, there = (known.class_counts[list(clients)].sum(axis=0) for clients in (own, others))
    sums = int(here.sum()), int(there.sum())
    if not min(sums):
        return []
    shares, elsewhere = here / sums[0], there / sums[1]
    pooled = (here + there) / sum(sums)
    error = np.sqrt(pooled * (1 - pooled)) * sqrt(1 / sums[0] + 1 / sums[1])
    clear = np.abs(shares - elsewhere) > np.maximum(LEAST_DIFFERENCE, 3 * error)
    more, less = (
        [place for place in np.argsort(-sign * (shares - elsewhere), kind="stable") if clear[place] and side[place]]
        for sign, side in ((1, shares > elsewhere), (-1, shares < elsewhere))
    )
    names = class_names(known)
    told = []
    for word, places in (("more", more), ("less", less)):
        if places:
            named = [f"{names[place]} ({shares[place]:.0%}, elsewhere {elsewhere[place]:.0%})" for place in places]
            told.append(f"{word} of class {_some(named)}")
    return told


def _feature_differences(
    known: ClientDescriptions, means: NDArray[np.float32], own: Sequence[int], others: Sequence[int]
) -> list[str]:
    """Name the features whose mean differs most; the network reads them in standard deviations of all samples."""
    apart = means[list(own)].mean(axis=0) - means[list(others)].mean(axis=0)
    places = [place for place in np.argsort(-np.abs(apart), kind="stable") if abs(apart[place]) > LEAST_DEVIATION]
    names = feature_names(known, means.shape[1])
    named = [f"{names[place]} by {apart[place]:+.1f}" for place in places]
    return [f"means differ in {_some(named)} standard deviations"] if named else []


def _some(named: Sequence[str]) -> str:
    rest = len(named) - MOST_NAMED
    return joined(named if rest <= 1 else [*named[:MOST_NAMED], f"{rest} others"])


def class_names(known: ClientDescriptions) -> list[str]:
    """Return the names of the classes; their numbers where the data give no names."""
    return list(known.class_names) or [str(number) for number in range(known.class_counts.shape[1])]


def feature_names(known: ClientDescriptions, features: int) -> list[str]:
    """Return the names of the features of a table; their numbers where the data give no names."""
    return list(known.feature_names) or [f"feature {place}" for place in range(features)]


def group_charts(clusters: Clusters) -> list[Chart]:
    """Draw the class mix of each final cluster, what its models recognise, and its mean image or mean features."""
    known = clusters.records.client_descriptions
    if known is None or not describe_clusters(clusters):
        return []
    charts = [class_mix(clusters, known)] if has_classes(known) else []
    if has_classes(known) and (found := classes_of(clusters.records)) is not None:
        charts.append(recognised_classes(clusters, known, *found))
    if known.mean_inputs is not None and known.mean_inputs.ndim == 4:
        charts.append(mean_images(clusters, known.mean_inputs))
    elif known.mean_inputs is not None and known.mean_inputs.shape[1] > 1:
        charts.append(feature_means(clusters, known, known.mean_inputs))
    return charts


def class_mix(clusters: Clusters, known: ClientDescriptions) -> Chart:
    """Draw the share of each class in the training data of each final cluster."""
    counts = [known.class_counts[clients_of(clusters, node)].sum(axis=0) for node in clusters.finals]
    shares = np.array([100 * count / max(count.sum(), 1) for count in counts])
    limits = (0.0, max(200 / shares.shape[1], float(shares.max())))  # so that equal shares look equal
    drawn = _rows(clusters, shares, class_names(known), "class", SEQUENTIAL, "%{z:.1f} % of class %{x}", limits)
    return chart("class-mix", drawn)


def recognised_classes(
    clusters: Clusters,
    known: ClientDescriptions,
    client: NDArray[np.int64],
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
) -> Chart:
    """Draw the share of the test samples of each class that the models of each final cluster's clients recognise."""
    names = class_names(known)
    node_of = np.array([clusters.node_of.get(each, -1) for each in client.tolist()], dtype=np.int64)
    rows = []
    for node in clusters.finals:
        own = (node_of == node) & (truth < len(names))
        rows.append(recognised(truth[own], predicted[own], len(names)))
    hover = "%{z:.1f} % of class %{x} recognised"
    drawn = _rows(clusters, np.array(rows), names, "class", SEQUENTIAL, hover, (0.0, 100.0))
    return chart("recognised-classes", drawn)


def recognised(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[float64]:
    """Return the share of the test samples of each class that is recognised, in percent; nan of a class without any."""
    held = np.bincount(truth, minlength=classes)
    hits = np.bincount(truth[truth == predicted], minlength=classes)
    shares: NDArray[float64] = np.divide(100 * hits, held, out=np.full(classes, np.nan), where=held > 0)
    return shares


def feature_means(clusters: Clusters, known: ClientDescriptions, means: NDArray[np.float32]) -> Chart:
    """Draw the features in which the clusters differ most."""
    of_clusters = np.array([means[clients_of(clusters, node)].mean(axis=0) for node in clusters.finals])
    widest = np.sort(np.argsort(-np.ptp(of_clusters, axis=0), kind="stable")[:MOST_FEATURES])
    shown = of_clusters[:, widest]
    limit = float(np.abs(shown).max()) or 1.0
    every = known.feature_names
    names = [every[place] if every else str(place) for place in widest]
    drawn = _rows(clusters, shown, names, "feature", DEVIATIONS, "%{x}: %{z:+.2f}", (-limit, limit))
    return chart("feature-means", drawn)


def _rows(
    clusters: Clusters,
    values: NDArray[float64],
    columns: Sequence[str],
    title: str,
    scale: list[list[object]],
    hover: str,
    limits: tuple[float, float],
) -> Figure:
    """Draw a heat map with a row for each final cluster."""
    low, high = limits
    shown = columns[:: -(-len(columns) // _MOST_TICKS)]
    # Two long names may be shortened to one text. So the whole names tell the columns apart, and the texts only show.
    texts = [shortened(name) for name in shown]
    ticks = {"tickvals": [clean(name) for name in shown], "ticktext": [clean(text) for text in texts]}
    look = {"zmin": low, "zmax": high, "xgap": 1, "ygap": 1, "colorbar": COLOUR_BAR}
    places = {"x": [clean(name) for name in columns], "y": [f"node {node}" for node in clusters.finals]}
    z = [rounded(row, 3) for row in values.tolist()]
    cells = heat_map(z, f"%{{y}}<br>{hover}", scale, **places, **look)
    # Plotly turns names that do not fit beside each other; the longest then stands upright.
    height = 110 + 26 * len(clusters.finals) + _LETTER_PIXELS * max(map(len, texts))
    rows = axis(autorange="reversed", type="category", **BARE)
    across = axis(title, showgrid=False, type="category", **ticks)
    return figure([cells], height, hovermode="closest", xaxis=across, yaxis=rows)


def mean_images(clusters: Clusters, means: NDArray[np.float32]) -> Chart:
    """Draw the mean image of each final cluster, averaged over channels, in a row of small pictures."""
    images = [means[clients_of(clusters, node)].mean(axis=(0, 1)) for node in clusters.finals]
    low, high = min(float(image.min()) for image in images), max(float(image.max()) for image in images)
    columns = min(len(images), 8)
    rows = -(-len(images) // columns)
    traces, layout, names = list[Figure](), dict[str, Figure](), list[Figure]()
    for place, (node, image) in enumerate(zip(clusters.finals, images, strict=True)):
        number = "" if place == 0 else str(place + 1)
        left, top = place % columns / columns, 1 - place // columns / rows
        across, up = [left, left + 0.94 / columns], [top - 0.98 / rows, top - 0.16 / rows]
        hidden = {**BARE, "showticklabels": False, "ticks": "", "constrain": "domain"}
        layout[f"xaxis{number}"] = {"domain": across, "anchor": f"y{number}", **hidden}
        upright = {"anchor": f"x{number}", "scaleanchor": f"x{number}", "autorange": "reversed"}
        layout[f"yaxis{number}"] = {"domain": up, **upright, "constraintoward": "top", **hidden}
        z = [rounded(row, 3) for row in image.tolist()]
        grey = {"type": "heatmap", "colorscale": "Greys", "reversescale": True, "zmin": low, "zmax": high}
        place_of = {"xaxis": f"x{number}", "yaxis": f"y{number}", "showscale": False, "hoverinfo": "skip"}
        traces.append({"z": z, **grey, **place_of})
        above = {"xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom", "showarrow": False}
        names.append({"text": f"node {node}", "x": sum(across) / 2, "y": up[1], **above})
    size = 20 + rows * max(560 // columns, 110)
    narrow = {"l": 4, "r": 4, "t": 8, "b": 8}
    drawn = figure(traces, min(size, 700), hovermode=False, annotations=names, margin=narrow, **layout)
    return chart("mean-images", drawn)
