"""How far runs are: one live line on a terminal, a plain line a round elsewhere, nothing when it is to be quiet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Line:
    """One line that is shown anew, and above it what stays.

    Args:
        quiet: show nothing.
        console: where; standard error by default, so that standard output stays clean.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        """Show nothing yet."""
        self._quiet, self._console = quiet, console or Console(stderr=True)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal and not quiet else None

    def __enter__(self) -> Line:
        """Open the live line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the live line."""
        if self._live:
            self._live.stop()

    def show(self, text: str) -> None:
        """Show a line in the place of the last one; off a terminal, below it."""
        if self._live:
            self._live.update(Text(text))
        else:
            self.keep(text)

    def keep(self, text: str) -> None:
        """Show a line that stays on the screen."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)


class Progress:
    """Shows the records of a run as they are completed.

    Args:
        rounds: of the whole run.
        line: where.
    """

    def __init__(self, rounds: int, line: Line) -> None:
        """Start the clock."""
        self._rounds, self._line = rounds, line
        self._began, self._shown = perf_counter(), 0

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a finished round; what happened in it stays on the screen."""
        self._shown += 1
        left = (perf_counter() - self._began) / self._shown * (self._rounds - record["round"])
        agreement = "" if record["ari"] is None else f"  ari {record['ari']:.2f}"
        lost = f"  rejected {len(record['rejected'])}" if record["rejected"] else ""
        for event in record["events"]:
            self._line.keep(f"round {record['round']}: {_words(event)}")
        self._line.show(
            f"round {record['round']:>{len(str(self._rounds))}}/{self._rounds}  clusters {record['clusters']}  "
            f"accuracy {record['acc_client']:.3f}  worst {record['acc_worst']:.3f}{agreement}{lost}  {left:.0f} s left"
        )


class Race:
    """Shows how far several algorithms are that are advanced side by side, one seed after the other.

    Args:
        rounds: of every run.
        seeds: in their order.
        line: where.
    """

    def __init__(self, rounds: int, seeds: Sequence[int], line: Line) -> None:
        """Start the clock."""
        self._rounds, self._seeds, self._line = rounds, tuple(seeds), line
        self._began, self._shown = perf_counter(), 0
        self._accuracies: dict[str, float] = {}

    def begin(self, seed: int) -> None:
        """Go on to a seed."""
        self._seed, self._accuracies = seed, {}

    def note(self, algorithm: str, record: Mapping[str, Any]) -> None:
        """Take in a finished round of one algorithm; what happened in it stays on the screen."""
        self._accuracies[algorithm] = record["acc_client"]
        for event in record["events"]:
            self._line.keep(f"seed {self._seed}, {algorithm}, round {record['round']}: {_words(event)}")

    def show(self, round: int, share: float) -> None:
        """Show the round that all have finished.

        Args:
            round: counted from 1; nothing is shown of round 0.
            share: of the local jobs that had to be done.
        """
        if not round:
            return
        self._shown += 1
        place = self._seeds.index(self._seed)
        ahead = (len(self._seeds) - place) * self._rounds - round
        left = (perf_counter() - self._began) / self._shown * ahead
        accuracies = "  ".join(f"{name} {accuracy:.3f}" for name, accuracy in self._accuracies.items())
        where = f"seed {self._seed} ({place + 1}/{len(self._seeds)})"
        here = f"round {round:>{len(str(self._rounds))}}/{self._rounds}"
        self._line.show(f"{where}  {here}  {accuracies}  jobs {100 * share:.0f} %  {left:.0f} s left")


def _words(event: Mapping[str, Any]) -> str:
    """An event as one line."""
    details = ", ".join(f"{key} {value}" for key, value in event.items() if key != "kind" and value is not None)
    return f"{event['kind']} {details}"
