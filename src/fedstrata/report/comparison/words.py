"""The words of a comparison, on its page, in its Markdown and on a terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.comparison.folder import RunRounds
from fedstrata.report.comparison.schema import Difference, Document, Row, Statistic, SweepChoice
from fedstrata.report.references import ALGORITHMS as REFERENCES
from fedstrata.report.references import reference_text
from fedstrata.report.words import DASH, capital, duration, joined, plural, size


def choice_text(choice: SweepChoice, metric: MetricInfo) -> str:
    """Return the choice of a sweep in words."""
    if choice.label is None or choice.value is None:
        return choice.why
    value = metric.text(choice.value)
    return f"Chosen: {choice.label}, with {value}. {choice.why} The table has test data."


def _with_spread(number: Statistic) -> str:
    """Return a fraction with its standard deviation."""
    return f"{number.mean:.3f}" + ("" if number.spread is None else f" ± {number.spread:.3f}")


def _with_range(number: Statistic) -> str:
    """Return a count with its range."""
    if number.least == number.most:
        return f"{number.mean:.0f}"
    return f"{number.mean:.1f} ({number.least:.0f} to {number.most:.0f})"


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its heading.
        text: What the number means, with its unit and which values are good.
        show: Makes the text of a cell.
    """

    title: str
    text: str
    show: Callable[[Statistic], str]


COLUMNS = ("acc_client", "acc_worst", "clusters", "ari", "rounds_to_partition", "bytes", "seconds")
"""The measures of every table, in the order of its columns."""


_COSTS_AND_CLUSTERS: Mapping[str, Column] = {
    "clusters": Column("clusters", "Number of clusters at the end.", _with_range),
    "ari": Column("ARI", "Agreement with the ground truth: 1 is the same partition, 0 is chance.", _with_spread),
    "rounds_to_partition": Column("partition in round", "First round with the final clusters.", _with_range),
    "bytes": Column("bytes", "Tensors sent to the clients and back; less is better.", lambda number: size(number.mean)),
    "seconds": Column("time", "Wall-clock time of a run; less is better.", lambda number: duration(number.mean)),
}
"""The columns that are the same for every metric."""


def _columns(rows: Sequence[Row], metric: MetricInfo) -> Mapping[str, Column]:
    """Return the columns of a table, by the name of their measure."""

    def show(number: Statistic) -> str:
        return metric.text(number.mean, number.spread)

    mean_text = f"{capital(metric.name)}, the mean over the clients; {metric.scale}."
    honest_text = f"{capital(metric.name)}, the mean over the clients that do not attack; {metric.scale}."
    worst_text = f"{capital(metric.name)} of the worst client; {metric.scale}."
    columns = {
        "acc_client": Column(metric.name, mean_text, show),
        "acc_worst": Column("worst client", worst_text, show),
        **({"acc_honest": Column("honest clients", honest_text, show)} if _has(rows, "acc_honest") else {}),
        **_COSTS_AND_CLUSTERS,
    }
    if _has(rows, "rounds_to_target"):
        target_text = (
            f"First round in which the mean {metric.name} is as good as probe.target; fewer is better. A dash: "
        )
        columns["rounds_to_target"] = Column("rounds to target", f"{target_text}some seed never had it.", _with_range)
    return columns


def _has(rows: Sequence[Row], measure: str) -> bool:
    """Whether some row has a measure that not every table has."""
    return any(measure in row.figures for row in rows)


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
    columns = _columns(rows, metric)
    with_fedavg = any(row.lower_than_fedavg is not None for row in rows)
    titles = {
        kind: "",
        "seeds": "Number of finished runs.",
        **{column.title: column.text for column in columns.values()},
    }
    if with_fedavg:
        titles["clients worse than fedavg"] = (
            f"Clients whose {metric.name} is {metric.worse} than with FedAvg and the same seed; 0 is best."
        )
    return Table(titles, [(*_cells(row, columns), *([_worse(row)] if with_fedavg else [])) for row in rows])


def _cells(row: Row, columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return the texts of a row, but for how many clients are worse than with FedAvg."""
    seeds = f"{len(row.seeds) - len(row.failed)}"
    if row.failed:
        seeds = f"{seeds} of {len(row.seeds)}, others failed"
    numbers = [(row.figures[key], column) for key, column in columns.items()]
    return (row.algorithm, seeds, *(DASH if number is None else column.show(number) for number, column in numbers))


def _worse(row: Row) -> str:
    """Return how many clients are worse than with FedAvg, in words."""
    return DASH if row.lower_than_fedavg is None else f"{row.lower_than_fedavg} of {row.clients}"


def difference_text(difference: Difference, metric: MetricInfo) -> str:
    """Return a difference in words."""
    return f"{difference.algorithm} {_relation(difference, metric)}"


def _relation(difference: Difference, metric: MetricInfo) -> str:
    """Return what a difference says about its first algorithm."""
    other = difference.other
    count = len(difference.seeds)
    if not any(difference.values):
        return f"equals {other} in {count} of {plural(count, 'seed')}"
    where = f"in {difference.above} of {count} seeds" if count > 1 else f"with seed {difference.seeds[0]}"
    verb = "is better than" if difference.clear else "cannot be told from"
    gain = metric.gain_text(difference.mean, difference.spread)
    return f"{verb} {other}: {gain} {metric.better} {where}; {_noise_text(difference, metric)}"


def _noise_text(difference: Difference, metric: MetricInfo) -> str:
    """Return how a difference compares with the noise, in words."""
    if difference.margin is None:
        return "the noise of a single seed is unknown"
    source = "seeds"
    if len(difference.seeds) == 1:
        source = "clients of one seed; other seeds may differ"
    elif not difference.seeds_differ:
        source = "clients, as all seeds have the same difference"
    size_text = "more than" if difference.clear else "not more than"
    if source == "seeds" and len(difference.seeds) == 2 and not difference.clear:
        source = "two seeds; more seeds would tell more"
    return f"{size_text} the noise, {metric.gain_text(difference.margin)} (95 %, over {source})"


def result_text(rows: Sequence[Row], differences: Sequence[Difference], metric: MetricInfo, kind: str) -> str:
    """Return which row is the best in words, or that none is beyond the noise. The arguments are as in `table_of`."""
    known = [(row.algorithm, number) for row in rows if (number := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -metric.quality(pair[1].mean))
    if not ranked:
        return "No run of this comparison is finished."
    first, number = ranked[0]
    value = f"{metric.name} {metric.text(number.mean, number.spread)}"
    if len(ranked) == 1:
        return f"{first}: {value}."
    second, _ = ranked[1]
    paired = {(each.algorithm, each.other): each for each in differences}
    against = {name: paired.get((first, name)) or paired.get((name, first)) for name, _ in ranked[1:]}
    doubts = _doubts(first, against)
    if doubts:
        texts = [f"No {kind} of {len(ranked)} is clearly the best: {first} has {value}, and {'; '.join(doubts)}."]
    else:
        texts = [f"{first} is the best of {plural(len(ranked), kind)}: {value}, the {metric.best}."]
    closest = against[second]
    if closest is not None:
        texts.append(f"{difference_text(closest, metric)}.")
    return " ".join(texts)


def _doubts(first: str, against: Mapping[str, Difference | None]) -> list[str]:
    """Return why it is not clear that the row of the best mean is the best.

    Args:
        first: The name of this row.
        against: Its difference from each other row; None where they have no seed in common.
    """
    found = dict[tuple[str, str], list[str]]()
    for name, each in against.items():
        doubt = _doubt(first, each)
        if doubt is not None:
            found.setdefault(doubt, []).append(name)
    return [f"{joined(names)} {one if len(names) == 1 else several}" for (one, several), names in found.items()]


def _doubt(first: str, difference: Difference | None) -> tuple[str, str] | None:
    """Return what a difference leaves open, of one other row and of several; None where the first row is better."""
    if difference is None:
        return "has no seed in common with it", "have no seed in common with it"
    if difference.margin is None and any(difference.values):
        return "has a difference of unknown noise", "have differences of unknown noise"
    if not difference.clear:
        return "is within the noise", "are within the noise"
    if difference.other == first:
        better = "clearly better with the seeds that both have"
        return f"is {better}", f"are {better}"
    return None


def answers(document: Document, algorithms: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return what a reader who knows no statistics asks, with the answers: what grouping gained, and where to look.

    Args:
        document: The comparison.
        algorithms: The keys of each algorithm, as far as they are known.
    """
    metric = document.measured
    names = [row.algorithm for row in document.table]
    gained = [
        text
        for name in REFERENCES
        if name in names and (text := _against(name, _words_of(name, document, algorithms), document))
    ]
    found = [("What did grouping gain?", gained)]
    counted = [row for row in document.table if row.lower_than_fedavg is not None]
    if counted:
        worse = [
            f"{row.algorithm}: {row.lower_than_fedavg} of {row.clients}" for row in counted if row.lower_than_fedavg
        ]
        none = f"none, with {joined([row.algorithm for row in counted])}"
        other = _words_of("fedavg", document, algorithms)
        text = f"Clients whose {metric.name} is {metric.worse} than with {other}: {'; '.join(worse) or none}."
        where = "The table of clients on the page of each run below has both values."
        found.append(("Which clients to look at?", [text, where]))
    found.append(
        ("What are the groups, and why?", ["Each run has a page that says so; the table of runs below leads to it."])
    )
    return [(question, texts) for question, texts in found if texts]


def _words_of(name: str, document: Document, algorithms: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what an algorithm stands for that the others are compared with."""
    settings = document.experiment if "personal" in document.experiment else algorithms.get(name, {})
    return reference_text(name, settings)


def _against(name: str, words: str, document: Document) -> str:
    """Say which algorithms are clearly better and worse than a reference."""
    ours = [each for each in document.differences if name in (each.algorithm, each.other)]
    clear = [each for each in ours if each.clear]
    compared = {each.other if each.algorithm == name else each.algorithm for each in ours}
    better = [each.algorithm for each in clear if each.other == name]
    worse = [each.other for each in clear if each.algorithm == name]
    names = [row.algorithm for row in document.table if row.algorithm != name]
    kinds = {
        "clearly better": better,
        "clearly worse": worse,
        "no clear difference": [other for other in names if other in compared and other not in (*better, *worse)],
        "no finished run with the same seed": [other for other in names if other not in compared],
    }
    parts = [f"{kind}: {joined(others)}" for kind, others in kinds.items() if others]
    return f"Compared with {words}: {'; '.join(parts)}." if parts else ""


def same_curves(algorithms: Mapping[str, Sequence[RunRounds]]) -> str:
    """Say which algorithms have the same values in every round, so that one curve hides another; else empty."""
    found: dict[tuple[tuple[float | None, ...], ...], list[str]] = {}
    for name, runs in algorithms.items():
        found.setdefault(tuple(tuple(each.acc_client for each in run) for run in runs), []).append(name)
    same = [joined(names) for names in found.values() if len(names) > 1]
    return f"Equal in every round, so that their curves lie on each other: {'; '.join(same)}." if same else ""


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
