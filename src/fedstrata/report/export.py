"""The charts of the page as files for a paper (extra ``figures``).

matplotlib draws them from the same description that Plotly draws the page from, so a chart is written once. It covers
what the charts here use of Plotly: lines, markers, bands, polygons, bars, heat maps, and the lines, boxes and words in
a layout.
"""

import io
import re
from collections.abc import Mapping
from html import unescape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy import float64
from numpy.typing import NDArray

from fedstrata.errors import InputError
from fedstrata.files import replace_file, subfolder
from fedstrata.folder_lock import folder_lock
from fedstrata.report.charts import all_charts
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import Figure
from fedstrata.report.reader import read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

KINDS = ("png", "svg", "pdf")
UNDATED: Mapping[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without a date: the same records give the same bytes."""

STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 300,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedstrata",
    "text.parse_math": False,  # a name with dollars is a name
}

PIXELS_PER_INCH = 96
WIDTH = 5.2
"""Width of a chart in inches."""

SIDE = 3.4
"""Height of a square chart in inches."""

LINE_SCALE = 0.6
"""Points of a line on paper for each pixel of its width on the page."""

DASHES: Mapping[str, Any] = {"solid": "-", "dash": (0, (4, 3)), "dot": (0, (1, 1.5))}
MARKERS = {"circle": "o", "triangle-down": "v", "x": "X", "square": "s", "line-ew": "_"}


def save(folder: Path, kind: str) -> list[Path]:
    """Write every chart of a run into the folder ``figures`` inside it.

    Args:
        folder: The folder of the run.
        kind: ``"png"``, ``"svg"`` or ``"pdf"``.

    Returns:
        The files, in the order of the page.

    Raises:
        InputError: When the kind is another one, or matplotlib is not installed.
        RecordError: When the folder is not that of a run, or its rounds are damaged before the last line.
    """
    if kind not in KINDS:
        raise InputError(f"--figures = {kind!r}: expected one of {', '.join(KINDS)}")
    try:
        import matplotlib
    except ImportError:
        raise InputError('--figures: expected matplotlib, found none; pip install "fedstrata[figures]"') from None
    charts = all_charts(Clusters(read(folder)))
    out = subfolder(folder, "figures")
    files = []
    with folder_lock(folder), matplotlib.rc_context(STYLE):
        for chart in (chart for found in charts.values() for chart in found):
            content = io.BytesIO()
            draw(chart.figure).savefig(content, format=kind, metadata=UNDATED[kind], bbox_inches="tight")
            files.append(out / f"{chart.name}.{kind}")
            replace_file(files[-1], content.getvalue())
    return files


def draw(figure: Figure) -> "Canvas":
    """Draw a chart of the page for print."""
    from matplotlib.figure import Figure as Canvas

    layout = figure["layout"]
    square = figure.get("square", False)
    size = (SIDE + 0.6, SIDE) if square else (WIDTH, layout["height"] / PIXELS_PER_INCH * 0.85)
    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.add_subplot()
    second = axes.twinx() if "yaxis2" in layout else axes
    for place, trace in enumerate(figure["data"]):
        _trace(second if trace.get("yaxis") == "y2" else axes, place, figure["data"])
    _axis(axes, layout["xaxis"], "x")
    _axis(axes, layout["yaxis"], "y")
    if second is not axes:
        _axis(second, layout["yaxis2"], "y")
        second.spines["right"].set_visible(True)
    if square:
        axes.set_aspect("equal")
        axes.set_facecolor("#e0e2e5")
    for shape in layout.get("shapes", ()):
        _shape(axes, shape)
    for words in layout.get("annotations", ()):
        _words(axes, words)
    if layout["showlegend"]:
        entries = dict(zip(*(axes.get_legend_handles_labels()[::-1]), strict=True))
        if second is not axes:
            entries |= dict(zip(*(second.get_legend_handles_labels()[::-1]), strict=True))
        columns = min(4, len(entries)) or 1
        canvas.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns)
    return canvas


def _axis(axes: "Axes", axis: Figure, name: Literal["x", "y"]) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    own = axes.xaxis if name == "x" else axes.yaxis
    axes.set(**{f"{name}label": unescape(axis.get("title", {}).get("text", ""))})
    if axis.get("type") == "log":
        axes.set_yscale("log")
        own.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        own.set_minor_locator(NullLocator())
        own.set_major_formatter(StrMethodFormatter("{x:g}"))
    if "range" in axis:
        axes.set(**{f"{name}lim": axis["range"]})
    elif axis.get("rangemode") == "tozero" and name == "y":
        axes.set_ylim(bottom=0)
    if axis.get("autorange") == "reversed":
        own.set_inverted(True)
    if "ticktext" in axis:
        own.set_ticks(axis["tickvals"], [unescape(text) for text in axis["ticktext"]], fontsize=6)
    elif not axis.get("showticklabels", True):
        own.set_ticks([])
    elif "ticksuffix" in axis:
        own.set_major_formatter(EngFormatter(unit=axis["ticksuffix"]))
    elif name == "x" and axis.get("type") != "category":
        own.set_major_locator(MaxNLocator(integer=True))
    if axis.get("showgrid", True):
        axes.grid(True, axis=name, color=axis["gridcolor"])
    axes.set_axisbelow(True)


def _trace(axes: "Axes", place: int, traces: list[Figure]) -> None:
    trace = traces[place]
    if trace["type"] == "heatmap":
        _heat_map(axes, trace)
    elif trace["type"] == "bar":
        _bars(axes, trace, [each for each in traces if each["type"] == "bar"])
    elif trace.get("fill") == "toself":
        _polygons(axes, trace)
    elif trace.get("fill") == "tonexty":
        low = _numbers(traces[place - 1]["y"])
        high = _numbers(trace["y"])
        red, green, blue, opacity = map(float, re.findall(r"[\d.]+", trace["fillcolor"]))
        colour = (red / 255, green / 255, blue / 255, opacity)
        axes.fill_between(trace["x"], low, high, color=colour, linewidth=0, label=_label(trace))
    else:
        _curve(axes, trace)


def _curve(axes: "Axes", trace: Figure) -> None:
    """Lines, markers and the texts beside them."""
    mode = trace.get("mode", "lines")
    line = trace.get("line", {})
    marker = trace.get("marker", {})
    x = _numbers(trace["x"])
    y = _numbers(trace["y"])
    style: dict[str, Any] = {"label": _label(trace)}
    if "lines" in mode and line.get("width", 1):
        style |= {"color": line["color"], "linestyle": DASHES[line.get("dash", "solid")]}
        style |= {"linewidth": LINE_SCALE * line["width"]}
        style |= {"drawstyle": "steps-post" if line.get("shape") == "hv" else "default"}
        style |= {"marker": "o", "markersize": 2.5} if "markers" in mode else {}
        axes.plot(x, y, **style)
    elif "markers" in mode:
        edge = marker.get("line", {})
        symbol = MARKERS[marker.get("symbol", "circle")]
        style |= {"marker": symbol, "s": (LINE_SCALE * marker["size"]) ** 2 if "size" in marker else 12}
        style |= {"c": marker["color"], "linewidths": LINE_SCALE * edge.get("width", 0)}
        if edge and symbol != "_":  # a dash has no edge
            style["edgecolors"] = edge["color"]
        axes.scatter(x, y, zorder=4, clip_on=False, **style)
    if "text" in mode:
        for across, up, text in zip(x, y, trace["text"], strict=True):
            axes.annotate(unescape(text), (across, up), (4, 0), textcoords="offset points", va="center", fontsize=7)


def _polygons(axes: "Axes", trace: Figure) -> None:
    from matplotlib.collections import PolyCollection

    points = zip(trace["x"], trace["y"], strict=True)
    corners = [list(run) for known, run in groupby(points, key=lambda point: point[0] is not None) if known]
    look = {"facecolors": trace["fillcolor"], "alpha": trace.get("opacity", 1.0), "linewidths": 0}
    axes.add_collection(PolyCollection(corners, zorder=2, **look))
    axes.autoscale_view()


def _bars(axes: "Axes", trace: Figure, bars: list[Figure]) -> None:
    """The bars of one trace, beside those of the others."""
    names = [unescape(name) for name in trace["x"]]
    width = 0.8 / len(bars)
    place = next(place for place, each in enumerate(bars) if each is trace)
    x = np.arange(len(names)) + (place - (len(bars) - 1) / 2) * width
    heights = np.nan_to_num(_numbers(trace["y"]))
    axes.bar(x, heights, width, color=trace["marker"]["color"], label=_label(trace), zorder=2)
    axes.set_xticks(range(len(names)), names, rotation=45 if len(names) > 6 else 0)


def _heat_map(axes: "Axes", trace: Figure) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    if not trace["x"] or not trace["y"]:
        return
    values = np.ma.masked_invalid(np.array([_numbers(row) for row in trace["z"]]))
    colours = LinearSegmentedColormap.from_list("", [tuple(stop) for stop in trace["colorscale"]], N=2048)
    columns, rows = (np.append(np.array(places) - 0.5, places[-1] + 0.5) for places in (trace["x"], trace["y"]))
    drawn = axes.pcolormesh(columns, rows, values, cmap=colours, rasterized=values.size > 10_000, zorder=1)
    drawn.set_clim(trace.get("zmin"), trace.get("zmax"))
    if trace.get("showscale", True):
        bar = axes.get_figure(root=True).colorbar(drawn, ax=axes, shrink=0.8)  # type: ignore[union-attr]  # axes of a figure
        bar.outline.set_visible(False)


def _transform(axes: "Axes", part: Figure) -> Any:
    """The unit of a place: data, or shares of the plot."""
    from matplotlib.transforms import blended_transform_factory

    x = axes.transAxes if part.get("xref") == "paper" else axes.transData
    y = axes.transAxes if part.get("yref") == "paper" else axes.transData
    return blended_transform_factory(x, y)


def _shape(axes: "Axes", shape: Figure) -> None:
    """A line or a filled box."""
    from matplotlib.patches import Rectangle

    x = (shape["x0"], shape["x1"])
    y = (shape["y0"], shape["y1"])
    order = 0.9 if shape.get("layer") == "below" else 3.0
    if shape["type"] == "rect":
        corner = (min(x), min(y))
        width = abs(x[1] - x[0])
        height = abs(y[1] - y[0])
        axes.add_patch(Rectangle(corner, width, height, facecolor=shape["fillcolor"], linewidth=0, zorder=order))
        return
    line = shape["line"]
    style = {"color": line["color"], "linewidth": LINE_SCALE * line["width"]}
    style |= {"linestyle": DASHES[line.get("dash", "solid")], "transform": _transform(axes, shape)}
    axes.plot(x, y, scalex=False, scaley=False, zorder=order, **style)


def _words(axes: "Axes", words: Figure) -> None:
    axes.annotate(
        unescape(words["text"]),
        xy=(words["x"], words["y"]),
        xycoords=_transform(axes, words),
        xytext=(0.75 * words.get("xshift", 0), 0),
        textcoords="offset points",
        annotation_clip=False,
        ha=words["xanchor"],
        va="center" if words["yanchor"] == "middle" else words["yanchor"],
    )


def _numbers(values: list[float | None]) -> NDArray[float64]:
    """Values with nan for those that are unknown."""
    return np.array([np.nan if value is None else value for value in values], dtype=float64)


def _label(trace: Figure) -> str:
    """The name of a trace in the legend; "_" where the legend leaves it out."""
    return unescape(trace["name"]) if "name" in trace and trace.get("showlegend", True) else "_"
