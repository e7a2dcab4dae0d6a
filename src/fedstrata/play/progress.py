"""The progress of runs: a live line below events on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedstrata.objective.metric_info import ACCURACY, MetricInfo
from fedstrata.report.catalogue import event_line, sentence
from fedstrata.report.words import NO_NAMES, ClientNames

_ABSENT_SHARE = 0.5
"""The share of absent clients in a cohort from which on they are shown. Without half of its members a cluster mostly
decides nothing."""


class _Console(Console):
    """A console that shows nothing more once its reader has left. The run goes on."""

    def on_broken_pipe(self) -> None:
        """Show nothing more; without this, Rich would end the process."""
        self.quiet = True


class StatusLine:
    """One line that is replaced again and again, and lines above it that stay.

    Args:
        quiet: Whether to show nothing.
        console: The console; by default standard error, so that standard output stays clean.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        """Show nothing yet."""
        self._quiet = quiet
        self._kept = set[str]()
        self._console = console or _Console(stderr=True, force_jupyter=False)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal and not quiet else None

    def __enter__(self) -> StatusLine:
        """Open the live line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the live line."""
        if self._live:
            with suppress(OSError):
                self._live.stop()

    def show(self, text: str) -> None:
        """Show a line in the place of the last one; without a terminal, below it."""
        if self._live:
            self._live.update(Text(text))
        else:
            self.keep(text)

    def keep_once(self, text: str) -> None:
        """Show a line that stays on the screen, unless it is there: what is said of data is said of every run."""
        if text not in self._kept:
            self._kept.add(text)
            self.keep(text)

    def keep(self, text: str) -> None:
        """Show a line that stays on the screen."""
        if self._quiet:
            return
        try:
            self._console.print(Text(text), soft_wrap=True)
        except OSError:
            # A log on a full disk is no reason to lose a run. The run itself notices when it has no space.
            self._quiet = True


def event_lines(record: Mapping[str, Any], names: ClientNames = NO_NAMES) -> list[str]:
    """The events in the record of a round, in a line each; many absent clients are one, too."""
    lines = list[str]()
    absent = record["absent"]
    cohort = len(record["cohort"])
    if absent and len(absent) >= _ABSENT_SHARE * cohort:
        lines.append(f"absent clients {names.listed(absent)}; {len(absent)} of {cohort} did not answer")
    for event in record["events"]:
        why = event.get("why") if event["kind"] == "split" else None
        reason = f"; {sentence(why, event.get('layer'), event.get('values', {}), names)}" if why else ""
        lines.append(f"{event['kind']}: {event_line(event, names)}{reason}")
    return lines


@dataclass
class Progress:
    """The progress of one run.

    Attributes:
        rounds: The number of rounds of the run.
        line: The status line.
        names: The name of each client, (n,); by default its id.
        metric: What the scores are.
        run: What the run is called; empty where it is the only one.
        began: The time at which it began, in seconds.
        shown: The number of rounds that were shown.
    """

    rounds: int
    line: StatusLine
    names: tuple[str, ...] = ()
    metric: MetricInfo = ACCURACY
    run: str = ""
    began: float = field(default_factory=perf_counter)
    shown: int = 0

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a finished round by its record; its events stay on the screen."""
        self.shown += 1
        left = (perf_counter() - self.began) / self.shown * (self.rounds - record["round"])
        agreement = "" if record["ari"] is None else f"  ari {record['ari']:.2f}"
        where = f"run {self.run}, " if self.run else ""
        for text in event_lines(record, ClientNames(self.names)):
            self.line.keep(f"{where}round {record['round']}: {text}")
        mean_text, worst_text = (self.metric.text(record[key]) for key in ("acc_client", "acc_worst"))
        run = f"{self.run}  " if self.run else ""
        self.line.show(
            f"{run}round {record['round']:>{len(str(self.rounds))}}/{self.rounds}  clusters {record['clusters']}  "
            f"{self.metric.name} {mean_text}  worst {worst_text}{agreement}  {left:.0f} s left"
        )


@dataclass
class ComparisonProgress:
    """The progress of several algorithms side by side, on one federation.

    Attributes:
        rounds: The number of rounds of every run.
        line: The status line.
        seed: The seed of the federation.
        place: Its place among all federations, counted from 1.
        federations: The number of federations, which follow each other.
        names: The name of each client, (n,); by default its id.
        metric: What the scores are.
        began: The time at which the federation began, in seconds.
        shown: The number of rounds that were shown.
        scores: The last round of each algorithm, and its metric.
    """

    rounds: int
    line: StatusLine
    seed: int
    place: int
    federations: int
    names: tuple[str, ...] = ()
    metric: MetricInfo = ACCURACY
    began: float = field(default_factory=perf_counter)
    shown: int = 0
    scores: dict[str, tuple[int, float | None]] = field(default_factory=dict)

    def note(self, algorithm: str, record: Mapping[str, Any]) -> None:
        """Note a finished round of one run; its events stay on the screen."""
        self.scores[algorithm] = record["round"], record["acc_client"]
        for text in event_lines(record, ClientNames(self.names)):
            self.line.keep(f"run {algorithm}-{self.seed}, round {record['round']}: {text}")

    def show(self, round: int, share: float) -> None:
        """Show the round that all runs have finished, with the metric of each algorithm.

        Args:
            round: The round, counted from 1; for 0 nothing is shown.
            share: The share of the local jobs that had to be done.
        """
        if not round:
            return
        self.shown += 1
        scores = [
            f"{name} {self.metric.text(score)}" for name, (reached, score) in self.scores.items() if reached == round
        ]
        ahead = (self.federations - self.place + 1) * self.rounds - round
        left = (perf_counter() - self.began) / self.shown * ahead
        where = f"seed {self.seed} ({self.place}/{self.federations})"
        when = f"round {round:>{len(str(self.rounds))}}/{self.rounds}"
        shown = "  ".join([f"{self.metric.name}:", *scores])
        self.line.show(f"{where}  {when}  {shown}  jobs {100 * share:.0f} %  {left:.0f} s left")
