"""Split a cluster in two when its model is stationary for the cluster but not for its members.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", IEEE TNNLS 2020, Algorithms 1 to 3. Called FMTL or MTCFL by the papers that compare with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.keys import (
    STRICT,
    AtLeastTwo,
    Auto,
    Change,
    Gamma,
    MemberRule,
    Norm,
    PositiveInteger,
    Probability,
    SplitGuard,
    Window,
)
from fedstrata.algorithms.shared.bipartition_round import bipartition_round
from fedstrata.algorithms.shared.model_stability import (
    Stability,
    UpdateWindow,
    add_updates_if_kept,
    empty_window,
    stability_threshold,
)
from fedstrata.algorithms.shared.proposed_split import NEVER_REACHED, proposed_splits
from fedstrata.algorithms.shared.recursive_bipartition import (
    EPS1_SHARE,
    EPS2_SHARE,
    MAY_SPLIT,
    BipartitionState,
    RoundAnswers,
    SplitDecision,
    SplitRules,
    apply_theorem_1,
    find_cut,
    norm_threshold,
    norm_trigger,
    one_cluster,
)
from fedstrata.algorithms.shared.split_guard import GuardState, guard_plan, initial_guard
from fedstrata.algorithms.shared.stability_trigger import StabilityThresholds, stability_trigger
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import cosine
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    ProposedSplit,
    Report,
    State,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)


@dataclass(frozen=True)
class CFLState(State):
    """What CFL remembers.

    Attributes:
        bipartition: The norms of the updates so far, and which clusters are final.
        window: The last uploads of every client; None unless ``trigger = "stability"``.
        guard: What split-half tests have shown; None unless ``split_guard = "split_half"``.
    """

    bipartition: BipartitionState
    window: UpdateWindow | None
    guard: GuardState | None


@validated_dataclass(frozen=True, config=STRICT)
class CFL:
    """CFL: recursive bipartition by the cosines of whole updates, when their norms allow it.

    A cluster is examined by the answers of its members in this round, if there are enough (quorum, min_split). A
    pending client belongs to no cluster now; at its next answer it joins one: of the leaves below the node where it is
    pending, the one whose model has the lowest training loss. Members that did not answer when their cluster was split
    are pending at its node, and newcomers at the root.

    Attributes:
        trigger: What says that a cluster may be split. "norms" compares the norms of its updates (eps1, eps2).
            "stability" asks whether a layer of its members is stable ("MTCFL with model stability" of HiCFL, IEEE TMC
            2024, Table V), by epsilon, members, xi, window and rho.
        eps1: The norm of the mean update below which the model of a cluster is stationary. "auto" is a tenth of the
            largest norm of an update in the cluster so far.
        eps2: If the largest update norm is at least eps2, the model does not fit every member. "auto" is 4 times the
            automatic eps1.
        gamma: The largest approximation error that Theorem 1 assumes. 0 switches the theorem off.
        linkage: How similar two groups are. "single" minimises the largest similarity across the two groups exactly.
        epsilon: The stability below which a layer is stable (HiCFL). "auto" is half the step size.
        members: Whether a layer must be stable in each of the members (HiCFL Eq. 15), or in their mean.
        xi: How much an update must change in a weight for stability to look at the weight (HiCFL Eq. 19). "auto" is a
            twentieth of the step size. "median" is the median change in its layer.
        window: The number of uploads over which the stability of a client is averaged (HiCFL's W): its last ones since
            it came to the cluster, however far apart.
        rho: If |mean update| / (largest |update|) is at least rho, the members agree and the cluster is not split
            (HiCFL).
        first: The first round in which a cluster may be split (t_min).
        quorum: The share of the members asked in a round that must have answered for a cluster to be examined.
        min_split: The smallest number of members that must have answered for a cluster to be examined.
        split_guard: Whether a split-half test must confirm a proposed split. Then a cluster stays whole until the test
            has shown that its members differ; where it is cut does not change. For the test, members also train on
            folds of their data in some rounds.
        alpha: The probability that the tests of one cluster ever confirm a split although its members do not differ.
            Each cluster has its own alpha.
    """

    source: ClassVar[str] = "Sattler et al., IEEE TNNLS 2020"

    trigger: Literal["norms", "stability"] = "norms"
    eps1: Norm | Auto = "auto"
    eps2: Norm | Auto = "auto"
    gamma: Gamma = 0.5
    linkage: Linkage = "single"
    # For trigger = "stability" (HiCFL, IEEE TMC 2024).
    epsilon: Norm | Auto = "auto"
    members: MemberRule = "each"
    xi: Change = "auto"
    window: Window = 3
    rho: Share = 0.8
    # Not in HiCFL.
    first: PositiveInteger = 1
    quorum: Share = 0.5
    min_split: AtLeastTwo = 3
    split_guard: SplitGuard = "none"
    alpha: Probability = 0.05

    def init(self, problem: Problem) -> CFLState:
        """Everyone in one cluster."""
        return extend_state(
            initial_state(problem),
            CFLState,
            bipartition=one_cluster(problem.clients),
            window=empty_window(problem, self.window) if self.trigger == "stability" else None,
            guard=initial_guard(problem, self.split_guard),
        )

    def plan(self, problem: Problem, state: CFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for the split guard, in some rounds also on folds of its data."""
        return guard_plan(problem, state, state.guard, fedavg_plan(problem, state, cohort), self.alpha)

    def update(self, problem: Problem, state: CFLState, report: Report) -> tuple[CFLState, Diagnostics]:
        """Bipartition every cluster that meets the criterion, then average."""
        window, stability = add_updates_if_kept(problem, state, state.window, report, self.xi)
        moved, bipartition, guard, diagnostics = bipartition_round(
            problem,
            state,
            report,
            state.bipartition,
            state.guard,
            compared=problem.layout.conv_and_linear,
            rules=SplitRules(first=self.first, quorum=self.quorum, min_split=self.min_split),
            examine=partial(self._examine, problem, state, stability),
            alpha=self.alpha,
            stability=stability,
        )
        return replace(moved, bipartition=bipartition, window=window, guard=guard), diagnostics

    def _examine(
        self, problem: Problem, state: CFLState, stability: Stability | None, answers: RoundAnswers, cluster: int
    ) -> SplitDecision:
        """Split a cluster in two when the trigger and Theorem 1 allow it."""
        trigger = self._trigger(problem, state, stability, answers, cluster)
        if trigger.kind != MAY_SPLIT:
            return SplitDecision(trigger)
        updates = answers.usable[cluster].updates.take_columns(problem.layout.conv_and_linear)
        cosines = cosine(updates.values)
        matrix = Matrix(int(state.nodes[cluster]), "all", "dcos", updates.clients, cosines)
        return apply_theorem_1(matrix, find_cut(matrix, self.linkage), cosines, self.gamma, trigger.values)

    def _trigger(
        self, problem: Problem, state: CFLState, stability: Stability | None, answers: RoundAnswers, cluster: int
    ) -> Decision:
        """Whether a cluster may be split now, by its norms or by its stability."""
        usable = answers.usable[cluster]
        if stability is not None:
            epsilon = stability_threshold(problem, state.round + 1, self.epsilon)
            thresholds = StabilityThresholds(epsilon, self.rho, self.members)
            return stability_trigger(problem, usable, stability, thresholds, problem.layout.conv_and_linear_mask)[0]
        largest = answers.remembered.max_norms[cluster]
        eps1 = norm_threshold(self.eps1, largest, EPS1_SHARE)
        eps2 = norm_threshold(self.eps2, largest, EPS2_SHARE)
        return norm_trigger(problem, usable, problem.layout.conv_and_linear, eps1, eps2, "all")

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client joins the leaf of lowest training loss. Only for placing a client outside a round."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster. A pending client tries those of all leaves below its node."""
        return cluster_evaluation(problem, state, clients)

    def proposed_split(self, problem: Problem, state: CFLState, report: Report) -> tuple[ProposedSplit, ...]:
        """How each cluster would be split by the cosines of its members, without a threshold."""
        at_once = replace(self, eps1=NEVER_REACHED, eps2=0.0, gamma=0.0)
        return proposed_splits(problem, state, report, partial(at_once._examine, problem, state, None))
