"""The courses of several algorithms: the mean over seeds, and a band from the least of them to the greatest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.report.colours import tint
from fedstrata.report.compared.records import Course
from fedstrata.report.pictures.drawing import Figure, Plot, axis, clean, figure, known, line, time
from fedstrata.report.records import Round

Measure = Callable[[Round], float | None]
DASHES = ("solid", "dash", "dot")
"""Beside the colours, so that neighbours are told apart without them."""
HEIGHT, MARGIN = 340, {"l": 52, "r": 16, "t": 12, "b": 44}


@dataclass(frozen=True)
class Stroke:
    """How an algorithm is drawn on the whole page."""

    colour: str
    dash: str

    @property
    def band(self) -> str:
        """The colour of what lies between its seeds."""
        red, green, blue = (int(self.colour[place : place + 2], 16) for place in (1, 3, 5))
        return f"rgba({red}, {green}, {blue}, 0.14)"


def stroke(place: int) -> Stroke:
    """That of the n-th algorithm."""
    return Stroke(tint(place), DASHES[place % len(DASHES)])


def curves(courses: Sequence[Course], strokes: Mapping[str, Stroke]) -> list[Plot]:
    """Accuracy over rounds, over bytes and over seconds, and the clusters over rounds.

    Args:
        courses: of the algorithms; those without a round are not drawn.
        strokes: by algorithm.
    """
    drawn = [(course, strokes[course.algorithm]) for course in courses if course.rounds]
    if not drawn:
        return []
    rounds = time(max((course.rounds for course, _ in drawn), key=len))
    size = axis("bytes so far", rangemode="tozero", tickformat=".3~s", ticksuffix="B")
    clock = axis("seconds so far", rangemode="tozero", tickformat=",.4~g", ticksuffix=" s")
    point = "One point per round, at the mean over the seeds."
    return [
        Plot("accuracy", "Accuracy over rounds", "", _over_rounds(drawn, _accuracy, rounds, _scale())),
        Plot("clusters", "How many clusters", "", _over_rounds(drawn, _clusters, rounds, _whole(), "hv")),
        Plot(
            "accuracy-by-bytes",
            "Accuracy over bytes",
            f"{point} Tensors only, both ways; absent clients are charged the way down.",
            _over_cost(drawn, lambda each: each.bytes_down + each.bytes_up, ".4~s", "B", size),
        ),
        Plot(
            "accuracy-by-seconds",
            "Accuracy over seconds",
            f"{point} A run's time is its own and its part of what was shared.",
            _over_cost(drawn, lambda each: each.seconds, ".4~g", " s", clock),
        ),
    ]


def _scale() -> Figure:
    return axis("accuracy", hoverformat=".3f")


def _whole() -> Figure:
    return axis("clusters", rangemode="tozero", hoverformat=".3~g")


def _accuracy(each: Round) -> float | None:
    return each.acc_client


def _clusters(each: Round) -> float:
    return each.clusters


def _over_rounds(
    drawn: Sequence[tuple[Course, Stroke]], measure: Measure, across: Figure, up: Figure, shape: str = "linear"
) -> Figure:
    traces = [_traces(course, look, _values(course, measure), {}, shape) for course, look in drawn]
    return _figure(traces, xaxis=across, yaxis=up)


def _over_cost(drawn: Sequence[tuple[Course, Stroke]], cost: Measure, form: str, unit: str, across: Figure) -> Figure:
    traces = []
    for course, look in drawn:
        total = _values(course, cost).cumsum(axis=1).mean(axis=0)
        told = f"{clean(course.algorithm)}, round %{{customdata}}<br>accuracy %{{y:.3f}} after %{{x:{form}}}{unit}"
        places = {
            "x": known(total, 6),
            "customdata": [each.round for each in course.rounds],
            "hovertemplate": f"{told}<extra></extra>",
        }
        traces.append(_traces(course, look, _values(course, _accuracy), places))
    return _figure(traces, xaxis=across, yaxis=_scale(), hovermode="closest", hoverdistance=-1)


def _figure(traces: Sequence[list[Figure]], **layout: object) -> Figure:
    """All bands under all lines; the page has one legend for all pictures."""
    bands = [each for course in traces for each in course[:-1]]
    return figure([*bands, *(course[-1] for course in traces)], HEIGHT, margin=MARGIN, showlegend=False, **layout)


def _traces(
    course: Course, look: Stroke, values: NDArray[float64], places: Figure, shape: str = "linear"
) -> list[Figure]:
    """The mean over seeds, and under it the band, where there are several.

    Args:
        course: of the algorithm.
        look: its stroke.
        values: of each seed in each round, (seeds, rounds).
        places: where along the other axis, unless at the rounds.
        shape: of the lines.
    """
    rounds, name = course.rounds, course.algorithm
    style = {"color": look.colour, "width": 2, "dash": look.dash, "shape": shape}
    middle = line(rounds, values.mean(axis=0), name, look.colour, **{"line": style, **places})
    if len(values) < 2:
        return [middle]
    edge = {**places, "mode": "lines", "line": {"width": 0, "shape": shape}, "hoverinfo": "skip"}
    edge.pop("hovertemplate", None)
    low = line(rounds, values.min(axis=0), name, look.colour, **edge)
    high = line(rounds, values.max(axis=0), name, look.colour, **edge, fill="tonexty", fillcolor=look.band)
    return [low, high, middle]


def _values(course: Course, measure: Measure) -> NDArray[float64]:
    """What each seed has in each round that all of them have, (seeds, rounds); nan where it is not known."""
    found = [[measure(each) for each in run[: len(course.rounds)]] for run in course.runs]
    return np.array([[nan if value is None else value for value in run] for run in found], dtype=float64)
