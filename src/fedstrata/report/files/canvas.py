"""A picture as matplotlib draws it: axes, rules and words around the traces."""

from html import unescape
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import blended_transform_factory

from fedstrata.report.files.traces import DASHES, trace
from fedstrata.report.pictures import Figure

INCH = 96
"""Pixels of the page."""
WIDTH, SIDE = 5.2, 3.4
"""Inches of a picture, and of one as high as wide."""
VERTICAL = {"middle": "center", "bottom": "bottom"}


def paint(figure: Figure) -> Canvas:
    """Draw a picture of the page for print.

    Args:
        figure: plotly's JSON form, of the kinds that `fedstrata.report.pictures` makes.
    """
    layout = figure["layout"]
    square = figure.get("square", False)
    size = (SIDE + 0.6, SIDE) if square else (WIDTH, layout["height"] / INCH * 0.85)
    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.add_subplot()
    second = axes.twinx() if "yaxis2" in layout else axes
    for place, each in enumerate(figure["data"]):
        before = figure["data"][place - 1] if place else None
        trace(second if each.get("yaxis") == "y2" else axes, each, before, figure)
    _across(axes, layout["xaxis"])
    _up(axes, layout["yaxis"])
    if second is not axes:
        _up(second, layout["yaxis2"])
        second.spines["right"].set_visible(True)
    if square:
        axes.set_aspect("equal")
        axes.set_facecolor("#e0e2e5")
    for shape in layout.get("shapes", ()):
        _shape(axes, shape)
    for words in layout.get("annotations", ()):
        _words(axes, words)
    if layout["showlegend"]:
        handles, labels = axes.get_legend_handles_labels()
        if second is not axes:
            more = second.get_legend_handles_labels()
            handles, labels = handles + more[0], labels + more[1]
        canvas.legend(handles, labels, loc="outside upper left", ncols=min(4, len(labels)) or 1)
    return canvas


def _across(axes: Axes, axis: Figure) -> None:
    axes.set_xlabel(_text(axis))
    if "range" in axis:
        axes.set_xlim(*axis["range"])
    if "ticktext" in axis:
        axes.set_xticks(axis["tickvals"], [unescape(text) for text in axis["ticktext"]], fontsize=6)
    elif axis.get("type") != "category":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _grid(axes, axis, "x")


def _up(axes: Axes, axis: Figure) -> None:
    axes.set_ylabel(_text(axis))
    if axis.get("type") == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if "range" in axis:
        axes.set_ylim(*axis["range"])
    elif axis.get("rangemode") == "tozero":
        axes.set_ylim(bottom=0)
    if axis.get("autorange") == "reversed":
        axes.invert_yaxis()
    if "ticktext" in axis:
        axes.set_yticks(axis["tickvals"], [unescape(text) for text in axis["ticktext"]], fontsize=6)
    elif not axis.get("showticklabels", True):
        axes.set_yticks([])
    elif "ticksuffix" in axis:
        axes.yaxis.set_major_formatter(EngFormatter(unit=axis["ticksuffix"]))
    _grid(axes, axis, "y")


def _grid(axes: Axes, axis: Figure, which: Literal["x", "y"]) -> None:
    if axis.get("showgrid", True):
        axes.grid(True, axis=which, color=axis["gridcolor"])
    axes.set_axisbelow(True)


def _text(axis: Figure) -> str:
    return unescape(axis.get("title", {}).get("text", ""))


def _place(axes: Axes, part: Figure) -> Any:
    """What places are counted in: the data, or shares of the plot."""
    x = axes.transAxes if part.get("xref") == "paper" else axes.transData
    y = axes.transAxes if part.get("yref") == "paper" else axes.transData
    return blended_transform_factory(x, y)


def _shape(axes: Axes, shape: Figure) -> None:
    stroke = shape["line"]
    x, y = (shape["x0"], shape["x1"]), (shape["y0"], shape["y1"])
    order = 0.9 if shape.get("layer") == "below" else 3.0
    if shape["type"] == "rect":
        corner, width, height = (min(x), min(y)), abs(x[1] - x[0]), abs(y[1] - y[0])
        axes.add_patch(Rectangle(corner, width, height, facecolor=shape["fillcolor"], linewidth=0, zorder=order))
        return
    dash = DASHES[stroke.get("dash", "solid")]
    style = {"color": stroke["color"], "linewidth": 0.6 * stroke["width"], "linestyle": dash, "zorder": order}
    axes.plot(x, y, transform=_place(axes, shape), scalex=False, scaley=False, **style)


def _words(axes: Axes, words: Figure) -> None:
    axes.annotate(
        unescape(words["text"]),
        (words["x"], words["y"]),
        (0.75 * words.get("xshift", 0), 0),
        _place(axes, words),
        "offset points",
        annotation_clip=False,
        ha=words["xanchor"],
        va=VERTICAL[words["yanchor"]],
    )
