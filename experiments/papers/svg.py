"""Pictures as SVG, a row of panels each: curves, heat maps and dendrograms. Equal panels give equal bytes."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10

import numpy as np
from numpy.typing import NDArray

from fedstrata.report.drawing import PALETTE

WIDTH, HEIGHT = 340, 250
"""Pixels of a panel."""
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 26, 40
"""Pixels around the plot of a panel."""
LINE = 14
"""Pixels of a line of the legend."""

GREY, TEXT, RULE = "#e3e7ec", "#3d4753", "#8a94a0"
LIGHT, DARK = (243, 246, 250), (18, 54, 95)
"""The colours of a heat map: far and close."""
SHADES = 16
"""Shades of a heat map, so that a pixel takes half a byte."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """A panel of curves.

    Attributes:
        title: The heading.
        x: What the horizontal axis shows.
        y: What the vertical axis shows.
        curves: The points of each curve, by its name.
        level: A dashed line across the panel.
        marks: Dotted lines from top to bottom, such as rounds with an event.
        ticks: The names of the places 0, 1, 2, ... of the horizontal axis; numbers where there are none.
    """

    title: str
    x: str
    y: str
    curves: Mapping[str, Points]
    level: float | None = None
    marks: Sequence[float] = ()
    ticks: Sequence[str] = ()


@dataclass(frozen=True)
class HeatMap:
    """A panel of a square matrix; dark is close.

    Attributes:
        title: The heading.
        values: The matrix, (n, n).
        ends: The places where a group of rows ends and the next begins.
        distances: Whether small values are close; otherwise large ones are.
    """

    title: str
    values: NDArray[np.float64]
    ends: Sequence[int] = ()
    distances: bool = False


@dataclass(frozen=True)
class Dendrogram:
    """A panel of a hierarchy of clusters.

    Attributes:
        title: The heading.
        elbows: The four corners of each merge, as places of leaves and distances.
        leaves: The name of each leaf, from left to right.
        groups: The number of the group of each leaf, which colours it.
        cut: The distance at which the hierarchy is cut, as a dashed line; None draws none.
    """

    title: str
    elbows: Sequence[Points]
    leaves: Sequence[str]
    groups: Sequence[int] = field(default=())
    cut: float | None = None


Panel = Curves | HeatMap | Dendrogram


def draw(panels: Sequence[Panel], title: str, columns: int = 2) -> str:
    """A picture of panels, row by row.

    Args:
        panels: The panels, at least one.
        title: What the picture shows, for readers who do not see it.
        columns: The panels of a row.
    """
    columns = min(columns, len(panels))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    parts, top = list[str](), 0
    for row in rows:
        for place, panel in enumerate(row):
            parts.append(f'<g transform="translate({place * WIDTH} {top})">{drawn(panel)}</g>')
        top += HEIGHT + max(LINE * legend_lines(panel) for panel in row)
    width = columns * WIDTH
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    style = f'font-family="sans-serif" font-size="11" fill="{TEXT}"'
    white = f'<rect width="{width}" height="{top}" fill="#fff"/>'
    return "\n".join([f'{head} role="img" {style}><title>{escape(title)}</title>{white}', *parts, "</svg>"]) + "\n"


def drawn(panel: Panel) -> str:
    """A panel at the origin."""
    heading = text(WIDTH / 2, 16, panel.title, "middle", 'font-weight="bold"')
    if isinstance(panel, Curves):
        return heading + _curves(panel)
    return heading + (_heat_map(panel) if isinstance(panel, HeatMap) else _dendrogram(panel))


def legend_lines(panel: Panel) -> int:
    """The lines of a panel's legend, two curves in each; one curve alone needs none."""
    names = len(panel.curves) if isinstance(panel, Curves) else 0
    return (names + 1) // 2 if names > 1 else 0


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    """Words at a place."""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def path(points: Points, colour: str, more: str = "", width: float = 1.5) -> str:
    """A line through points in pixels."""
    line = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="{width}" {more}/>'


def dot(x: float, y: float, colour: str) -> str:
    """A dot at a place."""
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="3" fill="{colour}"/>'


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Scale:
    """From values to the pixels of a plot; `low` and `high` are at the ends."""

    low: tuple[float, float]
    high: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixels of a point."""
        across = (x - self.low[0]) / (self.high[0] - self.low[0])
        up = (y - self.low[1]) / (self.high[1] - self.low[1])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def steps(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two values."""
    size = 10 ** floor(log10((high - low) / most))
    step = next(size * times for times in (1, 2, 5, 10) if (high - low) / (size * times) <= most)
    first = -floor(-low / step + 1e-9)
    return [round(step * n, 10) for n in range(first, floor(high / step + 1e-9) + 1)]


def _axes(scale: Scale, x: str, y: str, ticks: Sequence[str] = ()) -> str:
    """The grid, its numbers or names, and the words at the axes."""
    (left, low), (right, high) = scale.low, scale.high
    parts = []
    for value in steps(low, high):
        start, end = scale.at(left, value), scale.at(right, value)
        parts.append(path([start, end], GREY, width=1) + text(start[0] - 5, start[1] + 4, f"{value:g}", "end"))
    every = -(-len(ticks) // 20)
    named = [(float(place), ticks[place]) for place in range(0, len(ticks), every)] if ticks else []
    bottom = HEIGHT - BOTTOM + 14
    for value, name in named or [(value, f"{value:g}") for value in steps(left, right)]:
        across = scale.at(value, low)[0]
        # Names are longer than numbers, so they stand on end.
        turned = f'font-size="9" transform="rotate(-60 {number(across + 3)} {bottom - 5})"' if ticks else ""
        parts.append(text(across + 3 if ticks else across, bottom - 5 if ticks else bottom, name, *("end", turned)))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle"))
    parts.append(text(12, middle, y, "middle", f'transform="rotate(-90 12 {number(middle)})"'))
    return "".join(parts)


def _curves(panel: Curves) -> str:
    points = [point for curve in panel.curves.values() for point in curve]
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    ys += [panel.level] if panel.level is not None else []
    slack = 0.05 * (max(ys) - min(ys)) or 0.5
    scale = Scale((min(xs), min(ys) - slack), (max(max(xs), min(xs) + 1), max(ys) + slack))
    parts = [_axes(scale, panel.x, panel.y, panel.ticks)]
    for mark in panel.marks:
        ends = [scale.at(mark, scale.low[1]), scale.at(mark, scale.high[1])]
        parts.append(path(ends, RULE, 'stroke-dasharray="1 3"', width=1))
    if panel.level is not None:
        ends = [scale.at(scale.low[0], panel.level), scale.at(scale.high[0], panel.level)]
        parts.append(path(ends, RULE, 'stroke-dasharray="5 3"', width=1))
    for place, (name, curve) in enumerate(panel.curves.items()):
        colour = PALETTE[place % len(PALETTE)]
        places = [scale.at(x, y) for x, y in curve]
        if len(places) > 1:
            parts.append(path(places, colour))
        if panel.ticks or len(places) == 1:
            parts += [dot(*each, colour) for each in places]
        if len(panel.curves) > 1:
            x, y = LEFT + place % 2 * (WIDTH - LEFT) / 2, HEIGHT + LINE * (place // 2)
            parts.append(path([(x, y), (x + 16, y)], colour, width=3) + text(x + 20, y + 4, name))
    return "".join(parts)


def _heat_map(panel: HeatMap) -> str:
    n = len(panel.values)
    side = HEIGHT - TOP - 14
    left = (WIDTH - side) / 2
    values = np.nan_to_num(panel.values)
    apart = values[~np.eye(n, dtype=bool)]
    low, high = (float(apart.min()), float(apart.max())) if n > 1 else (0.0, 1.0)
    close = np.clip((values - low) / (high - low or 1.0), 0.0, 1.0)
    image = b64encode(png(1 - close if panel.distances else close)).decode()
    place = f'x="{number(left)}" y="{TOP}" width="{side}" height="{side}"'
    parts = [f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{image}"/>']
    for end in panel.ends:
        at = side * end / n
        parts.append(path([(left + at, TOP), (left + at, TOP + side)], "#d1661c", width=1))
        parts.append(path([(left, TOP + at), (left + side, TOP + at)], "#d1661c", width=1))
    parts.append(text(WIDTH / 2, HEIGHT - 2, f"{low:.3g} to {high:.3g} between clients; dark is close", "middle"))
    return "".join(parts)


def png(close: NDArray[np.float64]) -> bytes:
    """A matrix of values in [0, 1] as a picture of 16 shades, one pixel for each value.

    Nothing is compressed, because versions of zlib differ in that.
    """
    height, width = close.shape
    levels = np.round((SHADES - 1) * close).astype(np.uint8)
    even = np.pad(levels, ((0, 0), (0, width % 2)))
    packed = even[:, ::2] << 4 | even[:, 1::2]  # two pixels in a byte
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    shares = (level / (SHADES - 1) for level in range(SHADES))
    palette = bytes(
        round(light + (dark - light) * share) for share in shares for light, dark in zip(LIGHT, DARK, strict=True)
    )
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0),
        b"PLTE": palette,
        b"IDAT": zlib.compress(rows, 0),
        b"IEND": b"",
    }
    coded = [(len(content), kind + content) for kind, content in chunks.items()]
    parts = [struct.pack(">I", size) + code + struct.pack(">I", zlib.crc32(code)) for size, code in coded]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _dendrogram(panel: Dendrogram) -> str:
    highest = max([panel.cut or 0.0, *(y for elbow in panel.elbows for _, y in elbow)])
    n = len(panel.leaves)
    scale = Scale((-0.6, 0.0), (n - 0.4, 1.05 * highest or 1.0))
    parts = [_axes(scale, "client", "distance", panel.leaves)]
    parts += [path([scale.at(x, y) for x, y in elbow], TEXT, width=1) for elbow in panel.elbows]
    if panel.cut is not None:
        parts.append(path([scale.at(-0.6, panel.cut), scale.at(n - 0.4, panel.cut)], RULE, 'stroke-dasharray="5 3"'))
    for leaf, group in enumerate(panel.groups):
        parts.append(dot(*scale.at(leaf, 0.0), PALETTE[group % len(PALETTE)]))
    return "".join(parts)
