"""A global model by FedAvg, and beside it a personal one for every client that is held near to it.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Norm
from fedstrata.core import Notes, Plan, Problem, Report, State, Use, advance, begin, broadcast, serve, settle
from fedstrata.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Ditto:
    """Ditto: every client also trains a model of its own, pulled towards the global one.

    Needs room for a second model and a second training on every device, sends what FedAvg sends, decides nothing.
    A personal model starts from the first global model that its client receives, and rests while the client is
    absent; one that never took part uses the global model. Accuracy is that of the personal models; the global
    one is recorded as `acc_global` (FedTSDP's tables seem to report that one).

    Attributes:
        lam: weight of the pull towards the global model (lambda); 0 is training alone.
        epochs: local epochs of the personal model; auto is as many as the global one gets.
    """

    source: ClassVar[str] = "Li et al., ICML 2021"

    lam: Norm = 1.0
    epochs: Count | Auto = "auto"

    def init(self, problem: Problem) -> State:
        """Everyone in one cluster."""
        return begin(problem)

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone trains the global model, then its own: v <- v - eta (grad F_i(v) + lambda (v - w^t))."""
        plan, layout = broadcast(problem, state, cohort), problem.layout
        (shared,) = plan.work
        # The same random stream: without the pull the personal model sees the very batches of training alone.
        personal = replace(
            shared,
            recipe=shared.recipe if isinstance(self.epochs, str) else replace(shared.recipe, epochs=self.epochs),
            keep=layout.everything,
            store=layout.everything,
            upload=layout.nothing,
            pull=self.lam,
        )
        return replace(plan, work=(shared, personal))

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Notes]:
        """Average the global updates; nothing is decided."""
        return advance(problem, state, report, self.place(problem, state, report))

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """A client that joins belongs to the one cluster."""
        return settle(state, report)

    def serve(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Use, ...]:
        """Everyone uses its personal model; the global one is recorded beside it."""
        (shared,) = serve(problem, state, clients)
        personal = replace(shared, name="personal", keep=problem.layout.everything)
        return (personal, replace(shared, name="global"))
