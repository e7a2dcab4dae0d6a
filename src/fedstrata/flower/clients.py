"""The other `Clients`: real devices behind Flower's grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedstrata.base.errors import EngineError, InputError
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import one_line, without_paths
from fedstrata.core import CLIENT, Layout, Plan, Report
from fedstrata.engine import ClientStore, Loop
from fedstrata.engine.client_store import parse_stored_name
from fedstrata.engine.parallel.sharding import merge_reports
from fedstrata.flower.client_data import no_client_data
from fedstrata.flower.federation import RoundRules
from fedstrata.flower.grid import REASON_CHARACTERS, Clock, Grid, failure_reason, message_to, replies, send
from fedstrata.flower.members import Members
from fedstrata.flower.node import ROUND
from fedstrata.flower.payload import ExpectedReply, Payload, content_bytes, decode, encode
from fedstrata.flower.replies import Reply, ReplyBounds, expected_reply, read_reply
from fedstrata.flower.requests import (
    Request,
    RunConfig,
    request_for,
    without_models,
    write_request,
    write_run_config,
)
from fedstrata.models import layout_of
from fedstrata.uploads.compression import Compression

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict


@dataclass
class RoundTraffic:
    """What became of one plan on the network.

    Attributes:
        absent: Why each absent client did not reply, by its id.
        rejected: Why each rejected reply was not taken, by the id of its client.
        bytes_down: The bytes of the messages' contents.
        bytes_up: The bytes of the replies' contents, with those that were not taken.
    """

    absent: dict[int, str] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0

    def lines(self, round: int) -> Iterator[str]:
        """A line for people about the clients whose replies of a round are missing or not taken, for each reason."""
        for kind, reasons in {"absent": self.absent, "rejected": self.rejected}.items():
            for reason in dict.fromkeys(reasons.values()):
                clients = [str(client) for client, own in reasons.items() if own == reason]
                who = f"client {clients[0]} is" if len(clients) == 1 else f"clients {', '.join(clients)} are"
                yield f"round {round}: {who} {kind}: {reason}"

    @property
    def example(self) -> str:
        """One client whose reply is missing or not taken, and why."""
        client, reason = next(iter({**self.rejected, **self.absent}.items()), (0, "no answer in time"))
        return f"client {client}: {reason}"


@dataclass
class _Attempt:
    """What has come in of one attempt at a round so far.

    Clients that only score answer before those that train. Alone they must not end a round.

    Attributes:
        cohort: The clients that train.
        clients: All that are asked.
        fraction: The share of both whose sound replies end the attempt at once.
        traffic: What became of the messages.
        replies: The sound replies, by client.
        missing: The clients whose devices have lost what they should keep.
    """

    cohort: Collection[int]
    clients: Collection[int]
    fraction: float
    traffic: RoundTraffic = field(default_factory=RoundTraffic)
    replies: dict[int, Reply] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether enough clients have replied. A share of clients is rounded up."""
        # A share such as 1 / 1.3 of 13 is 10, whatever its last bit.
        trained, everyone = (ceil(round(self.fraction * len(each), 9)) for each in (self.cohort, self.clients))
        return len(self.replies) >= everyone and len(self.replies.keys() & set(self.cohort)) >= trained


@dataclass(frozen=True)
class Asked:
    """What a client was asked, and what it may reply.

    Attributes:
        request: The request, without the values of the models.
        expected: The parts of a reply, and their sizes.
        bounds: The numbers that may be in them.
    """

    request: Request
    expected: ExpectedReply
    bounds: ReplyBounds


@dataclass(eq=False)
class NodeClients:
    """Clients on a network that do a whole round with one message.

    Attributes:
        grid: Flower's grid.
        members: Whose nodes are asked.
        rules: When a round is over.
        tell: It takes a line for people.
        clock: It tells the time.
        store: What is known of the devices' own stores. An empty tensor stands for one that is there, nan for one that
            is of no use.
        traffic: What became of the last plan.
        sizes: The samples of each client for training and for testing, as far as it has told them.
    """

    grid: Grid
    members: Members
    rules: RoundRules = field(default_factory=RoundRules)
    tell: Callable[[str], None] = print
    clock: Clock = field(default_factory=Clock)
    store: ClientStore = field(init=False, default_factory=ClientStore)
    traffic: RoundTraffic = field(init=False, default_factory=RoundTraffic)
    sizes: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The tensors of the models."""
        raise NotImplementedError

    @property
    def compression(self) -> Compression | None:
        """How clients compress their updates; None where they do not."""
        return None

    def content(self, request: Request) -> tuple[RecordDict, Asked]:
        """Make the content of the message with a request, and say what its reply may be."""
        raise NotImplementedError

    def run(self, plan: Plan) -> Report:
        """Ask every client that is scored or works, in one message each; one that does not reply is an absent row.

        Raises:
            EngineError: When too few reply, however often they are asked.
        """
        asked = {*plan.cohort.tolist()}
        for evaluation in plan.evaluations.values():
            asked |= {*evaluation.clients.tolist()}
        # Without a score there is no record of the round before.
        scored = set(plan.evaluations[CLIENT].clients.tolist()) if plan.evaluations else asked
        least = min(self.rules.min_replies, len(scored))
        for _ in range(self.rules.max_attempts):
            attempt = self._attempt(plan, sorted(asked))
            self.traffic = attempt.traffic
            for line in self.traffic.lines(plan.round):
                self.tell(line)
            found = len(scored & attempt.replies.keys())
            if found >= least:
                return self._merge(plan, dict(sorted(attempt.replies.items())))
            self.tell(f"round {plan.round}: {found} of {len(scored)} answered, {least} are needed")
        raise EngineError(
            f"round {plan.round}: expected at least {least} of {len(scored)} clients to answer, found fewer in each "
            f"of {self.rules.max_attempts} tries, such as {self.traffic.example}; see to the nodes, then resume the run"
        )

    def _attempt(self, plan: Plan, clients: Sequence[int]) -> _Attempt:
        """Send a plan until there are enough replies or time is up."""
        end = self.clock.now() + self.rules.deadline
        attempt = _Attempt(plan.cohort.tolist(), clients, self.rules.min_reply_fraction)
        counted = _stored_rounds(self.store)
        requests = (
            request_for(plan, client, self.layout, self.store.read(client, before=plan.round), counted[client])
            for client in clients
        )
        self._collect(requests, attempt, end)
        if attempt.missing and not attempt.enough:
            # What a device has lost it is sent again, at once.
            again = (request_for(plan, client, self.layout, ()) for client in tuple(attempt.missing))
            self._collect(again, attempt, end)
        traffic = attempt.traffic
        late = f"the first {len(attempt.replies)} had answered" if attempt.enough else "no answer in time"
        for client in clients:
            if client not in attempt.replies and client not in traffic.rejected:
                traffic.absent.setdefault(client, late)
        traffic.absent = dict(sorted(traffic.absent.items()))
        traffic.rejected = dict(sorted(traffic.rejected.items()))
        return attempt

    def _collect(self, requests: Iterable[Request], attempt: _Attempt, end: float) -> None:
        """Send requests and take in the replies."""
        seconds = max(end - self.clock.now(), 0.0)
        waiting = dict[str, int]()
        asked = dict[int, Asked]()
        for request in requests:
            node = self.members.nodes.get(request.client)
            if node is None:
                attempt.traffic.absent[request.client] = "its node is not connected"
                continue
            content, asked[request.client] = self.content(request)
            attempt.traffic.bytes_down += content_bytes(content)
            # Flower takes 0 seconds for half a day.
            message = message_to(node, ROUND, content, request.plan.round, max(seconds, 1.0))
            # One by one: the models of all clients together may not fit into memory.
            waiting |= send(self.grid, {request.client: message})
        if not waiting:
            return
        for client, message in replies(self.grid, waiting, end, self.clock):
            self._take(message, asked[client], attempt)
            if attempt.enough:
                return

    def _take(self, message: Message, asked: Asked, attempt: _Attempt) -> None:
        """Note a reply, or why there is none."""
        request = asked.request
        client = request.client
        traffic = attempt.traffic
        try:
            if reason := failure_reason(message):
                traffic.absent[client] = reason
                return
            traffic.bytes_up += content_bytes(message.content)
            payload = decode(message.content, asked.expected)
            if "missing" in payload.records:
                lost = payload.record("missing").split(", ")
                if strange := {*lost} - {spec.name for spec in self.layout.tensors}:
                    raise InputError(f"expected the names of tensors that are lost, found {min(strange)}")
                traffic.absent[client] = one_line(f"its device has lost {', '.join(lost)}")
                attempt.missing.append(client)
                # If it is not asked again before the round is over, the next request has to bring everything.
                self.store.forget(client)
            else:
                reply = read_reply(payload, request, self.layout, asked.bounds, self.compression)
                attempt.replies[client] = reply
                traffic.absent.pop(client, None)
        except InputError as error:
            traffic.absent.pop(client, None)
            traffic.rejected[client] = one_line(without_paths(str(error)[:REASON_CHARACTERS]))

    def _merge(self, plan: Plan, replies: Mapping[int, Reply]) -> Report:
        """Note what the devices keep, and put the replies together, every row where the simulator has it."""
        for client, reply in replies.items():
            mark = torch.tensor([torch.nan]) if reply.not_finite else torch.empty(0)
            self.store.write(client, plan.round, dict.fromkeys(reply.stored, mark))
            self._note_sizes(client, reply.report)
        here = torch.tensor(list(replies), dtype=torch.int64)
        evaluations = {name: each.only(torch.isin(each.clients, here)) for name, each in plan.evaluations.items()}
        return merge_reports(replace(plan, evaluations=evaluations), [reply.report for reply in replies.values()])

    def _note_sizes(self, client: int, report: Report) -> None:
        """Note how many samples a client has; folds and bounded tasks have fewer than all."""
        train, test = self.sizes.get(client, (0, 0))
        self.sizes[client] = (
            max([train, *(int(each.sizes.max()) for each in report.results.values() if len(each.sizes))]),
            max([test, *(int(each.samples.max()) for each in report.scores.values() if len(each.samples))]),
        )


@dataclass(eq=False)
class FlowerClients(NodeClients):
    """Devices that train by this library, bit for bit as `Loop` has them.

    Attributes:
        config: The config of the run.
        max_samples: The number of samples that a client may claim, of either kind.
    """

    config: RunConfig = field(kw_only=True)
    max_samples: int = MAX_SAMPLES

    @cached_property
    def _module(self) -> nn.Module:
        return self.config.network()

    @cached_property
    def layout(self) -> Layout:
        """The tensors of the network."""
        return layout_of(self._module)

    @cached_property
    def compression(self) -> Compression | None:
        """How clients compress their updates; None where they do not."""
        return self.config.compressor(self.layout)

    @cached_property
    def _loop(self) -> Loop:
        return Loop(self._module, self.layout, no_client_data(self.config))

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Compute as `Loop.outputs` does, on the server."""
        return self._loop.outputs(models, inputs)

    def content(self, request: Request) -> tuple[RecordDict, Asked]:
        """The content of the message with a request, and what its reply may be."""
        # The device compares the key with its own.
        address = Payload({"client": self.members.names[request.client]})
        payload = write_run_config(self.config, self.layout) | address | write_request(request, self.layout)
        sizes = {name: self.config.stat_size(name) for name in request.plan.client_stats}
        expected = expected_reply(request, self.layout, sizes, self.compression)
        bounds = ReplyBounds(self.config.run, self.max_samples, self.config.objective)
        return encode(payload), Asked(without_models(request), expected, bounds)


def _stored_rounds(store: ClientStore) -> Mapping[int, set[int]]:
    """Collect the rounds of which each client has tensors."""
    rounds = defaultdict[int, set[int]](set)
    for name in store.tensors():
        client, _, round = parse_stored_name(name)
        rounds[client].add(round)
    return rounds
