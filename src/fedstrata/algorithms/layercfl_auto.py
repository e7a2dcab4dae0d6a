"""LayerCFL on the layer that a scan of the first rounds chooses.

The paper has its layers "by statistics obtained in advance". Here they are those of
`fedstrata.algorithms.evidence.layer_scan`, gathered in the first rounds of the run itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from pydantic.dataclasses import dataclass as validated_dataclass

from fedstrata.algorithms.bipartition.round import (
    BipartitionState,
    SplitDecision,
    SplitRules,
    apply_decisions,
    collect_answers,
)
from fedstrata.algorithms.evidence.layer_scan import LayerEvidence, no_evidence, scan_plan, scan_round, views_with_bias
from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    Decision,
    Diagnostics,
    Plan,
    Problem,
    ProposedSplit,
    Report,
    extend_state,
    fedavg_plan,
)


@dataclass(frozen=True)
class AutoLayerCFLState(BipartitionState):
    """What LayerCFL with a layer scan remembers.

    Attributes:
        evidence: What the layer scan has seen; None when it is over.
        layer: The layer that is compared; "" while the scan is going on.
    """

    evidence: LayerEvidence | None
    layer: str


@validated_dataclass(frozen=True, config=STRICT)
class AutoLayerCFL(LayerCFL):
    """FedAvg with a layer scan until the scan chooses a layer, then `LayerCFL` on that layer. Its keys are the same."""

    made_by: ClassVar[type[LayerCFL]] = LayerCFL
    """It is found by the name of this class, which makes it."""

    def init(self, problem: Problem) -> AutoLayerCFLState:
        """Everyone in one cluster, and no evidence."""
        state = LayerCFL().init(problem)
        evidence = no_evidence(problem.layout, problem.clients)
        return extend_state(state, AutoLayerCFLState, bipartition=state.bipartition, evidence=evidence, layer="")

    def plan(self, problem: Problem, state: BipartitionState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for a scan, also on folds of its data."""
        assert isinstance(state, AutoLayerCFLState)
        plan = fedavg_plan(problem, state, cohort)
        return plan if state.evidence is None else scan_plan(problem, state, state.evidence, plan)

    def update(self, problem: Problem, state: BipartitionState, report: Report) -> tuple[BipartitionState, Diagnostics]:
        """Scan if it is time, then average: with LayerCFL as soon as the layer is known."""
        assert isinstance(state, AutoLayerCFLState)
        events: tuple[dict[str, object], ...] = ()
        if state.evidence is not None:
            evidence, choice = scan_round(problem, state, state.evidence, report)
            state = replace(state, evidence=evidence)
            if choice is not None:
                events = (choice.event,)
                if choice.layer is not None:
                    state = _compare(problem, state, evidence, choice.layer)
        after: BipartitionState
        if state.layer:
            after, diagnostics = self._on(state.layer).update(problem, state, report)
        else:
            rules = SplitRules(self.first, self.quorum, self.min_split)
            answers = collect_answers(problem, state, report, problem.layout.conv_and_linear, rules)
            undecided = {cluster: SplitDecision(Decision(kind="no_layer_found")) for cluster in answers.usable}
            after, diagnostics = apply_decisions(problem, state, report, answers, undecided)
        return after, replace(diagnostics, events=(*events, *diagnostics.events))

    def proposed_split(self, problem: Problem, state: BipartitionState, report: Report) -> tuple[ProposedSplit, ...]:
        """How each cluster would be split by the compared layer, once it is known, without a threshold."""
        assert isinstance(state, AutoLayerCFLState)
        return self._on(state.layer).proposed_split(problem, state, report) if state.layer else ()

    def _on(self, layer: str) -> LayerCFL:
        """LayerCFL on one layer, with these keys."""
        keys = {field.name: getattr(self, field.name) for field in fields(LayerCFL)}
        return LayerCFL(**{**keys, "layers": layer})


def _compare(problem: Problem, state: AutoLayerCFLState, evidence: LayerEvidence, layer: str) -> AutoLayerCFLState:
    """The state as if this layer had been given from the start, with its largest norm."""
    # Nothing is split before the layer is known: there is one cluster, and the evidence is about it.
    view = list(views_with_bias(problem.layout)).index(layer)
    history = replace(state.bipartition, max_compared_norms=evidence.max_norms[view : view + 1])
    return replace(state, bipartition=history, evidence=None, layer=layer)
