"""What one reply may take of the server's memory, with Flower's own grid and a SuperLink that is a test double."""

import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid
from in_process import over_the_wire

from fedstrata.base.errors import InputError
from fedstrata.flower.grid import BoundedGrid, failure_reason, message_to
from fedstrata.flower.payload import Payload, ReplyLimit, encode

LIMIT = ReplyLimit(bytes=20_000, objects=10)


class SuperLink:
    """Has one reply, in objects that are made when they are fetched.

    Args:
        header: of the reply.
        tree: of its objects.
        objects: id -> makes the object's bytes.
    """

    def __init__(self, header: Any, tree: ObjectTree, objects: dict[str, Callable[[], bytes]]) -> None:
        self.header, self.tree, self.objects = header, tree, objects
        self.fetched = 0
        self.confirmed: list[str] = []
        self.uploading: set[str] = set()

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        return PullAppMessagesResponse(messages_list=[self.header], message_object_trees=[self.tree])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        if request.object_id in self.uploading:
            return PullObjectResponse(object_found=True, object_available=False)
        make = self.objects.get(request.object_id)
        if make is None:
            return PullObjectResponse(object_found=False)
        content = make()
        self.fetched += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def replied(values: np.ndarray) -> Message:
    """A reply with one array."""
    asked = over_the_wire(message_to(7, "train", encode(Payload()), 1, 10.0))
    reply = Message(RecordDict({"a": ArrayRecord({"w": Array(values)})}), reply_to=asked)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def copied(content: bytes) -> bytes:
    """Bytes of their own, as they come from a socket."""
    return bytes(bytearray(content))


def superlink(reply: Message) -> SuperLink:
    objects = {id: part.deflate for id, part in get_all_nested_objects(reply).items()}
    return SuperLink(message_to_proto(remove_content_from_message(reply)), get_object_tree(reply), objects)


def flowers_grid(server: SuperLink) -> HttpGrid:
    grid = HttpGrid(token="token")
    grid.set_run(Run.create_empty(1))
    client: Any = server
    grid._client = client
    return grid


def pulled(server: SuperLink, limit: ReplyLimit = LIMIT) -> Message:
    asked = server.header.metadata.reply_to_message_id
    (message,) = BoundedGrid(flowers_grid(server)).pull_messages([asked], limit)
    assert isinstance(message, Message)
    return message


def refused(server: SuperLink, limit: ReplyLimit = LIMIT) -> str:
    with pytest.raises(InputError) as error:
        failure_reason(pulled(server, limit))
    return str(error.value)


def test_a_sound_reply_is_what_flowers_own_grid_gives() -> None:
    reply = replied(np.arange(6, dtype="float32"))
    server = superlink(reply)
    found = pulled(server)
    assert found.content.array_records["a"]["w"].numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert found.metadata.reply_to_message_id == reply.metadata.reply_to_message_id
    assert server.confirmed == [reply.metadata.message_id]


def test_of_a_reply_that_is_too_large_no_more_than_the_limit_is_fetched() -> None:
    """64 MiB in pieces of 5: Flower's own grid takes them all in, and its message as many again."""
    server = superlink(replied(np.random.default_rng(0).normal(size=2**23)))
    # The pieces exist once, in the SuperLink, which is another process elsewhere.
    ready = {id: make() for id, make in server.objects.items()}
    server.objects = {id: partial(copied, content) for id, content in ready.items()}
    tracemalloc.start()
    try:
        said = refused(server, ReplyLimit(bytes=6 * 2**20, objects=100))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said == "expected a reply of at most 6291456 bytes, found more"
    assert server.fetched <= 4 * 5 * 2**20 and len(server.confirmed) == 1
    assert most < 40 * 2**20


def test_of_a_reply_of_too_many_objects_none_is_fetched() -> None:
    server = superlink(replied(np.zeros(3, "float32")))
    server.tree = ObjectTree(object_id="root", children=[ObjectTree(object_id=str(i)) for i in range(10)])
    assert refused(server) == "expected a reply of at most 10 objects, found more"
    assert server.fetched == 0


def test_a_piece_that_is_named_a_thousand_times_is_counted_a_thousand_times() -> None:
    """A few bytes would become many: Flower stores equal pieces once."""
    array = Array(np.zeros(1000, "float32"))
    piece = array.slice_array()[0][1]
    names = json.dumps({"dtype": "float32", "shape": [1000], "stype": "numpy.ndarray", "arraychunk_ids": [0] * 1000})
    forged = f"Array {piece.object_id} {len(names)}\x00{names}".encode()
    reply = replied(np.zeros(1000, "float32"))
    server = superlink(reply)
    (old,) = [id for id, part in get_all_nested_objects(reply).items() if isinstance(part, Array)]
    server.objects[old] = lambda: forged
    said = refused(server)
    assert said.startswith("expected a reply of at most 20000 bytes, found one that becomes 41")
    assert sha256(forged).hexdigest() != old and server.fetched < 20_000


@pytest.mark.parametrize("content", [b"", b"Nothing  0\x00", b"Array  2\x00{}", b"ArrayRecord x 2\x00{}", b"\xff" * 99])
def test_a_reply_that_cannot_be_put_together_does_not_end_the_run(content: bytes) -> None:
    server = superlink(replied(np.zeros(3, "float32")))
    for id in server.objects:
        server.objects[id] = lambda: content
    assert refused(server).startswith("expected a reply that can be read, found ")


def test_a_reply_that_is_no_message_is_refused() -> None:
    server = superlink(replied(np.zeros(3, "float32")))
    record = RecordDict()
    server.header.metadata.message_id = record.object_id
    server.tree = get_object_tree(record)
    server.objects = {record.object_id: record.deflate}
    assert refused(server) == "expected a message, found RecordDict"


def test_a_reply_answers_what_the_superlink_says_it_answers() -> None:
    """A node could name another client's message in its own words."""
    server = superlink(replied(np.zeros(3, "float32")))
    server.header.metadata.reply_to_message_id = "what it was asked"
    assert pulled(server).metadata.reply_to_message_id == "what it was asked"


def test_a_reply_of_which_a_part_has_not_come_is_absent() -> None:
    server = superlink(replied(np.zeros(3, "float32")))
    server.objects.popitem()
    assert failure_reason(pulled(server)).startswith("Flower reports error ") and server.confirmed == []


def test_a_reply_that_is_still_being_uploaded_holds_nobody_up_and_is_taken_later() -> None:
    server = superlink(replied(np.arange(3, dtype="float32")))
    server.uploading = set(server.objects)
    grid = BoundedGrid(flowers_grid(server))
    id = server.header.metadata.reply_to_message_id
    assert list(grid.pull_messages([id], LIMIT)) == [] and server.confirmed == []
    late = server.uploading.pop()
    assert list(grid.pull_messages([id], LIMIT)) == []
    server.uploading = set()
    (message,) = grid.pull_messages([id], LIMIT)
    assert message.content.array_records["a"]["w"].numpy().tolist() == [0, 1, 2] and late in server.objects
    assert grid.announced == {}


def test_an_array_of_other_arrays_is_refused_before_it_is_put_together() -> None:
    """Each level would name the one below it many times."""
    reply = replied(np.zeros(1000, "float32"))
    server = superlink(reply)
    (array,) = [id for id, part in get_all_nested_objects(reply).items() if isinstance(part, Array)]
    inner = server.objects[array]()
    names = json.dumps({"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * 4})
    server.objects["inner"] = lambda: inner
    server.objects[array] = lambda: f"Array inner {len(names)}\x00{names}".encode()
    server.tree = ObjectTree(object_id=server.tree.object_id, children=[server.tree, ObjectTree(object_id="inner")])
    assert refused(server) == "expected arrays that are put together of their pieces, found one of other parts"


def test_a_record_of_plain_values_is_bounded_by_itself() -> None:
    """Its values take several times as much in Python as in the message."""
    asked = over_the_wire(message_to(7, "train", encode(Payload()), 1, 10.0))
    reply = Message(RecordDict({"a": ConfigRecord({"values": [1] * 1000})}), reply_to=asked)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    server = superlink(reply)
    assert not pulled(server).has_error()
    assert refused(server, LIMIT._replace(record_bytes=1000)).startswith("expected records of at most 1000 bytes")
