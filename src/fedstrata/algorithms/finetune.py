"""FedAvg whose model every client adapts to its own data before using it.

Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated evaluation of on-device personalization",
arXiv 1910.10252, 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Count
from fedstrata.core import Notes, Plan, Problem, Report, State, Use, advance, begin, broadcast, serve, settle
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
        return begin(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the one model for the server, then tunes it for itself."""
        plan, layout = broadcast(problem, state, cohort), problem.layout
        (shared,) = plan.work
        recipe = replace(shared.recipe, epochs=self.epochs)
        tuning = replace(shared, recipe=recipe, store=layout.everything, upload=layout.nothing, stream="tuning")
        return replace(plan, work=(shared, tuning))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Notes]:
        """Average; nothing is decided."""
        return advance(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return settle(state, report)

    def serve(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Use, ...]:
        """Everyone uses the model that it tuned; the global one is recorded beside it."""
        (shared,) = serve(problem, state, clients)
        return (replace(shared, name="tuned", keep=problem.layout.everything), replace(shared, name="global"))
