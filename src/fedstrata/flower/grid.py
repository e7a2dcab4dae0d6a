"""Flower's grid, its messages, and what one bad reply costs: itself.

Flower's grid takes in a whole reply before anybody can look at it, waits for the parts of one that has only been
announced, and raises for one that it cannot read. `BoundedGrid` asks for each reply by itself, in a thread of its own.
It does not bound the memory that a reply takes, as nothing public of Flower could. In a federation of `deploy init` the
proxy bounds what is sent, and `superlink.sh` what Flower's programs may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

from fedstrata.base.errors import InputError
from fedstrata.base.quoting import LINE_CHARACTERS, one_line, without_paths
from fedstrata.flower.payload import RECORDS, Payload, encode, flower

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

POLL_SECONDS = 0.5
"""Seconds between two looks for replies; Flower's own `send_and_receive` takes 3, of a round of 9."""

_PATIENCE_SECONDS = 5.0
"""How long a look waits for replies that Flower has begun to fetch; they are taken later, when they are there."""

_MOST_MISSING = 8
"""How many replies that have not come end a look: each costs the SuperLink a request."""

REASON_CHARACTERS = 1000
"""The number of characters that are looked at of what a device says."""


class FlowerNode(Protocol):
    """What is used of Flower's description of a node; its name is empty where nodes need not be registered."""

    node_id: int
    public_key: bytes
    name: str


class Grid(Protocol):
    """What is used of Flower's grid."""

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        """Send messages and return their ids, None for one that could not be sent."""

    def pull_messages(self, message_ids: list[str]) -> Iterable[Message]:
        """Return the replies that have come to some messages, or a `RejectedReply` in the place of one."""

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""


@dataclass(frozen=True)
class RejectedReply:
    """Stands for a reply that is not taken.

    Attributes:
        answers: The id of the message that it answers.
        reason: Why it is not taken.
    """

    answers: str
    reason: str

    def has_error(self) -> bool:
        """Say that it answers nothing, as Flower's message does."""
        return True


@dataclass(frozen=True)
class Clock:
    """Tells the time in seconds and lets seconds pass, so that a test need not take any."""

    now: Callable[[], float] = monotonic
    pause: Callable[[float], None] = sleep


def message_to(node: int, kind: str, content: RecordDict, round: int, seconds: float) -> Message:
    """Make a message to a node, which is of no use after so many seconds."""
    message: Message = flower().Message(content, node, kind, ttl=seconds, group_id=str(round))
    return message


def reply_to(message: Message, payload: Payload) -> Message:
    """Make a reply with a payload."""
    reply: Message = flower().Message(encode(payload), reply_to=message)
    return reply


def failure_reason(message: Message | RejectedReply) -> str:
    """Say why a reply answers nothing: an error of Flower's, or what the device could not do; empty for an answer.

    Raises:
        InputError: When the reply is not taken.
    """
    if isinstance(message, RejectedReply):
        raise InputError(one_line(message.reason))
    if message.has_error():
        reason = without_paths((message.error.reason or "")[-REASON_CHARACTERS:])
        return f"Flower reports error {message.error.code}: {one_line(reason[-LINE_CHARACTERS:]) or 'no reason given'}"
    records = dict(message.content.config_records.get(RECORDS, {}))
    if "failed" not in records:
        return ""
    return f"its device says: {one_line(without_paths(str(records['failed'])[:REASON_CHARACTERS]))}"


def send(grid: Grid, messages: Mapping[int, Message]) -> dict[str, int]:
    """Send a message to each of several clients or nodes; return who is asked by the id of each message that left."""
    ids = grid.push_messages(list(messages.values())) if messages else []
    return {id: asked for id, asked in zip(ids, messages, strict=False) if id is not None}


def replies(grid: Grid, waiting: dict[str, int], end: float, clock: Clock) -> Iterator[tuple[int, Message]]:
    """Yield each reply as it comes to messages that `send` has sent, until a moment of the clock.

    A reply is known by the id of the message that it answers: the sender of an error is the SuperLink. A caller that
    has enough just stops. What comes later is never asked for, so that it reaches no later round.
    """
    while waiting:
        for message in grid.pull_messages(list(waiting)):
            answers = message.answers if isinstance(message, RejectedReply) else message.metadata.reply_to_message_id
            asked = waiting.pop(answers, None)
            if asked is not None:
                yield asked, message
        if not waiting or clock.now() >= end:
            return
        clock.pause(min(POLL_SECONDS, max(end - clock.now(), 0.0)))


@dataclass(eq=False)
class BoundedGrid:
    """The `Grid` of which no reply costs another one, made of Flower's own.

    Attributes:
        grid: Flower's own.
        patience: The seconds that a look waits for what Flower fetches.
        late: What Flower was still fetching after that, by the id of the message that it answers.
        unreadable: What was wrong when Flower was asked for the reply to a message, by the id of the message.
    """

    grid: Any
    patience: float = _PATIENCE_SECONDS
    late: dict[str, Future[list[Any]]] = field(default_factory=dict, init=False)
    unreadable: dict[str, str] = field(default_factory=dict, init=False)
    _looks: int = field(default=0, init=False)

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        """Send messages and return their ids, None for one that could not be sent."""
        # Over HTTP, Flower has an empty text where it has None elsewhere.
        return [id or None for id in self.grid.push_messages(messages)]

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""
        return list(self.grid.get_nodes())

    def pull_messages(self, message_ids: list[str]) -> Iterator[Any]:
        """Yield the replies that have come to some messages, each fetched when it is its turn.

        A look ends when several have not come. The next one begins with those behind them.
        """
        end = monotonic() + self.patience
        first = self._looks % max(len(message_ids), 1)
        missing = 0
        for id in message_ids[first:] + message_ids[:first]:
            self._looks += 1
            reply = self._reply(id, end)
            if reply is not None:
                yield reply
                continue
            missing += 1
            if missing == _MOST_MISSING:
                break
        # Nobody asks for these any more: the round in which they were asked for is over.
        for id in [id for id, pull in self.late.items() if pull.done() and id not in message_ids]:
            del self.late[id]
        for id in self.unreadable.keys() - set(message_ids):
            del self.unreadable[id]

    def _reply(self, id: str, end: float) -> Any:
        """Fetch the reply to a message; None when it has not come, or Flower has not fetched it when the look ends."""
        pull = self.late.pop(id, None)
        if pull is None:
            pull = _started(lambda: list(self.grid.pull_messages([id])))
            wait([pull], max(end - monotonic(), 0.0))
        if not pull.done():
            self.late[id] = pull
            return None
        error = pull.exception()
        if error and not isinstance(error, Exception):
            # The run is over.
            raise error
        found = [] if error else pull.result()
        # What a message says of itself is its sender's word.
        message = next((each for each in found if each.metadata.reply_to_message_id == id), None)
        if error:
            self.unreadable[id] = f"expected a reply that can be read, found {type(error).__name__}"
        elif found and message is None:
            self.unreadable[id] = "expected a reply to what its client was asked, found one to another message"
        # Flower may have failed for another reason, such as a message that is no reply. So it is asked again: it says
        # that there is no such reply any more, if it was the reply.
        if message is not None and (reason := self.unreadable.pop(id, "")) and message.has_error():
            return RejectedReply(id, reason)
        return message


def _started(call: Callable[[], list[Any]]) -> Future[list[Any]]:
    """Call something in a thread that ends with the process."""
    future = Future[list[Any]]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            # The traceback would keep all that the reply has become so far.
            future.set_exception(error.with_traceback(None))

    Thread(target=run, daemon=True).start()
    return future
