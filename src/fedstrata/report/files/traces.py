"""The traces of a picture, drawn into matplotlib's axes."""

from html import unescape
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from numpy import float64
from numpy.typing import NDArray

from fedstrata.report.pictures import Figure

DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 3)), "dot": (0, (1, 1.5))}
MARKS = {"circle": "o", "triangle-down": "v", "x": "X", "square": "s", "line-ew": "_"}


def trace(axes: Axes, drawn: Figure, before: Figure | None, figure: Figure) -> None:
    """Draw one trace.

    Args:
        axes: where.
        drawn: the trace.
        before: the one before it, down to which it may be filled.
        figure: that they are part of.
    """
    if drawn["type"] == "heatmap":
        _heat(axes, drawn)
    elif drawn["type"] == "bar":
        _bars(axes, drawn, [each for each in figure["data"] if each["type"] == "bar"])
    elif drawn.get("fill") == "toself":
        _polygons(axes, drawn)
    elif drawn.get("fill") == "tonexty" and before is not None:
        low, high = _numbers(before["y"]), _numbers(drawn["y"])
        colour, opacity = _colour(drawn["fillcolor"])
        axes.fill_between(drawn["x"], low, high, color=colour, alpha=opacity, linewidth=0, label=_name(drawn))
    else:
        _curve(axes, drawn)


def _curve(axes: Axes, drawn: Figure) -> None:
    mode, stroke, mark = drawn.get("mode", "lines"), drawn.get("line", {}), drawn.get("marker", {})
    x, y = _numbers(drawn["x"]), _numbers(drawn["y"])
    if "lines" in mode and stroke.get("width", 1):
        style: dict[str, Any] = {"linestyle": DASHES[stroke.get("dash", "solid")], "linewidth": 0.6 * stroke["width"]}
        steps = "steps-post" if stroke.get("shape") == "hv" else "default"
        style |= {"marker": "o", "markersize": 2.5} if "markers" in mode else {}
        axes.plot(x, y, color=stroke["color"], drawstyle=steps, label=_name(drawn), **style)
    elif "markers" in mode:
        shape, edge = MARKS[mark.get("symbol", "circle")], mark.get("line", {})
        style = {"s": (0.6 * mark["size"]) ** 2, "c": mark["color"], "linewidths": 0.6 * edge.get("width", 0)}
        if edge and shape != "_":  # a dash has no edge
            style["edgecolors"] = edge["color"]
        axes.scatter(x, y, label=_name(drawn), marker=shape, zorder=4, clip_on=False, **style)
    if "text" in mode:
        for across, up, text in zip(drawn["x"], drawn["y"], drawn["text"], strict=True):
            axes.annotate(unescape(text), (across, up), (4, 0), textcoords="offset points", va="center", fontsize=7)


def _polygons(axes: Axes, drawn: Figure) -> None:
    points = zip(drawn["x"], drawn["y"], strict=True)
    runs = [list(run) for here, run in groupby(points, key=lambda point: point[0] is not None) if here]
    shapes = PolyCollection(
        runs, facecolors=drawn["fillcolor"], alpha=drawn.get("opacity", 1.0), linewidths=0, zorder=2
    )
    axes.add_collection(shapes)
    axes.autoscale_view()


def _bars(axes: Axes, drawn: Figure, beside: list[Figure]) -> None:
    width = 0.8 / len(beside)
    place = next(place for place, each in enumerate(beside) if each is drawn)
    at = np.arange(len(drawn["x"])) + (place - (len(beside) - 1) / 2) * width
    axes.bar(
        at, np.nan_to_num(_numbers(drawn["y"])), width, color=drawn["marker"]["color"], label=_name(drawn), zorder=2
    )
    axes.set_xticks(
        range(len(drawn["x"])), [unescape(name) for name in drawn["x"]], rotation=45 * (len(drawn["x"]) > 6)
    )


def _heat(axes: Axes, drawn: Figure) -> None:
    rows, columns = drawn["y"], drawn["x"]
    if not rows or not columns:
        return
    values = np.ma.masked_invalid(np.array([_numbers(row) for row in drawn["z"]]))
    colours = LinearSegmentedColormap.from_list("", [tuple(stop) for stop in drawn["colorscale"]], N=2048)
    edges = [np.append(np.array(places) - 0.5, places[-1] + 0.5) for places in (columns, rows)]
    drawing = axes.pcolormesh(*edges, values, cmap=colours, rasterized=values.size > 10_000, zorder=1)
    drawing.set_clim(drawn.get("zmin"), drawn.get("zmax"))
    if drawn.get("showscale", True) and axes.figure is not None:
        axes.figure.colorbar(drawing, ax=axes, shrink=0.8).outline.set_visible(False)


def _numbers(values: list[float | None]) -> NDArray[float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=float64)


def _colour(colour: str) -> tuple[Any, float]:
    """A colour as ``rgba(r, g, b, a)``, taken apart."""
    red, green, blue, opacity = (float(part) for part in colour.removeprefix("rgba(").removesuffix(")").split(","))
    return (red / 255, green / 255, blue / 255), opacity


def _name(drawn: Figure) -> str:
    """What the legend calls a trace; nothing where it is to leave it out."""
    return unescape(drawn["name"]) if "name" in drawn and drawn.get("showlegend", True) else "_"
