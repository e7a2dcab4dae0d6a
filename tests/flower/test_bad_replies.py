"""Nothing that a device may answer reaches a model unless it is sound; the round goes on without it."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import in_process
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from in_process import Federation, Twist, at

from builders import keys
from fedstrata.base.errors import EngineError
from fedstrata.core import Plan, Report, State
from fedstrata.flower.federation import RoundRules
from fedstrata.flower.payload import Payload, encode
from turns import first_plan_of, same

KEYS = keys(in_process.KEYS, data={"clients": 4}, partition={"groups": 2}, algorithm={"name": "fedavg"})
BAD = 2

Spoil = Callable[[Message], Any]


def spoiling(spoil: Spoil) -> Twist:
    def does(message: Message, reply: Message) -> None:
        spoil(reply)

    return at(BAD, 2, does)


def put(record: str, key: str, value: Any) -> Spoil:
    return lambda message: in_process.put(message, record, **{key: value})


def records(message: Message) -> ConfigRecord:
    return message.content.config_records["records"]


def part(name: str, value: Any) -> Spoil:
    return lambda message: message.content.update({name: value})


def array(name: str, value: Array, group: str = "updates") -> Spoil:
    return lambda message: message.content.array_records[f"{group}.arrays"].update({name: value})


def without(name: str) -> Spoil:
    return lambda message: message.content.pop(name)


def of_bytes(data: bytes, format: str = "numpy.ndarray") -> Spoil:
    return array("train", Array("float32", (610,), format, data))


def pickled() -> bytes:
    buffer = BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


A_RECORD = ConfigRecord({"a": 1})
SPOILT: dict[str, tuple[Spoil, str]] = {
    "shape": (array("train", Array(np.zeros(609, "float32"))), "updates.train to be torch.float32 (610,), found"),
    "type": (array("train", Array(np.zeros(610))), "expected updates.train to be torch.float32"),
    "no array": (part("updates.arrays", ArrayRecord()), "expected the array updates.train, found none of that name"),
    "pickled": (of_bytes(pickled()), "expected updates.train to be an array of numbers"),
    "no archive": (of_bytes(b"PK\x03\x04 and nothing"), "expected updates.train to be an array of numbers"),
    "another format": (of_bytes(b"0", "raw"), "expected updates.train to be an array of numbers: its format is raw"),
    "no update": (without("updates.arrays"), "expected the array updates.train"),
    "extra": (part("more", A_RECORD), "expected no part more: it was not asked for"),
    "a record more": (lambda message: records(message).update(a=""), "expected no record a: it was not asked for"),
    "a line of its own": (
        array("x\n\x1b[2Jround 3: \u202eclient", Array(np.zeros(1))),
        "expected no array updates.x [2Jround 3: client: it was not asked for",
    ),
    "arrays in the place of a record": (
        part("records", ArrayRecord({"a": Array(np.zeros(1, "float32"))})),
        "expected no part records: it was not asked for",
    ),
    "a record in the place of arrays": (part("updates.arrays", A_RECORD), "expected no part updates: it was not asked"),
    "more records": (
        lambda message: message.content.update({str(i): A_RECORD for i in range(1000)}),
        "expected no part 0: it was not asked for",
    ),
    "metrics": (part("reply.metrics", MetricRecord({"a": 1})), "expected no part reply.metrics: it was not asked for"),
    "a long story": (put("result-train", "size", "x" * 20_000), "expected result-train to be a text of at most 16"),
    "a text": (put("result-train", "size", "x"), "size = 'x': Input should be a valid integer"),
    "a long list": (put("reply", "stored", [0] * 1000), "expected stored to name tensors 0 to 3, each once"),
    "negative samples": (put("result-train", "size", -5), "to be of 1 to 32 samples, found -5"),
    "too many samples": (put("result-train", "size", 33), "to be of 1 to 32 samples, found 33"),
    "samples of another type": (put("result-train", "size", 3.5), "size = 3.5: Input should be a valid integer"),
    "a model that was not offered": (put("result-train", "chosen", 1), "trained from an offered model, found 1"),
    "losses": (put("result-train", "losses", [-1.0]), "to have 1 losses, each of at least 0"),
    "losses of texts": (put("result-train", "losses", ["a"]), "losses.0 = 'a': Input should be a valid number"),
    "round": (put("reply", "round", 1), "expected a reply of round 2, found round 1"),
    "client": (put("reply", "client", 3), "expected a reply of client 2, found client 3"),
    "run": (put("reply", "run", "other"), "expected a reply of run run, found run other"),
    "stored": (put("reply", "stored", [99]), "expected stored to name tensors 0 to 3, each once, found [99]"),
    "score": (put("score-client", "correct", [9.0]), "expected a score of 1 to 32 test samples, found 9 right of 8"),
    "score of another": (put("score-client", "clients", [1]), "expected a score of client 2, found one of client 1"),
    "a score that is no number": (put("score-client", "correct", [float("nan")]), "found nan right of 8"),
    "a huge count": (put("score-client", "samples", [2**63]), "samples.0 = 9223372036854775808: Input should be less"),
    "loss": (put("score-client", "loss", [-0.1]), "expected a loss of at least 0, found -0.1"),
    "no score": (lambda message: records(message).pop("score-client"), "expected the record score-client, found"),
    "no text": (lambda message: records(message).update({"score-client": 1}), "expected score-client to be a text of"),
    "no JSON": (lambda message: records(message).update({"score-client": "{"}), "a record = '{': Invalid JSON: EOF"),
    "statistics": (without("client_stats.arrays"), "expected the array client_stats.entropy, found none"),
    "a fact": (
        array("entropy", Array(np.ones(2, "float32")), "client_stats"),
        "expected client_stats.entropy to be torch.float32 (1,), found torch.float32 (2,)",
    ),
}


def rounds(made: Federation, ask: Callable[[Plan], Report]) -> State:
    """Two rounds of FedAvg; in the second, clients are scored and asked for a fact as well."""
    setting = made.setup
    algorithm, problem = setting.server.algorithm, setting.server.problem
    state = algorithm.init(problem)
    for round in (1, 2):
        plan = algorithm.plan(problem, state, setting.everyone)
        if round == 2:
            asked = {"entropy": torch.ones(len(plan.cohort), dtype=torch.bool)}
            plan = replace(
                plan, evaluations=algorithm.evaluations(problem, state, setting.everyone), client_stats=asked
            )
        state, _ = algorithm.update(problem, state, replace(ask(plan), cohort=plan.cohort))
    assert isinstance(state, State)
    return state


@pytest.fixture(scope="module")
def without_the_bad(made: Federation) -> State:
    """What is left where the bad client does not answer in the second round."""

    def ask(plan: Plan) -> Report:
        return made.setup.clients.run(plan if plan.round == 1 else plan.only(plan.cohort != BAD))

    return rounds(made, ask)


@pytest.mark.parametrize("what", SPOILT)
def test_a_bad_reply_is_one_line_and_the_model_is_that_of_a_run_without_the_client(
    made: Federation, without_the_bad: State, what: str
) -> None:
    spoil, reason = SPOILT[what]

    remote, _ = made.remote(twist=spoiling(spoil))
    assert same(rounds(made, remote.run), without_the_bad)
    (line,) = made.lines
    assert line.startswith("round 2: client 2 is rejected: ") and reason in line and "\n" not in line
    assert len(line) < 340 and line.isprintable()
    assert list(remote.traffic.rejected) == [BAD] and remote.traffic.absent == {}


def test_a_reply_replayed_from_an_earlier_round_is_refused(made: Federation, without_the_bad: State) -> None:
    recorded: list[Message] = []

    def twist(message: Message, reply: Message) -> list[Message]:
        if message.metadata.dst_node_id == 100 + BAD:
            recorded.append(reply)
            if len(recorded) == 2:
                old = recorded[0]
                old.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
                return [old]
        return [reply]

    remote, _ = made.remote(twist=twist)
    assert same(rounds(made, remote.run), without_the_bad)
    assert made.lines == ["round 2: client 2 is rejected: expected a reply of round 2, found round 1"]


def test_an_answer_counts_once_and_one_to_no_question_never(made: Federation) -> None:
    def twist(message: Message, reply: Message) -> list[Message]:
        astray = Message(reply.content, reply_to=message)
        astray.metadata.__dict__["_reply_to_message_id"] = "nobody asked"
        return [astray, reply, reply]

    remote, _ = made.remote(twist=twist)
    assert same(rounds(made, remote.run), rounds(made, made.setup.clients.run)) and made.lines == []


def test_an_error_of_flower_is_told_and_known_by_what_it_answers(made: Federation, without_the_bad: State) -> None:
    """Its sender is the SuperLink, not the node."""

    def lose(message: Message, reply: Message) -> list[Message]:
        lost = Message(Error(5, "Node\nUnavailable at /home/anna/x.py \x1b[31m"), reply_to=message)
        lost.metadata.__dict__["_src_node_id"] = 1
        return [lost]

    remote, _ = made.remote(twist=at(BAD, 2, lose))
    assert same(rounds(made, remote.run), without_the_bad)
    assert made.lines == ["round 2: client 2 is absent: Flower reports error 5: Node Unavailable at x.py [31m"]


def test_what_a_device_says_is_one_line_without_the_paths_of_anybody(made: Federation, without_the_bad: State) -> None:
    forged = "no\nround 9: all is well\x1b[2J\u2028 in '/home/anna doe/data.npz' " + "x" * 10_000

    def forge(message: Message, reply: Message) -> list[Message]:
        return [Message(encode(Payload({"failed": forged})), reply_to=message)]

    remote, _ = made.remote(twist=at(BAD, 2, forge))
    assert same(rounds(made, remote.run), without_the_bad)
    (line,) = made.lines
    assert line.startswith(
        "round 2: client 2 is absent: its device says: no round 9: all is well [2J in 'data.npz' xxx"
    )
    assert line.isprintable() and len(line) < 400


def promising(shape: tuple[int, ...]) -> bytes:
    """The header of an array in numpy's format, and no numbers."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


LARGE = {
    "16 million numbers": promising((2**24,)) + bytes(64 * 2**20),
    "a header that promises 64 GiB": promising((2**34,)),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_reply_that_is_too_large_takes_no_memory(made: Federation, what: str) -> None:
    """64 MiB once took as much again for every array."""

    remote, _ = made.remote(twist=spoiling(of_bytes(LARGE[what])))
    tracemalloc.start()
    try:
        rounds(made, remote.run)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * 2**20
    assert len(made.lines) == 1 and made.lines[0].startswith("round 2: client 2 is rejected: expected updates.train to")


def test_a_header_with_true_in_the_place_of_1_is_that_of_one_number(made: Federation) -> None:
    """It equals 1, and no tensor can have such a shape."""
    file = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (True,)}
    np.lib.format.write_array_header_1_0(file, header)
    data = file.getvalue() + np.ones(1, "float32").tobytes()
    true = Array("float32", (1,), "numpy.ndarray", data)
    remote, _ = made.remote(twist=spoiling(array("entropy", true, "client_stats")))
    rounds(made, remote.run)
    assert made.lines == []


def test_a_message_to_another_client_is_refused_by_the_device(made: Federation) -> None:
    remote, grid = made.remote()
    grid.devices[100 + BAD] = replace(grid.devices[100 + BAD], key="site-7")
    rounds(made, remote.run)
    assert made.lines[0].endswith("its device says: expected a message to the client site-7, found one to site-2")


def test_answers_that_come_late_reach_no_later_round(made: Federation) -> None:
    late: list[Message] = []

    def twist(message: Message, reply: Message) -> list[Message]:
        if message.metadata.dst_node_id == 100 + BAD and message.metadata.group_id == "1":
            late.append(reply)
            return []
        return [*late, reply] if message.metadata.group_id == "2" else [reply]

    remote, _ = made.remote(twist=twist)

    def ask(plan: Plan) -> Report:
        return made.setup.clients.run(plan if plan.round == 2 else plan.only(plan.cohort != BAD))

    assert same(rounds(made, remote.run), rounds(made, ask)) and late
    assert made.lines == ["round 1: client 2 is absent: no answer in time"]


def test_a_round_is_over_when_enough_have_answered(made: Federation) -> None:
    remote, _ = made.remote(RoundRules(min_reply_fraction=0.5))
    report = remote.run(first_plan_of(made.setup))
    assert report.results["train"].updates.clients.tolist() == [0, 1]
    assert remote.traffic.absent == dict.fromkeys((2, 3), "the first 2 had answered")


def test_too_few_answers_are_asked_for_again_and_then_end_the_run(made: Federation) -> None:
    asked: list[int] = []

    def twist(message: Message, reply: Message) -> list[Message]:
        asked.append(message.metadata.dst_node_id)
        return [reply] if message.metadata.dst_node_id == 100 or len(asked) > 8 else []

    remote, _ = made.remote(RoundRules(min_replies=2, max_attempts=3, deadline=5.0), twist)
    rounds(made, remote.run)
    assert len(asked) == 16 and made.lines[3] == "round 1: 1 of 4 answered, 2 are needed"
    remote, grid = made.remote(RoundRules(min_replies=2, max_attempts=2, deadline=5.0))
    grid.devices.clear()
    with pytest.raises(EngineError, match="round 1: expected at least 2 of 4 clients to answer"):
        rounds(made, remote.run)


def test_a_round_in_which_nobody_is_asked_is_an_empty_report(made: Federation) -> None:
    remote, grid = made.remote()
    plan = first_plan_of(made.setup, made.setup.everyone[:0])
    assert same(remote.run(plan), made.setup.clients.run(plan)) and grid.asked == []


def test_who_has_no_node_is_absent(made: Federation) -> None:
    remote, _ = made.remote()
    del remote.members.nodes[2]
    rounds(made, remote.run)
    assert made.lines[0] == "round 1: client 2 is absent: its node is not connected"


def test_a_round_is_asked_again_when_nobody_who_is_scored_has_answered(made: Federation) -> None:
    """A newcomer is not scored; were it alone, there would be no record of the round before."""
    algorithm, problem = made.setup.server.algorithm, made.setup.server.problem
    evaluations = algorithm.evaluations(problem, algorithm.init(problem), made.setup.everyone[:2])
    plan = replace(first_plan_of(made.setup), evaluations=evaluations)
    remote, grid = made.remote(RoundRules(deadline=5.0, max_attempts=2))
    del grid.devices[100], grid.devices[101]
    with pytest.raises(EngineError, match="expected at least 1 of 2 clients to answer"):
        remote.run(plan)
