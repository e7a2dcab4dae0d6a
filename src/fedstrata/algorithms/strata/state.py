"""What Strata remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.strata.trial import Trial
from fedstrata.base.lazy_torch import torch
from fedstrata.core import State


@dataclass(frozen=True)
class ClusterState:
    """What is remembered of one cluster.

    Attributes:
        trials_begun: The number of trials that have begun in it, and in the clusters that it comes from.
        trial: The trial that is running, if there is one.
        last_personal_trial: The last round in which a trial of personal models began; 0 before the first.
    """

    trials_begun: int = 0
    trial: Trial | None = None
    last_personal_trial: int = 0

    def is_due(self, round: int) -> bool:
        """Whether a trial may begin in a split-half round: none is running.

        After one of personal models, it is three times as late: such a trial costs more, and says the same for long.
        """
        return self.trial is None and round >= 3 * self.last_personal_trial


@dataclass(frozen=True)
class StrataState(State):
    """All that Strata remembers.

    Attributes:
        clusters: What is remembered of every cluster, (k).
        choices: The number of rounds for which each client may still choose another cluster, (n,).
        samples: The median number of training samples of those who answered last; 0 before the first round.
    """

    clusters: tuple[ClusterState, ...]
    choices: torch.Tensor
    samples: int = 0

    @property
    def trials(self) -> dict[int, Trial]:
        """The running trials, by cluster."""
        return {cluster: known.trial for cluster, known in enumerate(self.clusters) if known.trial is not None}
