"""What an algorithm is given, fixed for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedstrata.core.layout import Layout
from fedstrata.core.rows import Rows, weighted_mean
from fedstrata.lazy_torch import torch
from fedstrata.randomness import generator


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Attributes:
        epochs: passes over the client's data.
        batch: samples per step; 0 is all the data at once.
        optimizer: ``"sgd"`` or ``"adam"``, its state made anew for every task.
        lr: step size of this round, already decayed.
        momentum: of SGD; Adam has its own.
    """

    epochs: int = 1
    batch: int = 50
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0


@dataclass(frozen=True)
class Problem:
    """What is fixed for a whole run; never saved.

    Attributes:
        layout: the tensors of the network.
        fresh: i -> independent initial row (p,); ``fresh(0)`` is the start of every algorithm.
        clients: n.
        seed: of the run.
        rounds: of the run; None where it has no end.
        training: of round 1.
        lr_decay: factor on the step size after every round.
        truth: which clients truly belong together, (n,); read by `oracle` and by measures, nothing else.
        aggregation: how rows are averaged; the seam for robust means.
        public: unlabelled samples on the server, normalised, (samples, ...); None when there are none.
        predict: models (r, p) and inputs (b, ...) -> class probabilities (r, b, classes).
    """

    layout: Layout
    fresh: Callable[[int], torch.Tensor]
    clients: int
    seed: int = 0
    rounds: int | None = None
    training: LocalTraining = LocalTraining()
    lr_decay: float = 1.0
    truth: torch.Tensor | None = None
    aggregation: Callable[[Rows, torch.Tensor, torch.Tensor, int], torch.Tensor] = weighted_mean
    public: torch.Tensor | None = None
    predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def training_of(self, round: int) -> LocalTraining:
        """The recipe with the step size of a round; rounds count from 1."""
        return replace(self.training, lr=self.training.lr * self.lr_decay ** (round - 1))

    def generator(self, stream: str, round: int = 0) -> torch.Generator:
        """Random numbers of the server, a function of (seed, stream, round)."""
        return generator(self.seed, stream, round)
