"""Split a cluster around its most stable member as soon as one layer of its members is stable.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, section IV; the endings are from section V-C.
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
    EVERY_PAIR,
    NEVER_REACHED,
    BipartitionState,
    SplitDecision,
    SplitRules,
    collect_answers,
    max_norm,
    mean_norm,
    one_cluster,
    proposed_splits,
    reopened,
    split_and_average,
)
from fedstrata.algorithms.keys import STRICT, AtLeastTwo, Auto, Norm, PositiveInteger, Window
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import cosine, reference_split
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    TRAIN,
    Algorithm,
    Decision,
    Diagnostics,
    Matrix,
    Problem,
    ProposedSplit,
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
class HiCFLState(BipartitionState):
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

    A cluster is examined by the usable answers of its members in this round, if there are enough (quorum, min_split).
    An answer is usable if its client has filled a window since it came to the cluster. A window holds a client's own
    last answers, however far apart. A pending client belongs to no cluster now; at its next answer it joins one: of the
    leaves below the node where it is pending, the one whose model has the lowest training loss. Members without a
    usable answer when their cluster was split are pending at its node, and newcomers at the root.

    Attributes:
        epsilon: The stability below which a layer is stable. "auto" is half the step size.
        xi: How much an update must change in a weight for stability to look at the weight. "auto" is a twentieth of the
            step size. Where no weight of a layer changes so much, stability looks at all of them.
        window: The number of uploads over which the stability of a client is averaged (W).
        rho: If |mean update| / (largest |update|) is at least rho, the members agree and the cluster is not split.
        ending: What happens after `patience` rounds without a split. "none" is nothing. "fine" splits each cluster once
            more. "personal" splits until no cluster has members on two sides. "reorganise" merges clusters that move
            alike.
        patience: The number of rounds without a split after which the clustering is complete. They count from the first
            split on, or from the round in which every layer is stable without one. So a slow first split is waited for.
        quorum: The share of the members asked in a round whose answers must be usable for a cluster to be examined.
        min_split: The smallest number of usable answers with which a cluster is examined.
    """

    source: ClassVar[str] = "Gong et al., IEEE TMC 2024"

    epsilon: Norm | Auto = "auto"
    xi: Norm | Auto = "auto"
    window: Window = 3
    rho: Share = 0.8
    ending: Literal["none", "fine", "personal", "reorganise"] = "none"
    patience: PositiveInteger = 10
    # Not in the paper.
    quorum: Share = 0.5
    min_split: AtLeastTwo = 2

    def init(self, problem: Problem) -> HiCFLState:
        """Everyone in one cluster."""
        return extend_state(
            initial_state(problem),
            HiCFLState,
            bipartition=one_cluster(problem.clients),
            window=empty_window(problem, self.window),
            rounds_without_split=0,
            ending_round=0,
        )

    def update(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[HiCFLState, Diagnostics]:
        """Measure stability, split every cluster whose time has come, then average."""
        round = state.round + 1
        window, stability = add_updates(problem, state, state.window, report, self.xi)  # Eq. 12 to 14, and 19
        ending_round = state.ending_round
        if self.ending != "none" and not ending_round and state.rounds_without_split >= self.patience:
            ending_round = round
        state = replace(state, window=window, ending_round=ending_round)

        rules = SplitRules(1, self.quorum, self.min_split)
        columns = problem.layout.conv_and_linear
        answers = collect_answers(problem, state, report, columns, rules, stability.full_window)
        decisions = {
            cluster: self.examine(problem, state, stability, members, cluster)
            for cluster, members in answers.usable.items()
        }
        moved, diagnostics = split_and_average(problem, state, report, answers, decisions)

        if self.ending == "reorganise" and ending_round == round:
            moved = reorganise(problem, state, moved, report)
        moved = replace(moved, rounds_without_split=self._quiet_rounds(problem, moved, stability, decisions))
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
        updates = members.updates.take_columns(layout.columns(layout.select(layer))).values.double()
        steadiness = self.steadiness(problem, state, stability, cluster)[clients, layout.layers.index(layer)]
        reference, together = reference_split(updates, steadiness)  # Eq. 17 and 18
        values = {**timing.values, "reference": float(clients[reference])}
        if bool(together.all()):
            return SplitDecision(Decision(kind="same_direction", layer=layer, values=values))
        cosines = cosine(updates)
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
            stability: How much the updates of every client still turn.
            members: The usable answers of its members.
            ending: Whether the clustering is complete, so that every layer counts as stable and no members agree.

        Returns:
            A decision about the most stable layer, or if none is stable the one that is nearest to it. Its kind is
            `MAY_SPLIT`, "no_stable_layer" or "members_agree".
        """
        epsilon = math.inf if ending else stability_threshold(problem, state.round + 1, self.epsilon)
        rho = math.inf if ending else self.rho
        values = stability.values[members.updates.clients]
        means = values.mean(dim=0)
        least = self.stability_of_members(values)
        # A layer that nobody moves, frozen or dead, has the stability 0, but says nothing about anybody.
        layers = moving_layers(problem, members.updates) or list(range(len(problem.layout.layers)))
        stable = [place for place in layers if least[place] < epsilon]  # Eq. 15
        chosen = min(stable or layers, key=lambda place: float((means if stable else least)[place]))
        mean = mean_norm(problem, members)
        largest = max_norm(members.updates.take_columns(problem.layout.conv_and_linear).values)
        ratio = mean / largest if largest > STILL else 1.0  # Members none of whom moves agree.
        kind = "no_stable_layer"
        if stable:
            kind = "members_agree" if ratio >= rho else MAY_SPLIT
        seen = {
            "stability": float(means[chosen]),
            "max_stability": float(values[:, chosen].max()),
            "epsilon": epsilon,
            "every_member": float(not ending),
            "mean_norm": mean,
            "max_norm": largest,
            "ratio": ratio,
            "rho": rho,
        }
        return Decision(kind=kind, layer=problem.layout.layers[chosen], values=seen)

    def stability_of_members(self, values: torch.Tensor) -> torch.Tensor:
        """What must be below epsilon in a layer, (layers,): the stability (m, layers) of every member (Eq. 15)."""
        return values.amax(dim=0)

    def steadiness(self, problem: Problem, state: State, stability: Stability, cluster: int) -> torch.Tensor:
        """By what the reference of a cluster is chosen, (n, layers): it has the smallest value in a layer (Eq. 17)."""
        return stability.values

    def _quiet_rounds(
        self, problem: Problem, moved: HiCFLState, stability: Stability, decisions: Mapping[int, SplitDecision]
    ) -> int:
        """The rounds without a split, after a round."""
        # Before the first split, a layer that is not stable yet may still turn out to have two sides.
        values = stability.values[stability.full_window]
        epsilon = stability_threshold(problem, moved.round, self.epsilon)
        stable = len(values) > 0 and bool((self.stability_of_members(values) < epsilon).all())
        begun = moved.rounds_without_split > 0 or moved.tree[0].split is not None or stable
        split = any(decision.parts is not None for decision in decisions.values())
        return moved.rounds_without_split + 1 if begun and not split else 0

    def proposed_split(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[ProposedSplit, ...]:
        """How each cluster would be split by its stablest layer, from a full window on."""
        _, stability = add_updates(problem, state, state.window, report, self.xi)
        at_once = replace(self, epsilon=NEVER_REACHED, rho=1.0)
        before = replace(reopened(state), ending_round=0)
        columns = problem.layout.conv_and_linear
        answers = collect_answers(problem, before, report, columns, EVERY_PAIR, stability.full_window)
        decisions = {
            cluster: at_once.examine(problem, before, stability, members, cluster)
            for cluster, members in answers.usable.items()
        }
        return proposed_splits(before, answers, decisions)


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
    # A cluster weighs as many samples as its members that answered have.
    result = report.results[TRAIN]
    answered = after.labels[result.updates.clients]
    weights = problem.aggregation.cluster_weights(result.sizes, answered, k, after.labels)
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
        members[large] += members[small]
        remain.remove(small)
        into[small] = large

    nodes = after.nodes.tolist()
    labels = torch.full_like(after.labels, -1)
    for label, cluster in enumerate(remain):
        labels[members[cluster]] = label
    kept = torch.tensor(remain)
    merges = {small: Decision(kind="merged", values={"into": float(nodes[large])}) for small, large in into.items()}
    merged = with_clusters(replace(after, models=models.float()), labels, kept, merges, round=after.round)
    return replace(merged, bipartition=after.bipartition.of_clusters(kept, labels))


def _mergeable(ascending: list[int], moves: torch.Tensor) -> tuple[int, int] | None:
    """The first cluster, from the smallest on, that may be merged, and the larger one that takes it over."""
    cosines = cosine(moves)
    for place, one in enumerate(ascending):
        for other in sorted(ascending[place + 1 :], key=lambda c: -float(cosines[one, c])):
            conflict = any(cosines[one, c] * cosines[other, c] < 0 for c in ascending if c not in (one, other))
            if cosines[one, other] > 0 and not conflict:
                return one, other
    return None
