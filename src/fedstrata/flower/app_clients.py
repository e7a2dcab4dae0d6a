"""The `Clients` that any Flower app is: its nodes train and evaluate the arrays that they are sent.

`AppClients` sends a message for each thing that is asked, to any app. `ServedClients` sends one message a round, to an
app that `fedstrata.flower.serve` answers for; what it sends is what devices without an app of their own get, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import maxsize
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fedstrata.base.errors import ContractError, EngineError, InputError
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import one_line
from fedstrata.core import Layout, Plan, Report
from fedstrata.engine import ClientStore
from fedstrata.flower.app import TEST
from fedstrata.flower.app_work import Answer, AppForm, Ask, Work, refuse_whole, report_of
from fedstrata.flower.client_registry import ClientRegistry, Registration
from fedstrata.flower.clients import Asked, NodeClients, RoundTraffic
from fedstrata.flower.grid import Clock, failure_reason, replies, send
from fedstrata.flower.payload import ReplyLimit, encode, flower
from fedstrata.flower.replies import ReplyBounds, expected_reply
from fedstrata.flower.requests import Request, without_models, write_request
from fedstrata.flower.served_app import SERVED, job_of

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Message, RecordDict

_NO_NETWORK = "expected an algorithm that computes no outputs on the server, as the network is the app's"

_NO_LIMIT = ReplyLimit(maxsize)
"""Nothing is known of the size of an app's replies."""


@dataclass(eq=False)
class AppClients:
    """The nodes of a Flower app as the clients of a run.

    Attributes:
        grid: Flower's grid.
        form: How models and questions become messages.
        configs: The user's own config of a message, by "train" and "evaluate".
        nodes: The id of each client's node. The caller adds those that come later.
        timeout: The seconds that a message may take.
        tell: It takes a line for people.
        clock: It tells the time.
        store: What clients keep to themselves, which is nothing.
        traffic: What became of the last plan.
        contents: The contents of the replies of the last plan: of "train", and of "scores" on test data.
        sizes: The number of training samples of each client, where it is known.
    """

    grid: Any
    form: AppForm
    configs: Mapping[str, ConfigRecord]
    nodes: dict[int, int]
    timeout: float
    tell: Callable[[str], None] = print
    clock: Clock = field(default_factory=Clock)
    store: ClientStore = field(init=False, default_factory=ClientStore)
    traffic: RoundTraffic = field(init=False, default_factory=RoundTraffic)
    contents: dict[str, list[Any]] = field(init=False, default_factory=dict)
    sizes: dict[int, int] = field(init=False, default_factory=dict)
    _told_of_choices: bool = field(init=False, default=False)

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Refuse: the server has no network."""
        raise ContractError(_NO_NETWORK)

    def run(self, plan: Plan) -> Report:
        """Ask every client that is scored or works; one that does not answer is an absent row.

        Raises:
            EngineError: When nobody answers.
        """
        self.traffic = RoundTraffic()
        self.contents = {"train": [], "scores": []}
        asked = {*plan.cohort.tolist(), *(c for each in plan.evaluations.values() for c in each.clients.tolist())}
        works = {client: Work(plan, client, self.form.layout) for client in sorted(asked)}
        steps = {client: work.steps() for client, work in works.items()}
        done = list[int]()
        answers: dict[int, list[Answer] | None] = dict.fromkeys(works)
        while answers:
            asks = dict[int, list[Ask]]()
            for client, given in answers.items():
                try:
                    # A generator that has not begun takes None alone.
                    asks[client] = steps[client].send(given)  # type: ignore[arg-type]
                except StopIteration:
                    done.append(client)
            answers = dict(self.asked(plan.round, asks)) if asks else {}
        for line in self.traffic.lines(plan.round):
            self.tell(line)
        if works and not done:
            told = {*self.traffic.absent.values(), *self.traffic.rejected.values()}
            why = f": {told.pop()}" if len(told) == 1 else ""
            raise EngineError(f"round {plan.round}: expected answers of {len(works)} nodes, found none{why}")
        return report_of(plan, [works[client] for client in sorted(done)], self.form.layout)

    def asked(self, round: int, asks: Mapping[int, Sequence[Ask]]) -> Iterator[tuple[int, list[Answer]]]:
        """Send what is asked, wait for the replies, and yield the answers of clients that answered all of it."""
        here = set(self.grid.get_node_ids())
        sent = list[tuple[int, int, Ask]]()
        messages: dict[int, Message] = {}
        for client, own in asks.items():
            if self.nodes.get(client) not in here:
                self.traffic.absent[client] = "its node is not connected"
                continue
            for place, ask in enumerate(own):
                messages[len(sent)] = self._message(round, self.nodes[client], ask)
                sent.append((client, place, ask))
        grid = AppGrid(self.grid)
        found = dict[int, dict[int, Answer]]()
        end = self.clock.now() + self.timeout
        for number, reply in replies(grid, send(grid, messages), _NO_LIMIT, end, self.clock):
            client, place, ask = sent[number]
            answer = self._taken(client, reply, ask)
            if answer is not None:
                found.setdefault(client, {})[place] = answer
        for client, own in asks.items():
            answered = found.get(client, {})
            if len(answered) == len(own):
                yield client, [answered[place] for place in range(len(own))]
            elif client not in self.traffic.rejected:
                self.traffic.absent.setdefault(client, "no answer in time")

    def _message(self, round: int, node: int, ask: Ask) -> Message:
        own = flower()
        content = self.form.content(ask, {**self.configs[ask.kind], "server-round": round})
        self.traffic.bytes_down += 4 * len(ask.model)
        kind = own.MessageType.TRAIN if ask.kind == "train" else own.MessageType.EVALUATE
        message: Message = own.Message(content, node, kind, ttl=self.timeout, group_id=str(round))
        return message

    def _taken(self, client: int, reply: Message, ask: Ask) -> Answer | None:
        """Read a reply, or note why there is none."""
        try:
            if reason := failure_reason(reply):
                self.traffic.absent[client] = reason
                return None
            answer = self.form.answer(reply.content, ask)
            self._check_part(client, ask, answer)
        except InputError as error:
            self.traffic.rejected[client] = one_line(str(error))
            return None
        if answer.model is not None:
            self.traffic.bytes_up += 4 * len(answer.model)
        if (ask.kind == "train" and ask.fold == "all") or ask.fold == TEST:
            self.contents["train" if ask.kind == "train" else "scores"].append(reply.content)
        return answer

    def _check_part(self, client: int, ask: Ask, answer: Answer) -> None:
        """Refuse an app that trains on all data where a part was asked: its updates would say nothing of the parts.

        That it compares models on other data than it trains on is told once.
        """
        samples = answer.samples
        if ask.kind == "train" and ask.fold == "all" and not ask.most:
            self.sizes[client] = samples
        known = self.sizes.get(client)
        refuse_whole(ask, samples, known)
        if known is None or ask.fold == TEST or ask.kind == "train":
            return
        wanted = known / 2 ** len(ask.fold.removeprefix("all"))
        if abs(samples - wanted) >= 1 and not answer.units and not self._told_of_choices:
            self._told_of_choices = True
            self.tell(
                f"WARNING: models are compared on {samples} samples, where part {ask.fold!r} of the training data has "
                f"{wanted:g}: clients choose by the app's test data, so that its scores are too good; write `data = "
                "fold(data, message, test=test)` of fedstrata.flower into its evaluate function"
            )


@dataclass(frozen=True)
class AppGrid:
    """Flower's grid as `NodeClients` takes it. Flower itself bounds no reply."""

    grid: Any

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        """Send messages and return their ids."""
        return list(self.grid.push_messages(messages))

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> Iterator[Message]:
        """Yield the replies that have come to some messages, of those alone whose sender was asked."""
        for id in message_ids:
            for reply in self.grid.pull_messages([id]):
                if reply.metadata.reply_to_message_id == id:
                    yield reply

    def get_nodes(self) -> list[Any]:
        """Return the nodes that are there now."""
        return list(self.grid.get_nodes())


def registry_of(nodes: Mapping[int, int], clients: int) -> ClientRegistry:
    """The nodes of an app as the clients of a registry; their keys are their ids.

    Args:
        nodes: The id of each client's node.
        clients: The number of clients, with those that join later.
    """
    held = {
        str(client): Registration(client, node, "", registered=False, joined=0, train=MAX_SAMPLES, test=0)
        for client, node in nodes.items()
    }
    return ClientRegistry(tuple(map(str, range(clients))), clients, held)


@dataclass(eq=False)
class ServedClients(NodeClients):
    """The same nodes, if their app does a whole round with one message.

    Attributes:
        form: How models and questions become messages of the app, on its node.
        configs: The user's own config of a message, by "train" and "evaluate".
        name: The name of the run on the nodes, which keep a client's own layers by it.
    """

    form: AppForm = field(kw_only=True)
    configs: Mapping[str, ConfigRecord] = field(kw_only=True)
    name: str = field(kw_only=True)
    kind: ClassVar[str] = SERVED

    @property
    def layout(self) -> Layout:
        """The tensors of the models."""
        return self.form.layout

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """Refuse: the server has no network."""
        raise ContractError(_NO_NETWORK)

    def content(self, request: Request, key: str, registration: Registration) -> tuple[RecordDict, Asked]:
        """The content of the message with a request, and what its reply may be."""
        expected = expected_reply(request, self.layout, dict.fromkeys(request.plan.client_stats, 1))
        bounds = ReplyBounds(self.name, MAX_SAMPLES, 0)
        job = job_of(self.form, {kind: dict(config) for kind, config in self.configs.items()}, self.name)
        return encode(job | write_request(request, self.layout)), Asked(without_models(request), expected, bounds)
