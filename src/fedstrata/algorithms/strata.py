"""Split only what a second part of the data confirms: no thresholds, no number of clusters, no choice of layer.

fedstrata's own algorithm; docs/strata.md has the promise, its proof and its limits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Natural
from fedstrata.algorithms.parts.proof import (
    Hearing,
    gathered,
    heard,
    hearing,
    is_twin_round,
    level,
    shown,
    spoken,
    twins,
)
from fedstrata.algorithms.parts.settling import Memory, Stratified, divide, settled, siblings
from fedstrata.algorithms.parts.testimony import examine
from fedstrata.algorithms.parts.trial import Trial, gains, offered, tried
from fedstrata.core import Matrix, Notes, Plan, Problem, Report, State, Use, Verdict, begin, broadcast, serve
from fedstrata.lazy import torch

CHANGED = 0.2
"""Share of its members that must have changed before a cluster whose split did not pay is tested again."""


@dataclass(frozen=True, config=STRICT)
class Strata:
    """Strata: splits only what a second part of the data confirms; no thresholds, a bounded chance of a wrong split.

    In twin rounds (2, 3, 4, 6, 9, 13, 19, 28, each half as late again) clients also train on disjoint folds of their
    data. Who is like whom by one fold must be so by another, as clearly as alike clients show it with a probability of
    `alpha` over the run; then the two sides must do better with models of their own.

    Who is absent in a twin round has no vote; when its cluster is split it waits there, and takes the part of lowest
    training loss, as a newcomer takes such a leaf. Where a round asks only some, evidence is gathered over twin
    rounds, and clients are compared of whom every pair has answered in the same one.

    Attributes:
        alpha: probability, over the whole run, of splitting a cluster whose members share one distribution.
        folds: parts of a client's data that are compared; auto is 2, and 4 in clusters of few clients.
        settle: rounds after a split in which its members may still choose the other side.
        benefit: whether a split must pay, by models and data that did not make it.
    """

    source: ClassVar[str] = "fedstrata, docs/strata.md"

    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    folds: Literal[2, 4] | Auto = "auto"
    settle: Natural = 2
    benefit: bool = True

    def init(self, problem: Problem) -> Stratified:
        """Everyone in one cluster."""
        sizes = torch.zeros(problem.clients, dtype=torch.int64)
        return Stratified(**vars(begin(problem)), memories=(Memory(),), sizes=sizes)

    def plan(self, problem: Problem, state: Stratified, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; in twin rounds also on folds of its data."""
        plan = siblings(broadcast(problem, state, cohort), state)
        plan = offered(plan, problem.layout, [memory.trial for memory in state.memories])
        return twins(plan, self._hearings(problem, state), state.sizes)

    def update(self, problem: Problem, state: Stratified, report: Report) -> tuple[Stratified, Notes]:
        """Split what was confirmed and pays, test in twin rounds, average inside the new clusters."""
        round, labels = state.round + 1, settled(state, report)
        weighed = gains(report, [memory.trial for memory in state.memories])
        on_trial = any(memory.trial is not None for memory in state.memories)
        folds = heard(report, self._hearings(problem, state), done=2 if on_trial else 1)
        memories, verdicts, splits, matrices = (
            list(state.memories),
            dict[int, Verdict](),
            dict[int, Trial](),
            list[Matrix](),
        )
        for cluster, memory in enumerate(state.memories):
            members, node = labels == cluster, int(state.nodes[cluster])
            if memory.trial is not None and cluster in weighed:
                verdicts[cluster] = memory.trial.told(weighed[cluster])
                if weighed[cluster] > 0:
                    splits[cluster] = memory.trial
                refused = tuple(members.nonzero().flatten().tolist())
                memories[cluster] = replace(memory, trial=None, refused=refused)
            elif cluster in folds:
                evidence = gathered(problem.layout, memory.evidence, folds[cluster], members)
                draw = problem.generator(f"test of node {node}", round)
                clients, found = examine(problem.layout, evidence, draw, level(self.alpha, memory.tests))
                verdicts[cluster] = spoken(found, round)
                matrices += shown(problem.layout, evidence, node)
                memories[cluster] = replace(memory, evidence=evidence, tests=memory.tests + found.tested)
                if found.confirmed:
                    start, verdict = state.models[cluster], verdicts[cluster]
                    trial = tried(problem, start, clients, found.proposal, folds[cluster], verdict)
                    memories[cluster] = replace(memories[cluster], trial=trial)
                    if not self.benefit:
                        splits[cluster] = trial
        moved, notes = divide(
            problem, replace(state, memories=tuple(memories)), report, labels, splits, verdicts, self.settle
        )
        sizes = moved.sizes.index_copy(0, report.results[0].updates.clients, report.results[0].sizes)
        return replace(moved, sizes=sizes), replace(notes, matrices=tuple(matrices))

    def _hearings(self, problem: Problem, state: Stratified) -> list[Hearing]:
        """Who votes in this round, on what: members of clusters that are not busy with a split."""
        found = []
        for cluster, memory in enumerate(state.memories):
            members = set((state.labels == cluster).nonzero().flatten().tolist())
            changed = len(members ^ set(memory.refused)) >= CHANGED * len(memory.refused)
            if is_twin_round(state.round + 1) and memory.trial is None and not memory.settling and changed:
                spend = level(self.alpha, memory.tests)
                found.append(hearing(problem, state, state.sizes, cluster, self.folds, spend))
        return [each for each in found if each is not None]

    def place(self, problem: Problem, state: Stratified, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return settled(state, report)

    def serve(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Use, ...]:
        """Everyone uses the model of its cluster."""
        return serve(problem, state, clients)
