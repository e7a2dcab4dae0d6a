"""Change the replies of one client of a deployment at random, and see what the server makes of them.

    PYTHONPATH=tests:tests/flower python -m experiments.trust.fuzzed_messages

Writes ``experiments/results/fuzzed_messages.json``. Four clients of digits answer over messages of Flower, in one
process and without a network. In each case one client's reply is changed before the server takes it in:

- ``mutated``: values, keys, records and arrays of the reply are replaced, removed or added, or bytes of its parts are
  flipped, cut or put in.
- ``cut``: one of its parts ends after every number of bytes.
- ``delivered``: replies of all clients come late, twice, in another order, from another client, another round or
  another run.

A case is wrong if the server raises an exception, if a model is not finite afterwards, if an answer of another client
changed in any bit, or if a reply that was refused is not as if the client had been absent, in every bit of the report
and of the models. A reply that was changed and taken is a sound reply of this client: of the right shape, finite, and
of no more samples than the federation allows.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from in_process import Federation, Ticks, federation, over_the_wire

from fedstrata.core import Plan, Report, State
from fedstrata.engine.device import one_thread
from fedstrata.flower.clients import FlowerClients
from fedstrata.flower.federation import RoundRules
from fedstrata.flower.grid import BoundedGrid
from fedstrata.flower.members import Members
from fedstrata.uploads.validation import decide, validate
from turns import same

RESULT = Path(__file__).parents[1] / "results" / "fuzzed_messages.json"

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedavg"},
}
CLIENTS = 4
BAD = 2
"""The client whose replies are changed."""

ROUND = 2
"""The round in which they are changed. Every client trains, is scored and tells a statistic."""


@dataclass
class Recorded:
    """A reply as the SuperLink has it.

    Attributes:
        header: Says what it answers.
        tree: The ids of its parts.
        parts: The bytes of each part.
        message: What the server has made of them; None where it is to make it each time.
    """

    header: Any
    tree: Any
    parts: dict[str, bytes]
    message: Any = None


def recorded(reply: Message) -> Recorded:
    """What the SuperLink has of a reply."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    parts = {id: part.deflate() for id, part in get_all_nested_objects(reply).items()}
    return Recorded(message_to_proto(remove_content_from_message(reply)), get_object_tree(reply), parts)


class Deliveries:
    """Flower's grid, whose SuperLink has certain replies, which it gives once.

    Args:
        waiting: The replies that come, each with the client whose question it answers.
    """

    def __init__(self, waiting: Sequence[tuple[int, Recorded]]) -> None:
        """Give nothing yet."""
        self._waiting = waiting
        self._given = set[str]()

    def push_messages(self, messages: list[Any]) -> list[str]:
        """Take any messages; their ids are the clients."""
        return [str(message.metadata.dst_node_id - 100) for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Any]:
        """Return the replies to a question as Flower makes them of their parts, and then that there are none."""
        (id,) = ids
        if id in self._given:
            return [create_message_error_unavailable_ins_message(id, 1)]
        replies = [reply for client, reply in self._waiting if str(client) == id]
        if replies:
            self._given.add(id)
        messages = [reply.message or put_together(reply) for reply in replies]
        for message in messages:
            # The messages were recorded as answers to other ones.
            message.metadata.__dict__["_reply_to_message_id"] = id
        return messages


def put_together(reply: Recorded) -> Any:
    """Make a message of its parts, as Flower does."""
    return inflate_object_from_contents(reply.header.metadata.message_id, dict(reply.parts))


class Server:
    """What the server does with the replies of a round.

    Args:
        here: The federation.
    """

    def __init__(self, here: Federation) -> None:
        """Play the rounds before, and record what everybody answers."""
        self._here = here
        setup = here.setup
        self.states = [setup.server.algorithm.init(setup.server.problem)]
        self.plans = list[Plan]()
        self.replies = list[dict[int, Recorded]]()
        for round in (1, ROUND, ROUND + 1):
            self.plans.append(self._plan(self.states[-1]))
            self.replies.append(self._recorded(self.plans[-1], run="run"))
            report, _ = self.take(self.deliveries(round), round)
            self.states.append(self.decided(report, round))
        self.of_another_run = self._recorded(self.plans[ROUND - 1], run="other")

    def _plan(self, state: State) -> Plan:
        setup = self._here.setup
        plan = setup.server.algorithm.plan(setup.server.problem, state, setup.everyone)
        asked = {"entropy": torch.ones(len(plan.cohort), dtype=torch.bool)}
        evaluations = setup.server.algorithm.evaluations(setup.server.problem, state, setup.everyone)
        return replace(plan, evaluations=evaluations, client_stats=asked)

    def _recorded(self, plan: Plan, run: str) -> dict[int, Recorded]:
        found = dict[int, Recorded]()

        def keep(message: Message, reply: Message) -> list[Message]:
            own = recorded(Message(reply.content, reply_to=message))
            found[message.metadata.dst_node_id - 100] = replace(own, message=over_the_wire(reply))
            return [reply]

        remote, _ = self._here.remote(twist=keep, run=run)
        remote.run(plan)
        return found

    def deliveries(self, round: int = ROUND, changed: Recorded | None = None) -> list[tuple[int, Recorded]]:
        """The replies of a round; one in the place of that of the client whose replies are changed."""
        replies = self.replies[round - 1]
        return list((replies | {BAD: changed} if changed else replies).items())

    def take(self, deliveries: Sequence[tuple[int, Recorded]], round: int = ROUND) -> tuple[Report, list[str]]:
        """The report of what comes, and the lines about it."""
        lines = list[str]()
        grid = BoundedGrid(Deliveries(deliveries))
        here = self._here
        rules = RoundRules(deadline=1.0)
        members = Members([device.key for device in here.devices.values()], CLIENTS)
        members.nodes = dict(zip(range(CLIENTS), here.devices, strict=True))
        clients = FlowerClients(
            grid, members, rules, lines.append, Ticks().clock, config=here.config, max_samples=self.most_samples
        )
        return clients.run(self.plans[round - 1]), lines

    def counted(self, report: Report, round: int = ROUND) -> Report:
        """The report without the answers that the server rejects once it has read them, as a simulation does."""
        return validate(self._here.setup.server.problem.layout, self.plans[round - 1], report)

    def decided(self, report: Report, round: int = ROUND) -> State:
        """The state that follows from a report."""
        setup = self._here.setup
        counted = replace(self.counted(report, round), cohort=self.plans[round - 1].cohort)
        state, _, _ = decide(setup.server.algorithm, setup.server.problem, self.states[round - 1], counted)
        assert isinstance(state, State)
        return state

    @property
    def most_samples(self) -> int:
        """The training samples of the largest client, of which nobody may claim more."""
        return max(len(self._here.setup.client_data.train(client)) for client in range(CLIENTS))

    @cache  # noqa: B019 (there is one server)
    def of_only(self, *clients: int) -> tuple[Report, State]:
        """The report and the state of a round in which only some clients answer."""
        report, _ = self.take([(client, self.replies[ROUND - 1][client]) for client in clients])
        return report, self.decided(report)


def of_others(report: Report) -> Report:
    """A report without the client whose replies are changed."""
    results = {name: each.only(each.updates.clients != BAD) for name, each in report.results.items()}
    scores = {}
    for name, score in report.scores.items():
        stay = score.clients != BAD
        scores[name] = replace(
            score,
            clients=score.clients[stay],
            correct=score.correct[stay],
            samples=score.samples[stay],
            loss=score.loss[stay],
        )
    return Report(results, scores, {name: rows.at(rows.clients != BAD) for name, rows in report.client_stats.items()})


def judged(server: Server, reply: Recorded) -> str:
    """What became of a changed reply: refused, taken, without effect, or what is wrong."""
    others = tuple(client for client in range(CLIENTS) if client != BAD)
    expected, expected_state = server.of_only(*others)
    honest, _ = server.of_only(*range(CLIENTS))
    try:
        report, lines = server.take(server.deliveries(changed=reply))
        state = server.decided(report)
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"[:200]
    if not bool(state.models.isfinite().all()):
        return "wrong: a model is not finite"
    if any(not line.isprintable() for line in lines):
        return "wrong: a line that cannot be printed"
    if not same(of_others(report), expected):
        return "wrong: another client's answer changed"
    if same(report, honest):
        return "without effect"
    counted = server.counted(report)
    own = counted.results["train"]
    here = own.updates.clients == BAD
    if not bool(here.any()) and BAD not in counted.scores["client"].clients.tolist():
        return "refused" if same(state, expected_state) else "wrong: not as if absent"
    sound = bool(own.updates.values[here].isfinite().all())
    sound &= all(1 <= size <= server.most_samples for size in own.sizes[here].tolist())
    return "taken" if sound else "wrong: an unsound reply is taken"


HOSTILE: Sequence[Any] = (
    *(0, -1, 1, 3, 2**31, 2**62, 2**63 - 1, -(2**63)),
    *(0.0, -0.0, 1e-45, 5e-324, 1.0, -1.0, 1e38, 3.5e38, 1e308, float("nan"), float("inf"), -float("inf")),
    *(True, False, "", "run", "x" * 999, "x" * 5000, "a\nround 3: all is well", "\x1b[2J", "\u202e", "../../x"),
    *(b"", b"\x80\x04cos\nsystem\n", [0] * 5, [1.5], [True, False], [], ["a", "b"], [b"x"], [0.0] * 500),
)
"""Values that a record of a reply may be given."""

TYPES = ("float64", "float16", "int32", "int64", "bool", "complex64", "S4")

NUMBERS = (np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-40, 1.17e-38, 1e10, 1e20, 1e38, -3.4e38, 0.0, 1.0)
"""Numbers that an array of a reply may be given."""


def change_value(content: Any, draw: random.Random) -> None:
    """Replace, remove, add or rename a value of a record."""
    record = content.config_records[draw.choice(sorted(content.config_records))]
    key = draw.choice([*sorted(record), "another", "x" * 1500])
    action = draw.choice(("replace", "replace", "replace", "remove", "rename"))
    if action == "replace" or key not in record:
        record[key] = draw.choice(HOSTILE)
    else:
        value = record.pop(key)
        if action == "rename":
            record[draw.choice(("round", "client", "size", "stored", f"{key} "))] = value


def change_records(content: Any, draw: random.Random) -> None:
    """Remove, add or exchange whole records."""
    name = draw.choice(sorted(content))
    action = draw.choice(("remove", "exchange", "empty", "add", "failed", "missing", "metrics"))
    if action == "remove":
        del content[name]
    elif action == "exchange":
        other = draw.choice(sorted(content))
        content[name], content[other] = content[other], content[name]
    elif action == "empty":
        content[name] = draw.choice((ConfigRecord(), ArrayRecord(), MetricRecord()))
    elif action == "add":
        names = ("more.settings", "more.arrays", "updates.arrays", "reply", "\n", "x" * 999)
        content[draw.choice(names)] = content[name]
    elif action == "metrics":
        content["reply.metrics"] = MetricRecord({"a": draw.choice((0, 1.0, 2**40))})
    else:
        content[f"{action}.settings"] = ConfigRecord({draw.choice(("reason", "tensors")): draw.choice(HOSTILE)})


def change_array(content: Any, draw: random.Random) -> None:
    """Replace an array by one of other numbers, another shape, another type, or none."""
    if not content.array_records:
        return
    group = content.array_records[draw.choice(sorted(content.array_records))]
    if not group:
        return
    name = draw.choice(sorted(group))
    try:
        values = group[name].numpy().copy()
    except Exception:
        return  # an earlier change left no array
    if values.dtype != np.float32 or not values.size:
        return
    action = draw.choice(("numbers", "numbers", "fill", "shape", "type", "format", "remove", "rename", "bytes"))
    if action == "numbers":
        for _ in range(draw.choice((1, 1, 3, 50))):
            values.reshape(-1)[draw.randrange(values.size)] = draw.choice(NUMBERS)
        group[name] = Array(values)
    elif action == "fill":
        group[name] = Array(np.full_like(values, draw.choice(NUMBERS)))
    elif action == "shape":
        shapes: Sequence[Callable[[], Any]] = (
            lambda: values.reshape(-1),
            lambda: values[:-1],
            lambda: values[:0],
            lambda: values.reshape(-1)[:1],
            lambda: np.asfortranarray(values.T),
            lambda: values[None],
            lambda: np.float32(0).reshape(()),
            lambda: np.broadcast_to(values.reshape(-1)[:1], values.shape).copy(),
        )
        group[name] = Array(np.ascontiguousarray(draw.choice(shapes)()))
    elif action == "type":
        with np.errstate(all="ignore"):
            group[name] = Array(values.astype(draw.choice(TYPES)))
    elif action == "format":
        group[name] = Array("float32", values.shape, draw.choice(("raw", "pickle", "", "numpy.ndarray")), b"\x80\x04.")
    elif action == "bytes":
        data = bytearray(group[name].data)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        group[name] = Array(
            "float32", values.shape, "numpy.ndarray", bytes(data[: draw.choice((None, -1, 128, 40, 6))])
        )
    else:
        array = group.pop(name)
        if action == "rename":
            group[draw.choice(("linear1.weight", "x", f"{name}.", "\u202e"))] = array


CHANGES = (change_value, change_value, change_array, change_array, change_records)


def mutated(server: Server, draw: random.Random) -> Recorded:
    """The reply with one to three changes, or with changed bytes."""
    old = server.replies[ROUND - 1][BAD]
    if draw.random() < 0.4:
        return Recorded(old.header, old.tree, dict(with_changed_bytes(old.parts, draw)))
    message = put_together(old)
    content = message.content
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if content:
            draw.choice([change for change in CHANGES if change is not change_value or content.config_records])(
                content, draw
            )
    question = Message(content, BAD, "train.fedstrata")
    question.metadata.__dict__["_message_id"] = str(BAD)
    return recorded(Message(content, reply_to=question))


def with_changed_bytes(parts: Mapping[str, bytes], draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """The parts of a reply, of which one is flipped, cut, longer, or exchanged for another one."""
    chosen = draw.choice(sorted(parts))
    for id, content in parts.items():
        if id != chosen:
            yield id, content
            continue
        place = draw.randrange(len(content) + 1)
        action = draw.choice(("flip", "flip", "cut", "put", "exchange", "repeat"))
        if action == "flip":
            changed = bytearray(content)
            for _ in range(draw.choice((1, 1, 8))):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            yield id, bytes(changed)
        elif action == "cut":
            yield id, content[:place]
        elif action == "put":
            yield id, content[:place] + draw.randbytes(draw.choice((1, 4, 300))) + content[place:]
        elif action == "exchange":
            yield id, parts[draw.choice(sorted(parts))]
        else:
            yield id, content * 2


def of_mutations(server: Server, cases: int, draw: random.Random) -> dict[str, Any]:
    """Judge so many changed replies."""
    found = Counter[str]()
    failures = list[str]()
    for case in range(cases):
        reply = mutated(server, draw)
        became = judged(server, reply)
        kind = became.partition(":")[0]
        found[kind] += 1
        if case % 1000 == 999:
            print(case + 1, dict(found), flush=True)
        if kind == "wrong":
            failures.append(f"case {case}: {became}")
            print(failures[-1], flush=True)
    return {"cases": cases, **{kind: found[kind] for kind in KINDS}, "failures": failures[:20]}


def of_cuts(server: Server) -> dict[str, Any]:
    """Judge replies of which one part ends after every number of bytes."""
    old = server.replies[ROUND - 1][BAD]
    found = Counter[str]()
    for id, content in old.parts.items():
        for length in range(len(content)):
            reply = Recorded(old.header, old.tree, {**old.parts, id: content[:length]})
            found[judged(server, reply).partition(":")[0]] += 1
    return {"cases": found.total(), **{kind: found[kind] for kind in KINDS}}


KINDS = ("refused", "taken", "without effect", "wrong")


def of_deliveries(server: Server, messages: int, draw: random.Random) -> dict[str, Any]:
    """Deliver so many replies of this and other rounds, clients and runs, in random order and several times.

    What comes first in answer to a client's question counts: if it is its own reply of this round, it is taken, once.
    """
    delivered = wrong = rounds = foreign = again = 0
    failures = list[str]()
    while delivered < messages:
        sent = list[tuple[int, Recorded, bool]]()
        for client in range(CLIENTS):
            for _ in range(draw.randrange(1, 6)):
                source = draw.choice(("own", "own", "round", "client", "run", "later"))
                other = draw.choice([each for each in range(CLIENTS) if each != client])
                reply = {
                    "own": server.replies[ROUND - 1][client],
                    "round": server.replies[ROUND - 2][client],
                    "later": server.replies[ROUND][client],
                    "client": server.replies[ROUND - 1][other],
                    "run": server.of_another_run[client],
                }[source]
                sent.append((client, reply, source == "own"))
        draw.shuffle(sent)
        first = dict[int, bool]()
        for client, _, own in sent:
            again += client in first and own
            first.setdefault(client, own)
            foreign += not own
        expected = tuple(sorted(client for client, own in first.items() if own))
        if not expected:
            continue  # the round would be asked for again
        rounds += 1
        delivered += len(sent)
        report, _ = server.take([(client, reply) for client, reply, _ in sent])
        if not (
            same(report, server.of_only(*expected)[0]) and same(server.decided(report), server.of_only(*expected)[1])
        ):
            wrong += 1
            failures.append(f"round {rounds}")
    counts = {"delivered": delivered, "rounds": rounds, "of others": foreign, "again": again, "wrong": wrong}
    return {**counts, "failures": failures[:20]}


def main() -> None:
    """Do all parts, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are kept")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it warns of records that take the place of others
    with TemporaryDirectory() as folder, one_thread():
        server = Server(federation(KEYS, Path(folder)))
        found: dict[str, Any] = {"seed": given.seed}
        found["mutated"] = of_mutations(server, given.cases, random.Random(given.seed))
        print(json.dumps(found), flush=True)
        found["cut"] = of_cuts(server)
        print(json.dumps(found), flush=True)
        found["delivered"] = of_deliveries(server, given.cases, random.Random(given.seed))
        print(json.dumps(found), flush=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
