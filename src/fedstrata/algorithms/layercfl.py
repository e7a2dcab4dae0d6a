"""CFL on the layers that see the skew.

"LayerCFL: an efficient federated learning with layer-wised clustering", Cybersecurity 2023, Algorithms 1 and 2.
Convolutions see feature skew, linear layers see label skew; all layers together are CFL's own comparison.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Gamma, Linkage, Members, Norm, Selectors, Share, names
from fedstrata.algorithms.parts.proof.gate import Chance, Proof, gated, hear, passing, weigh
from fedstrata.algorithms.parts.recursive.bootstrap import doubt, twins
from fedstrata.algorithms.parts.recursive.criterion import PROGRESS, STATIONARY, Criterion, Examined, threshold
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, recurse
from fedstrata.algorithms.parts.recursive.steadiness import Change, Window
from fedstrata.algorithms.parts.recursive.trigger import attend, attentive
from fedstrata.algorithms.parts.scout.scouting import Travelled, mask_of, scouted, scouting, setting_out, travel
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


@dataclass(frozen=True, config=STRICT)
class LayerCFL:
    """LayerCFL: recursive bipartition by the cosines of some layers' updates, gated by their norms.

    A cluster is examined by what its members sent in this round, if enough of them did (quorum, min_split). Members
    that were away when it was split wait at its place in the tree: with their next answer they join the leaf below it
    whose model has the lowest training loss. Newcomers wait at the root, so they have all leaves to choose from.

    Attributes:
        layers: what is compared: conv for feature skew, first_linear for label skew, all when neither is known; auto
            is the layer in which the clients fall apart most clearly, by folds of their data: of those with 48 samples
            at least. Until one is found, nothing is split.
        trigger: what says that a cluster's time has come: the norms of its updates (eps1, eps2), or the model
            stability of its members in one of the compared layers, the same for all (epsilon, xi, window, rho). A
            member's window holds its last uploads since it came to the cluster, however far apart.
        eps1: mean update below which a cluster's model is stationary; auto is a tenth of the cluster's peak.
        eps2: longest update above which some member is not served; auto is 0.4 of the cluster's peak.
        gamma: largest approximation error that Theorem 1 assumes; 0 switches the theorem off; bootstrap measures it
            by two more trainings on halves of the data.
        linkage: how similar two groups are; single minimises the largest similarity across exactly.
        epsilon: stability below which a layer is stable; auto is half the step size.
        xi: change of an update above which stability looks at a weight; auto is the median of its layer, lr a twentieth
            of the step size.
        window: uploads of a client that its stability is the mean over (W).
        rho: ratio of the mean to the longest update, of all layers, from which on the members of a cluster agree.
        measure: what proposes: cosine or l2 of updates (dcos, dl2) or of weights (cos, l2).
        norm_scope: whether eps2 looks at the compared layers or at the full update; with ``layers = "auto"`` a fixed
            eps2 wants full, for layers differ in their norms.
        delta: whether the last update is compared, or the sum of all since a member came to the cluster; whoever
            missed rounds has fewer in it.
        recheck: whether a cluster is examined again after all its members had converged by their norms.
        on_reject: whether a refused split may be proposed again, or freezes the cluster (Algorithm 2, literally).
        first: first round in which a cluster may be split.
        quorum: share of a cluster's members asked in a round that must have answered for it to be examined.
        min_split: least number of such members.
        proof: whether a cluster stays whole until Strata's test has proven that its members differ, by folds of their
            data on which they also train in some rounds (twins). Where it is then cut is up to the rule above.
        alpha: probability of proving, over the whole run, that members of a cluster differ who do not.
    """

    source: ClassVar[str] = '"LayerCFL", Cybersecurity 2023'

    layers: Selectors = "all"
    trigger: Literal["norms", "stability"] = "norms"
    eps1: Norm | Auto = "auto"
    eps2: Norm | Auto = "auto"
    gamma: Gamma | Literal["bootstrap"] = 0.5
    linkage: Linkage = "single"
    epsilon: Norm | Auto = "auto"
    xi: Change = "auto"
    window: Window = 3
    rho: Share = 0.8
    measure: Literal["dcos", "cos", "dl2", "l2"] = "dcos"
    norm_scope: Literal["slice", "full"] = "slice"
    delta: Literal["last", "accumulated"] = "last"
    recheck: bool = False
    on_reject: Literal["continue", "freeze"] = "continue"
    first: Count = 1
    quorum: Share = 0.5
    min_split: Members = 3
    proof: Proof = "none"
    alpha: Chance = 0.05

    def init(self, problem: Problem) -> Travelled:
        """Everyone in one cluster.

        Raises:
            LayoutError: when a selector of `layers` matches nothing.
            ExperimentError: when weights are to be compared, but of sums of updates, which no client has trained.
        """
        compared = () if self.layers == "auto" else names(self.layers)
        watched = gated(problem, attentive(problem, self.trigger, self.window), self.proof)
        return setting_out(problem, watched, compared, self.measure, self.delta)

    def plan(self, problem: Problem, state: Travelled, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for the scout, bootstrap and proof, also on parts of its data."""
        plan = fedavg_plan(problem, state, cohort)
        plan = twins(plan, mask_of(problem, state.compared)) if self.gamma == "bootstrap" else plan
        return hear(problem, state, scouting(problem, state, plan), self.alpha)

    def update(self, problem: Problem, state: Travelled, report: Report) -> tuple[Travelled, Diagnostics]:
        """Algorithm 2 for every cluster, then average."""
        layout, state = problem.layout, weigh(problem, state, report, self.alpha)
        state, events = scouted(problem, state, report, 3 if self.gamma == "bootstrap" else 1)
        state, compared = travel(problem, state, report)
        chosen = mask_of(problem, state.compared)
        state, trigger = attend(problem, state, report, self.epsilon, self.xi, self.rho, chosen)
        columns, full = layout.columns(chosen), self.norm_scope == "full"

        def judge(cluster: int, fresh: Result, peaks: torch.Tensor) -> SplitDecision:
            if not state.compared:
                return SplitDecision(Decision("the members fall apart in no layer so far"))
            clients = fresh.updates.clients
            criterion = Criterion(
                eps1=threshold(self.eps1, peaks[0], STATIONARY),
                eps2=threshold(self.eps2, peaks[0 if full else 1], PROGRESS * STATIONARY),
                gamma=doubt(report, clients, columns) if self.gamma == "bootstrap" else self.gamma,
                linkage=self.linkage,
                layer=", ".join(state.compared),
                measure=self.measure,
                recheck=self.recheck,
                freeze=self.on_reject == "freeze",
            )
            scope = fresh.updates.only(layout.columns(layout.select("all")) if full else columns).values
            node, start = int(state.nodes[cluster]), state.models[cluster, columns]
            return trigger.judge(problem, criterion, Examined(node, fresh, compared.of(clients), scope, start))

        rules = (self.first, self.quorum, self.min_split, trigger.ready)
        moved, diagnostics = recurse(problem, state, report, columns, passing(state, judge), *rules)
        figures = {**diagnostics.metrics, **trigger.figures}
        return moved, replace(diagnostics, events=(*events, *diagnostics.events), metrics=figures)

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)
