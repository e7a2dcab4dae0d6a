"""Asking nodes who they are: before the first round, and whenever one comes that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedstrata.core import Layout
from fedstrata.errors import EngineError, InputError
from fedstrata.flower.exchange import Clock, Grid, Node, replies
from fedstrata.flower.letter import one
from fedstrata.flower.messages import WHOAMI, content_of, message_to, write_letter
from fedstrata.flower.roster import Claim, Roster
from fedstrata.flower.terms import Terms, write_terms

if TYPE_CHECKING:
    from flwr.app import Message


GREETING = 60.0
"""Seconds that a node has to say who it is before it is asked again."""


class Greeter:
    """Keeps the roster up to date.

    Args:
        grid: of Flower.
        terms: of the run.
        layout: of the network.
        patience: seconds to wait for enough clients.
        tell: takes a line for people.
        clock: what the time is.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        layout: Layout,
        patience: float,
        tell: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Ask nobody yet."""
        self._grid, self._patience, self._tell, self._clock = grid, patience, tell, clock
        self._terms, self._layout = terms, layout
        self._refused: dict[int, frozenset[int]] = {}

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
        """Ask those nodes who they are that the roster does not know; a claim that does not hold is told and left out.

        One that was refused is asked again once other nodes are there: the one that held its key may be gone.
        """
        here = self._here()
        known, online = {seat.node for seat in roster.seats.values()}, frozenset(here)
        strangers = [node for node in sorted(online - known) if self._refused.get(node) != online]
        messages: dict[int, Message] = {}
        for node in strangers:
            content = write_letter(write_terms(self._terms, self._layout))
            messages[node] = message_to(node, WHOAMI, content, round, GREETING)
        for node, message in replies(self._grid, messages, GREETING, self._clock) if messages else ():
            try:
                record = content_of(message).record("client")
                counts = one(record, "train", int), one(record, "test", int)
                public, name = here[node].public_key.hex(), here[node].name
                claim = Claim(one(record, "key", str), node, public, name, *counts)
                roster = roster.claimed(claim, round, online)
            except InputError as error:
                self._refused[node] = online
                self._tell(f"node {node} is refused: {error}")
        return roster

    def _here(self) -> dict[int, Node]:
        """The nodes that are there now."""
        return {node.node_id: node for node in self._grid.get_nodes()}
