"""How a client trains, and with which learning rate in each round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "exponential", "step", "cosine"]
"""The shapes of a learning rate over the rounds."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Attributes:
        epochs: The number of passes over the client's data.
        batch: The samples of one step; 0 is all samples at once.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``. Its state is new for every task.
        lr: The learning rate of this round, after the schedule.
        momentum: The momentum of SGD. The others do not use it.
        weight_decay: The pull of every trained weight to zero. For SGD and Adam it is a term of the gradient (L2). For
            AdamW it is a factor on the weights (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
            2019).
        clip_norm: The largest norm of the gradient of one step, over all trained weights together; 0 is no limit.
        steps: The number of steps, in place of `epochs`; 0 is to count epochs. Every step has `batch` samples, or all
            that a client has if these are fewer. The client goes through its shuffled data again and again.
    """

    epochs: int = 1
    batch: int = 50
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    steps: int = 0

    def with_epochs(self, epochs: int) -> LocalTraining:
        """The same training for a number of passes over the data."""
        return replace(self, epochs=epochs, steps=0)

    def times(self, factor: int) -> LocalTraining:
        """The same training, so many times as long."""
        return replace(self, epochs=self.epochs * factor, steps=self.steps * factor)

    def samples_per_step(self, samples: int) -> int:
        """The samples of a step of a client with so many samples; its last step of an epoch may have fewer."""
        return min(self.batch or samples, samples)

    def steps_of(self, samples: int) -> int:
        """The number of steps of a client with so many samples."""
        return self.steps or self.epochs * -(-samples // self.samples_per_step(samples))

    def samples_seen(self, samples: int) -> int:
        """The samples of all steps together of a client with so many samples."""
        return (self.steps * self.samples_per_step(samples)) or self.epochs * samples


@dataclass(frozen=True)
class LearningRateSchedule:
    """How the learning rate changes from round to round.

    Attributes:
        decay: The factor of "exponential" after every round, and of "step" after every `period` rounds.
        kind: The shape. "cosine" falls from the full rate to `floor` along half a wave (Loshchilov and Hutter, "SGDR:
            stochastic gradient descent with warm restarts", ICLR 2017, Eq. 5, without restarts).
        period: The rounds between two steps of "step", or the rounds in which "cosine" falls. At least 1.
        floor: The share of the full rate at which "cosine" ends and stays.
        warmup: The number of first rounds in which the rate rises linearly. The shape begins after them.
    """

    decay: float = 1.0
    kind: Schedule = "exponential"
    period: int = 1
    floor: float = 0.0
    warmup: int = 0

    def factor(self, round: int) -> float:
        """The learning rate of a round as a share of the full one; rounds count from 1."""
        if round <= self.warmup:
            return round / (self.warmup + 1)
        passed = round - 1 - self.warmup
        if self.kind == "exponential":
            return self.decay**passed
        if self.kind == "step":
            return self.decay ** (passed // self.period)
        if self.kind == "cosine":
            progress = min(passed / self.period, 1.0)
            return self.floor + (1 - self.floor) * (1 + cos(pi * progress)) / 2
        return 1.0
