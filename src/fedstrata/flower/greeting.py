"""Asking nodes who they are: before the first round, and whenever one comes that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedstrata.core import Layout
from fedstrata.errors import EngineError, InputError
from fedstrata.flower.exchange import Clock, Grid, Node, ReplyLimit
from fedstrata.flower.letter import one
from fedstrata.flower.messages import WHOAMI, Expected, content_of, message_to, write_letter
from fedstrata.flower.roster import NOBODY, Claim, Roster
from fedstrata.flower.terms import Terms, write_terms
from fedstrata.flower.text import one_line, without_paths

if TYPE_CHECKING:
    from flwr.app import Message


GREETING = 60.0
"""Seconds after which a node that has not said who it is is asked again; twice as many each further time."""

LONGEST_WAIT = 3600.0
"""Seconds between two questions to a silent node, at most."""

EXPECTED = Expected(frozenset({"client", "failed"}), {}, 0)
"""What the reply to the question may hold."""

LIMIT = ReplyLimit(bytes=64 * 2**10, objects=8)
"""What the reply may be."""


@dataclass(frozen=True)
class _Question:
    """A question that a node has not answered.

    Attributes:
        node: its id.
        until: time after which an answer cannot come any more.
    """

    node: int
    until: float


@dataclass(frozen=True)
class _Turn:
    """When a node is asked again.

    Attributes:
        time: from when on.
        wait: seconds from the last question to then.
    """

    time: float
    wait: float


class Greeter:
    """Keeps the roster up to date; nobody waits for a node that is silent.

    Args:
        grid: of Flower.
        terms: of the run.
        layout: of the network.
        patience: seconds to wait for enough clients before the first round.
        tell: takes a line for people.
        clock: what the time is.
        between: seconds that may pass between two calls of `meet`, as long as a round may last: an answer is kept
            that long.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        layout: Layout,
        patience: float,
        tell: Callable[[str], None],
        clock: Clock,
        between: float = 0.0,
    ) -> None:
        """Ask nobody yet."""
        self._grid, self._patience, self._tell, self._clock = grid, patience, tell, clock
        self._terms, self._layout, self._between = terms, layout, between
        self._questions: dict[str, _Question] = {}
        self._turns: dict[int, _Turn] = {}
        self._refused: dict[int, frozenset[int]] = {}
        self._told: dict[int, str] = {}

    def gather(self, roster: Roster, wanted: int, round: int) -> Roster:
        """Wait for clients.

        Args:
            roster: of those met so far.
            wanted: how many are to be there.
            round: of the first cohort of those who come.

        Raises:
            EngineError: when they do not come.
        """
        end = self._clock.now() + self._patience
        while True:
            roster = self.meet(roster, round)
            here = self._here()
            found = sorted(key for key, seat in roster.seats.items() if seat.node in here)
            if len(found) >= wanted:
                return roster
            if self._clock.now() >= end:
                raise EngineError(
                    f"expected {wanted} clients within {self._patience:g} s, found {', '.join(found) or 'none'}; "
                    "start the other nodes, or lower start in the federation's file"
                )
            self._clock.pause(1.0)

    def meet(self, roster: Roster, round: int) -> Roster:
        """Ask the nodes that the roster does not know, and take in what those have answered who were asked before.

        A claim that does not hold is told and left out. One that was refused is asked again once other nodes are
        there: the one that held its key may be gone.
        """
        here = self._here()
        roster, reasons = roster.checked({id: node.public_key.hex() for id, node in here.items()})
        for reason in reasons:
            self._tell(reason)
        self._ask(roster, here, round)
        for node, message in self._answers():
            if node not in here:
                continue
            if not message.has_error():
                # One that has answered is not silent; what Flower reports in its place is no answer.
                self._turns.pop(node, None)
                self._refused[node] = frozenset(here)
            try:
                roster = roster.claimed(_claim(here[node], message), round, frozenset(here))
            except InputError as error:
                self._tell_once(node, f"node {node} is refused: {one_line(without_paths(str(error)))}")
        return roster

    def _ask(self, roster: Roster, here: Mapping[int, Node], round: int) -> None:
        """Send the question to those whose turn it is."""
        now, online = self._clock.now(), frozenset(here)
        known = {seat.node for seat in roster.seats.values() if seat.node != NOBODY}
        # One that was away is asked at once when it is back.
        self._turns = {node: turn for node, turn in self._turns.items() if node in online}
        messages: dict[int, Message] = {}
        lifetime = GREETING + self._between
        for node in sorted(online - known):
            turn = self._turns.get(node, _Turn(now, GREETING / 2))
            if now >= turn.time and self._refused.get(node) != online:
                content = write_letter(write_terms(self._terms, self._layout))
                messages[node] = message_to(node, WHOAMI, content, round, lifetime)
                wait = min(2 * turn.wait, LONGEST_WAIT)
                self._turns[node] = _Turn(now + wait, wait)
        ids = self._grid.push_messages(list(messages.values())) if messages else []
        for id, node in zip(ids, messages, strict=False):
            if id is not None:
                self._questions[id] = _Question(node, now + lifetime)

    def _answers(self) -> Iterator[tuple[int, Message]]:
        """The nodes that have answered by now, with what."""
        now = self._clock.now()
        waiting = list(self._questions)
        for message in self._grid.pull_messages(waiting, LIMIT) if waiting else ():
            question = self._questions.pop(message.metadata.reply_to_message_id, None)
            if question is not None:
                yield question.node, message
        self._questions = {id: question for id, question in self._questions.items() if question.until > now}

    def _tell_once(self, node: int, line: str) -> None:
        """Tell something of a node, unless it was the last thing told of it."""
        if self._told.get(node) != line:
            self._told[node] = line
            self._tell(line)

    def _here(self) -> dict[int, Node]:
        """The nodes that are there now."""
        return {node.node_id: node for node in self._grid.get_nodes()}


def _claim(node: Node, message: Message) -> Claim:
    """What a node says of itself, and what Flower says of it.

    Raises:
        InputError: when it says nothing that makes sense.
    """
    record = content_of(message, EXPECTED).record("client")
    counts = one(record, "train", int), one(record, "test", int)
    return Claim(one(record, "key", str), node.node_id, node.public_key.hex(), node.name, *counts)
