"""Split a cluster in two when its model is stationary for the cluster but not for its members.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", IEEE TNNLS 2020, Algorithms 1 to 3. Called FMTL or MTCFL by the papers that compare with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Gamma, Linkage, Members, Norm, Share
from fedstrata.algorithms.parts.proof.gate import Chance, Proof, gated, hear, passing, weigh
from fedstrata.algorithms.parts.recursive.criterion import PROGRESS, STATIONARY, Criterion, Examined, threshold
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, Watched, recurse
from fedstrata.algorithms.parts.recursive.steadiness import Change, Window
from fedstrata.algorithms.parts.recursive.trigger import attend, attentive
from fedstrata.core import (
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


@dataclass(frozen=True, config=STRICT)
class CFL:
    """CFL: recursive bipartition by the cosines of whole updates, gated by their norms.

    A cluster is examined by what its members sent in this round, if enough of them did (quorum, min_split). Members
    that were away when it was split wait at its place in the tree: with their next answer they join the leaf below it
    whose model has the lowest training loss. Newcomers wait at the root, so they have all leaves to choose from.

    Attributes:
        trigger: what says that a cluster's time has come: the norms of its updates (eps1, eps2), or the model
            stability of its members (epsilon, xi, window, rho; "MTCFL with model stability" of HiCFL, Table V). A
            member's window holds its last uploads since it came to the cluster, however far apart.
        eps1: mean update below which a cluster's model is stationary; auto is a tenth of the cluster's peak.
        eps2: longest update above which some member is not served; auto is 4 times the automatic eps1.
        gamma: largest approximation error that Theorem 1 assumes; 0 switches the theorem off.
        linkage: how similar two groups are; single minimises the largest similarity across exactly.
        epsilon: stability below which a layer is stable; auto is half the step size.
        xi: change of an update above which stability looks at a weight; auto is the median of its layer, lr a twentieth
            of the step size.
        window: uploads of a client that its stability is the mean over (W).
        rho: ratio of the mean to the longest update from which on the members of a cluster agree.
        first: first round in which a cluster may be split (t_min).
        quorum: share of a cluster's members asked in a round that must have answered for it to be examined.
        min_split: least number of such members.
        proof: whether a cluster stays whole until Strata's test has proven that its members differ, by folds of their
            data on which they also train in some rounds (twins). Where it is then cut is up to the rule above.
        alpha: probability of proving, over the whole run, that members of a cluster differ who do not.
    """

    source: ClassVar[str] = "Sattler et al., IEEE TNNLS 2020"

    trigger: Literal["norms", "stability"] = "norms"
    eps1: Norm | Auto = "auto"
    eps2: Norm | Auto = "auto"
    gamma: Gamma = 0.5
    linkage: Linkage = "single"
    epsilon: Norm | Auto = "auto"
    xi: Change = "auto"
    window: Window = 3
    rho: Share = 0.8
    first: Count = 1
    quorum: Share = 0.5
    min_split: Members = 3
    proof: Proof = "none"
    alpha: Chance = 0.05

    def init(self, problem: Problem) -> Watched:
        """Everyone in one cluster."""
        return gated(problem, attentive(problem, self.trigger, self.window), self.proof)

    def plan(self, problem: Problem, state: Watched, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; where splits must be proven, sometimes on folds of its data too."""
        return hear(problem, state, fedavg_plan(problem, state, cohort), self.alpha)

    def update(self, problem: Problem, state: Watched, report: Report) -> tuple[Watched, Diagnostics]:
        """Bipartition every cluster that meets the criterion, then average."""
        everything = problem.layout.select("all")
        state = weigh(problem, state, report, self.alpha)
        state, trigger = attend(problem, state, report, self.epsilon, self.xi, self.rho, everything)
        columns = problem.layout.columns(everything)

        def judge(cluster: int, fresh: Result, peaks: torch.Tensor) -> SplitDecision:
            criterion = Criterion(
                eps1=threshold(self.eps1, peaks[0], STATIONARY),
                eps2=threshold(self.eps2, peaks[0], PROGRESS * STATIONARY),
                gamma=self.gamma,
                linkage=self.linkage,
                layer="all",
            )
            members = Examined(int(state.nodes[cluster]), fresh, fresh.updates.only(columns).values)
            return trigger.judge(problem, criterion, members)

        rules = (self.first, self.quorum, self.min_split, trigger.ready)
        moved, diagnostics = recurse(problem, state, report, columns, passing(state, judge), *rules)
        return moved, replace(diagnostics, metrics={**diagnostics.metrics, **trigger.figures})

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)
