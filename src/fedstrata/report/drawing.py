"""What all charts are made of: the chart itself, axes, lines and colours, as Plotly figures in plain JSON form.

Plotly reads a small subset of HTML in every text, so names reach it only through `clean`. The page colours texts and
grids itself (templates/style.css), so that they follow the reader's light or dark scheme. The colours here suit both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import Any

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.schema import Round
from fedstrata.report.catalogue import WORDS, fill

Figure = dict[str, Any]

# Relative luminance between 0.13 and 0.30: a contrast of at least 3 : 1 with the page, light or dark (WCAG 1.4.11).
PALETTE = (
    "#3a7fc8",
    "#d1661c",
    "#1a9070",
    "#a45fc0",
    "#d24a63",
    "#8b8417",
    "#1f8fb0",
    "#b06a3c",
    "#6d76d6",
    "#bf5597",
    "#f65656",
    "#3465db",
    "#6a8741",
    "#f436dd",
    "#157a69",
    "#9d784c",
    "#9879f8",
    "#1b7e16",
    "#b66681",
    "#0c94e6",
    "#6a7214",
    "#a567b6",
    "#09a356",
    "#be4222",
    "#7379bc",
    "#42a108",
    "#c5238f",
    "#44898c",
    "#b28809",
    "#8b44de",
)
"""Colours of clusters, algorithms and curves; they repeat where there are more."""

BLUE, ORANGE, GREEN = PALETTE[:3]
GREY = "#7d8793"
RULE = "#8a94a0"
_LAYER_COLOURS = ("#1a9070", "#3a7fc8", "#a45fc0", "#d24a63", "#d1661c")
"""Colours of layers, from the input of the network to its output."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""The line styles of curves; colour and style together tell as many curves apart as a chart can hold."""

STYLES = ((BLUE, "solid"), (ORANGE, "dot"), (GREEN, "dash"))
"""Colour and dash of curves in one chart, which can be told apart without colours too."""

SEQUENTIAL = [[0, "#f3f6fa"], [0.35, "#b5cfe8"], [0.7, "#4a86c2"], [1, "#12365f"]]
"""Colour scale: darker is more."""

_FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12, "color": "#3d4753"}
_MAX_IN_LEGEND = 12
"""Of more curves, a legend would be larger than its chart; the text at the pointer then names them."""


_TICK_CHARACTERS = 16
"""The number of characters of a client's name beside a chart."""


@dataclass(frozen=True)
class Chart:
    """A chart on a page.

    Attributes:
        name: The name of its place on the page and of its file: letters, digits and dashes.
        title: The heading.
        text: What it shows, with units and which values are good; empty where the title says it.
        figure: The Plotly figure. Beside ``data`` and ``layout`` it may have ``rows`` and ``columns``, from which
            templates/page.js makes the custom data of each cell for the text at the pointer: the pairs of ids would be
            longer than the matrix. ``square`` asks for a plot as high as wide.
    """

    name: str
    title: str
    text: str
    figure: Figure


def chart(kind: str, drawn: Figure, name: str = "", **values: Any) -> Chart:
    """Return a chart with its words.

    Args:
        kind: Which words, in the table ``chart`` of the catalogue.
        drawn: The figure.
        name: The name of the chart, where it is not the kind.
        values: The values of the words.
    """
    words = WORDS["chart"][kind]
    title, text = (fill(words[part], values) for part in ("title", "text"))
    return Chart(name or kind, title, text, drawn)


def clean(text: object) -> str:
    """Return a name as text that Plotly shows letter by letter."""
    return escape(str(text), quote=False)


def rounded(values: Iterable[float | None], digits: int = 4) -> list[float | None]:
    """Return numbers with so many significant digits; null for an unknown one, which leaves a gap in a curve."""
    return [float(f"{value:.{digits}g}") if value is not None and isfinite(value) else None for value in values]


def figure(traces: list[Figure], height: int = 300, **layout: Any) -> Figure:
    """Draw traces in the layout that all charts share."""
    named = sum("name" in trace and trace.get("showlegend", True) for trace in traces)
    shared: Figure = {
        "height": height,
        "margin": {"l": 52, "r": 16, "t": 36, "b": 44},
        "font": _FONT,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "hoverdistance": -1,  # between two distant rounds, the nearer one
        "hoverlabel": {"bgcolor": "#1c2530", "bordercolor": "#1c2530", "font": {"color": "#ffffff"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
        "dragmode": False,
        "showlegend": 1 < named <= _MAX_IN_LEGEND,
    }
    if layout.get("hovermode") == "closest":
        shared["hoverdistance"] = 20
    return {"data": traces, "layout": shared | layout}


def axis(title: str | None = None, **more: Any) -> Figure:
    """Draw an axis with a thin grid."""
    named = {"title": {"text": title, "standoff": 8}} if title else {}
    return named | {"gridcolor": "#e3e7ec", "zerolinecolor": "#c3cad3", "automargin": True, **more}


def metric_axis(metric: MetricInfo, **more: Any) -> Figure:
    """Draw the axis of the metric of a run."""
    formats = {"tickformat": metric.tick_format, "hoverformat": metric.hover_format}
    return axis(clean(metric.name), **{**formats, **more})


def round_axis(rounds: Sequence[Round], **more: Any) -> Figure:
    """Draw the axis of the rounds, with whole numbers only."""
    last = rounds[-1].round
    steps = {"dtick": 1} if last < 10 else {"nticks": 12}
    return axis("round", **{"range": [0.5, last + 0.5], "zeroline": False, **steps, **more})


def line(
    rounds: Sequence[Round],
    values: Iterable[float | None],
    name: str,
    colour: str,
    *,
    dash: str = "solid",
    shape: str = "linear",
    width: float = 2,
    **more: Any,
) -> Figure:
    """Draw one curve over the rounds; a single known value shows as a point."""
    heights = rounded(values)
    return {
        "type": "scatter",
        "x": [each.round for each in rounds],
        "y": heights,
        "name": clean(name),
        "mode": "lines" if sum(value is not None for value in heights) > 1 else "markers",
        "line": {"color": colour, "width": width, "dash": dash, "shape": shape},
        "marker": {"color": colour},
        **more,
    }


def band(
    rounds: Sequence[Round],
    low: Iterable[float | None],
    high: Iterable[float | None],
    name: str,
    colour: str,
    **more: Any,
) -> list[Figure]:
    """Draw a filled band between two curves."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    edge: Figure = {"mode": "lines", "hoverinfo": "skip", "width": 0, **more}
    return [
        line(rounds, low, name, colour, **edge, showlegend=False),
        line(rounds, high, name, colour, **edge, fill="tonexty", fillcolor=f"rgba({red}, {green}, {blue}, 0.16)"),
    ]


def heat_map(z: list[list[float | None]] | None, hover: str, scale: object, **more: Any) -> Figure:
    """Draw cells in the colours of a scale; ``hover`` is the text at the pointer."""
    cells = {"type": "heatmap", "colorscale": scale, "hovertemplate": f"{hover}<extra></extra>", **more}
    return cells if z is None else cells | {"z": z}


def points(x: Sequence[float | None], y: Sequence[float | None], texts: Sequence[str] | None, **marker: Any) -> Figure:
    """Draw dots, with a text for each at the pointer; without texts, nothing is told."""
    dots = {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y), "marker": marker}
    if texts is None:
        return dots | {"hoverinfo": "skip"}
    return dots | {"text": list(texts), "hovertemplate": "%{text}<extra></extra>"}


WHITE_DOT: Figure = {"color": "#ffffff", "line": {"color": "#111111", "width": 1}}
"""A dot that is seen on any colour."""

BARE: Figure = {"showgrid": False, "zeroline": False}
"""An axis without a grid."""

COLOUR_BAR: Figure = {"thickness": 10, "outlinewidth": 0}


def client_ticks(names: Sequence[str], most: int = 40) -> Figure:
    """Draw the names of clients along an axis; only every second, third, ... where all would not fit."""
    step = -(-len(names) // most) or 1
    shown = range(0, len(names), step)
    texts = [clean(shortened(names[place])) for place in shown]
    return {"tickvals": list(shown), "ticktext": texts, "ticks": "", "automargin": True}


def shortened(name: str) -> str:
    """Return a name that fits beside a chart, without its middle; hovering shows the whole of it.

    Long names of clients mostly begin alike, and differ in a number at their end.
    """
    if len(name) <= _TICK_CHARACTERS:
        return name
    end = _TICK_CHARACTERS // 2 - 1
    return f"{name[: _TICK_CHARACTERS - 1 - end]}\N{HORIZONTAL ELLIPSIS}{name[-end:]}"


def palette(place: int) -> str:
    """Return the colour of the n-th cluster or algorithm."""
    return PALETTE[place % len(PALETTE)]


def dash_of(place: int) -> str:
    """Return the line style of the n-th curve of a chart, so that curves are told apart without colours too.

    Every round through the styles begins one further: colours that are alike then have different ones.
    """
    return DASHES[(place + place // len(DASHES)) % len(DASHES)]


def blend(colours: Sequence[str]) -> str:
    """Return the mixture of some colours in equal parts."""
    parts = [[int(colour[place : place + 2], 16) for colour in colours] for place in (1, 3, 5)]
    return "#" + "".join(f"{round(sum(part) / len(part)):02x}" for part in parts)


def layer_colour(depth: int, layers: int) -> str:
    """Return the colour of a layer, by its place between the input of the network and its output."""
    place = depth / max(layers - 1, 1) * (len(_LAYER_COLOURS) - 1)
    low = min(int(place), len(_LAYER_COLOURS) - 2)
    parts = round(8 * (place - low))
    return blend([_LAYER_COLOURS[low]] * (8 - parts) + [_LAYER_COLOURS[low + 1]] * parts)
