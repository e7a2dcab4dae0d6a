"""FedAvg whose model every client adapts to its own data before using it.

Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated evaluation of on-device personalization",
arXiv 1910.10252, 2019.

Clients tune in every round here, so that every round's scores are those of tuned models. `fedstrata.personal.finetune`
tunes once, after the rounds of any algorithm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, PositiveInteger
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class FineTune(core.Algorithm[core.State]):
    """Fine-tuning: FedAvg, then some epochs on the client's own data before its model is scored.

    Every device trains a second time; what is sent is that of FedAvg. Nothing is decided. The tuned model stays on the
    device, and starts anew from the global one every time its client takes part. A client that never did uses the
    global model. Scores lag: the model that a round's record scores was tuned from the one that its client received in
    that round, the global model of the round before. `acc_global` has no lag, and is FedAvg's accuracy.

    Attributes:
        epochs: The local epochs of the tuning.
    """

    source: ClassVar[str] = "Wang et al., arXiv 1910.10252, 2019"

    epochs: PositiveInteger = 1

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the one model for the server, then tunes it for itself."""
        plan = core.fedavg_plan(problem, state, cohort)
        layout = problem.layout
        shared = plan.tasks[core.TRAIN]
        training = shared.training.with_epochs(self.epochs)
        tuning = replace(
            shared, training=training, save_local=layout.everything, upload=layout.nothing, stream="tuning"
        )
        return replace(plan, tasks={core.TRAIN: shared, "finetune": tuning})

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses the model that it tuned; the global one is recorded beside it."""
        shared = core.cluster_evaluation(problem, state, clients)[core.CLIENT]
        return {core.CLIENT: replace(shared, load_local=problem.layout.everything), "global": shared}
