"""What exhibits and comparisons run beside LayerCFL, CFL and HiCFL as their papers have them.

An experiment names a variant by its import path: ``algorithm.name = "experiments.papers.variants:MeanOfMembers"``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.bipartition.model_stability import Stability, UpdateWindow, add_updates, empty_window
from fedstrata.algorithms.bipartition.round import NEVER_REACHED, SplitDecision
from fedstrata.algorithms.hicfl import MAY_SPLIT, HiCFL
from fedstrata.algorithms.keys import STRICT, AtLeastTwo, Auto, Gamma, NonNegative, Window
from fedstrata.algorithms.layercfl import LayerCFL, LayerCFLState, no_updates_yet, split_and_remember, with_answers
from fedstrata.base.limits import Share
from fedstrata.clustering.hierarchy import Linkage
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
    extend_state,
    fedavg_plan,
    initial_state,
)


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
class RandomReference(MeanOfMembers):
    """The same with a random client as the reference of each cluster (Figure 10)."""

    def reference_stability(self, problem: Problem, state: State, stability: Stability, cluster: int) -> torch.Tensor:
        """A random number for each client, the same in all layers, (n, layers)."""
        stream = f"reference of node {int(state.nodes[cluster])}"
        drawn = torch.rand(len(stability.values), generator=problem.generator(stream, state.round + 1))
        return drawn[:, None].expand_as(stability.values)


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
