"""Split a cluster around its most stable member as soon as one layer of its members is stable.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, section IV; the endings are from section V-C.

Eq. 12 to 14 are `clustering.similarity.stability`. Eq. 15 is here, in `HiCFL.timing`. Eq. 17 and 18 are
`clustering.separation.reference_split`, and Eq. 19 is in `bipartition.model_stability`. Steps 1 to 3 are FedAvg's:
`plan` and local training (`core.standard_round`, `engine`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.bipartition.model_stability import (
    Stability,
    UpdateWindow,
    add_updates,
    empty_window,
    moving_layers,
    stability_threshold,
)
from fedstrata.algorithms.bipartition.round import (
    SplitDecision,
    collect_answers,
    max_norm,
    mean_norm,
    split_and_average,
)
from fedstrata.algorithms.keys import STRICT, AtLeastTwo, Auto, NonNegative, PositiveInteger, Window
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import bipartition, cosine, reference_split
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    TRAIN,
    Algorithm,
    Decision,
    Diagnostics,
    Matrix,
    Problem,
    Report,
    Result,
    State,
    extend_state,
    initial_state,
)
from fedstrata.core.standard_round import with_clusters

MAY_SPLIT = "may_split"
"""The kind of the decision about the time of a split when a cluster may be split now."""


@dataclass(frozen=True)
class HiCFLState(State):
    """What HiCFL remembers.

    Attributes:
        window: The last uploads of every client.
        rounds_without_split: The rounds since the last split; before the first, since every layer was stable.
        ending_round: The round in which the ending began; 0 before it.
    """

    window: UpdateWindow
    rounds_without_split: int
    ending_round: int


@validated_dataclass(frozen=True, config=STRICT)
class HiCFL(Algorithm[HiCFLState]):
    """HiCFL: recursive splits by the sign of the cosine to the most stable client, timed by model stability.

    Not in the paper: a cluster is examined by the usable answers of its members in this round, if there are enough
    (quorum, min_split). An answer is usable if its client has filled a window since it came to the cluster. A window
    holds a client's own last answers, however far apart. A pending client belongs to no cluster now; at its next answer
    it joins one: of the leaves below the node where it is pending, the one whose model has the lowest training loss.
    Members without a usable answer when their cluster was split are pending at its node, and newcomers at the root.

    Attributes:
        epsilon: The S below which a layer is stable (Eq. 15). Small S is stable. "auto" is half the step size, as in
            section V-A.
        xi: How much an update must change in a weight for stability to look at the weight (Eq. 19). "auto" is a
            twentieth of the step size, as in section V-A. Where no weight of a layer changes so much, it looks at all.
        ending: What happens after `patience` rounds without a split. "none" is nothing. "fine" splits each cluster once
            more. "personal" splits until each cluster has one client, or fewer than `min_split`; members that all point
            to one side are split by complete linkage of their cosines, for which the paper has no rule. These two
            ignore epsilon, rho and eps2. "reorganise" merges clusters that move alike.
        window: The number of a client's last uploads (W) by which stability is measured, the mean of W - 2 values of S.
            With 3 it is a single S, which sections IV-B and IV-E exclude: they average several. With 4, four clusters
            would take 8 rounds, because a window starts anew after a split; the paper has 7 (Table III).
        rho: If |mean update| / (largest |update|) is at least rho, the members agree and the cluster is not split. That
            is our reading of "consistent" norms. It cannot end the splitting: the ratio of clients that are alike tends
            to 0 as their model converges.
        eps2: If the largest norm of an update is below eps2, the members have converged and the cluster is not split
            (Sattler et al., whom the paper follows here). That ends the splitting; 0 is off. The paper names no number.
        patience: The number of rounds without a split after which the clustering is complete. They count from the first
            split on, or from the round in which every layer is stable without one. So a slow first split is waited for.
        quorum: The share of the members asked in a round whose answers must be usable for a cluster to be examined.
        min_split: The smallest number of usable answers with which a cluster is examined.
    """

    source: ClassVar[str] = "Gong et al., IEEE TMC 2024"

    epsilon: NonNegative | Auto = "auto"
    xi: NonNegative | Auto = "auto"
    ending: Literal["none", "fine", "personal", "reorganise"] = "none"
    window: Window = 3
    # Not in the paper.
    rho: Share = 0.8
    eps2: NonNegative = 0.0
    patience: PositiveInteger = 10
    quorum: Share = 0.5
    min_split: AtLeastTwo = 2

    def init(self, problem: Problem) -> HiCFLState:
        """Everyone in one cluster."""
        return extend_state(
            initial_state(problem),
            HiCFLState,
            window=empty_window(problem, self.window),
            rounds_without_split=0,
            ending_round=0,
        )

    def update(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[HiCFLState, Diagnostics]:
        """Measure stability, split, then average (Steps 5, 6, 4): a new cluster moves by its own members only."""
        round = state.round + 1
        window, stability = add_updates(problem, state, state.window, report, self.xi)  # Eq. 12 to 14, and 19
        ending_round = state.ending_round
        if self.ending != "none" and not ending_round and state.rounds_without_split >= self.patience:
            ending_round = round
        state = replace(state, window=window, ending_round=ending_round)

        ready = stability.full_window
        answers = collect_answers(state, report, quorum=self.quorum, min_split=self.min_split, ready=ready)
        decisions = {
            cluster: self.examine(problem, state, stability, members, cluster)
            for cluster, members in answers.usable.items()
        }
        moved, diagnostics = split_and_average(problem, state, report, answers, decisions)

        if self.ending == "reorganise" and ending_round == round:
            moved = reorganise(problem, state, moved, report)
        moved = replace(moved, rounds_without_split=self._rounds_without_split(problem, moved, stability, decisions))
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, *stability.metrics))

    def examine(
        self, problem: Problem, state: HiCFLState, stability: Stability, members: Result, cluster: int
    ) -> SplitDecision:
        """Section IV-B for one cluster, given the usable answers of its members: is it time, and who goes where?"""
        node = state.tree[int(state.nodes[cluster])]
        ending = bool(state.ending_round)
        if ending and (self.ending == "reorganise" or (self.ending == "fine" and node.born >= state.ending_round)):
            return SplitDecision(Decision(kind="clustering_complete"))
        timing = self.timing(problem, state, stability, members, ending=ending)
        if timing.kind != MAY_SPLIT:
            return SplitDecision(timing)

        # The most stable member is the reference. Who points to its side stays with it, the others leave.
        layout = problem.layout
        layer = str(timing.layer)
        clients = members.updates.clients
        updates = members.updates.take_columns(layout.columns(layout.select(layer))).values
        by_layer = self.reference_stability(problem, state, stability, cluster)
        reference, together = reference_split(updates, by_layer[clients, layout.layers.index(layer)])  # Eq. 17 and 18
        values = {**timing.values, "reference": float(clients[reference])}
        cosines = cosine(updates)  # The split by Eq. 18 needs its row of the reference; the others are only recorded.
        if bool(together.all()) and ending and self.ending == "personal":
            sides = bipartition(cosines, linkage="complete")
            together = sides == sides[reference]
        if bool(together.all()):
            return SplitDecision(Decision(kind="same_direction", layer=layer, values=values))
        values |= {"with_reference": float(together.sum()), "without": float((~together).sum())}
        values |= {"cross_mean": float(cosines[together][:, ~together].mean()), "at_ending": float(ending)}
        parts = (clients[together], clients[~together])
        matrix = Matrix(node.id, layer, "dcos", clients, cosines)
        return SplitDecision(Decision(kind="split", layer=layer, values=values), parts, matrix)

    def timing(
        self, problem: Problem, state: State, stability: Stability, members: Result, *, ending: bool = False
    ) -> Decision:
        """Whether a cluster may be split now: one of its layers is stable, and its members do not agree.

        Args:
            problem: What is fixed for the run.
            state: The state before the round.
            stability: How unsteadily the updates of every client turn.
            members: The usable answers of its members.
            ending: Whether the clustering is complete, so that every layer counts as stable and no members agree.

        Returns:
            A decision about the most stable layer, or if none is stable the one that is nearest to it. Its kind is
            `MAY_SPLIT`, "no_stable_layer", "members_agree" or "members_converged".
        """
        epsilon = math.inf if ending else stability_threshold(problem, state.round + 1, self.epsilon)
        rho, eps2 = (math.inf, 0.0) if ending else (self.rho, self.eps2)
        values = stability.values[members.updates.clients]
        means = values.mean(dim=0)
        decisive = self.stability_of_members(values)
        # A layer that nobody moves, frozen or dead, has the stability 0, but says nothing about anybody.
        layers = moving_layers(problem, members.updates) or list(range(len(problem.layout.layers)))
        stable = [place for place in layers if decisive[place] < epsilon]  # Eq. 15
        # The paper: the layer that is stable first. Of several, the one with the smallest mean.
        chosen = min(stable or layers, key=lambda place: float((means if stable else decisive)[place]))
        # Section IV-B ends clustering once the norms of all clients are "consistent", undefined. Here a cluster waits.
        mean = mean_norm(problem, members)  # Delta_ave
        largest = max_norm(members.updates.take_columns(problem.layout.conv_and_linear).values)  # Delta_max
        ratio = mean / largest if largest > STILL else 1.0  # Members none of whom moves agree.
        kind = "no_stable_layer"
        if stable:
            kind = "members_agree" if ratio >= rho else "members_converged" if largest < eps2 else MAY_SPLIT
        seen = {
            "stability": float(means[chosen]),
            "max_stability": float(values[:, chosen].max()),
            "epsilon": epsilon,
            "every_member": float(not ending),  # 0 where Eq. 15 is not asked: at the ending, and in variants.py.
            "mean_norm": mean,
            "max_norm": largest,
            "ratio": ratio,
            "rho": rho,
            "eps2": eps2,
        }
        return Decision(kind=kind, layer=problem.layout.layers[chosen], values=seen)

    # The next two are overridden in experiments/papers/variants.py (Figures 4 and 10).
    def stability_of_members(self, values: torch.Tensor) -> torch.Tensor:
        """What must be below epsilon in each layer, (layers,): the largest S (m, layers) over the members (Eq. 15)."""
        return values.amax(dim=0)

    def reference_stability(self, problem: Problem, state: State, stability: Stability, cluster: int) -> torch.Tensor:
        """The reference of a cluster has the smallest value in a layer, (n, layers) (Eq. 17)."""
        return stability.values

    def _rounds_without_split(
        self, problem: Problem, moved: HiCFLState, stability: Stability, decisions: Mapping[int, SplitDecision]
    ) -> int:
        """The rounds without a split, after a round; `moved` has the count before it."""
        # The paper has no count. Before the first split, a layer that is not stable yet may still have two sides.
        values = stability.values[stability.full_window]
        epsilon = stability_threshold(problem, moved.round, self.epsilon)
        stable = len(values) > 0 and bool((self.stability_of_members(values) < epsilon).all())
        begun = moved.rounds_without_split > 0 or moved.tree[0].split is not None or stable
        split = any(decision.parts is not None for decision in decisions.values())
        return moved.rounds_without_split + 1 if begun and not split else 0


def reorganise(problem: Problem, before: State, after: HiCFLState, report: Report) -> HiCFLState:
    """Let the larger of two clusters that moved alike take over the smaller, until no two may be merged.

    Section V-C, re-organising clusters. Nothing travels for it: the server has the models.

    Args:
        problem: What is fixed for the run.
        before: The state before a round in which clusters moved but none was split.
        after: The state after that round.
        report: The report of that round.

    Returns:
        The state with the clusters that remain.
    """
    k = len(after.models)
    moves = (after.models.double() - before.models)[:, problem.layout.conv_and_linear]
    models = after.models.double()
    members = [(after.labels == cluster).nonzero().flatten().tolist() for cluster in range(k)]
    # A cluster weighs as many samples as its members that answered have; with noise, where nobody is to see who
    # answered, as many as it has members.
    result = report.results[TRAIN]
    weights = torch.tensor([float(len(each)) for each in members], dtype=torch.float64)
    if problem.aggregation.exact:
        answered = after.labels[result.updates.clients]
        weights = torch.zeros_like(weights).index_add(0, answered, result.sizes.double())
    remain = list(range(k))
    into = dict[int, int]()
    # Fewest members first; of equals, the one with the lowest member is the larger.
    while pair := _mergeable(sorted(remain, key=lambda c: (len(members[c]), -min(members[c], default=0))), moves):
        small, large = pair
        both = weights[small] + weights[large]
        share = weights[small] / both if both > 0 else torch.tensor(0.5, dtype=torch.float64)
        # The paper does not say what model a merged cluster has; here it is the mean, weighted by samples.
        models[large] = torch.lerp(models[large], models[small], share)
        moves[large] = torch.lerp(moves[large], moves[small], share)
        weights[large] += weights[small]
        members[large] += members[small]
        remain.remove(small)
        into[small] = large

    nodes = after.nodes.tolist()
    labels = torch.full_like(after.labels, -1)
    for label, cluster in enumerate(remain):
        labels[members[cluster]] = label
    merges = {small: Decision(kind="merged", values={"into": float(nodes[large])}) for small, large in into.items()}
    return with_clusters(replace(after, models=models.float()), labels, torch.tensor(remain), merges, round=after.round)


def _mergeable(ascending: list[int], moves: torch.Tensor) -> tuple[int, int] | None:
    """The smallest cluster that may be merged by rules 1 to 3 of section V-C, and the one that takes it over."""
    cosines = cosine(moves)
    for place, one in enumerate(ascending):
        for other in sorted(ascending[place + 1 :], key=lambda c: -float(cosines[one, c])):
            # Conflict: a third cluster that moves like one and against the other.
            conflict = any(cosines[one, c] * cosines[other, c] < 0 for c in ascending if c not in (one, other))
            if cosines[one, other] > 0 and not conflict:
                return one, other
    return None
