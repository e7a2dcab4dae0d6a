"""CFL on the layers in which clients differ.

"LayerCFL: an efficient federated learning with layer-wised clustering", Cybersecurity 2023, Algorithms 1 and 2.
Compare conv layers under feature skew and fully connected layers under label skew. With all layers the method is CFL
(Eq. 6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.evidence.layer_scan import LayerEvidence, no_evidence, scan_plan, scan_round, views_with_bias
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
    Selectors,
    SplitGuard,
    Window,
    selector_tuple,
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
    max_norm,
    norm_threshold,
    norm_trigger,
    one_cluster,
)
from fedstrata.algorithms.shared.split_guard import GuardState, guard_plan, initial_guard
from fedstrata.algorithms.shared.stability_trigger import StabilityThresholds, stability_trigger
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import CLIENT_MEASURES, ClientMeasureName, cosine
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Mask,
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

HALVES = {"A": "half A", "B": "half B"}
"""The names of the tasks on disjoint halves of the data, by which ``gamma = "halves"`` measures gamma."""


@dataclass(frozen=True)
class AccumulatedUpdates:
    """The sum of the updates that every client sent since it came to its cluster.

    Attributes:
        sums: The sums in the compared columns, (n, q).
        since_node: The tree node of the cluster in which each sum began, (n,); -1 before the first update.
    """

    sums: torch.Tensor
    since_node: torch.Tensor


@dataclass(frozen=True)
class LayerCFLState(State):
    """What LayerCFL remembers.

    Attributes:
        bipartition: The norms of the updates so far, and which clusters are final.
        selectors: The selectors of the compared layers; None while a layer scan is going on.
        evidence: What the layer scan has seen; None unless it is going on.
        accumulated: The sums of the updates; None unless ``delta = "accumulated"``.
        window: The last uploads of every client; None unless ``trigger = "stability"``.
        guard: What split-half tests have shown; None unless ``split_guard = "split_half"``.
    """

    bipartition: BipartitionState
    selectors: tuple[str, ...] | None
    evidence: LayerEvidence | None
    accumulated: AccumulatedUpdates | None
    window: UpdateWindow | None
    guard: GuardState | None


@validated_dataclass(frozen=True, config=STRICT)
class LayerCFL:
    """LayerCFL: recursive bipartition by the cosines of some layers' updates, when their norms allow it.

    A cluster is examined by the answers of its members in this round, if there are enough (quorum, min_split). A
    pending client belongs to no cluster now; at its next answer it joins one: of the leaves below the node where it is
    pending, the one whose model has the lowest training loss. Members that did not answer when their cluster was split
    are pending at its node, and newcomers at the root. A client that joins reopens a final cluster.

    Attributes:
        layers: The layers that are compared: conv for feature skew, first_linear for label skew, all when neither is
            known. With "auto" the server chooses the layer (or all) in the first rounds. Clients with enough samples
            (48, or fewer where most clients are small) also train on folds of their data; the layer whose differences
            appear again in the other fold is taken. Nothing is split before.
        trigger: What says that a cluster may be split. "norms" compares the norms of its updates (eps1, eps2).
            "stability" asks whether one of the compared layers is stable (HiCFL, IEEE TMC 2024), by epsilon, members,
            xi, window and rho.
        eps1: The norm of the mean update below which the model of a cluster is stationary. "auto" is a tenth of the
            largest norm of an update in the cluster so far.
        eps2: If the largest update norm is at least eps2, the model does not fit every member. "auto" is 0.4 of the
            largest norm of an update in the cluster so far.
        norm_scope: Whether eps2 looks at the update of the compared layers ("slice"), or of all conv and linear layers
            ("full"). With ``layers = "auto"`` a fixed eps2 should look at all, because layers differ in their norms.
        gamma: The largest approximation error that Theorem 1 assumes. 0 switches the theorem off. "halves" measures it
            by two more trainings on disjoint halves of the data.
        linkage: How similar two groups are. "single" minimises the largest similarity across the two groups exactly.
        measure: What a split is proposed by. A name with d compares updates, such as dcos (Eq. 26) or dl2 (Eq. 24).
            One without compares weights, such as cos (Eq. 25) or l2 (Eq. 23).
        delta: Whether the last update is compared, or the sum of all updates since a member came to the cluster. The
            sum of a member that missed rounds has fewer updates.
        recheck: Whether a cluster is examined again after every member that answered had converged by its norm.
        on_reject: What happens to a cluster after Theorem 1 refused a split. "freeze" makes it final (Algorithm 2).
            "continue" examines it again in the next round.
        epsilon: The stability below which a layer is stable (HiCFL). "auto" is half the step size.
        members: Whether a layer must be stable in each of the members (HiCFL Eq. 15), or in their mean.
        xi: How much an update must change in a weight for stability to look at the weight (HiCFL Eq. 19). "auto" is a
            twentieth of the step size. "median" is the median change in its layer.
        window: The number of uploads over which the stability of a client is averaged (HiCFL's W): its last ones since
            it came to the cluster, however far apart.
        rho: If |mean update| / (largest |update|) is at least rho, the members agree and the cluster is not split
            (HiCFL).
        first: The first round in which a cluster may be split.
        quorum: The share of the members asked in a round that must have answered for a cluster to be examined.
        min_split: The smallest number of members that must have answered for a cluster to be examined.
        split_guard: Whether a split-half test must confirm a proposed split. Then a cluster stays whole until the test
            has shown that its members differ; where it is cut does not change. For the test, members also train on
            folds of their data in some rounds.
        alpha: The probability that the tests of one cluster ever confirm a split although its members do not differ.
            Each cluster has its own alpha.
    """

    source: ClassVar[str] = '"LayerCFL", Cybersecurity 2023'

    layers: Selectors = "all"
    trigger: Literal["norms", "stability"] = "norms"
    eps1: Norm | Auto = "auto"
    eps2: Norm | Auto = "auto"
    norm_scope: Literal["slice", "full"] = "slice"
    gamma: Gamma | Literal["halves"] = 0.5
    linkage: Linkage = "single"
    measure: ClientMeasureName = "dcos"
    delta: Literal["last", "accumulated"] = "last"
    recheck: bool = False
    on_reject: Literal["freeze", "continue"] = "freeze"
    # For trigger = "stability" (HiCFL, IEEE TMC 2024).
    epsilon: Norm | Auto = "auto"
    members: MemberRule = "each"
    xi: Change = "auto"
    window: Window = 3
    rho: Share = 0.8
    # Not in the papers.
    first: PositiveInteger = 1
    quorum: Share = 0.5
    min_split: AtLeastTwo = 3
    split_guard: SplitGuard = "none"
    alpha: Probability = 0.05

    def init(self, problem: Problem) -> LayerCFLState:
        """Everyone in one cluster.

        Raises:
            LayoutError: When a selector of `layers` matches nothing.
            ExperimentError: When weights are to be compared, but of sums of updates, which no client has trained.
        """
        if self.delta == "accumulated" and not CLIENT_MEASURES[self.measure].of_updates:
            raise ExperimentError(
                f"algorithm.measure = {self.measure!r}: compares weights, and algorithm.delta = 'accumulated' sums of "
                "updates, which are nobody's; expected measure = 'dcos' or 'dl2', or delta = 'last'"
            )
        n = problem.clients
        selectors = None if self.layers == "auto" else selector_tuple(self.layers)
        compared = compared_tensors(problem, selectors)  # A selector that matches nothing is an error here.
        accumulated = None
        if self.delta == "accumulated":
            q = len(problem.layout.columns(compared))
            accumulated = AccumulatedUpdates(sums=torch.zeros(n, q), since_node=torch.full((n,), -1))
        return extend_state(
            initial_state(problem),
            LayerCFLState,
            bipartition=one_cluster(problem.clients),
            selectors=selectors,
            evidence=no_evidence(problem.layout, n) if selectors is None else None,
            accumulated=accumulated,
            window=empty_window(problem, self.window) if self.trigger == "stability" else None,
            guard=initial_guard(problem, self.split_guard),
        )

    def plan(self, problem: Problem, state: LayerCFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for gamma, a scan or the guard, also on folds of its data."""
        plan = fedavg_plan(problem, state, cohort)
        if self.gamma == "halves":
            plan = with_halves(plan, compared_tensors(problem, state.selectors))
        if state.evidence is not None:
            plan = scan_plan(problem, state, state.evidence, plan)
        return guard_plan(problem, state, state.guard, plan, self.alpha)

    def update(self, problem: Problem, state: LayerCFLState, report: Report) -> tuple[LayerCFLState, Diagnostics]:
        """Algorithm 2 for every cluster, then average."""
        events: tuple[dict[str, object], ...] = ()
        if state.evidence is not None:
            state, events = self._scan(problem, state, state.evidence, report)
        if state.accumulated is not None:
            state = replace(state, accumulated=self._accumulate(problem, state, state.accumulated, report))
        window, stability = add_updates_if_kept(problem, state, state.window, report, self.xi)
        moved, bipartition, guard, diagnostics = bipartition_round(
            problem,
            state,
            report,
            state.bipartition,
            state.guard,
            compared=problem.layout.columns(compared_tensors(problem, state.selectors)),
            rules=SplitRules(first=self.first, quorum=self.quorum, min_split=self.min_split),
            examine=partial(self._examine, problem, state, report, stability),
            alpha=self.alpha,
            stability=stability,
        )
        diagnostics = replace(diagnostics, events=(*events, *diagnostics.events))
        return replace(moved, bipartition=bipartition, window=window, guard=guard), diagnostics

    def _examine(
        self,
        problem: Problem,
        state: LayerCFLState,
        report: Report,
        stability: Stability | None,
        answers: RoundAnswers,
        cluster: int,
    ) -> SplitDecision:
        """Algorithm 2 for one cluster: split it when the trigger and Theorem 1 allow it."""
        if state.selectors is None:
            return SplitDecision(Decision(kind="no_layer_found"))
        trigger = self._trigger(problem, state, state.selectors, stability, answers, cluster)
        if trigger.kind != MAY_SPLIT:
            ended = trigger.kind in ("members_converged", "layers_not_trained")
            return SplitDecision(trigger, final=ended and not self.recheck)
        clients = answers.usable[cluster].updates.clients
        columns = problem.layout.columns(compared_tensors(problem, state.selectors))
        updates = answers.usable[cluster].updates.take_columns(columns).values
        if state.accumulated is not None:
            updates = state.accumulated.sums[clients]
        if max_norm(updates) <= STILL:  # Its members do not move what is compared, which parts nobody.
            return SplitDecision(replace(trigger, kind="layers_not_trained"))
        cosines = cosine(updates)  # Eq. 26
        values = self._measured(updates, state.models[cluster, columns], cosines)
        matrix = Matrix(int(state.nodes[cluster]), ", ".join(state.selectors), self.measure, clients, values)
        gamma = measured_gamma(report, clients, columns) if self.gamma == "halves" else self.gamma
        decision = apply_theorem_1(matrix, find_cut(matrix, self.linkage), cosines, gamma, trigger.values)
        return replace(decision, final=decision.parts is None and self.on_reject == "freeze")

    def _trigger(
        self,
        problem: Problem,
        state: LayerCFLState,
        selectors: tuple[str, ...],
        stability: Stability | None,
        answers: RoundAnswers,
        cluster: int,
    ) -> Decision:
        """Whether a cluster may be split now, by its norms (Eq. 27 and 28) or by its stability."""
        compared = compared_tensors(problem, selectors)
        usable = answers.usable[cluster]
        if stability is not None:
            epsilon = stability_threshold(problem, state.round + 1, self.epsilon)
            thresholds = StabilityThresholds(epsilon, self.rho, self.members)
            return stability_trigger(problem, usable, stability, thresholds, compared)[0]
        remembered = answers.remembered
        if self.norm_scope == "slice":
            scope = compared
            largest = remembered.max_compared_norms
        else:
            scope = problem.layout.conv_and_linear_mask
            largest = remembered.max_norms
        eps1 = norm_threshold(self.eps1, remembered.max_norms[cluster], EPS1_SHARE)
        eps2 = norm_threshold(self.eps2, largest[cluster], EPS2_SHARE)
        return norm_trigger(problem, usable, problem.layout.columns(scope), eps1, eps2, ", ".join(selectors))

    def _measured(self, updates: torch.Tensor, start: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
        """The similarities or distances of updates (m, q) or weights that propose a split, (m, m)."""
        if self.measure == "dcos":
            return cosines  # Eq. 26
        measure = CLIENT_MEASURES[self.measure]
        return measure.compare(updates if measure.of_updates else start + updates, None)  # Eq. 23 to 25

    def _accumulate(
        self, problem: Problem, state: LayerCFLState, before: AccumulatedUpdates, report: Report
    ) -> AccumulatedUpdates:
        """The sums with the updates of a round."""
        columns = problem.layout.columns(compared_tensors(problem, state.selectors))
        updates = report.results[TRAIN].updates.take_columns(columns)
        clients = updates.clients
        node = state.nodes[assign_pending(state, report)[clients]]
        # A sum that began in another cluster, or before `make_pending` (new data), says nothing about this one.
        goes_on = (state.labels[clients] >= 0) & (before.since_node[clients] == node)
        sums = torch.where(goes_on[:, None], before.sums[clients], 0.0) + updates.values
        return AccumulatedUpdates(
            sums=before.sums.index_copy(0, clients, sums),
            since_node=before.since_node.index_copy(0, clients, node),
        )

    def _scan(
        self, problem: Problem, state: LayerCFLState, evidence: LayerEvidence, report: Report
    ) -> tuple[LayerCFLState, tuple[dict[str, object], ...]]:
        """Gather evidence while no layer is known. A scan has an event, and may choose the layer to compare."""
        evidence, choice = scan_round(problem, state, evidence, report)
        state = replace(state, evidence=evidence)
        if choice is None:
            return state, ()
        if choice.layer is not None:
            state = self._compare(problem, state, evidence, choice.layer)
        return state, (choice.event,)

    def _compare(self, problem: Problem, state: LayerCFLState, evidence: LayerEvidence, layer: str) -> LayerCFLState:
        """The state as if this layer had been given from the start: its largest norm, and its columns of the sums."""
        # Nothing is split before the layer is known: there is one cluster, and the evidence is about it.
        view = list(views_with_bias(problem.layout)).index(layer)
        bipartition = replace(state.bipartition, max_compared_norms=evidence.max_norms[view : view + 1])
        accumulated = state.accumulated
        if accumulated is not None:
            before, after = (
                problem.layout.columns(compared_tensors(problem, selectors)) for selectors in (None, (layer,))
            )
            accumulated = replace(accumulated, sums=accumulated.sums[:, torch.isin(before, after)])
        return replace(state, bipartition=bipartition, selectors=(layer,), evidence=None, accumulated=accumulated)

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client joins the leaf of lowest training loss. Only for placing a client outside a round."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster. A pending client tries those of all leaves below its node."""
        return cluster_evaluation(problem, state, clients)

    def proposed_split(self, problem: Problem, state: LayerCFLState, report: Report) -> tuple[ProposedSplit, ...]:
        """How each cluster would be split by the compared layers, once they are known, without a threshold."""
        if state.accumulated is not None:
            state = replace(state, accumulated=self._accumulate(problem, state, state.accumulated, report))
        at_once = replace(self, eps1=NEVER_REACHED, eps2=0.0, gamma=0.0, norm_scope="full")
        examine = partial(at_once._examine, problem, state, report, None)
        return proposed_splits(problem, state, report, examine)


def compared_tensors(problem: Problem, selectors: tuple[str, ...] | None) -> Mask:
    """The tensors of the compared layers, (l,); of all layers while it is not known which to compare."""
    return problem.layout.select(*(("all",) if selectors is None else selectors))


def with_halves(plan: Plan, upload: Mask) -> Plan:
    """The plan in which every client also trains on two disjoint random halves of its data.

    Both trainings start from the model that the task itself starts from. If the second half started from the result
    of the first, the two updates would not be independent.
    """
    halves = {name: replace(plan.tasks[TRAIN], fold=half, stream=half, upload=upload) for half, name in HALVES.items()}
    return replace(plan, tasks={**plan.tasks, **halves})


def measured_gamma(report: Report, clients: torch.Tensor, columns: torch.Tensor) -> float:
    """Theorem 1's gamma (Eq. 15) of some clients (m,) in some columns (q,), by their updates a and b on the halves.

    Gamma bounds the sampling error of a client's gradient relative to the true gradient. Here (a + b) / 2 stands for
    the true gradient and (a - b) / 2 for its sampling error.

    Returns:
        The largest |a - b| / |a + b|. It is 1, with which Theorem 1 refuses every split, when the data of some client
        could not be halved.
    """
    first, second = (report.results[name].updates.take_columns(columns) for name in HALVES.values())
    if not all(bool(torch.isin(clients, half.clients).all()) for half in (first, second)):
        return 1.0
    difference = (first.of(clients) - second.of(clients)).double().norm(dim=1)
    total = (first.of(clients) + second.of(clients)).double().norm(dim=1)
    return float((difference / total.clamp(min=1e-12)).max())
