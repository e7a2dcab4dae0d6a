"""What one bad reply costs: itself. With Flower's own grid and a SuperLink that is a test double."""

import json
import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run, RunNotRunningException
from flwr.superlink.grid import HttpGrid
from in_process import over_the_wire, payload_of

from fedstrata.base.errors import InputError
from fedstrata.flower.grid import BoundedGrid, Clock, RejectedReply, failure_reason, message_to, replies
from fedstrata.flower.payload import ArrayForm, ExpectedReply, Payload, encode

linux = pytest.mark.skipif(sys.platform != "linux", reason="no other system bounds the memory of a process")


class Reply:
    """A reply as the SuperLink has it, in objects that are made when they are fetched.

    Attributes:
        header: Of the reply.
        tree: Of its objects.
        objects: id -> makes the object's bytes.
    """

    def __init__(self, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        self.header: Any = message_to_proto(remove_content_from_message(message))
        self.tree = get_object_tree(message)
        self.objects: dict[str, Callable[[], bytes]] = {
            id: part.deflate for id, part in get_all_nested_objects(message).items()
        }
        self.parts = get_all_nested_objects(message)

    @property
    def answers(self) -> str:
        return str(self.header.metadata.reply_to_message_id)

    def array(self) -> str:
        """The id of its only array."""
        (found,) = [id for id, part in self.parts.items() if isinstance(part, Array)]
        return found


class SuperLink:
    """Has replies, each of which it hands out once, and messages that are none, with whatever it is asked next."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = {reply.answers: reply for reply in replies}
        self.foreign: list[Reply] = []
        self.objects = {id: make for reply in replies for id, make in reply.objects.items()}
        self.confirmed: list[str] = []
        self.asked: list[str] = []
        self.forgotten: set[str] = set()

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        self.asked += request.message_ids
        found = []
        for id in request.message_ids:
            if id in self.forgotten:
                found.append(Reply(create_message_error_unavailable_ins_message(id, 1)))
                self.objects |= found[-1].objects
            elif id in self.replies:
                found.append(self.replies[id])
                self.forgotten.add(id)
        found += self.foreign
        self.foreign = []
        return PullAppMessagesResponse(
            messages_list=[each.header for each in found], message_object_trees=[each.tree for each in found]
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        make = self.objects.get(request.object_id)
        if make is None:
            return PullObjectResponse(object_found=False)
        return PullObjectResponse(object_found=True, object_available=True, object_content=make())

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def replied(values: np.ndarray, node: int = 7) -> Reply:
    """A reply with one array."""
    asked = over_the_wire(message_to(node, "train", encode(Payload()), 1, 10.0))
    return Reply(Message(RecordDict({"a.arrays": ArrayRecord({"w": Array(values)})}), reply_to=asked))


def bounded(server: SuperLink) -> BoundedGrid:
    flowers = HttpGrid(token="token")
    flowers.set_run(Run.create_empty(1))
    client: Any = server
    flowers._client = client
    return BoundedGrid(flowers)


def look(here: BoundedGrid, waiting: dict[str, int]) -> list[tuple[int, Message]]:
    """What comes in one look, as time is up then."""
    return list(replies(here, waiting, 0.0, Clock(lambda: 1.0)))


def pulled(server: SuperLink) -> dict[str, Any]:
    """What comes of the replies in two looks, by the ids of the messages that they answer."""
    here, ids = bounded(server), list(server.replies)
    waiting = {id: place for place, id in enumerate(ids)}
    return {ids[place]: reply for _ in range(2) for place, reply in look(here, waiting)}


def refused(bad: Reply) -> str:
    """Why a reply is not taken. One that comes with it is."""
    good = replied(np.arange(3, dtype="float32"), node=8)
    found = pulled(SuperLink(bad, good))
    assert found[good.answers].content.array_records["a.arrays"]["w"].numpy().tolist() == [0, 1, 2]
    with pytest.raises(InputError) as error:
        failure_reason(found[bad.answers])
    return str(error.value)


def bomb(times: int) -> Reply:
    """A reply of one array of 1 MiB, whose list names its only piece so many times."""
    reply = replied(np.zeros(2**18, "float32"))
    piece = next(iter(reply.parts[reply.array()].children or ()))
    named = {"dtype": "float32", "shape": [2**18], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    body = json.dumps(named)
    reply.objects[reply.array()] = lambda: f"Array {piece} {len(body)}\x00{body}".encode()
    return reply


@contextmanager
def room(bytes: int) -> Iterator[None]:
    """This process can take so many more bytes; those that `superlink.sh` starts can take half of a machine's."""
    usual, most = resource.getrlimit(resource.RLIMIT_DATA)
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (usual, most))


def test_a_sound_reply_is_what_flowers_own_grid_gives() -> None:
    reply = replied(np.arange(6, dtype="float32"))
    server = SuperLink(reply)
    found = pulled(server)[reply.answers]
    assert found.content.array_records["a.arrays"]["w"].numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert server.confirmed == [reply.header.metadata.message_id]


@linux
def test_a_piece_that_is_named_a_million_times_costs_its_reply() -> None:
    """It would become 1 TiB."""
    with room(2**28):
        assert refused(bomb(10**6)) == "expected a reply that can be read, found MemoryError"


@linux
def test_nothing_remains_of_a_reply_that_was_too_large() -> None:
    server = SuperLink(bomb(10**6))
    tracemalloc.start()
    try:
        with room(2**28):
            pulled(server)
        remains = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert remains < 2**26


def test_a_reply_that_can_be_read_is_refused_when_it_is_larger_than_what_was_asked() -> None:
    reply = bomb(3)
    found = pulled(SuperLink(reply))[reply.answers]
    expected = ExpectedReply(frozenset(), {"a": {"w": ArrayForm((2**18,))}}, 0)
    with pytest.raises(InputError, match=r"expected a.w to be an array of numbers: it has \d+ bytes of numbers"):
        payload_of(found, expected)


@pytest.mark.parametrize("content", [b"", b"Nothing  0\x00", b"Array  2\x00{}", b"ArrayRecord x 2\x00{}", b"\xff" * 99])
def test_a_reply_that_cannot_be_read_costs_itself(content: bytes) -> None:
    reply = replied(np.zeros(3, "float32"))
    reply.objects = dict.fromkeys(reply.objects, lambda: content)
    assert refused(reply).startswith("expected a reply that can be read, found ")


def test_a_reply_that_is_no_message_costs_itself() -> None:
    reply, record = replied(np.zeros(3, "float32")), RecordDict()
    reply.header.metadata.message_id = record.object_id
    reply.tree, reply.objects = get_object_tree(record), {record.object_id: record.deflate}
    assert refused(reply).startswith("expected a reply that can be read, found ")


def test_a_reply_that_says_to_answer_another_message_costs_itself() -> None:
    """A node could name another client's message in its own words; the SuperLink knows which one it answers."""
    reply = replied(np.zeros(3, "float32"))
    reply.header.metadata.reply_to_message_id = "what it was asked"
    assert refused(reply) == "expected a reply to what its client was asked, found one to another message"


def test_a_reply_of_which_a_part_is_gone_is_absent() -> None:
    reply = replied(np.zeros(3, "float32"))
    reply.objects.popitem()
    server = SuperLink(reply)
    assert failure_reason(pulled(server)[reply.answers]).startswith("Flower reports error ") and not server.confirmed


def test_a_message_that_is_no_reply_costs_no_reply_that_comes_later() -> None:
    """Flower hands such messages out with whatever it is asked next."""
    good, foreign = replied(np.arange(3, dtype="float32")), replied(np.zeros(2), node=8)
    foreign.header.metadata.reply_to_message_id = ""
    server = SuperLink()
    server.foreign = [foreign]
    server.objects = dict.fromkeys(foreign.objects, lambda: b"")
    here, waiting = bounded(server), {good.answers: 7}
    assert look(here, waiting) == [] and waiting
    server.replies[good.answers] = good
    server.objects |= good.objects
    ((node, message),) = look(here, waiting)
    assert node == 7 and failure_reason(message) == "" and not waiting


class Slow:
    """A grid of Flower that is given what it answers, and waits for one of the replies."""

    def __init__(self, waits_for: str) -> None:
        self.waits_for, self.has_come = waits_for, Event()
        self.asked: list[str] = []
        self.there: set[str] = set()

    def pull_messages(self, ids: list[str]) -> list[Any]:
        (id,) = ids
        self.asked.append(id)
        if id == self.waits_for:
            self.has_come.wait()
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=id))] if id in self.there else []


def ids_of(found: list[tuple[int, Any]]) -> list[int]:
    return [id for id, _ in found]


def test_a_reply_that_is_announced_and_does_not_come_holds_nobody_up_and_is_taken_later() -> None:
    flowers = Slow(waits_for="a")
    flowers.there = {"a", "b"}
    here, waiting = BoundedGrid(flowers, patience=0.0), {"a": 1, "b": 2}
    found: list[int] = []
    while 2 not in found:
        found += ids_of(look(here, waiting))
    assert found == [2] and list(here.late) == ["a"] and flowers.asked.count("a") == 1
    flowers.has_come.set()
    while waiting:
        found += ids_of(look(here, waiting))
    assert found == [2, 1] and here.late == {} and flowers.asked.count("a") == 1


def test_a_reply_that_comes_after_its_round_is_forgotten() -> None:
    flowers = Slow(waits_for="a")
    flowers.there = {"a", "b"}
    here = BoundedGrid(flowers, patience=0.0)
    list(here.pull_messages(["a"]))
    (late,) = here.late.values()
    flowers.has_come.set()
    late.result()
    while here.late:
        list(here.pull_messages(["b"]))
    assert flowers.asked.count("a") == 1


def test_a_look_asks_for_few_replies_that_have_not_come_and_the_next_for_the_others() -> None:
    flowers = Slow(waits_for="")
    ids = [str(i) for i in range(20)]
    here = BoundedGrid(flowers)
    for _ in range(3):
        assert list(here.pull_messages(ids)) == []
    assert len(flowers.asked) == 24 and set(flowers.asked) == set(ids)
    flowers.there = set(ids)
    assert len(list(here.pull_messages(ids))) == 20, "those that have come are all taken at once"


def test_a_message_that_flower_does_not_send_has_no_id() -> None:
    here = BoundedGrid(SimpleNamespace(push_messages=lambda messages: ["a", "", None]))
    assert here.push_messages([]) == ["a", None, None]


def test_what_stands_for_a_reply_is_no_answer() -> None:
    assert RejectedReply("a", "it is too large").has_error()
    with pytest.raises(InputError, match="it is too large"):
        payload_of(RejectedReply("a", "it is\ntoo large"))  # type: ignore[arg-type]


def test_a_run_that_is_stopped_is_over_at_once() -> None:
    def stopped(ids: list[str]) -> list[Any]:
        raise RunNotRunningException

    with pytest.raises(RunNotRunningException):
        list(BoundedGrid(SimpleNamespace(pull_messages=stopped)).pull_messages(["a"]))
