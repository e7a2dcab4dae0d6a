"""What is fixed for a whole run: the problem that an algorithm is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core.aggregation import Aggregation, RuleAggregation
from fedstrata.core.layout import Layout
from fedstrata.core.local_training import LearningRateSchedule, LocalTraining
from fedstrata.core.server_optimizer import ServerOptimizer


@dataclass(frozen=True)
class Problem:
    """What is fixed for a whole run. It is never saved.

    Attributes:
        layout: The tensors of the network.
        fresh: A function from a number to an independent initial model, (p,). All algorithms start from ``fresh(0)``.
        clients: The number of clients, n.
        seed: The seed of the run.
        rounds: The number of rounds of the run; None where it has no end.
        training: The local training before any schedule.
        lr_schedule: How the learning rate changes from round to round.
        classifies: Whether the loss is the cross-entropy of one class per sample, in nats.
        truth: The true group of each client, (n,). Only `oracle` and the measures may read it.
        aggregation: How models move by updates.
        extra_uploads: Whether clients may be asked for updates whose number is not known before the run.
        server: What the server makes of these means.
        features: The number of numbers in a sample as networks read it; None where it is not known.
        public: Unlabelled samples on the server, normalised, (samples, ...); None when there are none.
        predict: A function from models (r, p) and inputs (b, ...) to class probabilities (r, b, classes).
    """

    layout: Layout
    fresh: Callable[[int], torch.Tensor]
    clients: int
    seed: int = 0
    rounds: int | None = None
    training: LocalTraining = field(default_factory=LocalTraining)
    lr_schedule: LearningRateSchedule = field(default_factory=LearningRateSchedule)
    classifies: bool = True
    truth: torch.Tensor | None = None
    aggregation: Aggregation = field(default_factory=RuleAggregation)
    extra_uploads: bool = True
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    features: int | None = None
    public: torch.Tensor | None = None
    predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def training_of(self, round: int) -> LocalTraining:
        """The local training of a round, with its learning rate; rounds count from 1."""
        return replace(self.training, lr=self.training.lr * self.lr_schedule.factor(round))

    def generator(self, stream: str, round: int = 0) -> torch.Generator:
        """The server's random numbers: a function of the seed, the name of the stream and the round."""
        return generator(self.seed, stream, round)
