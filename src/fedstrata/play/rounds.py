"""The one loop over rounds: who takes part, what the clients are asked, what is decided.

Runs, comparisons, layer scans, scripted tests and real devices all go through `play_rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fedstrata.build.participation import CohortSample
from fedstrata.build.run_setup import RunSetup
from fedstrata.core import Algorithm, Clients, Diagnostics, Evaluation, Plan, Problem, Report, tree_events
from fedstrata.core.state import StateT
from fedstrata.uploads import UploadStep
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
        reply: What came back, before any step.
        report: What the algorithm saw of it.
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
    reply: PlanReply
    report: Report
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
        received = reply.report
        for step in rules.steps:
            received = step.of_report(plan, received)
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
                reply=reply,
                report=report,
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
