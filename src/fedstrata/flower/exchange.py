"""Messages out, replies in, until there are enough or time is up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flwr.app import Message

PAUSE = 0.5
"""Seconds between two looks for replies; Flower's own `send_and_receive` takes 3, of a round of 9."""


CHUNK = 5 * 2**20
"""Bytes in which Flower cuts an array for the way."""

BAD_REPLY = 9001
"""Code of an error message that stands for a reply that is not taken; Flower's own codes are below 1000."""


@dataclass(frozen=True)
class ReplyLimit:
    """What one reply may be, known before it is fetched.

    Attributes:
        bytes: of its parts, with arrays as large as they become.
        objects: parts that Flower makes of it.
    """

    bytes: int
    objects: int


class Grid(Protocol):
    """What is used of Flower's grid."""

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        """Send messages; their ids, None for one that could not be sent."""

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> Iterable[Message]:
        """The replies to some messages that have come by now; one that is larger than the limit is an error."""

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


def largest(limits: Iterable[ReplyLimit]) -> ReplyLimit:
    """The limit under which every reply of several fits."""
    found = list(limits)
    return ReplyLimit(max((each.bytes for each in found), default=0), max((each.objects for each in found), default=0))


def replies(
    grid: Grid, messages: Mapping[int, Message], limit: ReplyLimit, seconds: float, clock: Clock
) -> Iterator[tuple[int, Message]]:
    """Send messages and yield each reply as it comes; a caller that has enough just stops.

    What comes later is never asked for, so that it reaches no later round. A reply is known by the id of the message
    that it answers: the sender of an error is the SuperLink.

    Args:
        grid: where to.
        messages: by client.
        limit: of each reply.
        seconds: until the deadline.
        clock: what the time is.
    """
    end = clock.now() + seconds
    ids = grid.push_messages(list(messages.values()))
    waiting = {id: client for id, client in zip(ids, messages, strict=False) if id is not None}
    while waiting:
        for message in grid.pull_messages(list(waiting), limit):
            client = waiting.pop(message.metadata.reply_to_message_id, None)
            if client is not None:
                yield client, message
        if not waiting or clock.now() >= end:
            return
        clock.pause(min(PAUSE, max(end - clock.now(), 0.0)))
