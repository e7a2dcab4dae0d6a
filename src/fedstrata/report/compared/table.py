"""The figures of a comparison as people read them, on its page, in its Markdown and on a terminal."""

from collections.abc import Callable, Mapping, Sequence

from fedstrata.report.compared.records import Difference, Figure, Row
from fedstrata.report.words import DASH, duration, plural, size

MINUS = "\N{MINUS SIGN}"
SPREAD = "the seeds' spread"


def _share(figure: Figure | Difference) -> str:
    """A fraction, or the difference of two, with its standard deviation."""
    return f"{figure.mean:.3f}" + ("" if figure.spread is None else f" ± {figure.spread:.3f}")


def _count(figure: Figure) -> str:
    """A number of things with its range."""
    if figure.least == figure.most:
        return f"{figure.mean:.0f}"
    return f"{figure.mean:.1f} ({figure.least:.0f} to {figure.most:.0f})"


COLUMNS: Mapping[str, tuple[str, Callable[[Figure], str]]] = {
    "acc_client": ("accuracy", _share),
    "acc_worst": ("worst client", _share),
    "clusters": ("clusters", _count),
    "ari": ("ARI", _share),
    "rounds_to_partition": ("partition in round", _count),
    "bytes": ("bytes", lambda figure: size(figure.mean)),
    "seconds": ("time", lambda figure: duration(figure.mean)),
}
"""Measure -> title, and how it is shown."""

TITLES = ("algorithm", "seeds", *(title for title, _ in COLUMNS.values()), "worse off than with fedavg")


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is shown, under `TITLES`."""
    finished = len(row.seeds) - len(row.failed)
    seeds = f"{finished}" + (f", {len(row.failed)} failed" if row.failed else "")
    shown = ((row.figures[key], show) for key, (_, show) in COLUMNS.items())
    losers = DASH if row.worse_off is None else f"{row.worse_off} of {row.clients}"
    return row.algorithm, seeds, *(DASH if figure is None else show(figure) for figure, show in shown), losers


def told(difference: Difference) -> str:
    """A difference in words."""
    return f"{difference.algorithm} {_relation(difference)}"


def _relation(difference: Difference) -> str:
    """What a difference says of its first algorithm."""
    other, count = difference.other, len(difference.seeds)
    if not any(difference.values):
        return f"equals {other} in {count} of {plural(count, 'seed')}"
    if difference.larger is None:
        seed = difference.seeds[0]
        return f"is above {other} with seed {seed}, by {_share(difference)}; from one seed a spread cannot be known"
    sure = "larger" if difference.larger else "not larger"
    return f"is above {other} in {difference.above} of {count} seeds, by {_share(difference)}; {sure} than {SPREAD}"


def leaders(rows: Sequence[Row], differences: Sequence[Difference]) -> str:
    """Which algorithm is the most accurate, and how far it is above the next, in words."""
    known = [(row.algorithm, figure) for row in rows if (figure := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -pair[1].mean)
    if len(ranked) < 2:
        alone = [f"{name} has an accuracy of {_share(figure)}." for name, figure in ranked]
        return alone[0] if alone else "No run of this comparison is finished."
    (first, figure), (second, _), *_ = ranked
    said = [f"{first} is the most accurate of {len(ranked)} algorithms: {_share(figure)}."]
    for each in differences:
        if {each.algorithm, each.other} == {first, second}:
            said.append(f"It {_relation(each)}." if each.algorithm == first else f"With the same seeds, {told(each)}.")
    return " ".join(said)


def matrix(rows: Sequence[Row], differences: Sequence[Difference]) -> list[list[tuple[str, str, str]]]:
    """Of every algorithm, how far it is above each other one.

    Returns:
        For each row and column the difference, in how many seeds it is one in favour of the row, and, where it is
        larger than the seeds' spread, ``"above"`` or ``"below"``.
    """
    pairs = {(each.algorithm, each.other): each for each in differences}
    names = [row.algorithm for row in rows]
    return [[_cell(pairs.get((one, other)), pairs.get((other, one))) for other in names] for one in names]


def _cell(above: Difference | None, below: Difference | None) -> tuple[str, str, str]:
    found = above or below
    if found is None:
        return DASH, "", ""
    wins = found.above if above else sum(value < 0 for value in found.values)
    sign = "" if not found.mean else "+" if above else MINUS
    sure = "" if not found.larger else "above" if above else "below"
    return f"{sign}{_share(found)}", f"{wins} of {len(found.seeds)}", sure
