"""FedAvg whose model every client adapts to its own data before using it.

Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated evaluation of on-device personalization",
arXiv 1910.10252, 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Count
from fedstrata.core import (
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    assign_pending,
    cluster_evaluation,
    fedavg_plan,
    initial_state,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FineTune:
    """Fine-tuning: FedAvg, then some epochs on the client's own data before its model is scored.

    Needs a second training on every device, sends what FedAvg sends, decides nothing. The tuned model stays on the
    device and starts anew from the global one every time its client takes part; one that never did uses the global
    model. Scores lag: what a round's record scores was tuned from the model that its clients received in that
    round, the global one of the round before; `acc_global` has no lag, and is FedAvg's accuracy.

    Attributes:
        epochs: local epochs of the tuning.
    """

    source: ClassVar[str] = "Wang et al., arXiv 1910.10252, 2019"

    epochs: Count = 1

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return initial_state(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model for the server, then tunes it for itself."""
        plan, layout = fedavg_plan(problem, state, cohort), problem.layout
        (shared,) = plan.tasks
        training = replace(shared.training, epochs=self.epochs)
        tuning = replace(
            shared, training=training, save_local=layout.everything, upload=layout.nothing, stream="tuning"
        )
        return replace(plan, tasks=(shared, tuning))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """Average; nothing is decided."""
        return aggregate(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return assign_pending(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model that it tuned; the global one is recorded beside it."""
        (shared,) = cluster_evaluation(problem, state, clients)
        return (replace(shared, name="tuned", load_local=problem.layout.everything), replace(shared, name="global"))
