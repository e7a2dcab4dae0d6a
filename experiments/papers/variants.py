"""What exhibits and comparisons run beside LayerCFL, CFL and HiCFL as their papers have them.

An experiment names a variant by its import path: ``algorithm.name = "experiments.papers.variants:MeanOfMembers"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.bipartition.model_stability import Stability, UpdateWindow, add_updates, empty_window
from fedstrata.algorithms.bipartition.round import SplitDecision, collect_answers
from fedstrata.algorithms.hicfl import MAY_SPLIT, HiCFL, HiCFLState
from fedstrata.algorithms.keys import STRICT, AtLeastTwo, Auto, Gamma, NonNegative, Window
from fedstrata.algorithms.layercfl import LayerCFL, LayerCFLState, no_updates_yet, split_and_remember, with_answers
from fedstrata.base.limits import Share
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Layout,
    Metric,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    State,
    assign_pending,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)

from .measures import overlap

NEVER_REACHED = 1e9
"""A threshold that no norm and no stability reaches."""

TOP_SHARE = 0.05
"""The share of a layer's weights that count as unstable. By chance, two such choices have a Jaccard index of 0.026."""


@validated_dataclass(frozen=True, config=STRICT)
class RetryingLayerCFL(LayerCFL):
    """LayerCFL that examines a cluster again in the next round after Theorem 1 refused a split, as CFL does."""

    def examine(self, problem: Problem, state: LayerCFLState, answered: Result, cluster: int) -> SplitDecision:
        """Algorithm 2 for one cluster, which Theorem 1 does not end."""
        decision = super().examine(problem, state, answered, cluster)
        return replace(decision, final=decision.final and decision.reason.kind != "theorem_1_not_met")


@validated_dataclass(frozen=True, config=STRICT)
class MeanOfMembers(HiCFL):
    """HiCFL that asks a layer to be stable in the mean of the members, which the paper's Figure 4 shows."""

    def timing(
        self, problem: Problem, state: State, stability: Stability, members: Result, *, ending: bool = False
    ) -> Decision:
        """Whether a cluster may be split now."""
        decision = super().timing(problem, state, stability, members, ending=ending)
        return replace(decision, values={**decision.values, "every_member": 0.0})

    def stability_of_members(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of the members, (layers,), of their stability (m, layers)."""
        return values.mean(dim=0)


@validated_dataclass(frozen=True, config=STRICT)
class RandomReference(HiCFL):
    """HiCFL with a random client as the reference of each cluster (Figure 10)."""

    def reference_stability(self, problem: Problem, state: State, stability: Stability, cluster: int) -> torch.Tensor:
        """A random number for each client, the same in all layers, (n, layers)."""
        stream = f"reference of node {int(state.nodes[cluster])}"
        drawn = torch.rand(len(stability.values), generator=problem.generator(stream, state.round + 1))
        return drawn[:, None].expand_as(stability.values)


@validated_dataclass(frozen=True, config=STRICT)
class WatchedHiCFL(HiCFL):
    """HiCFL that records how right its splits would be in every round, and whether the same weights stay unstable.

    The metric "bipartition_accuracy" of a cluster is that of Table IV, "overlap" of a layer that of Figure 6.
    """

    def update(self, problem: Problem, state: HiCFLState, report: Report) -> tuple[HiCFLState, Diagnostics]:
        """The round of HiCFL, with these metrics."""
        moved, diagnostics = super().update(problem, state, report)
        seen = [
            *self._bipartitions(problem, state, report),
            *overlaps(problem.layout, state.window, report.results[TRAIN].updates),
        ]
        return moved, replace(diagnostics, metrics=(*diagnostics.metrics, *seen))

    def _bipartitions(self, problem: Problem, state: HiCFLState, report: Report) -> list[Metric]:
        """How right each cluster would be divided by its stablest layer, whether or not a split is due."""
        if problem.truth is None:
            return []
        _, stability = add_updates(problem, state, state.window, report, self.xi)
        at_once = replace(self, epsilon=NEVER_REACHED, rho=1.0)  # A key cannot be infinite.
        before = replace(state, ending_round=0)
        answers = collect_answers(before, report, ready=stability.full_window)
        found = list[Metric]()
        for cluster, members in answers.usable.items():
            decision = at_once.examine(problem, before, stability, members, cluster)
            if decision.reason.kind in ("split", "same_direction"):
                clients = members.updates.clients
                first, second = decision.parts or (clients, clients[:0])
                on_second = np.arange(len(clients)) >= len(first)
                accuracy = bipartition_accuracy(on_second, problem.truth[torch.cat([first, second])].numpy())
                if not math.isnan(accuracy):
                    found.append(Metric("bipartition_accuracy", accuracy, int(state.nodes[cluster])))
        return found


def bipartition_accuracy(second: NDArray[np.bool_], truth: NDArray[np.int64]) -> float:
    """Share of clients on the right side of a bipartition: HiCFL's accuracy of clustering (Table IV).

    Each true group has a right side, and both sides are the right one of some group. Of all ways to choose them, that
    with the largest share counts; with two groups, the better of both labellings.

    Args:
        second: Whether each client is on the second side, (m,).
        truth: The true group of each client, (m,).

    Returns:
        The share, in [0, 1]; nan where all clients are of one group, which no bipartition divides rightly.
    """
    groups = np.unique(truth, return_inverse=True)[1]
    on_second = np.bincount(groups, weights=second)
    on_first = np.bincount(groups) - on_second
    if len(on_first) < 2:
        return math.nan
    agreeing = np.maximum(on_first, on_second).sum()
    # Where one side would be right for every group, the group that loses least goes to the other side.
    loss = np.abs(on_first - on_second)
    if (on_first > on_second).all() or (on_second > on_first).all():
        agreeing -= loss.min()
    return float(agreeing / len(truth))


def overlaps(layout: Layout, window: UpdateWindow, updates: Rows) -> list[Metric]:
    """How far the weights of each layer that change most are those of the round before, as a Jaccard index.

    Args:
        layout: The tensors of the network.
        window: The last uploads of each client before the round.
        updates: Those of the round.

    Returns:
        The mean over the clients with two earlier uploads, for each layer; nothing where there is no such client.
    """
    clients = updates.clients[window.counts[updates.clients] > 1].sort().values
    if not len(clients):
        return []
    now = updates.of(clients)[:, layout.conv_and_linear]
    last, before = window.uploads[clients, -1], window.uploads[clients, -2]
    found = list[Metric]()
    for layer in layout.layers:
        own = torch.isin(layout.conv_and_linear, layout.columns(layout.select(layer)))
        again = overlap(unstable(now[:, own], last[:, own]), unstable(last[:, own], before[:, own]))
        found.append(Metric("overlap", again, layer=layer))
    return found


def unstable(updates: torch.Tensor, before: torch.Tensor) -> NDArray[np.int64]:
    """The places of the twentieth of the weights, rounded up, that changed most between two uploads (m, w), (m, t)."""
    change = (updates - before).abs()
    count = math.ceil(TOP_SHARE * change.shape[1])
    places: NDArray[np.int64] = change.argsort(dim=1, descending=True, stable=True)[:, :count].numpy()
    return places


@dataclass(frozen=True)
class StableCFLState(LayerCFLState):
    """The state of CFL, and the last uploads of every client."""

    window: UpdateWindow


@validated_dataclass(frozen=True, config=STRICT)
class StableCFL:
    """CFL that splits as soon as a layer is stable: "MTCFL with model stability" (HiCFL, Table V).

    Attributes:
        epsilon: As in `HiCFL`.
        xi: As in `HiCFL`.
        window: As in `HiCFL`.
        rho: As in `HiCFL`.
        members: Whether a layer must be stable in each of the members (Eq. 15), or in their mean.
        gamma: As in `CFL`.
        linkage: As in `CFL`.
        quorum: As in `CFL`.
        min_split: As in `CFL`.
    """

    source: ClassVar[str] = "Gong et al., IEEE TMC 2024"

    epsilon: NonNegative | Auto = "auto"
    xi: NonNegative | Auto = "auto"
    window: Window = 3
    rho: Share = 0.8
    members: Literal["each", "mean"] = "each"
    gamma: Gamma = 0.5
    linkage: Linkage = "single"
    quorum: Share = 0.5
    min_split: AtLeastTwo = 3

    def init(self, problem: Problem) -> StableCFLState:
        """Everyone in one cluster."""
        history = no_updates_yet(problem.clients)
        window = empty_window(problem, self.window)
        return extend_state(initial_state(problem), StableCFLState, cluster_history=history, window=window)

    def plan(self, problem: Problem, state: StableCFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster."""
        return fedavg_plan(problem, state, cohort)

    def update(self, problem: Problem, state: StableCFLState, report: Report) -> tuple[StableCFLState, Diagnostics]:
        """HiCFL's time for a split, CFL's two parts, then the average."""
        window, stability = add_updates(problem, state, state.window, report, self.xi)
        columns = problem.layout.conv_and_linear
        ready = stability.full_window
        state, answers = with_answers(
            problem, state, report, columns, quorum=self.quorum, min_split=self.min_split, ready=ready
        )
        hicfl = (MeanOfMembers if self.members == "mean" else HiCFL)(epsilon=self.epsilon, rho=self.rho)
        cfl = LayerCFL(eps1=NEVER_REACHED, eps2=0.0, gamma=self.gamma, linkage=self.linkage)
        decisions = dict[int, SplitDecision]()
        for cluster, members in answers.usable.items():
            timing = hicfl.timing(problem, state, stability, members)
            decisions[cluster] = SplitDecision(timing)
            if timing.kind == MAY_SPLIT:
                decision = cfl.examine(problem, state, members, cluster)
                reason = replace(decision.reason, values={**decision.reason.values, **timing.values})
                decisions[cluster] = replace(decision, reason=reason, final=False)
        moved, diagnostics = split_and_remember(problem, state, report, answers, decisions)
        metrics = (*diagnostics.metrics, *stability.metrics)
        return replace(moved, window=window), replace(diagnostics, metrics=metrics)

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client joins the leaf of lowest training loss."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)
