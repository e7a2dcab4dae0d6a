"""The picture of the mean ranks in the championship, each with half the critical difference on both sides.

It is Nemenyi's test as Koning, Franses, Hibon and Stekler draw it, "The M3 competition: statistical tests of the
results", International Journal of Forecasting 2005: two methods whose intervals do not overlap are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean

from experiments.papers.svg import GREY, RULE, TEXT
from experiments.strata.rankings import LEAST_FEDERATIONS, TITLES, competitors_ranks, critical_difference, played
from fedstrata.report.drawing import PALETTE

PICTURE = Path(__file__).parents[2] / "docs" / "evidence" / "championship" / "ranks.svg"

WIDTH, LEFT, RIGHT, TOP, ROW = 720, 190, 20, 40, 18
"""Pixels: of the picture, around the ranks, and of a method."""


def write_picture() -> None:
    """Draw what has been played, and write it where the documentation shows it."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(competitors_ranks(played())))


def picture(ranks: Mapping[str, Sequence[float]]) -> str:
    """The mean rank of each method, the smallest first, with its interval; a sentence where there are too few.

    Args:
        ranks: The rank of each method on each federation.
    """
    federations = len(next(iter(ranks.values()), ()))
    if federations < LEAST_FEDERATIONS:
        told = f"Not drawn for fewer than {LEAST_FEDERATIONS} federations; there are {federations} so far."
        return _document(TOP + ROW, [_text(WIDTH / 2, TOP, told, "middle")])
    means = {method: mean(own) for method, own in ranks.items()}
    order = sorted(means, key=means.__getitem__)
    half = critical_difference(len(means), federations) / 2
    bottom = TOP + ROW * len(order)

    def x(rank: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (rank - 1) / (len(order) - 1)

    parts = [_text((LEFT + WIDTH - RIGHT) / 2, 14, f"mean rank over {federations} federations; 1 is best", "middle")]
    for rank in range(1, len(order) + 1):
        parts.append(f'<line x1="{x(rank):.1f}" x2="{x(rank):.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{GREY}"/>')
        parts.append(_text(x(rank), TOP - 10, str(rank), "middle"))
    # Where the interval of the first method ends: an interval that begins to the right of it is told apart.
    end = x(means[order[0]] + half)
    parts.append(
        f'<line x1="{end:.1f}" x2="{end:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{RULE}" stroke-dasharray="4 3"/>'
    )
    for row, method in enumerate(order):
        y = TOP + ROW * (row + 0.5)
        low, high = max(means[method] - half, 1.0), min(means[method] + half, float(len(order)))
        colour = PALETTE[0] if x(means[method] - half) <= end else RULE
        parts.append(_text(LEFT - 12, y + 4, TITLES[method].replace("`", ""), "end"))
        parts.append(
            f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{x(means[method]):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return _document(bottom + 10, parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _document(height: int, parts: Sequence[str]) -> str:
    """A picture of some height."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    style = f'font-family="sans-serif" font-size="12" fill="{TEXT}"'
    title = "<title>Mean ranks of the methods in the championship</title>"
    back = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([f"{head} {style}>", title, back, *parts, "</svg>"]) + "\n"
