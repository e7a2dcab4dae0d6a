"""Split a cluster around its steadiest member as soon as one layer of its members is stable.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, section IV.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Members, Norm, Share
from fedstrata.algorithms.parts.proof.gate import Chance, Proof, gated, hear, passing, weigh
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, recurse
from fedstrata.algorithms.parts.recursive.reorganise import reorganise
from fedstrata.algorithms.parts.recursive.sides import Sides
from fedstrata.algorithms.parts.recursive.steadiness import Change, Window, Windowed, curves, observe, remember
from fedstrata.algorithms.parts.recursive.timing import Timing, epsilon_of
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    Result,
    State,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
)
from fedstrata.lazy_torch import torch


@dataclasses.dataclass(frozen=True)
class Hierarchy(Windowed):
    """Remembers how the clustering goes.

    Attributes:
        calm: rounds without a split since the last one; before the first, since every layer was stable.
        closed: the round in which the ending began; 0 before it.
    """

    calm: int
    closed: int


@dataclass(frozen=True, config=STRICT)
class HiCFL:
    """HiCFL: recursive splits by the sign of the cosine to the steadiest client, timed by model stability.

    A cluster is examined by those of its members that answered in this round and have filled a window since they came
    to it, if they are enough (quorum, min_split). A window holds a client's own last answers, however far apart. Who
    was away when the cluster was split, or had not filled a window, waits at its place in the tree, and a newcomer at
    the root: with the next answer it joins the leaf below whose model has the lowest training loss.

    Attributes:
        epsilon: stability below which a layer is stable; auto is half the step size. The stablest layer in which the
            members have two sides splits the cluster.
        members: whether a layer must be stable in the mean of the members, or in each of them (Eq. 15, literally),
            which did not happen with 20 clients of MNIST or Fashion-MNIST: the noise of one is always too large.
        xi: change of an update above which stability looks at a weight; auto is the median of its layer, lr a twentieth
            of the step size.
        window: uploads of a client that its stability is the mean over (W).
        stride: rounds from one examination to the next; as large as the window, the windows do not overlap.
        rho: ratio of the mean to the longest update from which on the members of a cluster agree.
        eps2: longest update below which the members have converged.
        select: whether stability looks at unstable weights only; else at all ("W.C.", without compression).
        signed: whether only growth counts as change (Eq. 19, literally).
        reference: whom the others are compared with: the steadiest member, or any (Fig. 10).
        require_negative_cross: whether the two sides must point away from each other in the mean.
        clear: by how many standard errors the cosines on the reference's side must lie above those across, pairs with
            the reference left out; 0 takes any split. Of a converged cluster half always points away from any member.
        ending: what happens after `patience` rounds without a split: nothing, each cluster is split once more (fine),
            or until everyone is alone (personal), or clusters that move alike are merged (reorganise).
        patience: rounds without a split after which the clustering is complete. They count from the first split on, or
            from the round in which every layer is stable without one, so a slow first split is waited for.
        quorum: share of a cluster's members asked in a round that must have answered for it to be examined.
        min_split: least number of such members.
        proof: whether a cluster stays whole, at an ending too, until Strata's test proves that members differ (twins).
        alpha: probability of proving, over the whole run, that members of a cluster differ who do not.
    """

    source: ClassVar[str] = "Gong et al., IEEE TMC 2024"

    epsilon: Norm | Auto = "auto"
    members: Literal["mean", "each"] = "mean"
    xi: Change = "auto"
    window: Window = 3
    stride: Count = 1
    rho: Share = 0.8
    eps2: Norm = 0.0
    select: bool = True
    signed: bool = False
    reference: Literal["stable", "random"] = "stable"
    require_negative_cross: bool = True
    clear: Norm = 8.0
    ending: Literal["none", "fine", "personal", "reorganise"] = "none"
    patience: Count = 10
    quorum: Share = 0.5
    min_split: Members = 2
    proof: Proof = "none"
    alpha: Chance = 0.05

    def init(self, problem: Problem) -> Hierarchy:
        """Everyone in one cluster."""
        return Hierarchy(**vars(gated(problem, remember(problem, self.window), self.proof)), calm=0, closed=0)

    def plan(self, problem: Problem, state: Hierarchy, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; where splits must be proven, sometimes on folds of its data too."""
        return hear(problem, state, fedavg_plan(problem, state, cohort), self.alpha)

    def update(self, problem: Problem, state: Hierarchy, report: Report) -> tuple[Hierarchy, Diagnostics]:
        """Split every cluster whose time has come, then average."""
        round, lr = state.round + 1, problem.training_of(state.round + 1).lr
        state = weigh(problem, state, report, self.alpha)
        state, steady = observe(problem, state, report, self.xi if self.select else None, self.signed)
        ready = steady.isfinite().all(dim=1)
        closed = state.closed or (round if self.ending != "none" and state.calm >= self.patience else 0)
        timing = Timing(epsilon_of(self.epsilon, lr), self.rho, self.eps2, self.members == "each")
        sides = Sides(self.require_negative_cross, self.clear)
        if closed:  # an ending splits whom thresholds keep together
            timing, sides = Timing(math.inf, math.inf), Sides(False, 0.0, self.ending)

        def judge(cluster: int, fresh: Result, _: torch.Tensor) -> SplitDecision:
            node, clients = state.tree[int(state.nodes[cluster])], fresh.updates.clients
            if closed and (self.ending == "reorganise" or (self.ending == "fine" and node.born >= closed)):
                return SplitDecision(Decision("the clustering is complete"))
            due, stable = timing.examine(problem, fresh, steady[clients])  # Eq. 15
            if not due:
                return SplitDecision(stable[0])
            rank = steady
            if self.reference == "random":
                drawn = torch.rand(len(steady), generator=problem.generator(f"reference of node {node.id}", round))
                rank = drawn[:, None].expand_as(steady)
            return sides.split(problem, node.id, fresh, rank[clients], stable)  # Eq. 17 and 18

        first, rules = 1 if round % self.stride == 0 else round + 1, (self.quorum, self.min_split, ready)
        everything = problem.layout.columns(problem.layout.select("all"))
        moved, diagnostics = recurse(problem, state, report, everything, passing(state, judge), first, *rules)
        figures, events = {**diagnostics.metrics, **curves(problem, state, steady)}, diagnostics.events
        if self.ending == "reorganise" and closed == round:
            moved, merges = reorganise(problem, state, moved, report)
            events = (*events, *merges)
        # Before the first split, a layer that is not stable yet may still turn out to have two sides.
        quiet = bool(ready.any()) and bool((timing.watched(steady[ready]) < timing.epsilon).all())
        begun = state.calm > 0 or moved.tree[0].split is not None or quiet
        calm = state.calm + 1 if begun and not any(event["kind"] == "split" for event in events) else 0
        return replace(moved, calm=calm, closed=closed), replace(diagnostics, events=events, metrics=figures)

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)
