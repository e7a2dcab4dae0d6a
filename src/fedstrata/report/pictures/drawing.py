"""What all pictures are made of.

Names reach plotly only through `clean`: plotly reads a small HTML in every text. The page colours texts and
grids itself (templates/style.css), so that they follow the reader's light or dark scheme; the colours here suit both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import Any

from fedstrata.report.colours import PALETTE, between
from fedstrata.report.records import Round

Figure = dict[str, Any]

MEAN, WORST, THIRD, BAND = PALETTE[0], PALETTE[1], PALETTE[2], "rgba(58, 127, 200, 0.18)"
RULE = "#8a94a0"
DEPTHS = ("#1a9070", "#3a7fc8", "#a45fc0", "#d24a63", "#d1661c")
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12, "color": "#3d4753"}
CROWD = 12
"""Curves beyond which a legend is larger than its plot; the words on hovering then name them."""


@dataclass(frozen=True)
class Plot:
    """A picture.

    Attributes:
        name: what its place on the page and its file are called; letters, digits and dashes.
        title: of the picture.
        text: one sentence under the title, or nothing.
        figure: what is drawn. Beside ``data`` and ``layout`` it may carry ``rows`` and ``columns``, from which
            templates/page.js makes each cell's custom data for the hover text: the pairs of ids would be longer than the
            matrix. ``square`` asks for a plot as high as wide.
    """

    name: str
    title: str
    text: str
    figure: Figure


def clean(text: object) -> str:
    """A name as text that plotly shows letter by letter."""
    return escape(str(text), quote=False)


def known(values: Iterable[float | None], digits: int = 4) -> list[float | None]:
    """Figures to so many significant digits; null where there is none, which leaves a hole in a curve."""
    return [float(f"{value:.{digits}g}") if value is not None and isfinite(value) else None for value in values]


def figure(traces: list[Figure], height: int = 300, **layout: Any) -> Figure:
    """Traces under the layout that all pictures share."""
    named = sum("name" in trace and trace.get("showlegend", True) for trace in traces)
    shared: Figure = {
        "height": height,
        "margin": {"l": 52, "r": 16, "t": 36, "b": 44},
        "font": FONT,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "hoverdistance": -1,  # between two rounds far apart, the nearer one
        "hoverlabel": {"bgcolor": "#1c2530", "bordercolor": "#1c2530", "font": {"color": "#ffffff"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
        "dragmode": False,
        "showlegend": 1 < named <= CROWD,
    }
    if layout.get("hovermode") == "closest":
        shared["hoverdistance"] = 20
    return {"data": traces, "layout": shared | layout}


def axis(title: str | None = None, **more: Any) -> Figure:
    """An axis with a hair-line grid."""
    named = {"title": {"text": title, "standoff": 8}} if title else {}
    return named | {"gridcolor": "#e3e7ec", "zerolinecolor": "#c3cad3", "automargin": True, **more}


def time(rounds: Sequence[Round], **more: Any) -> Figure:
    """The axis of rounds; whole numbers only."""
    last = rounds[-1].round
    steps = {"dtick": 1} if last < 10 else {"nticks": 12}
    return axis("round", **{"range": [0.5, last + 0.5], "zeroline": False, **steps, **more})


def line(rounds: Sequence[Round], values: Iterable[float | None], name: str, colour: str, **more: Any) -> Figure:
    """One curve over the rounds; a single round shows as a point."""
    style = {"mode": "lines" if len(rounds) > 1 else "markers", "line": {"color": colour, "width": 2}}
    places = {"type": "scatter", "x": [r.round for r in rounds], "y": known(values), "name": clean(name)}
    return places | style | {"marker": {"color": colour}} | more


def dotted(colour: str) -> Figure:
    """The stroke of a curve that stands beside another."""
    return {"color": colour, "width": 2, "dash": "dot"}


def level(height: float, text: str, **more: Any) -> tuple[Figure, Figure]:
    """A dashed rule across a plot and the words at its right end, as a shape and an annotation."""
    across = {"xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "layer": "below"}
    rule = {"type": "line", **across, "line": {"color": RULE, "width": 1.5, "dash": "dash"}}
    words = {"xref": "paper", "x": 1, "y": height, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    return rule, {**words, "text": clean(text), "font": {"size": 11}, **more}


def ticks(clients: Sequence[int], most: int = 40) -> Figure:
    """Client ids along an axis; every so many where all would not fit."""
    step = -(-len(clients) // most) or 1
    shown = range(0, len(clients), step)
    return {"tickvals": list(shown), "ticktext": [str(clients[place]) for place in shown], "ticks": ""}


def shade(depth: int, layers: int) -> str:
    """The colour of a layer: its place between input and output along one run of hues."""
    return between(DEPTHS, depth / max(layers - 1, 1))
