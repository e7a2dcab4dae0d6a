"""A comparison in words: its table, its differences and its result, for the page, the document and a terminal."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.catalogue import WORDS, fill, say
from fedstrata.report.comparison.folder import (
    SAME_TESTS,
    Difference,
    Document,
    Row,
    SiteDifference,
    Statistic,
    SweepChoice,
)
from fedstrata.report.differences import FEW
from fedstrata.report.references import ALGORITHMS as REFERENCES
from fedstrata.report.references import reference_text
from fedstrata.report.words import DASH, ClientNames, duration, joined, size


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
    """A table of algorithms, of the settings of a sweep, or of their differences.

    Attributes:
        titles: Its headings, and what the numbers under each of them mean.
        rows: The texts of each row.
    """

    titles: Mapping[str, str]
    rows: Sequence[tuple[str, ...]]


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

    return (row.algorithm, seeds, *(show(key, row.figures.get(key)) for key in measures))


def difference_text(difference: Difference, document: Document) -> str:
    """Return a difference in words."""
    tests = sum(each.effect is not None for each in document.differences)
    return say("comparison", "difference", by=difference, metric=document.metric, count=tests)


def scope_text(document: Document) -> str:
    """Return which question the tests of a comparison answer."""
    words = {"seeds": len(document.seeds), "overlap": document.overlap, "same_clients": document.same_clients}
    same_tests = (document.overlap or 0) >= SAME_TESTS
    return say("comparison", "scope", **words, folds=document.folds, same_tests=same_tests, sites=bool(document.sites))


def result_text(document: Document) -> str:
    """Return which row is the best in words, or that none is beyond the noise."""
    metric = document.metric
    kind = row_kind(document.sweep)
    known = [(row.algorithm, number) for row in document.table if (number := row.figures["acc_client"]) is not None]
    ranked = sorted(known, key=lambda pair: -metric.quality(pair[1].mean))
    if not ranked:
        return say("comparison", "nothing_finished")
    first, number = ranked[0]
    words = {"first": first, "value": number, "metric": metric}
    if len(ranked) == 1:
        return say("comparison", "only_one", **words)
    paired = {(each.algorithm, each.other): each for each in document.differences}
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
    return text if closest is None else f"{text} {difference_text(closest, document)}.{_one_client(closest, document)}"


def _one_client(difference: Difference, document: Document) -> str:
    """Return whose gain more than half of a difference is, where it is that of one client; empty where it is not."""
    metric = document.metric
    gains = dict[int, float]()
    for site in document.sites:
        own, other = (site.values.get(name) for name in (difference.algorithm, difference.other))
        if own is not None and other is not None:
            gains[site.client] = metric.gain(own, other)
    if len(gains) < 3 or not any(difference.values):
        return ""
    most = max(gains, key=lambda client: gains[client])
    without = mean(gain for client, gain in gains.items() if client != most)
    if 2 * without >= mean(gains.values()):
        return ""
    words = {"client": ClientNames(document.clients).of(most), "gain": gains[most], "without": without}
    return " " + say("comparison", "one_client", by=difference, metric=metric, **words)


def _doubt(first: str, difference: Difference | None) -> str:
    """Return what a difference leaves open, by its name in the catalogue; empty where the first row is better."""
    if difference is None:
        return "no_common_seed"
    if difference.another_start:
        return "another_start"
    if difference.effect is None and any(difference.values):
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


def pair_table(document: Document) -> Table:
    """Return the difference of every two algorithms, those from a reference first."""
    metric = document.metric

    def place(each: Difference) -> int:
        return min((REFERENCES.index(name) for name in (each.algorithm, each.other) if name in REFERENCES), default=9)

    rows = []
    for each in sorted(document.differences, key=place):
        effect = each.effect
        interval = DASH if effect is None else metric.interval_text(effect.low, effect.high)
        p = DASH if each.corrected is None else f"{each.corrected:.2g}"
        verdict = say("comparison", "verdict", by=each)
        seeds = f"{each.above} of {len(each.seeds)}"
        rows.append((each.algorithm, each.other, metric.gain_text(each.mean), interval, p, seeds, verdict))
    return Table(dict(WORDS["pair"]), rows)


class SiteCell(NamedTuple):
    """What a table of clients says of one client and one algorithm.

    Attributes:
        value: The metric, the mean over the seeds.
        gain: How much better that is than with the reference, with its interval; empty where it is not known.
        verdict: "better" or "worse" where that is more than chance, otherwise empty.
    """

    value: str
    gain: str
    verdict: str

    def __str__(self) -> str:
        """The cell in one line."""
        return f"{self.value}{f' ({self.gain})' if self.gain else ''}{f' {self.verdict}' if self.verdict else ''}"


def site_tables(document: Document) -> dict[str, list[tuple[str, list[SiteCell]]]]:
    """Return for each reference a table with a row for each client: its name and a cell for each algorithm.

    A name ends with an asterisk where fewer than `FEW` test samples of a class stand behind it.
    """
    names = ClientNames(document.clients)
    metric = document.metric
    found = dict[str, list[tuple[str, list[SiteCell]]]]()
    for site in document.sites:
        name = names.of(site.client) + ("*" if site.fewest is not None and site.fewest < FEW else "")
        for reference in dict.fromkeys(each.reference for each in site.differences):
            by_algorithm = {each.algorithm: each for each in site.differences if each.reference == reference}
            cells = [_site_cell(value, by_algorithm.get(own), metric) for own, value in site.values.items()]
            found.setdefault(reference, []).append((name, cells))
    return found


def _site_cell(value: float | None, difference: SiteDifference | None, metric: MetricInfo) -> SiteCell:
    effect = difference and difference.effect
    gain = ""
    if effect:
        gain = f"{metric.gain_text(effect.by)}; {metric.interval_text(effect.low, effect.high)}"
    verdict = difference.verdict if difference else "unclear"
    return SiteCell(metric.text(value), gain, "" if verdict == "unclear" else verdict)


_VERDICTS = ("better", "worse", "unclear", "unknown")
"""What is said of a client and an algorithm, in the order of the sentence."""


def site_answers(document: Document) -> dict[str, list[str]]:
    """Return the questions of who runs a site, each with its answers; {} where nothing is said to single clients."""
    if not document.sites:
        return {}
    names = ClientNames(document.clients)
    algorithms = [row.algorithm for row in document.table]
    answers = dict[str, list[str]]()
    for reference in ("local", "fedavg"):
        by_verdicts = dict[tuple[tuple[int, ...], ...], list[str]]()
        for algorithm in algorithms:
            clients: dict[str, list[int]] = {kind: [] for kind in _VERDICTS}
            for client, each in _beside(document, algorithm, reference):
                clients["unknown" if each.effect is None else each.verdict].append(client)
            if any(clients.values()):
                by_verdicts.setdefault(tuple(map(tuple, clients.values())), []).append(algorithm)
        told = []
        for some, same in by_verdicts.items():
            verdicts = dict(zip(_VERDICTS, some, strict=True))
            told.append(say("comparison", "site_answer", algorithms=same, names=names, verdicts=verdicts))
        if told or reference not in algorithms:
            answers[say("comparison", f"site_question_{reference}")] = told or [say("comparison", f"no_{reference}")]
    joining = [each for name in algorithms for each in _beside(document, name, "local")]
    if any(each.effect is not None for _, each in joining):
        others = {client for client, each in joining if each.verdict != "worse"}
        alone = sorted({client for client, _ in joining} - others)
        answers[say("comparison", "site_question_alone")] = [say("comparison", "site_alone", names=names, alone=alone)]
    return answers


def _beside(document: Document, algorithm: str, reference: str) -> list[tuple[int, SiteDifference]]:
    """Return the clients with their difference between an algorithm and a reference."""
    pairs = [(site.client, each) for site in document.sites for each in site.differences]
    return [(client, each) for client, each in pairs if (each.algorithm, each.reference) == (algorithm, reference)]
