"""How the learning rate of clients changes from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "exponential", "step", "cosine"]
"""The shapes of a learning rate over the rounds."""

USED_KEYS: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "exponential": ("lr_decay",),
    "step": ("lr_decay", "schedule_rounds"),
    "cosine": ("schedule_rounds", "lr_min"),
}
"""The keys of ``[local]`` that each shape uses: `decay`, `period` and `floor` of `LearningRateSchedule`.

A shape with "schedule_rounds" lasts all rounds of the run unless that key is given, so that a run cannot be resumed
with more rounds. One with "lr_min" ends at that rate.
"""


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

    def __call__(self, round: int) -> float:
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
