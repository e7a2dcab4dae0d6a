"""A gate for algorithms that split clusters by a rule of their own: what it proposes must be proven, as by Strata.

In twin rounds clients also train on folds of their data. A cluster whose members are found to differ, at a level that
it has for all of its tests together, is cleared: whatever its rule then proposes goes through. Others stay whole.
That there are groups is proven, not that the rule cuts between them: a rule may still tear one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias, TypeVar

from annotated_types import Interval

from fedstrata.algorithms.parts.proof.budget import gathered, is_twin_round, level, spoken
from fedstrata.algorithms.parts.proof.dossier import Dossier, Gate
from fedstrata.algorithms.parts.proof.hearings import Hearing, hearing, unheard
from fedstrata.algorithms.parts.proof.testimony import examine
from fedstrata.algorithms.parts.proof.voters import counted, heard, twins
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, Watched
from fedstrata.core import Decision, Plan, Problem, Report, Result
from fedstrata.lazy_torch import torch

W = TypeVar("W", bound=Watched)

Proof = Literal["none", "twins"]
"""Whether splits must be proven, and by what."""

Chance = Annotated[float, Interval(gt=0, lt=1)]
"""A probability that a cluster may spend."""

Judge: TypeAlias = "Callable[[int, Result, torch.Tensor], SplitDecision]"
"""As `recurse` takes it."""


def gated(problem: Problem, state: W, proof: str) -> W:
    """The first state, with a gate where splits must be proven."""
    return state if proof == "none" else replace(state, gate=Gate(torch.zeros(problem.clients, dtype=torch.int64)))


def hear(problem: Problem, state: Watched, plan: Plan, alpha: float) -> Plan:
    """The plan in which the members of clusters that are not cleared also train on folds; these tasks come last."""
    return twins(plan, _hearings(problem, state, alpha), state.gate.sizes) if state.gate else plan


def weigh(problem: Problem, state: W, report: Report, alpha: float) -> W:
    """Test clusters by what their members sent.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: of the plan that `hear` made.
        alpha: probability, over the whole run, of clearing a cluster whose members share one distribution.
    """
    if state.gate is None:
        return state
    dossiers, hearings, round = _dossiers(state, state.gate), _hearings(problem, state, alpha), state.round + 1
    done = len(report.results) - sum({each.folds for each in hearings})
    for cluster, sent in heard(report, hearings, done).items():
        known = dossiers[cluster]
        evidence = gathered(problem.layout, known.evidence, sent, state.labels == cluster)
        draw = problem.generator(f"test of node {known.node}", round)
        clients, found = examine(problem.layout, evidence, draw, level(alpha, known.tests))
        cleared = tuple(clients.tolist()) if found.confirmed else ()
        dossiers[cluster] = Dossier(known.node, evidence, known.tests + found.tested, cleared, spoken(found, round))
    for cluster, known in enumerate(dossiers):
        if known.decision is None and is_twin_round(round):
            dossiers[cluster] = replace(known, decision=unheard(state, state.gate.sizes, cluster))
    # Who waits may have other data than before.
    sizes = counted(torch.where(state.labels < 0, 0, state.gate.sizes), report, hearings, done)
    return replace(state, gate=Gate(sizes, tuple(dossiers)))


def passing(state: Watched, judge: Judge) -> Judge:
    """A judge whose splits go through only where the cluster is cleared, by a state that was weighed in this round."""
    if state.gate is None:
        return judge
    dossiers = _dossiers(state, state.gate)

    def confirmed(cluster: int, fresh: Result, peaks: torch.Tensor) -> SplitDecision:
        decision, known = judge(cluster, fresh, peaks), dossiers[cluster]
        if decision.second is None:
            return decision
        test, proposed = known.decision or Decision("no test so far"), decision.verdict
        criteria = {**proposed.values, **test.values}
        if known.cleared:
            return replace(decision, verdict=Decision(f"{proposed.why}; {test.why}", proposed.layer, criteria))
        why = f"proposed but not confirmed: {test.why.removeprefix('not split: ')}; {proposed.why}"
        return replace(decision, verdict=Decision(why, proposed.layer, criteria), second=None)

    return confirmed


def _dossiers(state: Watched, gate: Gate) -> list[Dossier]:
    """That of every cluster; a new one has none of its parent's."""
    known = {dossier.node: dossier for dossier in gate.dossiers}
    nodes = enumerate(state.nodes.tolist())
    return [known.get(node, Dossier(node)).of(state.labels == cluster) for cluster, node in nodes]


def _hearings(problem: Problem, state: Watched, alpha: float) -> list[Hearing]:
    """Who votes in this round: members of clusters that are not cleared."""
    if state.gate is None or not is_twin_round(state.round + 1):
        return []
    found = [
        hearing(problem, state, state.gate.sizes, cluster, "auto", level(alpha, dossier.tests))
        for cluster, dossier in enumerate(_dossiers(state, state.gate))
        if not dossier.cleared
    ]
    return [each for each in found if each is not None]
