"""Cluster anew whenever predictions tend to cluster: by what models say, then by weights; and share ever fewer layers.

Zhu, Fan, Xie, "Federated two stage decoupling with adaptive personalization layers", Complex & Intelligent Systems
2024, Algorithm 1. The server needs unlabelled samples. A tensor is personal or shared: fractions of
rows are not offered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Norm, Share
from fedstrata.algorithms.parts.tsdp.decoupling import Decoupled, Decoupling
from fedstrata.algorithms.parts.tsdp.layering import above
from fedstrata.algorithms.parts.tsdp.regrouping import regroup, restarted
from fedstrata.algorithms.parts.tsdp.sampling import Part, Sampled, amended, infer, tendency, unamended
from fedstrata.core import (
    Decision,
    Diagnostics,
    Evaluation,
    Mask,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FedTSDP:
    """FedTSDP: two clusterings when the Hopkins statistic asks for them, and personal layers that grow in number.

    Only clients that answered are clustered, three at least. The others keep their cluster while one goes on from it;
    if several do they wait at its node, and with their next answer they join the one of lowest training loss. So do
    newcomers, who wait at the root; what is personal they start from the received model, others from their own last.

    Attributes:
        radius1: epsilon of the first stage, nats of Jensen-Shannon divergence.
        radius2: epsilon of the second stage, a distance of models (the paper's CNN: 3.5); auto is twice the median
            distance to the nearest other client of the first-stage group.
        least: clients within the radius, itself counted, that make a client dense (min_pts).
        threshold: Hopkins statistic above which clients are clustered (h_th).
        sample: share of the clients that the statistic is taken from (m~); of all, it hardly depends on the draw.
        confirm: whether a clustering that leaves everyone in one cluster counts as none: no layer becomes personal and
            no weight is amended. With ``sample = 1.0`` the statistic then rarely misleads where clients are alike.
        shrink: factor on the number of shared layers at every clustering (psi).
        psi_mode: the factor as it is, or to the power of the round.
        granularity: whether half a layer, its weight without its bias, may be shared, or only whole ones.
        min_shared: fewest layers that stay shared.
        stages: both, or one alone (Fig. 9).
        compared: whether the second stage compares full models, or what is shared of them.
        amend: weight that a drawn sample gains at a clustering: |B| / |D|; literally |D| / |B| (Eq. 7); or the latter
            on weights that start at 1 and are never normalised.
        batch: public samples that are drawn in a round (|B|).
        noise: whether a client near nobody is alone, or joins the nearest cluster.
    """

    source: ClassVar[str] = "Zhu et al., Complex & Intelligent Systems 2024"

    radius1: Norm = 0.15
    radius2: Norm | Auto = "auto"
    least: Count = 2
    threshold: Share = 0.65
    sample: Part = 0.25
    confirm: bool = False
    shrink: Share = 0.98
    psi_mode: Literal["const", "power"] = "const"
    granularity: Literal["tensor", "layer"] = "tensor"
    min_shared: Count = 1
    stages: Literal["both", "first", "second"] = "both"
    compared: Literal["full", "shared"] = "full"
    amend: Literal["inverse", "literal", "unnormalised"] = "inverse"
    batch: Count = 50
    noise: Literal["singleton", "nearest"] = "singleton"

    def init(self, problem: Problem) -> Sampled:
        """Everyone in one cluster, everything shared.

        Raises:
            ExperimentError: when the server has no samples.
        """
        return unamended(problem, self.amend)

    def plan(self, problem: Problem, state: Sampled, cohort: torch.Tensor) -> Plan:
        """Train the cluster's shared tensors with one's own personal ones, and upload both (lines 10 to 12 and 39).

        What would be personal after this round is stored too: it keeps each client's own last values.
        """
        plan, own = fedavg_plan(problem, state, cohort), self._personal(problem, state.shared)
        store = self._personal(problem, self._fewer(state))
        return replace(plan, tasks=(replace(plan.tasks[0], load_local=own, upload_values=own, save_local=store),))

    def update(self, problem: Problem, state: Sampled, report: Report) -> tuple[Sampled, Diagnostics]:
        """Lines 13 to 32, for the clients that answered."""
        result = report.results[0].only(report.results[0].updates.clients.argsort())
        clients, sent, own = result.updates.clients, result.updates.values, self._personal(problem, state.shared)
        # Personal tensors are sent as they are, the others as updates of what was received.
        starts = state.models[result.chosen].index_fill(1, problem.layout.columns(own), 0.0)
        batch, predictions = infer(problem, state, sent + starts, self.batch)
        value = tendency(problem, state, predictions, self.sample)
        labels, parents = assign_pending(state, report), torch.arange(len(state.models))
        found: Decoupled | None = None
        seen = {"hopkins": value, "threshold": self.threshold, "shared_layers": state.shared}
        decision = Decision(f"Hopkins statistic {value:.3f} is not above {self.threshold:g}", None, seen)
        if len(batch) and value > self.threshold:
            stages = Decoupling(self.radius1, self.radius2, self.least, self.stages, self.noise)
            columns = problem.layout.columns(self._compared(problem, state))
            found = stages.decouple(clients, predictions, (sent + starts)[:, columns])
            labels, parents = regroup(labels, result, found.groups)
            if len(parents) > 1 or len(state.models) > 1 or not self.confirm:
                weights, triggers = amended(state.weights, batch, self.amend), state.triggers + 1
                state = replace(state, weights=weights, shared=self._fewer(state), triggers=triggers)
            why = f"Hopkins statistic {value:.3f} is above {self.threshold:g}: {found.why}"
            decision = Decision(why, found.layer, {**seen, **found.radii, **found.figures})
        moved = replace(report, results=(restarted(result, starts, state.models, parents[labels[clients]]),))
        after, diagnostics = aggregate(
            problem, state, moved, labels, parents, dict.fromkeys(range(len(state.models)), decision)
        )
        figures = {"hopkins": value, "shared_layers": after.shared, "triggers": float(after.triggers)}
        if found is not None:
            figures, diagnostics = {**figures, **found.figures}, replace(diagnostics, matrices=found.matrices)
        return after, replace(diagnostics, metrics={**diagnostics.metrics, **figures})

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A pending client belongs to the leaf whose model has the lowest loss on its training data."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: Sampled, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the shared tensors of its cluster with its own personal ones."""
        own = self._personal(problem, state.shared)
        return tuple(replace(evaluation, load_local=own) for evaluation in cluster_evaluation(problem, state, clients))

    def _personal(self, problem: Problem, shared: float) -> Mask:
        return above(problem.layout, shared, halves=self.granularity == "tensor")

    def _fewer(self, state: Sampled) -> float:
        """Eq. 11."""
        psi = self.shrink if self.psi_mode == "const" else self.shrink ** (state.round + 1)
        return min(state.shared, max(float(self.min_shared), psi * state.shared))

    def _compared(self, problem: Problem, state: Sampled) -> Mask:
        """What the second stage compares: conv and linear tensors."""
        hidden = self._personal(problem, state.shared) if self.compared == "shared" else problem.layout.nothing
        return tuple(a and not b for a, b in zip(problem.layout.select("all"), hidden, strict=True))
