"""Split only what a second part of the data confirms: no thresholds, no number of clusters, no choice of layer.

fedstrata's own algorithm; docs/strata.md has the promise, its proof and its limits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Natural
from fedstrata.algorithms.parts.proof.budget import level, spoken
from fedstrata.algorithms.parts.proof.hearings import unheard
from fedstrata.algorithms.parts.proof.testimony import shown
from fedstrata.algorithms.parts.proof.voters import counted, heard, twins
from fedstrata.algorithms.parts.strata.calm import listened, listening
from fedstrata.algorithms.parts.strata.docket import docket, due
from fedstrata.algorithms.parts.strata.judging import offered, weighed
from fedstrata.algorithms.parts.strata.memory import Stratified, blank, examined, noted, recalled
from fedstrata.algorithms.parts.strata.parting import Parting, halved, parting
from fedstrata.algorithms.parts.strata.ruling import prove, rule
from fedstrata.algorithms.parts.strata.settling import divide, moves, settled, siblings
from fedstrata.algorithms.parts.strata.trial import tried
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    Report,
    State,
    cluster_evaluation,
    fedavg_plan,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Strata:
    """Strata: splits only what a second part of the data confirms; no thresholds, a bounded chance of a wrong split.

    In twin rounds (2, 3, 4, 6, 9, 13, 19, 28, each half as late again) clients also train on disjoint folds of their
    data. Who is like whom by one fold must be so by another, as clearly as alike clients show it with a probability of
    `alpha` over the run. Then models for the two sides, and for finer groups, are made of one half of the data and
    judged by the other: a group gets a cluster where its model suits it better than those of others do.

    Who is absent in a twin round has no vote; when its cluster is split it waits there, and takes the part of lowest
    training loss, as a newcomer takes such a leaf. In its next twin round a cluster that got newcomers is asked whether
    they differ from the members, and only otherwise for groups. Where a round asks only some, evidence is gathered over
    twin rounds, and clients are compared of whom every pair has answered in the same one.

    Attributes:
        alpha: probability, over the whole run, of splitting a cluster whose members share one distribution.
        folds: parts of a client's data that are compared; auto is 2, and 4 where few clients of a cluster answer.
        when: whether twin rounds are those of the schedule, or come after rounds in which some layer of the members was
            stable, as HiCFL has it, each at least half as late again as the last.
        settle: rounds after a split in which its members may still choose another part.
        benefit: whether a split must pay, on data that did not train the models compared apart; one that does not pay
            yet may be tried again in the next twin round. Without it there are only the two sides of the test.
    """

    source: ClassVar[str] = "fedstrata, docs/strata.md"

    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    folds: Literal[2, 4] | Auto = "auto"
    when: Literal["schedule", "stability"] = "schedule"
    settle: Natural = 2
    benefit: bool = True

    def init(self, problem: Problem) -> Stratified:
        """Everyone in one cluster."""
        return blank(problem, listening(problem) if self.when == "stability" else None)

    def plan(self, problem: Problem, state: Stratified, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; in twin rounds also on folds of its data."""
        state = recalled(state)
        plan = siblings(fedavg_plan(problem, state, cohort), state)
        plan = offered(plan, problem.layout, [memory.trial for memory in state.memories])
        return twins(plan, docket(problem, state, self.alpha, self.folds), state.sizes)

    def update(self, problem: Problem, state: Stratified, report: Report) -> tuple[Stratified, Diagnostics]:
        """Split what was confirmed and pays, test in twin rounds, average inside the new clusters."""
        round, before, state = state.round + 1, state, recalled(state)
        layout, labels, newcomers, tests = problem.layout, settled(state, report), state.newcomers, state.tests
        trials, done = weighed(report, round, [memory.trial for memory in state.memories])
        hearings = docket(problem, state, self.alpha, self.folds)
        decisions = {
            each: unheard(state, state.sizes, each, self.folds)
            for each in set(due(state)) - {hearing.cluster for hearing in hearings}
            if not examined(state, each)
        }
        few = {hearing.cluster for hearing in hearings if hearing.few}
        splits, matrices, memories = dict[int, Parting](), list[Matrix](), list(state.memories)
        for cluster, trial in enumerate(trials):
            memories[cluster] = memory = replace(memories[cluster], trial=trial)
            if trial is not None and trial.over:
                split = parting(trial, round, benefit=self.benefit)
                memories[cluster], decisions[cluster] = memory.after(trial, made=split.count > 1), split.decision
                if split.count > 1:
                    splits[cluster] = split
        for cluster, sent in heard(report, hearings, done).items():
            memory, node, members = memories[cluster], int(state.nodes[cluster]), labels == cluster
            attempt = partial(tried, problem, round, state.models[cluster], sent)
            if cluster in few:
                trial = attempt(sent[0].clients, None, level(self.alpha, memory.tests), Decision(""))
                memories[cluster] = replace(memory.on(trial), heard=round, tests=memory.tests + (trial is not None))
                newcomers = newcomers.index_fill(0, sent[0].clients, False)
                continue
            draw, spend = problem.generator(f"test of node {node}", round), level(self.alpha, memory.tests)
            ruling = rule(layout, memory.evidence, sent, members, newcomers, draw, spend)
            found, decision = ruling.found, spoken(ruling.found, round, ruling.MEANS[ruling.groups])
            if found.tested or not examined(state, cluster):  # the last test stays
                decisions[cluster] = decision
            memory = replace(memory, evidence=ruling.evidence, heard=round, tests=memory.tests + found.tested)
            if found.tested:
                newcomers = newcomers.index_fill(0, sent[0].clients, False)
                matrices += shown(layout, ruling.evidence, node)
            if found.confirmed and not self.benefit:
                splits[cluster] = halved(ruling.clients, found.proposal, decision)
            elif found.confirmed:
                inside, spend = ruling.groups and not memory.refused, level(self.alpha, memory.trials)
                proven = prove(layout, ruling, sent, draw, self.alpha, tests, inside=inside)
                tests = tests.index_add(0, ruling.clients, proven.tested.long())
                told = replace(decision, why=decision.why + proven.told)
                memory = memory.on(attempt(ruling.clients, proven.groups, spend, told, inside=inside))
            memories[cluster] = memory
        sizes = counted(state.sizes, report, hearings, done)
        state = replace(state, memories=tuple(memories), sizes=sizes, tests=tests, newcomers=newcomers)
        moved, diagnostics = divide(problem, state, report, labels, splits, decisions, self.settle)
        calm, curves = state.calm, diagnostics.metrics
        if calm is not None:
            calm, steady = listened(problem, calm, before, report)
            curves = {**curves, **steady}
        events = (*moves(state, labels), *diagnostics.events)
        return noted(before, replace(moved, calm=calm), report), Diagnostics(events, curves, tuple(matrices))

    def place(self, problem: Problem, state: Stratified, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return settled(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)
