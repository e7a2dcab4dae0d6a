"""The one loop over rounds: who takes part, what the clients are asked, what is decided.

Runs, comparisons, layer scans, scripted tests and real devices all go through `play_rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from fedstrata.base.errors import UserCodeError
from fedstrata.build.participation import CohortSample
from fedstrata.build.run_setup import RunSetup
from fedstrata.core import Algorithm, Clients, Diagnostics, Evaluation, Plan, Problem, Report, State, tree_events
from fedstrata.core.state import StateT
from fedstrata.objective.objective import in_user_code
from fedstrata.uploads.steps import UploadStep, through
from fedstrata.uploads.validation import decide, missing_events

_T = TypeVar("_T")


class PlanReply(NamedTuple):
    """What came back for a plan.

    Attributes:
        report: The report of the clients that answered.
        seconds: The time that it took; of work that was shared with other runs, the part of this one.
        absent: Why clients did not answer, by client, where that is known.
        rejected: Why the answers of clients are not in the report, by client.
    """

    report: Report
    seconds: float
    absent: Mapping[int, str] = MappingProxyType({})
    rejected: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class PlayedRound(Generic[StateT]):
    """A round that is over.

    Attributes:
        plan: What the whole cohort was asked.
        sample: Who was selected.
        before: The state before the round.
        changed: That state after what happened to clients between the rounds; the plan is made from it.
        reply: What came back, before any step.
        report: What the algorithm saw of it.
        rejected: The ids of the clients whose answers it did not see, ascending.
        state: The state after the round.
        diagnostics: What the algorithm noted, and what happened to the tree.
        events: All that happened in the round.
        seconds_planning: The time that the plan took.
        seconds_deciding: The time that the decision of the algorithm took.
        replied: The time at which the reply came, by `perf_counter`.
    """

    plan: Plan
    sample: CohortSample
    before: StateT
    changed: StateT
    reply: PlanReply
    report: Report
    rejected: tuple[int, ...]
    state: StateT
    diagnostics: Diagnostics
    events: list[dict[str, Any]]
    seconds_planning: float
    seconds_deciding: float
    replied: float


def no_events(state: StateT, round: int) -> tuple[StateT, list[dict[str, Any]]]:
    """Nothing happens to clients before a round."""
    return state, []


@dataclass(frozen=True, kw_only=True)
class Rules(Generic[StateT]):
    """What rounds are played by.

    Attributes:
        algorithm: The algorithm.
        problem: What is fixed for the run.
        sample: Draws who takes part in a round.
        apply_events: Returns the state with what happens to clients before a round, and the events.
        steps: What happens to a report between the clients and the algorithm, one after the other.
        checked: Whether decisions are taken back that leave unusable models.
    """

    algorithm: Algorithm[StateT]
    problem: Problem
    sample: Callable[[int], CohortSample]
    apply_events: Callable[[StateT, int], tuple[StateT, list[dict[str, Any]]]] = no_events
    steps: Sequence[UploadStep] = ()
    checked: bool = True

    @classmethod
    def of(cls, setup: RunSetup) -> Rules[Any]:
        """The rules of a run."""
        server = setup.server
        return Rules(
            algorithm=server.algorithm,
            problem=server.problem,
            sample=server.participation.sample,
            apply_events=server.participation.apply_events,
            steps=setup.steps,
        )


def play_rounds(
    rules: Rules[StateT],
    state: StateT,
    *,
    stop: Callable[[StateT], bool],
    observe: Callable[[PlayedRound[StateT]], object],
    evaluate: Callable[[StateT], Mapping[str, Evaluation]] = lambda state: {},
) -> Generator[Plan, PlanReply, StateT]:
    """Play rounds as a generator that yields plans, is sent their replies, and returns the last state.

    Args:
        rules: The algorithm, the problem, and what happens to clients and their updates.
        state: The state to begin with.
        stop: Is asked before every round whether there shall be no more.
        observe: Is called after every round.
        evaluate: Returns what the clients score before they train.
    """

    def play_round(before: StateT) -> Generator[Plan, PlanReply, StateT]:
        # A function of its own, so that nothing of a round is kept in memory during the next one.
        began = perf_counter()
        changed, events = rules.apply_events(before, before.round + 1)
        sampled = rules.sample(before.round + 1)
        plan = rules.algorithm.plan(rules.problem, changed, sampled.cohort)
        planned = perf_counter()
        reply = yield replace(plan.only(~torch.isin(plan.cohort, sampled.dropped)), evaluations=evaluate(before))
        replied = perf_counter()
        received = through(rules.steps, plan, reply.report)
        rejected = {client for event in received.events if event["kind"] == "rejected" for client in event["clients"]}
        noticed = [
            *missing_events("absent", reply.absent),
            *missing_events("rejected", reply.rejected),
            *map(dict, received.events),
        ]
        report = replace(received, cohort=plan.cohort, events=())
        clock = perf_counter()
        if rules.checked:
            after, diagnostics, undone = decide(rules.algorithm, rules.problem, changed, report)
        else:
            after, diagnostics = rules.algorithm.update(rules.problem, changed, report)
            undone = []
        diagnostics = replace(diagnostics, events=(*diagnostics.events, *tree_events(changed, after)))
        observe(
            PlayedRound(
                plan=plan,
                sample=sampled,
                before=before,
                changed=changed,
                reply=reply,
                report=report,
                rejected=tuple(sorted(rejected)),
                state=after,
                diagnostics=diagnostics,
                events=[*events, *noticed, *undone, *map(dict, diagnostics.events)],
                seconds_planning=planned - began,
                seconds_deciding=perf_counter() - clock,
                replied=replied,
            )
        )
        return after

    while not stop(state):
        state = yield from play_round(state)
    return state


def timed_reply(clients: Clients, plan: Plan) -> PlanReply:
    """What clients reply to a plan, and how long it took."""
    began = perf_counter()
    report = clients.run(plan)
    return PlanReply(report, perf_counter() - began)


def answer_plans(steps: Generator[Plan, PlanReply, _T], reply: Callable[[Plan], PlanReply]) -> _T:
    """Answer all that a generator of plans asks, and return what it returns."""
    with closing(steps):
        try:
            plan = next(steps)
            while True:
                plan = steps.send(reply(plan))
        except StopIteration as end:
            finished: _T = end.value
            return finished


def with_place_of_errors(algorithm: Algorithm[StateT]) -> Algorithm[StateT]:
    """The algorithm, whose errors are those of the user's code if it is not one of the library's own."""
    kind = type(algorithm)
    if kind.__module__.split(".")[0] == "fedstrata":
        return algorithm
    return cast(Algorithm[StateT], _UsersAlgorithm(algorithm, f"the algorithm {kind.__module__}:{kind.__qualname__}"))


@dataclass(frozen=True)
class _UsersAlgorithm:
    """An algorithm that is called as `in_user_code` calls functions.

    Attributes:
        algorithm: The algorithm.
        called: What messages call it.
    """

    algorithm: Algorithm[Any]
    called: str

    def init(self, problem: Problem) -> State:
        """The first state."""
        found: State = self._called("init", (State,), self.algorithm.init, problem)
        return found

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """What the clients of a round are asked."""
        place = f"plan of round {state.round + 1}"
        found: Plan = self._called(place, (Plan,), self.algorithm.plan, problem, state, cohort)
        return found

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """The state after a round."""
        place = f"update of round {state.round + 1}"
        after, told = self._called(place, (State, Diagnostics), self.algorithm.update, problem, state, report)
        return after, told

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Which models clients score."""
        place = f"evaluations after round {state.round}"
        return dict(self._called(place, (Mapping,), self.algorithm.evaluations, problem, state, clients))

    def _called(self, place: str, kinds: tuple[type, ...], function: Callable[..., Any], *given: Any) -> Any:
        """What a function of the algorithm returns: a value of one kind, or a tuple of several.

        Raises:
            UserCodeError: When it fails, or returns something else.
        """
        found = in_user_code(f"{self.called}: {place}", function, *given)
        values = found if isinstance(found, tuple) and len(kinds) > 1 else (found,)
        if len(values) != len(kinds) or not all(map(isinstance, values, kinds)):
            names = ", ".join(type(each).__name__ for each in values)
            expected = " and ".join(kind.__name__ for kind in kinds)
            shown = f"({names})" if len(values) > 1 else names
            raise UserCodeError(f"{self.called}: {place}: expected a {expected}, found {shown}")
        return found
