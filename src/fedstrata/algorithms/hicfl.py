"""Split a cluster around its most stable member as soon as one layer of its members is stable.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, section IV; the endings are from section V-C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.keys import (
    STRICT,
    AtLeastTwo,
    Auto,
    Change,
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
    add_updates,
    empty_window,
    stability_threshold,
)
from fedstrata.algorithms.shared.proposed_split import NEVER_REACHED, proposed_splits
from fedstrata.algorithms.shared.recursive_bipartition import (
    MAY_SPLIT,
    BipartitionState,
    RoundAnswers,
    SplitDecision,
    SplitRules,
    one_cluster,
)
from fedstrata.algorithms.shared.split_guard import GuardState, guard_plan, initial_guard
from fedstrata.algorithms.shared.stability_trigger import StabilityThresholds, stability_of_cluster, stability_trigger
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import cosine, reference_split
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    ProposedSplit,
    Report,
    Result,
    State,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)
from fedstrata.core.state import nearest_open_ancestor, with_children, with_decisions, with_members

_MIN_T_STATISTIC = 8.0
"""The t statistic that ``variant = "robust"`` asks for."""

_MIN_SCATTERED_PAIRS = 6
"""Fewer pairs, those of four clients, say nothing about their scatter."""

_AGREEING_COSINE = 0.5
"""The mean cosine from which on so few pairs agree: 60 degrees."""


@dataclass(frozen=True)
class HiCFLState(State):
    """What HiCFL remembers.

    Attributes:
        bipartition: The norms of the updates so far, and which clusters are final.
        window: The last uploads of every client.
        guard: What split-half tests have shown; None unless ``split_guard = "split_half"``.
        rounds_without_split: The rounds since the last split; before the first, since every layer was stable.
        ending_round: The round in which the ending began; 0 before it.
    """

    bipartition: BipartitionState
    window: UpdateWindow
    guard: GuardState | None
    rounds_without_split: int
    ending_round: int


@validated_dataclass(frozen=True, config=STRICT)
class HiCFL:
    """HiCFL: recursive splits by the sign of the cosine to the most stable client, timed by model stability.

    A cluster is examined by the usable answers of its members in this round, if there are enough (quorum, min_split).
    An answer is usable if its client has filled a window since it came to the cluster. A window holds a client's own
    last answers, however far apart. A pending client belongs to no cluster now; at its next answer it joins one: of the
    leaves below the node where it is pending, the one whose model has the lowest training loss. Members without a
    usable answer when their cluster was split are pending at its node, and newcomers at the root.

    Attributes:
        variant: The rule of the paper, or the library's own additions to it ("robust"): a layer must be stable in the
            mean of the members, stability looks at the half of a layer that changed most, every stable layer is tried,
            the two sides must be clearly apart, and an ending splits clusters whose members all point one way.
        epsilon: The stability below which a layer is stable. "auto" is half the step size.
        members: Whether a layer must be stable in each of the members (Eq. 15), or in their mean. "auto" is as the
            variant has it.
        xi: How much an update must change in a weight for stability to look at the weight. "auto" is a twentieth of the
            step size, and the median in the robust variant. "median" is the median change in its layer.
        window: The number of uploads over which the stability of a client is averaged (W).
        stride: The number of rounds from one examination to the next. With a stride as large as the window, the windows
            do not overlap.
        rho: If |mean update| / (largest |update|) is at least rho, the members agree and the cluster is not split.
        eps2: If the largest update norm is below eps2, the members have converged and the cluster is not split.
        weight_selection: Whether stability looks at unstable weights only. Otherwise it looks at all ("W.C." in
            the paper).
        signed: Whether only growth counts as change (Eq. 19, literally).
        reference: The client that the others are compared with: the most stable member, or a random one (Fig. 10).
        min_t_statistic: The smallest t statistic (Welch) of the cosines on the reference's side against those across,
            without the pairs of the reference, with which a cluster is split. The mean across must be negative too. 0
            takes any split, as the paper does. "auto" is 0, and 8 in the robust variant.
        ending: What happens after `patience` rounds without a split. "none" is nothing. "fine" splits each cluster once
            more. "personal" splits until every client is alone. "reorganise" merges clusters that move alike. Members
            that all point one way are divided by the robust variant only.
        patience: The number of rounds without a split after which the clustering is complete. They count from the first
            split on, or from the round in which every layer is stable without one. So a slow first split is waited for.
        quorum: The share of the members asked in a round whose answers must be usable for a cluster to be examined.
        min_split: The smallest number of usable answers with which a cluster is examined.
        split_guard: Whether a split-half test must confirm a proposed split, at an ending too. Then a cluster stays
            whole until the test has shown that its members differ.
        alpha: The probability that the tests of one cluster ever confirm a split although its members do not differ.
            Each cluster has its own alpha.
    """

    source: ClassVar[str] = "Gong et al., IEEE TMC 2024"

    variant: Literal["paper", "robust"] = "paper"
    epsilon: Norm | Auto = "auto"
    members: MemberRule | Auto = "auto"
    xi: Change = "auto"
    window: Window = 3
    stride: PositiveInteger = 1
    rho: Share = 0.8
    eps2: Norm = 0.0
    weight_selection: bool = True
    signed: bool = False
    reference: Literal["stable", "random"] = "stable"
    min_t_statistic: Norm | Auto = "auto"
    ending: Literal["none", "fine", "personal", "reorganise"] = "none"
    patience: PositiveInteger = 10
    quorum: Share = 0.5
    min_split: AtLeastTwo = 2
    split_guard: SplitGuard = "none"
    alpha: Probability = 0.05

    def init(self, problem: Problem) -> HiCFLState:
        """Everyone in one cluster."""
        return extend_state(
            initial_state(problem),
            HiCFLState,
            bipartition=one_cluster(problem.clients),
            window=empty_window(problem, self.window),
            guard=initial_guard(problem, self.split_guard),
            rounds_without_split=0,
            ending_round=0,
        )

    def plan(self, problem: Problem, state: HiCFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for the split guard, in some rounds also on folds of its data."""
        return guard_plan(problem, state, state.guard, fedavg_plan(problem, state, cohort), self.alpha)

    def update(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[HiCFLState, Diagnostics]:
        """Split every cluster whose time has come, then average."""
        round = state.round + 1
        window, stability = add_updates(problem, state, state.window, report, self._xi(), self.signed)
        ending_round = state.ending_round
        if self.ending != "none" and not ending_round and state.rounds_without_split >= self.patience:
            ending_round = round
        state = replace(state, window=window, ending_round=ending_round)
        first = 1 if round % self.stride == 0 else round + 1
        moved, bipartition, guard, diagnostics = bipartition_round(
            problem,
            state,
            report,
            state.bipartition,
            state.guard,
            compared=problem.layout.conv_and_linear,
            rules=SplitRules(first=first, quorum=self.quorum, min_split=self.min_split),
            examine=partial(self._examine, problem, state, stability),
            alpha=self.alpha,
            stability=stability,
        )
        moved = replace(moved, bipartition=bipartition, guard=guard)
        if self.ending == "reorganise" and ending_round == round:
            moved, merges = reorganise(problem, state, moved, report)
            diagnostics = replace(diagnostics, events=(*diagnostics.events, *merges))
        return replace(moved, rounds_without_split=self._quiet(problem, moved, stability, diagnostics)), diagnostics

    def _thresholds(self, problem: Problem, round: int, ending: bool) -> StabilityThresholds:
        """When a cluster may split (Eq. 15); an ending splits whom thresholds keep together."""
        if ending:
            return StabilityThresholds(epsilon=math.inf, rho=math.inf, members="mean")
        epsilon = stability_threshold(problem, round, self.epsilon)
        by_variant = "each" if self.variant == "paper" else "mean"
        members = by_variant if self.members == "auto" else self.members
        return StabilityThresholds(epsilon, self.rho, members, self.eps2)

    def _xi(self) -> Change | None:
        """The change of an update above which stability looks at a weight (Eq. 19); None looks at all weights."""
        if not self.weight_selection:
            return None
        return "median" if self.xi == "auto" and self.variant == "robust" else self.xi

    def _min_t_statistic(self) -> float:
        """The smallest t statistic with which a cluster is split; 0 asks for none."""
        if not isinstance(self.min_t_statistic, str):
            return self.min_t_statistic
        return _MIN_T_STATISTIC if self.variant == "robust" else 0.0

    def _quiet(self, problem: Problem, moved: HiCFLState, stability: Stability, diagnostics: Diagnostics) -> int:
        """The rounds without a split, after a round."""
        # Before the first split, a layer that is not stable yet may still turn out to have two sides.
        values = stability.values[stability.full_window]
        thresholds = self._thresholds(problem, moved.round, bool(moved.ending_round))
        stable = len(values) > 0 and bool((stability_of_cluster(values, thresholds.members) < thresholds.epsilon).all())
        begun = moved.rounds_without_split > 0 or moved.tree[0].split is not None or stable
        split = any(event["kind"] == "split" for event in diagnostics.events)
        return moved.rounds_without_split + 1 if begun and not split else 0

    def _examine(
        self, problem: Problem, state: HiCFLState, stability: Stability, answers: RoundAnswers, cluster: int
    ) -> SplitDecision:
        """Split a cluster by the most stable of its layers.

        It is often the first convolution, in which everyone points one way whatever the skew. So the robust variant
        takes the first stable layer in which the members have two sides.
        """
        round = state.round + 1
        node = state.tree[int(state.nodes[cluster])]
        ending = bool(state.ending_round)
        if ending and (self.ending == "reorganise" or (self.ending == "fine" and node.born >= state.ending_round)):
            return SplitDecision(Decision(kind="clustering_complete"))
        usable = answers.usable[cluster]
        thresholds = self._thresholds(problem, round, ending)
        stable = stability_trigger(problem, usable, stability, thresholds, problem.layout.conv_and_linear_mask)
        if stable[0].kind != MAY_SPLIT:
            return SplitDecision(stable[0])
        order = stability.values
        if self.reference == "random":
            drawn = torch.rand(len(order), generator=problem.generator(f"reference of node {node.id}", round))
            order = drawn[:, None].expand_as(order)
        decisions = list[SplitDecision]()
        for layer in stable if self.variant == "robust" else stable[:1]:
            decisions.append(self._split(problem, node.id, usable, order[usable.updates.clients], layer, ending))
            if decisions[-1].parts is not None:
                return decisions[-1]
        return decisions[0]

    def _split(
        self, problem: Problem, node: int, usable: Result, order: torch.Tensor, stable: Decision, ending: bool
    ) -> SplitDecision:
        """Split a cluster by the sign of the cosine to the member of smallest order (m, layers) in a stable layer."""
        # An ending asks for nothing of the two sides. Where all members point one way, the robust variant
        # goes on without their mean update: what is left points both ways.
        layout = problem.layout
        layer = str(stable.layer)
        clients = usable.updates.clients
        updates = usable.updates.take_columns(layout.columns(layout.select(layer))).values.double()
        order_in_layer = order[:, layout.layers.index(layer)]
        reference, together = reference_split(updates, order_in_layer)  # Eq. 17 and 18
        if ending and self.variant == "robust" and bool(together.all()):
            reference, together = reference_split(updates - updates.mean(dim=0), order_in_layer)
        values = {**stable.values, "reference": float(clients[reference])}
        if bool(together.all()):
            return SplitDecision(Decision(kind="same_direction", layer=layer, values=values))
        cosines = cosine(updates)
        cross_mean = float(cosines[together][:, ~together].mean())
        t_statistic = _t_statistic(cosines, together, reference)
        values |= {"with_reference": float(together.sum()), "without": float((~together).sum())}
        values |= {"cross_mean": cross_mean, "at_ending": float(ending)}
        if math.isfinite(t_statistic):
            values["t_statistic"] = t_statistic
        matrix = Matrix(node, layer, "dcos", clients, cosines)
        needed = 0.0 if ending else self._min_t_statistic()
        if needed and cross_mean >= 0:
            return SplitDecision(Decision(kind="sides_not_opposed", layer=layer, values=values), matrix=matrix)
        if needed and t_statistic < needed:
            values["min_t_statistic"] = needed
            return SplitDecision(Decision(kind="sides_not_distinct", layer=layer, values=values), matrix=matrix)
        parts = (clients[together], clients[~together])
        return SplitDecision(Decision(kind="split", layer=layer, values=values), parts, matrix)

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client joins the leaf of lowest training loss. Only for placing a client outside a round."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster. A pending client tries those of all leaves below its node."""
        return cluster_evaluation(problem, state, clients)

    def proposed_split(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[ProposedSplit, ...]:
        """How each cluster would be split by its stablest layer, from a full window on."""
        _, stability = add_updates(problem, state, state.window, report, self._xi(), self.signed)
        at_once = replace(self, variant="paper", epsilon=NEVER_REACHED, rho=1.0, eps2=0.0, min_t_statistic=0.0)
        before_ending = replace(state, ending_round=0)
        examine = partial(at_once._examine, problem, before_ending, stability)
        return proposed_splits(problem, before_ending, report, examine, stability.full_window)


def _t_statistic(cosines: torch.Tensor, together: torch.Tensor, reference: int) -> float:
    """Welch's t of the cosines on the reference's side against those across; infinite where there are few pairs."""
    # The sides are chosen by the sign of the cosine to the reference, and a sign is always found: when a model has
    # converged, the updates of identical clients add up to nothing and half of them point away from any one. So the
    # pairs with the reference itself do not count, those within must agree in the mean and those across must not.
    others = torch.arange(len(cosines)) != reference
    every = torch.ones_like(cosines, dtype=torch.bool).triu(diagonal=1)
    pairs = every & others[:, None] & others
    near = together[:, None] & together
    apart = together[:, None] != together
    within = cosines[pairs & near]
    across = cosines[pairs & apart]
    if min(len(within), len(across)) < _MIN_SCATTERED_PAIRS:
        # Too few to scatter: then they must agree closely, and the reference counts.
        same = cosines[every & near] if int(together.sum()) > 1 else cosines[every & ~near & ~apart]
        agree = not len(same) or bool(same.mean() >= _AGREEING_COSINE)
        return math.inf if agree and not bool(across.mean() >= 0) else -math.inf
    if bool((within.mean() <= 0) | (across.mean() >= 0)):
        return -math.inf
    error = (within.var() / len(within) + across.var() / len(across)).sqrt()
    return float((within.mean() - across.mean()) / error.clamp(min=STILL))


def reorganise(
    problem: Problem, before: State, after: HiCFLState, report: Report
) -> tuple[HiCFLState, tuple[Mapping[str, object], ...]]:
    """Let the larger of two clusters that moved alike take over the smaller, until no two may be merged.

    Section V-C, re-organising clusters. Nothing travels for it: the server has the models.

    Args:
        problem: What is fixed for the run.
        before: The state before a round in which clusters moved but none was split.
        after: The state after that round.
        report: The report of that round.

    Returns:
        The state with the clusters that remain, and an event for each that dissolved.
    """
    k = len(after.models)
    columns = problem.layout.conv_and_linear
    moves = (after.models.double() - before.models)[:, columns]
    members = [(after.labels == cluster).nonzero().flatten().tolist() for cluster in range(k)]
    weights = _cluster_weights(problem, after, report)
    models = after.models.double()
    remain = list(range(k))
    into = dict[int, int]()
    # Fewest members first; of equals, the one with the lowest member is the larger.
    while pair := _mergeable(sorted(remain, key=lambda c: (len(members[c]), -min(members[c], default=0))), moves):
        small, large = pair
        both = weights[small] + weights[large]
        share = weights[small] / both if both > 0 else torch.tensor(0.5, dtype=torch.float64)
        models[large] = torch.lerp(models[large], models[small], share)
        moves[large] = torch.lerp(moves[large], moves[small], share)
        weights[large] += weights[small]
        members[large] = sorted(members[large] + members[small])
        remain.remove(small)
        into[small] = large
    nodes = after.nodes.tolist()
    merges = {nodes[small]: nodes[large] for small, large in into.items()}
    merged = _without(replace(after, models=models.float()), remain, members, merges)
    return merged, tuple({"kind": "dissolve", "node": small, "into": [large]} for small, large in merges.items())


def _cluster_weights(problem: Problem, after: HiCFLState, report: Report) -> torch.Tensor:
    """How much each cluster weighs when it is merged, (k,) float64: the samples of its members that answered."""
    result = report.results[TRAIN]
    labels = after.labels[result.updates.clients]
    return problem.aggregation.cluster_weights(result.sizes, labels, len(after.models), after.labels)


def _mergeable(ascending: list[int], moves: torch.Tensor) -> tuple[int, int] | None:
    """The first cluster, from the smallest on, that may be merged, and the larger one that takes it over."""
    cosines = cosine(moves)
    for place, one in enumerate(ascending):
        for other in sorted(ascending[place + 1 :], key=lambda c: -float(cosines[one, c])):
            conflict = any(cosines[one, c] * cosines[other, c] < 0 for c in ascending if c not in (one, other))
            if cosines[one, other] > 0 and not conflict:
                return one, other
    return None


def _without(state: HiCFLState, remain: list[int], members: list[list[int]], merges: Mapping[int, int]) -> HiCFLState:
    """The state in which only some clusters remain, with the members of every cluster and who took over whom."""
    kept = torch.tensor(remain)
    reasons = {node: Decision(kind="merged", values={"into": float(other)}) for node, other in merges.items()}
    tree, nodes = with_children(with_decisions(state.tree, reasons), state.nodes[kept].tolist(), state.round)
    labels = torch.full_like(state.labels, -1)
    for place, cluster in enumerate(remain):
        labels[members[cluster]] = place
    waiting = [nearest_open_ancestor(tree, node) if node >= 0 else -1 for node in state.waiting.tolist()]
    known = state.bipartition
    return replace(
        state,
        models=state.models[kept],
        labels=labels,
        nodes=torch.tensor(nodes),
        waiting=torch.tensor(waiting),
        tree=with_members(tree, {node: members[cluster] for node, cluster in zip(nodes, remain, strict=True)}),
        bipartition=BipartitionState(
            known.max_norms[kept], known.max_compared_norms[kept], known.final[kept], labels.clone()
        ),
    )
