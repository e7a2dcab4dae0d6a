"""The progress of runs: a live line below events on a terminal or in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from statistics import mean
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedstrata.objective.metric_info import ACCURACY, MetricInfo
from fedstrata.report.catalogue import event_text, sentence
from fedstrata.report.words import NO_NAMES, ClientNames, brief, ranges

_ABSENT_SHARE = 0.5
"""The share of absent clients in a cohort from which on they are shown. Without half of its members a cluster mostly
decides nothing."""

_SUBJECT_KEYS = ("client", "clients", "node", "nodes", "from", "to", "into")
"""The keys of events that name clients or nodes."""

_CLIENT_KEYS = ("client", "clients")
"""The keys of events that name clients."""

_COLUMN_WIDTHS = {"run": 16, "round": 5, "what": 8, "layer": 10}
"""The numbers of characters of the columns that have a fixed width."""

_COLUMN_RATIOS = {"who": 2, "why": 3}
"""The shares of the remaining width that the other columns have."""


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
        self._notebook = None if quiet or console is not None else notebook_output()
        self._console = console or _Console(stderr=True)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal and not quiet else None

    def __enter__(self) -> StatusLine:
        """Open the live line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the live line."""
        if self._live:
            with suppress(OSError):
                self._live.stop()

    @property
    def live(self) -> bool:
        """Whether there is a line that is replaced; otherwise lines follow each other."""
        return self._live is not None

    def show(self, text: str) -> None:
        """Show a line in the place of the last one; without a terminal or notebook, below it."""
        if self._live:
            self._live.update(Text(text))
        elif self._notebook:
            self._notebook.show(text)
        else:
            self.keep(text)

    def keep(self, what: str | RenderableType) -> None:
        """Show something that stays on the screen; a text has a line of its own."""
        if self._quiet:
            return
        if self._notebook and isinstance(what, str):
            self._notebook.keep(what)
            return
        try:
            self._console.print(Text(what) if isinstance(what, str) else what, soft_wrap=isinstance(what, str))
        except OSError:
            # A log on a full disk is no reason to lose a run. The run itself notices when it has no space.
            self._quiet = True


class RoundEvent(NamedTuple):
    """An event of a round, in words. The fields are the columns of the table.

    Attributes:
        what: The kind of the event.
        who: The clients and nodes of the tree that it is about.
        layer: The layer that decided; empty when there is none.
        why: The reason and further values.
    """

    what: str
    who: str
    layer: str
    why: str


def round_events(record: Mapping[str, Any], names: ClientNames = NO_NAMES) -> list[RoundEvent]:
    """The events in the record of a round; many absent clients are one, too."""
    events = list[RoundEvent]()
    absent = record["absent"]
    cohort = len(record["cohort"])
    if absent and len(absent) >= _ABSENT_SHARE * cohort:
        why = f"{len(absent)} of {cohort} did not answer"
        events.append(RoundEvent("absent", f"clients {names.listed(absent)}", "", why))
    return [*events, *(_round_event(event, names) for event in record["events"])]


def _round_event(event: Mapping[str, Any], names: ClientNames) -> RoundEvent:
    rest = {key: value for key, value in event.items() if value is not None}
    what = rest.pop("kind")
    layer = rest.pop("layer", "")
    why = rest.pop("why", "")
    who = [f"{key} {_subjects(key, rest.pop(key), names)}" for key in list(rest) if key in _SUBJECT_KEYS]
    if what == "split":
        return RoundEvent(what, " ".join(who), layer, sentence(why, layer, event.get("values", {}), names))
    if text := event_text(event, names):
        return RoundEvent(what, " ".join(who), layer if what == "scout" else "", text)
    more = [f"{key} {brief(value) if isinstance(value, float) else value}" for key, value in rest.items()]
    return RoundEvent(what, " ".join(who), layer, ", ".join(filter(None, [why, *more])))


def _subjects(key: str, ids: int | Sequence[int], names: ClientNames) -> str:
    """Clients by their names, nodes by their ids."""
    several = [ids] if isinstance(ids, int) else ids
    return names.listed(several) if key in _CLIENT_KEYS else ranges(several)


class EventTable:
    """The table of events, a row at a time; without a terminal, a line for each event.

    Args:
        line: The status line below the table.
        places: The titles of the columns that say in which run and round an event happened.

    Attributes:
        names: The names of the clients.
    """

    def __init__(self, line: StatusLine, *places: str) -> None:
        """Show nothing yet."""
        self._line = line
        self._places = places
        self._titled = False
        self.names = NO_NAMES

    def add(self, place: Sequence[object], record: Mapping[str, Any]) -> None:
        """Show the events of a round.

        Args:
            place: The cells of the first columns.
            record: The record of the round.
        """
        for each in round_events(record, self.names):
            if self._line.live:
                self._line.keep(self._row((*map(str, place), *each)))
                self._titled = True
            else:
                where = ", ".join(f"{title} {cell}" for title, cell in zip(self._places, place, strict=True))
                said = f"{each.what} {each.who}".strip(), each.layer and f"layer {each.layer}", each.why
                self._line.keep(f"{where}: {'; '.join(filter(None, said))}")

    def _row(self, cells: Iterable[str]) -> Table:
        """A table of one row, with titles if it is the first. All rows have the same columns."""
        table = Table(box=None, expand=True, pad_edge=False, show_header=not self._titled)
        for title in (*self._places, *RoundEvent._fields):
            table.add_column(title, width=_COLUMN_WIDTHS.get(title), ratio=_COLUMN_RATIOS.get(title), overflow="fold")
        table.add_row(*map(Text, cells))
        return table


class Progress:
    """The progress of one run.

    Args:
        rounds: The number of rounds of the run.
        line: The status line.
        names: The name of each client, (n,); by default its id.
        metric: What the scores are.
        run: What the run is called; empty where it is the only one.
    """

    def __init__(
        self,
        rounds: int,
        line: StatusLine,
        names: tuple[str, ...] = (),
        metric: MetricInfo = ACCURACY,
        run: str = "",
    ) -> None:
        """Start the clock."""
        self._metric = metric
        self._rounds = rounds
        self._line = line
        self._run = run
        self._events = EventTable(line, *(["run"] if run else []), "round")
        self._events.names = ClientNames(names)
        self._began = perf_counter()
        self._shown = 0

    def show(self, record: Mapping[str, Any]) -> None:
        """Show a finished round by its record; its events stay on the screen."""
        self._shown += 1
        left = (perf_counter() - self._began) / self._shown * (self._rounds - record["round"])
        agreement = "" if record["ari"] is None else f"  ari {record['ari']:.2f}"
        self._events.add([*([self._run] if self._run else []), record["round"]], record)
        mean_text, worst_text = (self._metric.text(record[key]) for key in ("acc_client", "acc_worst"))
        run = f"{self._run}  " if self._run else ""
        self._line.show(
            f"{run}round {record['round']:>{len(str(self._rounds))}}/{self._rounds}  clusters {record['clusters']}  "
            f"{self._metric.name} {mean_text}  worst {worst_text}{agreement}  {left:.0f} s left"
        )


class ComparisonProgress:
    """The progress of several algorithms side by side, with one seed after the other or several at once.

    Args:
        rounds: The number of rounds of every run.
        seeds: The seed of each federation, in their order.
        line: The status line.
        metric: What the scores are.
    """

    def __init__(self, rounds: int, seeds: Sequence[int], line: StatusLine, metric: MetricInfo = ACCURACY) -> None:
        """Start the clock."""
        self._metric = metric
        self._rounds = rounds
        self._seeds = tuple(seeds)
        self._line = line
        self._events = EventTable(line, "run", "round")
        self._began = perf_counter()
        self._shown = 0
        self._running: tuple[int, ...] = ()
        self._place = 0
        self._scores: dict[str, dict[int, tuple[int, float | None]]] = {}

    @property
    def where(self) -> str:
        """The seeds that are running, in words."""
        return f"seed{'s' if len(self._running) > 1 else ''} {ranges(self._running)}"

    def begin(self, seeds: Sequence[int], names: tuple[str, ...] = ()) -> None:
        """Begin with the runs of some seeds, whose clients have these names, (n,)."""
        self._events.names = ClientNames(names)
        self._running = tuple(seeds)
        self._place = self._seeds.index(seeds[-1], self._place) + 1
        self._scores = {}

    def note(self, seed: int, algorithm: str, record: Mapping[str, Any]) -> None:
        """Note a finished round of one run; its events stay on the screen."""
        self._scores.setdefault(algorithm, {})[seed] = record["round"], record["acc_client"]
        self._events.add([f"{algorithm}-{seed}", record["round"]], record)

    def show(self, round: int, share: float) -> None:
        """Show the round that all runs have finished, with the metric of each algorithm, its mean over the seeds.

        Args:
            round: The round, counted from 1; for 0 nothing is shown.
            share: The share of the local jobs that had to be done.
        """
        if not round:
            return
        self._shown += 1
        place = self._place
        scores = []
        for name, by_seed in self._scores.items():
            here = [score for reached, score in by_seed.values() if reached == round]
            known = [score for score in here if score is not None]
            scores += [f"{name} {self._metric.text(mean(known) if known else None)}"] if here else []
        ahead = (len(self._seeds) - place + 1) * self._rounds - round
        left = (perf_counter() - self._began) / self._shown * ahead
        where = f"{self.where} ({place}/{len(self._seeds)})"
        when = f"round {round:>{len(str(self._rounds))}}/{self._rounds}"
        shown = "  ".join([f"{self._metric.name}:", *scores])
        self._line.show(f"{where}  {when}  {shown}  jobs {100 * share:.0f} %  {left:.0f} s left")


def notebook_output() -> NotebookOutput | None:
    """Return an output if this process is the kernel of a notebook, else None."""
    # Nobody is in a notebook without IPython being imported.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookOutput() if getattr(shell, "kernel", None) is not None else None


class NotebookOutput:
    """An output of a cell: lines that stay, and below them one that is replaced."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._kept = list[str]()
        self._status = ""
        self._handle: Any = None

    def keep(self, text: str) -> None:
        """Show a line that stays."""
        self._kept.append(text)
        self._update()

    def show(self, text: str) -> None:
        """Show a line in the place of the last one."""
        self._status = text
        self._update()

    def _update(self) -> None:
        from IPython.display import display

        text = "\n".join([*self._kept, self._status]).strip()
        data = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
