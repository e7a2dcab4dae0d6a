"""The `Clients` that any Flower app is: its nodes train and evaluate the arrays that they are sent.

`AppClients` sends a message for each thing that is asked, to any app. `ServedClients` sends one message a round, to an
app that `fedstrata.flower.serve` answers for; what it sends is what devices without an app of their own get, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedstrata.base.errors import EngineError, InputError
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import one_line
from fedstrata.core import Layout, Plan, Report
from fedstrata.engine import Answer, Ask, ClientStore, Work, report_of
from fedstrata.engine.work import TEST
from fedstrata.flower.app_form import AppForm, refuse_needs, refuse_whole
from fedstrata.flower.clients import Asked, NodeClients, RoundTraffic
from fedstrata.flower.grid import Clock, Grid, failure_reason, message_to, replies, send
from fedstrata.flower.members import Members
from fedstrata.flower.payload import encode
from fedstrata.flower.replies import ReplyBounds, expected_reply
from fedstrata.flower.requests import Request, without_models, write_request
from fedstrata.flower.served_app import job_of
from fedstrata.play.outside import no_outputs

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Message, RecordDict


@dataclass(eq=False)
class AppClients:
    """The nodes of a Flower app as the clients of a run.

    Attributes:
        grid: Flower's grid.
        form: How models and questions become messages.
        configs: The user's own config of a message, by "train" and "evaluate".
        algorithm: The name of the algorithm.
        members: Whose nodes are asked.
        timeout: The seconds that a message may take.
        tell: It takes a line for people.
        clock: It tells the time.
        store: What clients keep to themselves, which is nothing.
        traffic: What became of the last plan.
        contents: The contents of the replies of the last plan: of "train", and of "scores" on test data.
        sizes: The samples of each client for training and for testing, as far as it has told them.
    """

    grid: Grid
    form: AppForm
    configs: Mapping[str, ConfigRecord]
    algorithm: str
    members: Members
    timeout: float
    tell: Callable[[str], None] = print
    clock: Clock = field(default_factory=Clock)
    store: ClientStore = field(init=False, default_factory=ClientStore)
    traffic: RoundTraffic = field(init=False, default_factory=RoundTraffic)
    contents: dict[str, list[Any]] = field(init=False, default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)
    _told_of_choices: bool = field(init=False, default=False)
    outputs = staticmethod(no_outputs)

    def run(self, plan: Plan) -> Report:
        """Ask every client that is scored or works; one that does not answer is an absent row.

        Raises:
            ExperimentError: When the plan asks more than the app can do.
            EngineError: When nobody answers.
        """
        refuse_needs(plan, self.algorithm, served=False)
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
                except InputError as error:
                    self.traffic.rejected[client] = one_line(str(error))
            answers = dict(self.asked(plan.round, asks)) if asks else {}
        for line in self.traffic.lines(plan.round):
            self.tell(line)
        if works and not done:
            why = self.traffic.example
            raise EngineError(f"round {plan.round}: expected answers of {len(works)} nodes, found none, such as {why}")
        return report_of(plan, [works[client] for client in sorted(done)], self.form.layout)

    def asked(self, round: int, asks: Mapping[int, Sequence[Ask]]) -> Iterator[tuple[int, list[Answer]]]:
        """Send what is asked, wait for the replies, and yield the answers of clients that answered all of it."""
        here = {node.node_id for node in self.grid.get_nodes()}
        sent = list[tuple[int, int, Ask]]()
        messages: dict[int, Message] = {}
        for client, own in asks.items():
            node = self.members.nodes.get(client)
            if node not in here or node is None:
                self.traffic.absent[client] = "its node is not connected"
                continue
            for place, ask in enumerate(own):
                messages[len(sent)] = self._message(round, node, ask)
                sent.append((client, place, ask))
        found = dict[int, dict[int, Answer]]()
        end = self.clock.now() + self.timeout
        for number, reply in replies(self.grid, send(self.grid, messages), end, self.clock):
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
        content = self.form.content(ask, {**self.configs[ask.kind], "server-round": round})
        self.traffic.bytes_down += 4 * len(ask.model)
        return message_to(node, ask.kind, content, round, self.timeout)

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
        known, tested = self.sizes.get(client, (0, 0))
        if ask.kind == "train" and ask.fold == "all" and not ask.most:
            known = samples
        tested = samples if ask.fold == TEST else tested
        self.sizes[client] = (known, tested)
        refuse_whole(ask, samples, known)
        if not known or ask.fold == TEST or ask.kind == "train":
            return
        wanted = known / 2 ** len(ask.fold.removeprefix("all"))
        # A part whose units are not divided may have any number of samples.
        if abs(samples - wanted) >= 1 and samples == tested and not self._told_of_choices:
            self._told_of_choices = True
            self.tell(
                f"WARNING: models are compared on {samples} samples, where part {ask.fold!r} of the training data has "
                f"{wanted:g}: clients choose by the app's test data, so that its scores are too good; write `data = "
                "fold(data, message, test=test)` of fedstrata.flower into its evaluate function"
            )


@dataclass(eq=False)
class ServedClients(NodeClients):
    """The same nodes, if their app does a whole round with one message.

    Attributes:
        form: How models and questions become messages of the app, on its node.
        configs: The user's own config of a message, by "train" and "evaluate".
        algorithm: The name of the algorithm.
        name: The name of the run on the nodes, which keep a client's own layers by it.
    """

    form: AppForm = field(kw_only=True)
    configs: Mapping[str, ConfigRecord] = field(kw_only=True)
    algorithm: str = field(kw_only=True)
    name: str = field(kw_only=True)
    outputs = staticmethod(no_outputs)

    @property
    def layout(self) -> Layout:
        """The tensors of the models."""
        return self.form.layout

    def content(self, request: Request) -> tuple[RecordDict, Asked]:
        """The content of the message with a request, and what its reply may be."""
        refuse_needs(request.plan, self.algorithm, served=True)
        expected = expected_reply(request, self.layout, dict.fromkeys(request.plan.client_stats, 1))
        bounds = ReplyBounds(self.name, MAX_SAMPLES, unknown=True)
        job = job_of(self.form, {kind: dict(config) for kind, config in self.configs.items()}, self.name)
        return encode(job | write_request(request, self.layout)), Asked(without_models(request), expected, bounds)
