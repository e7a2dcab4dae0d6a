"""A global model by FedAvg, and a personal model for every client that a proximal term keeps near to it.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, PositiveInteger
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Ditto(core.Algorithm[core.State]):
    """Ditto: every client also trains a model of its own, pulled towards the global one.

    Every device has room for a second model and trains a second time; what is sent is that of FedAvg. Nothing is
    decided. A personal model starts from the first global model that its client receives. It stays as it is while the
    client is absent. A client that never took part uses the global model. Accuracy is that of the personal models; the
    global one is recorded as `acc_global` (FedTSDP's tables seem to report that one).

    Attributes:
        lam: The weight of the pull towards the global model (lambda); 0 is training alone.
        epochs: The local epochs of the personal model. "auto" is as many as the global one gets.
    """

    source: ClassVar[str] = "Li et al., ICML 2021"

    lam: NonNegative = 1.0
    epochs: PositiveInteger | Auto = "auto"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone trains the global model, then its own."""
        plan = core.fedavg_plan(problem, state, cohort)
        shared = plan.tasks[core.TRAIN]
        personal = ditto_task(problem, plan.round, shared.candidates, self.lam, self.epochs)
        return replace(plan, tasks={core.TRAIN: shared, "personal": personal})

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses its personal model; the global one is recorded beside it."""
        shared = core.cluster_evaluation(problem, state, clients)[core.CLIENT]
        return {core.CLIENT: replace(shared, load_local=problem.layout.everything), "global": shared}


def ditto_task(
    problem: core.Problem, round: int, candidates: torch.Tensor, lam: float, epochs: int | Auto
) -> core.LocalTask:
    """Let every client train its own model: v <- v - eta (grad F_i(v) + lambda (v - w)).

    Args:
        problem: What is fixed for the run.
        round: The round.
        candidates: The shared model w of each client, (m, 1), or several of which it chooses one, (m, k); -1 for none.
        lam: The weight of the pull towards it (lambda); 0 is training alone.
        epochs: The local epochs; "auto" is as many as the shared model gets.
    """
    layout = problem.layout
    training = problem.training_of(round)
    return core.LocalTask(
        candidates=candidates,
        training=training if isinstance(epochs, str) else training.with_epochs(epochs),
        trainable=layout.everything,
        upload=layout.nothing,
        load_local=layout.everything,
        save_local=layout.everything,
        prox_weight=lam,
        # The same random stream: without the pull the personal model sees the very batches of training alone.
        stream=core.TRAIN,
    )
