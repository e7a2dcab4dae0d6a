"""The second training of each client in Ditto: of a personal model, which a proximal term keeps near a shared one.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from fedstrata.algorithms.shared.keys import Auto
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, LocalTask, Problem


def ditto_task(problem: Problem, round: int, candidates: torch.Tensor, lam: float, epochs: int | Auto) -> LocalTask:
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
    return LocalTask(
        candidates=candidates,
        training=training if isinstance(epochs, str) else training.with_epochs(epochs),
        trainable=layout.everything,
        upload=layout.nothing,
        load_local=layout.everything,
        save_local=layout.everything,
        prox_weight=lam,
        # The same random stream: without the pull the personal model sees the very batches of training alone.
        stream=TRAIN,
    )
