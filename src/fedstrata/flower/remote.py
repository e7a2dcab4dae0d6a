"""The other `Clients`: real devices behind Flower's grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedstrata.core import CLIENT, Plan, Report
from fedstrata.engine import ClientStore, Loop
from fedstrata.engine.parallel.sharding import merge_reports
from fedstrata.errors import EngineError, InputError, check_rules
from fedstrata.flower.answers import (
    Answer,
    Bounds,
    NotFiniteError,
    expected_reply,
    limit_of,
    read_answer,
)
from fedstrata.flower.exchange import Clock, Grid, largest, replies
from fedstrata.flower.letter import Letter, several
from fedstrata.flower.messages import WORK, Expected, excuse, message_to, read_letter, weight, write_letter
from fedstrata.flower.orders import Order, order, write_order
from fedstrata.flower.roster import NOBODY, Roster
from fedstrata.flower.samples import no_client_data
from fedstrata.flower.terms import Terms, write_terms
from fedstrata.flower.text import one_line, without_paths
from fedstrata.models import layout_of

if TYPE_CHECKING:
    from flwr.app import Message


@dataclass(frozen=True)
class Rules:
    """When a round is over.

    Attributes:
        deadline: seconds from its messages on; who has not answered by then is absent.
        min_reply_fraction: The share of the asked clients whose valid replies end the round at once, in (0, 1]. Below
            1, more clients are asked than needed.
        min_replies: The valid replies without which the round is asked again.
        max_attempts: The number of times that it is asked at most.
    """

    deadline: float = 600.0
    min_reply_fraction: float = 1.0
    min_replies: int = 1
    max_attempts: int = 3

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        rules = {
            "deadline is above 0": self.deadline > 0,
            "min_reply_fraction is above 0 and at most 1": 0 < self.min_reply_fraction <= 1,
            "min_replies is at least 1": self.min_replies >= 1,
            "max_attempts is at least 1": self.max_attempts >= 1,
        }
        check_rules("rounds", rules, self)


@dataclass(frozen=True)
class Journey:
    """What became of one plan on the network.

    Attributes:
        absent: client -> why it did not answer.
        rejected: client -> why its answer was not taken.
        down: bytes of the messages' contents.
        up: bytes of the replies' contents, of those that were not taken too.
    """

    absent: Mapping[int, str]
    rejected: Mapping[int, str]
    down: int
    up: int


@dataclass
class _Tally:
    """What has come in of a round so far."""

    answers: dict[int, Answer] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)
    lacking: list[int] = field(default_factory=list)
    not_finite: set[int] = field(default_factory=set)
    down: int = 0
    up: int = 0


class Remote:
    """Clients on a network, bit for bit as `Loop` has them.

    Args:
        grid: of Flower.
        terms: of the run.
        roster: who is who.
        rules: when a round is over.
        tell: takes a line for people.
        clock: what the time is.

    Attributes:
        store: what is known of the devices' own stores: an empty tensor stands for one that is there, nan for one that
            is of no use.
        roster: who is who; replaced when somebody comes.
        journey: what became of the last plan.
    """

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        roster: Roster,
        rules: Rules | None = None,
        tell: Callable[[str], None] = print,
        clock: Clock | None = None,
    ) -> None:
        """Send nothing yet."""
        self.store, self.roster, self.journey = ClientStore(), roster, Journey({}, {}, 0, 0)
        self._grid, self._terms, self._rules = grid, terms, rules or Rules()
        self._tell, self._clock = tell, clock or Clock()
        module = terms.network(0)
        self._layout = layout_of(module)
        self._loop = Loop(module, self._layout, no_client_data(terms))

    def predict(self, models: Tensor, inputs: Tensor) -> Tensor:
        """As `Loop.predict`, on the server."""
        return self._loop.predict(models, inputs)

    def run(self, plan: Plan) -> Report:
        """Ask every client that is scored or works, in one message each; one that does not answer is an absent row.

        Raises:
            EngineError: when too few answer, however often they are asked.
        """
        ids = {
            client
            for part in (plan.cohort, *(evaluation.clients for evaluation in plan.evaluations.values()))
            for client in part.tolist()
        }
        # Without a score there is no record of the round before.
        scored = set(plan.evaluations[CLIENT].clients.tolist()) if plan.evaluations else ids
        least = min(self._rules.min_replies, len(scored))
        for _ in range(self._rules.max_attempts):
            tally = self._ask(plan, sorted(ids))
            absent, rejected = (dict(sorted(reasons.items())) for reasons in (tally.absent, tally.rejected))
            self.journey = Journey(absent, rejected, tally.down, tally.up)
            for what, reasons in (("absent", absent), ("rejected", rejected)):
                for client, reason in reasons.items():
                    self._tell(f"round {plan.round}: client {client} is {what}: {reason}")
            found = len(scored & tally.answers.keys())
            if found >= least:
                return self._taken(plan, dict(sorted(tally.answers.items())))
            self._tell(f"round {plan.round}: {found} of {len(scored)} answered, {least} are needed")
        advice = "see to the nodes, then resume the run"
        if 2 * len(tally.not_finite) > len(ids):
            advice = f"{len(tally.not_finite)} sent numbers that are not finite: training diverged; lower local.lr"
        raise EngineError(
            f"round {plan.round}: expected at least {least} of {len(scored)} clients to answer, found fewer in each "
            f"of {self._rules.max_attempts} tries; {advice}"
        )

    def _ask(self, plan: Plan, clients: Sequence[int]) -> _Tally:
        """Send a plan until there are enough answers or time is up."""
        end, tally = self._clock.now() + self._rules.deadline, _Tally()
        enough = ceil(self._rules.min_reply_fraction * len(clients))
        counted = _counted(self.store)
        orders = {
            client: order(plan, client, self._layout, self.store.read(client, before=plan.round), counted[client])
            for client in clients
        }
        self._collect(orders, tally, enough, end)
        if tally.lacking and len(tally.answers) < enough:
            # What a device has lost it is sent again, at once.
            again = {client: order(plan, client, self._layout, ()) for client in tally.lacking}
            self._collect(again, tally, enough, end)
        late = "no answer in time" if len(tally.answers) < enough else f"the first {enough} had answered"
        for client in clients:
            if client not in tally.answers and client not in tally.rejected:
                tally.absent.setdefault(client, late)
        return tally

    def _collect(self, orders: Mapping[int, Order], tally: _Tally, enough: int, end: float) -> None:
        """Send orders and take in what comes."""
        seconds, bounds = max(end - self._clock.now(), 0.0), dict[int, Bounds]()
        messages, expected = dict[int, "Message"](), dict[int, Expected]()
        for client, given in orders.items():
            found = self.roster.of(client)
            if found is None or found[1].node == NOBODY:
                tally.absent[client] = "no node speaks for it"
                continue
            key, seat = found
            letters = write_terms(self._terms, self._layout), Letter({"client": {"key": key}})
            content = write_letter(*letters, write_order(given, self._layout))
            # Flower takes 0 seconds for half a day.
            messages[client] = message_to(seat.node, WORK, content, given.plan.round, max(seconds, 1.0))
            bounds[client] = Bounds(self._terms.run, seat.train, seat.test, self._terms.facts)
            expected[client] = expected_reply(given, self._layout, self._terms.facts)
            tally.down += weight(content)
        limit = largest(limit_of(each) for each in expected.values())
        for client, message in replies(self._grid, messages, limit, seconds, self._clock):
            try:
                if reason := excuse(message):
                    tally.absent[client] = reason
                    continue
                tally.up += weight(message.content)
                letter = read_letter(message.content, expected[client])
                if "lacking" in letter.settings:
                    names = several(letter.record("lacking"), "tensors", str)
                    tally.absent[client] = one_line(f"its device has lost {', '.join(names)}")
                    tally.lacking.append(client)
                else:
                    tally.answers[client] = read_answer(letter, orders[client], self._layout, bounds[client])
                    tally.absent.pop(client, None)
            except InputError as error:
                tally.absent.pop(client, None)
                tally.rejected[client] = one_line(without_paths(str(error)))
                if isinstance(error, NotFiniteError):
                    tally.not_finite.add(client)
            if len(tally.answers) >= enough:
                return

    def _taken(self, plan: Plan, answers: Mapping[int, Answer]) -> Report:
        """Note what the devices keep, and put the answers together, every row where the simulator has it."""
        for client, answer in answers.items():
            mark = torch.tensor([torch.nan]) if answer.spoilt else torch.empty(0)
            self.store.write(client, plan.round, dict.fromkeys(answer.stored, mark))
        here = torch.tensor(list(answers), dtype=torch.int64)
        evaluations = {name: each.only(torch.isin(each.clients, here)) for name, each in plan.evaluations.items()}
        return merge_reports(replace(plan, evaluations=evaluations), [answer.report for answer in answers.values()])


def _counted(store: ClientStore) -> Mapping[int, set[int]]:
    """Rounds of which each client has tensors."""
    rounds = defaultdict[int, set[int]](set)
    for name in store.tensors():
        client, _, round = map(int, name.split("/"))
        rounds[client].add(round)
    return rounds
