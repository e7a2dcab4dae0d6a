"""The charts of a comparison: each algorithm over rounds and bytes."""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.schema import VALIDATION_MEASURE, Round
from fedstrata.report.comparison.folder import ComparisonFolder, Document, RunRounds, Statistic
from fedstrata.report.drawing import (
    Chart,
    Figure,
    axis,
    band,
    chart,
    clean,
    dash_of,
    figure,
    line,
    metric_axis,
    palette,
    round_axis,
    rounded,
)
from fedstrata.report.words import slug

_RoundMeasure = Callable[[Round], float | None]


class Style(NamedTuple):
    """How an algorithm is drawn on the whole page: neighbours differ in their dash too."""

    colour: str
    dash: str


def styles_of(document: Document) -> dict[str, Style]:
    """Return how each algorithm is drawn."""
    return {row.algorithm: Style(palette(place), dash_of(place)) for place, row in enumerate(document.table)}


def comparison_charts(folder: ComparisonFolder) -> list[Chart]:
    """Draw the metric over rounds and over bytes, and the number of clusters; of a sweep first what each key does."""
    metric = folder.document.metric
    styles = styles_of(folder.document)
    responses = _responses(folder.document)
    drawn = [(name, runs, styles[name]) for name, runs in folder.runs.items() if min(map(len, runs))]
    if not drawn:
        return responses
    scores = [_traces(*each, _score) for each in drawn]
    counts = [_traces(*each, lambda one: one.clusters, shape="hv") for each in drawn]
    by_bytes = [_traces_by_bytes(*each, metric) for each in drawn]
    rounds = round_axis(max((_common_rounds(runs) for _, runs, _ in drawn), key=len))
    vertical = metric_axis(metric)
    most = max(max(filter(None, traces[-1]["y"]), default=0) for traces in counts)
    whole = {"dtick": 1} if most < 8 else {"nticks": 6}
    clusters = axis("clusters", rangemode="tozero", hoverformat=".3~g", **whole)
    bytes_axis = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B")
    name = slug(metric.name)
    bytes_figure = _figure(by_bytes, xaxis=bytes_axis, yaxis=vertical, hovermode="closest", hoverdistance=-1)
    return [
        *responses,
        chart("over-rounds", _figure(scores, xaxis=rounds, yaxis=vertical), name, metric=metric),
        chart("clusters", _figure(counts, xaxis=rounds, yaxis=clusters), ari=False),
        chart("over-bytes", bytes_figure, f"{name}-by-bytes", metric=metric),
    ]


def _responses(document: Document) -> list[Chart]:
    """Draw for each key of a sweep that is a number the metric on validation data over its values."""
    sweep = document.sweep
    if sweep is None:
        return []
    found = {row.algorithm: row.figures.get(VALIDATION_MEASURE) for row in document.table}
    drawn = []
    for key in sweep.grid:
        # The best of the settings with a value, on validation data as the choice is.
        best = dict[float, Statistic]()
        for label, values in sweep.settings.items():
            number = found.get(label)
            value = values.get(key)
            if number is None or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            known = best.setdefault(float(value), number)
            best[float(value)] = max(known, number, key=lambda each: document.metric.quality(each.mean))
        if len(best) > 1:
            x = sorted(best)
            means = rounded(best[value].mean for value in x)
            style = {"mode": "lines+markers", "line": {"color": palette(0)}, "marker": {"color": palette(0)}}
            trace = {"type": "scatter", "x": x, "y": means, "name": clean(key), **style}
            axes = {"xaxis": axis(clean(key)), "yaxis": metric_axis(document.metric)}
            words = {"key": key, "metric": document.metric}
            drawn.append(chart("response", figure([trace], 300, **axes), f"response-{slug(key)}", **words))
    return drawn


def _figure(algorithms: Sequence[list[Figure]], **layout: Any) -> Figure:
    """Draw all bands under all lines. The page has one legend for all charts."""
    bands = [trace for traces in algorithms for trace in traces[:-1]]
    lines = [traces[-1] for traces in algorithms]
    margin = {"l": 52, "r": 16, "t": 12, "b": 44}
    return figure([*bands, *lines], 340, margin=margin, showlegend=False, **layout)


def _score(each: Round) -> float | None:
    return each.acc_client


def _common_rounds(runs: Sequence[RunRounds]) -> RunRounds:
    """Return the rounds of the shortest run, which all seeds have."""
    return min(runs, key=len)


def _traces_by_bytes(name: str, runs: Sequence[RunRounds], style: Style, metric: MetricInfo) -> list[Figure]:
    """Draw the metric of an algorithm over the bytes that were sent so far."""
    total = _values(runs, lambda one: one.bytes_down + one.bytes_up).cumsum(axis=1).mean(axis=0)
    value = f"{clean(metric.name)} %{{y:{metric.hover_format}}}"
    point = f"{clean(name)}, round %{{customdata}}<br>{value} after %{{x:.4~s}}B"
    hover = {"customdata": [each.round for each in _common_rounds(runs)], "hovertemplate": f"{point}<extra></extra>"}
    return _traces(name, runs, style, _score, hover, x=rounded(total, 6))


def _traces(
    name: str,
    runs: Sequence[RunRounds],
    style: Style,
    measure: _RoundMeasure,
    hover: Mapping[str, Any] | None = None,
    **places: Any,
) -> list[Figure]:
    """Draw the mean over the seeds and, before it, the band from the lowest to the highest of several seeds."""
    values = _values(runs, measure)
    rounds = _common_rounds(runs)
    middle = line(rounds, values.mean(axis=0), name, style.colour, dash=style.dash, **places, **(hover or {}))
    if len(values) < 2:
        return [middle]
    return [*band(rounds, values.min(axis=0), values.max(axis=0), name, style.colour, **places), middle]


def _values(runs: Sequence[RunRounds], measure: _RoundMeasure) -> NDArray[float64]:
    """Return a measure of each seed in each round that all seeds have, (seeds, rounds); nan where it is unknown."""
    known = len(_common_rounds(runs))
    found = [[measure(each) for each in run[:known]] for run in runs]
    return np.array([[nan if value is None else value for value in run] for run in found], dtype=float64)
