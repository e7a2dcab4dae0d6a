"""Messages out, replies in, until there are enough or time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flwr.app import Message

PAUSE = 0.5
"""Seconds between two looks for replies; Flower's own `send_and_receive` takes 3, of a round of 9."""


class Grid(Protocol):
    """What is used of Flower's grid."""

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        """Send messages; their ids, None for one that could not be sent."""

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        """The replies to some messages that have come by now."""

    def get_nodes(self) -> list[Node]:
        """The nodes that are there now."""


class Node(Protocol):
    """What is used of Flower's description of a node."""

    node_id: int
    public_key: bytes
    name: str


@dataclass(frozen=True)
class Clock:
    """Time, so that a test need not take any.

    Attributes:
        now: seconds since whenever.
        pause: lets some seconds pass.
    """

    now: Callable[[], float] = monotonic
    pause: Callable[[float], None] = sleep


def replies(grid: Grid, messages: Mapping[int, Message], seconds: float, clock: Clock) -> Iterator[tuple[int, Message]]:
    """Send messages and yield each reply as it comes; a caller that has enough just stops.

    What comes later is never asked for, so that it reaches no later round. A reply is known by the id of the message
    that it answers: the sender of an error is the SuperLink.

    Args:
        grid: where to.
        messages: by client.
        seconds: until the deadline.
        clock: what the time is.
    """
    end = clock.now() + seconds
    ids = grid.push_messages(list(messages.values()))
    waiting = {id: client for id, client in zip(ids, messages, strict=False) if id is not None}
    while waiting:
        for message in grid.pull_messages(list(waiting)):
            client = waiting.pop(message.metadata.reply_to_message_id, None)
            if client is not None:
                yield client, message
        if not waiting or clock.now() >= end:
            return
        clock.pause(min(PAUSE, max(end - clock.now(), 0.0)))
