"""Flower's grid, its messages, and a bound on what one reply may take of the server's memory.

Flower's own grid takes in a whole reply, of any size, before anybody can look at it; and one that is not what it seems
ends the run. Flower stores an array as pieces and a list that names them, so that a small reply can name one piece a
million times. `BoundedGrid` counts what a reply announces before it is fetched, and what it would become before it is
put together. A reply that is too large, or none at all, is an error message in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedstrata.base.errors import InputError
from fedstrata.base.quoting import LINE_CHARACTERS, one_line, without_paths
from fedstrata.flower.payload import RECORDS, ExpectedReply, Payload, ReplyLimit, decode, encode, flower

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

POLL_SECONDS = 0.5
"""Seconds between two looks for replies; Flower's own `send_and_receive` takes 3, of a round of 9."""

_MOST_ANNOUNCED = 10_000
"""The most replies of which is remembered that they were announced."""

_REASON_CHARACTERS = 1000
"""The number of characters that are looked at of what a device says."""

_BAD_REPLY = 9001
"""The code of an error message that stands for a reply that is not taken; Flower's own codes are below 1000."""


class FlowerNode(Protocol):
    """What is used of Flower's description of a node; its name is empty where nodes need not be registered."""

    node_id: int
    public_key: bytes
    name: str


class Grid(Protocol):
    """What is used of Flower's grid."""

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        """Send messages and return their ids, None for one that could not be sent."""

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> Iterable[Message]:
        """Return the replies that have come to some messages; one that is larger than the limit is an error."""

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""


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


def failure_reason(message: Message) -> str:
    """Say why a reply answers nothing: an error of Flower's, or what the device could not do; empty for an answer.

    Raises:
        InputError: When the reply is not taken.
    """
    if message.has_error():
        reason = without_paths(message.error.reason or "")
        if message.error.code == _BAD_REPLY:
            raise InputError(one_line(reason))
        return f"Flower reports error {message.error.code}: {one_line(reason[-LINE_CHARACTERS:]) or 'no reason given'}"
    records = dict(message.content.config_records.get(RECORDS, {}))
    if "failed" not in records:
        return ""
    return f"its device says: {one_line(without_paths(str(records['failed'])[:_REASON_CHARACTERS]))}"


def payload_of(message: Message, expected: ExpectedReply | None = None) -> Payload:
    """Read the payload of a reply.

    Raises:
        InputError: When there is none but a failure, or there is more than expected.
    """
    if reason := failure_reason(message):
        raise InputError(reason)
    return decode(message.content, expected)


def send(grid: Grid, messages: Mapping[int, Message]) -> dict[str, int]:
    """Send a message to each of several clients or nodes; return who is asked by the id of each message that left."""
    ids = grid.push_messages(list(messages.values())) if messages else []
    return {id: asked for id, asked in zip(ids, messages, strict=False) if id is not None}


def arrived(grid: Grid, waiting: dict[str, int], limit: ReplyLimit) -> Iterator[tuple[int, Message]]:
    """Yield the replies that have come, and take the ids of their messages out of `waiting`, as `send` returns it.

    A reply is known by the id of the message that it answers: the sender of an error is the SuperLink.
    """
    for message in grid.pull_messages(list(waiting), limit) if waiting else ():
        asked = waiting.pop(message.metadata.reply_to_message_id, None)
        if asked is not None:
            yield asked, message


def replies(
    grid: Grid, waiting: dict[str, int], limit: ReplyLimit, end: float, clock: Clock
) -> Iterator[tuple[int, Message]]:
    """Yield each reply as it comes to messages that `send` has sent, until a moment of the clock.

    A caller that has enough just stops. What comes later is never asked for, so that it reaches no later round.
    """
    while waiting:
        yield from arrived(grid, waiting, limit)
        if not waiting or clock.now() >= end:
            return
        clock.pause(min(POLL_SECONDS, max(end - clock.now(), 0.0)))


class _NotUploadedError(Exception):
    """An object of a reply that has been announced is not there yet; its text is the id of the object."""


class Announced(NamedTuple):
    """A reply that has been announced and is not there yet as a whole.

    Attributes:
        header: Its header.
        tree: The tree of its objects.
        missing: The id of an object that was not there.
    """

    header: Any
    tree: Any
    missing: str


@dataclass(frozen=True)
class BoundedGrid:
    """The `Grid` that bounds the replies of Flower's own, the `HttpGrid` of Flower 1.41.

    Flower lists a reply once, as soon as a node has announced it, and waits for its objects. Here none is waited for,
    as a node that announces a reply and sends nothing would hold up all others. It is looked at again with the next
    pull.

    Attributes:
        grid: Flower's own.
        announced: The replies that are not there yet, by the id of the message that they answer.
    """

    grid: Any
    announced: dict[str, Announced] = field(default_factory=dict, compare=False)

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        """Send messages and return their ids, None for one that could not be sent."""
        return list(self.grid.push_messages(messages))

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""
        return list(self.grid.get_nodes())

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> Iterator[Any]:
        """Yield the replies that have come to some messages, each fetched when it is its turn."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        # Asked for again, one that was listed is an error: Flower has forgotten its message.
        unknown = [id for id in message_ids if id not in self.announced]
        if unknown:
            found = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unknown))
            for header, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                self.announced[header.metadata.reply_to_message_id] = Announced(header, tree, "")
        for id in message_ids:
            if (reply := self.announced.get(id)) is None:
                continue
            try:
                message = self._reply(reply, limit)
            except _NotUploadedError as error:
                self.announced[id] = reply._replace(missing=str(error))
            else:
                del self.announced[id]
                yield message
        # Nobody asks for the oldest any more: the rounds in which they were asked for are over.
        while len(self.announced) > _MOST_ANNOUNCED:
            del self.announced[next(iter(self.announced))]

    def _reply(self, reply: Announced, limit: ReplyLimit) -> Any:
        """Fetch one reply, or make an error message in its place.

        Raises:
            _NotUploadedError: When a part of it is not there yet.
        """
        from flwr.app.message import make_message
        from flwr.common.constant import ErrorCode
        from flwr.common.serde_utils import metadata_from_proto
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        metadata = metadata_from_proto(reply.header.metadata)
        error = flower().Error
        try:
            objects = _objects(reply.tree, limit)
            # What was not there before, and what nodes upload last, is asked for first: where it is not there, nothing
            # else is fetched in vain.
            if reply.missing in objects:
                self._fetched([reply.missing], limit)
            contents = self._fetched(objects[::-1], limit)
            message = _put_together(metadata.message_id, contents, limit)
        except ObjectPullError:
            return make_message(metadata, error=error(ErrorCode.MESSAGE_UNAVAILABLE, "not all of the reply has come"))
        except InputError as failure:
            message = make_message(metadata, error=error(_BAD_REPLY, str(failure)))
        self._confirm(metadata.message_id)
        # What a message says of itself is its sender's word; the SuperLink has checked which one it answers.
        message.metadata.__dict__["_message_id"] = metadata.message_id
        message.metadata.__dict__["_reply_to_message_id"] = metadata.reply_to_message_id
        return message

    def _fetched(self, objects: list[str], limit: ReplyLimit) -> dict[str, bytes]:
        """Fetch the objects of a reply by id, until they are too many bytes, or one is not there yet."""
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

        fetch = make_pull_object_fn_protobuf(self.grid._runtime_client.PullObject, self.grid.node, self.grid.run.run_id)
        taken = 0
        lock = Lock()

        def bounded(object_id: str) -> bytes:
            nonlocal taken
            try:
                content = fetch(object_id)
            except ObjectUnavailableError:
                # Flower would wait for it.
                raise _NotUploadedError(object_id) from None
            with lock:
                taken += len(content)
                if taken > limit.bytes:
                    raise InputError(f"expected a reply of at most {limit.bytes} bytes, found more")
            return content

        return pull_objects(objects, bounded)

    def _confirm(self, id: str) -> None:
        """Let the SuperLink forget a reply."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        grid = self.grid
        request = ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=id)
        grid._runtime_client.ConfirmMessageReceived(request)


def _objects(tree: Any, limit: ReplyLimit) -> list[str]:
    """List the ids of a reply's objects, each once, children first; refuse too many."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    found: dict[str, None] = {}
    for count, node in enumerate(iterate_object_tree(tree), start=1):
        if count > limit.objects:
            raise InputError(f"expected a reply of at most {limit.objects} objects, found more")
        found[node.object_id] = None
    return list(found)


def _put_together(id: str, contents: dict[str, bytes], limit: ReplyLimit) -> Any:
    """Make the message of its objects; refuse one that would be too large."""
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    try:
        size = _size(contents, limit)
        if size > limit.bytes:
            raise InputError(f"expected a reply of at most {limit.bytes} bytes, found one that becomes {size}")
        message = inflate_object_from_contents(id, contents)
    except InputError:
        raise
    except Exception as error:
        # Made by another machine: whatever is wrong with it must not end the run.
        raise InputError(f"expected a reply that can be read, found {type(error).__name__}") from None
    if not isinstance(message, flower().Message):
        raise InputError(f"expected a message, found {type(message).__name__}")
    return message


def _size(contents: dict[str, bytes], limit: ReplyLimit) -> int:
    """Count the bytes of a reply whose arrays are put together of their pieces, as often as they name them.

    Raises:
        InputError: When an array is put together of something else, such as of other arrays, whose bytes would multiply
            from one to the next; or a record of plain values is too long.
    """
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content

    total = 0
    for content in contents.values():
        total += len(content)
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind in ("ConfigRecord", "MetricRecord") and len(content) > limit.record_bytes:
            raise InputError(f"expected records of at most {limit.record_bytes} bytes, found one of {len(content)}")
        if kind == "Array":
            parts = {get_object_head_values_from_object_content(contents[child])[0] for child in children}
            if not parts <= {"ArrayChunk"}:
                raise InputError("expected arrays that are put together of their pieces, found one of other parts")
            pieces = json.loads(get_object_body(content, flower().Array))["arraychunk_ids"]
            total += sum(len(contents[children[piece]]) for piece in pieces)
    return total
