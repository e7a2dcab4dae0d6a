"""A comparison in words: its table, its differences and its result, for the page, the document and a terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.catalogue import WORDS, fill, say
from fedstrata.report.comparison.folder import Difference, Document, Row, Statistic, SweepChoice
from fedstrata.report.references import ALGORITHMS as REFERENCES
from fedstrata.report.references import reference_text
from fedstrata.report.words import DASH, duration, joined, size


def choice_text(choice: SweepChoice, metric: MetricInfo) -> str:
    """Return the choice of a sweep in words."""
    if choice.label is None or choice.value is None:
        return choice.why
    return say("comparison", "choice", label=choice.label, value=choice.value, why=choice.why, metric=metric)


def _with_spread(number: Statistic) -> str:
    """Return a fraction with its standard deviation."""
    return f"{number.mean:.3f}" + ("" if number.spread is None else f" ± {number.spread:.3f}")


def _with_range(number: Statistic) -> str:
    """Return a count with its range."""
    if number.least == number.most:
        return f"{number.mean:.0f}"
    return f"{number.mean:.1f} ({number.least:.0f} to {number.most:.0f})"


_SHOWN: Mapping[str, Callable[[Statistic], str]] = {
    "ari": _with_spread,
    "bytes": lambda number: size(number.mean),
    "seconds": lambda number: duration(number.mean),
    **dict.fromkeys(("clusters", "rounds_to_partition"), _with_range),
}
"""How the measures are shown that are no values of the metric."""

COLUMNS = ("acc_client", "acc_worst", "clusters", "ari", "rounds_to_partition", "bytes", "seconds")
"""The measures of every table, in the order of its columns."""


class Table(NamedTuple):
    """A table of algorithms, or of the settings of a sweep.

    Attributes:
        titles: Its headings, and what the numbers under each of them mean.
        rows: The texts of each row.
    """

    titles: Mapping[str, str]
    rows: list[tuple[str, ...]]


def row_kind(sweep: SweepChoice | None) -> str:
    """Return what the rows of a table are, algorithms or the settings of a sweep: a noun in the singular."""
    return "algorithm" if sweep is None else "setting"


def table_of(rows: Sequence[Row], metric: MetricInfo, kind: str) -> Table:
    """Return the table of a comparison in words.

    Args:
        rows: Its rows.
        metric: What is measured.
        kind: What the rows are, as by `row_kind`.
    """
    words: dict[str, Any] = dict(WORDS["column"])
    shown = [key for key in words if key in COLUMNS or any(key in row.figures for row in rows)]
    values = {"metric": metric}
    meanings = {fill(words[key]["title"], values): fill(words[key]["meaning"], values) for key in shown}
    cells = [_cells(row, shown, metric) for row in rows]
    return Table({kind: "", "seeds": "Number of finished runs.", **meanings}, cells)


def _cells(row: Row, measures: Sequence[str], metric: MetricInfo) -> tuple[str, ...]:
    """Return the texts of a row."""
    seeds = f"{len(row.seeds) - len(row.failed)}"
    if row.failed:
        seeds = f"{seeds} of {len(row.seeds)}, others failed"

    def show(key: str, number: Statistic | None) -> str:
        if number is None:
            return DASH
        return _SHOWN[key](number) if key in _SHOWN else metric.text(number.mean, number.spread)

    return (row.algorithm, seeds, *(show(key, row.figures[key]) for key in measures))


def difference_text(difference: Difference, metric: MetricInfo) -> str:
    """Return a difference in words."""
    return say("comparison", "difference", by=difference, metric=metric)


def result_text(rows: Sequence[Row], differences: Sequence[Difference], metric: MetricInfo, kind: str) -> str:
    """Return which row is the best in words, or that none is beyond the noise. The arguments are as in `table_of`."""
    known = [(row.algorithm, number) for row in rows if (number := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -metric.quality(pair[1].mean))
    if not ranked:
        return say("comparison", "nothing_finished")
    first, number = ranked[0]
    words = {"first": first, "value": number, "metric": metric}
    if len(ranked) == 1:
        return say("comparison", "only_one", **words)
    paired = {(each.algorithm, each.other): each for each in differences}
    against = {name: paired.get((first, name)) or paired.get((name, first)) for name, _ in ranked[1:]}
    doubtful = dict[str, list[str]]()
    for name, each in against.items():
        if doubt := _doubt(first, each):
            doubtful.setdefault(doubt, []).append(name)
    doubts = "; ".join(
        f"{joined(names)} {say('comparison', doubt, several=len(names) > 1)}" for doubt, names in doubtful.items()
    )
    outcome = "no_best" if doubts else "best"
    text = say("comparison", outcome, kind=kind, count=len(ranked), doubts=doubts, **words)
    closest = against[ranked[1][0]]
    return text if closest is None else f"{text} {difference_text(closest, metric)}."


def _doubt(first: str, difference: Difference | None) -> str:
    """Return what a difference leaves open, by its name in the catalogue; empty where the first row is better."""
    if difference is None:
        return "no_common_seed"
    if difference.margin is None and any(difference.values):
        return "unknown_noise"
    if not difference.clear:
        return "within_noise"
    return "better_where_both" if difference.other == first else ""


def gains(document: Document, algorithms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what grouping gained, for a reader who knows no statistics, in a sentence for each reference.

    Args:
        document: The comparison.
        algorithms: The keys of each algorithm, as far as they are known.
    """
    told = []
    for name in REFERENCES:
        if any(row.algorithm == name for row in document.table):
            settings = document.experiment if "personal" in document.experiment else algorithms.get(name, {})
            told.append(_against(name, reference_text(name, settings), document))
    return list(filter(None, told))


def _against(name: str, words: str, document: Document) -> str:
    """Say which algorithms are clearly better and worse than a reference."""
    ours = [each for each in document.differences if name in (each.algorithm, each.other)]
    compared = {each.other if each.algorithm == name else each.algorithm for each in ours}
    better = [each.algorithm for each in ours if each.clear and each.other == name]
    worse = [each.other for each in ours if each.clear and each.algorithm == name]
    others = [row.algorithm for row in document.table if row.algorithm != name]
    kinds = {
        "clearly better": better,
        "clearly worse": worse,
        "no clear difference": [other for other in others if other in compared and other not in (*better, *worse)],
        "no finished run with the same seed": [other for other in others if other not in compared],
    }
    return say("comparison", "against", reference=words, found=kinds) if any(kinds.values()) else ""


class PairCell(NamedTuple):
    """How much better the algorithm of a row is than that of a column.

    Attributes:
        difference: The difference; a dash where there is none.
        spread: Its standard deviation; empty where there is one seed.
        seeds: In how many seeds the row is better.
        clear: "better" or "worse" where the difference is beyond the noise, otherwise empty.
    """

    difference: str
    spread: str
    seeds: str
    clear: str


def pair_table(rows: Sequence[Row], differences: Sequence[Difference], metric: MetricInfo) -> list[list[PairCell]]:
    """Return the difference of every algorithm to each other one, (rows, rows)."""
    cells_of: dict[tuple[str, str], PairCell] = {}
    for each in differences:
        count = len(each.seeds)
        size_text = metric.gain_text(each.mean)
        spread = "" if each.spread is None else f"± {metric.gain_text(each.spread)}"
        worse = sum(value < 0 for value in each.values)
        plus, minus = ("+", "\N{MINUS SIGN}") if each.mean else ("", "")
        better_text, worse_text = ("better", "worse") if each.clear else ("", "")
        cells_of[each.algorithm, each.other] = PairCell(
            plus + size_text, spread, f"{each.above} of {count}", better_text
        )
        cells_of[each.other, each.algorithm] = PairCell(minus + size_text, spread, f"{worse} of {count}", worse_text)
    names = [row.algorithm for row in rows]
    return [[cells_of.get((row, column), PairCell(DASH, "", "", "")) for column in names] for row in names]
