"""What is fixed for a whole run: the problem that an algorithm is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core.aggregation import Aggregation, weighted_mean
from fedstrata.core.layout import Layout
from fedstrata.core.local_training import LearningRateSchedule, LocalTraining
from fedstrata.core.private_aggregation import CentralPrivacy
from fedstrata.core.rows import Rows
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
        aggregation: The rule that averages the updates of a cluster.
        bucket_size: The number of members of a cluster whose updates are averaged at random before this rule.
        min_cluster: The least number of clients whose updates move a model that leaves the server. Where `privacy` is
            given, it has a least size of its own.
        privacy: What the server does with updates before their means leave it; None where it keeps to `aggregation`.
        local_noise: Whether clients add noise to all that they upload, and count how often they do.
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
    aggregation: Aggregation = weighted_mean
    bucket_size: int = 1
    min_cluster: int = 1
    privacy: CentralPrivacy | None = None
    local_noise: bool = False
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

    def enough_clients(self, labels: torch.Tensor, k: int) -> torch.Tensor:
        """Which clusters may be moved by the updates of a round, bool (k,): those of at least `min_cluster` clients.

        With differential privacy they all may. Who answered is not to be seen there, so members are counted instead.

        Args:
            labels: The cluster of each client whose update counts, (m,) in 0..k-1.
            k: The number of clusters.
        """
        if self.privacy is not None:
            return torch.ones(k, dtype=torch.bool)
        return labels.bincount(minlength=k) >= self.min_cluster

    def released_means(
        self,
        updates: Rows,
        weights: torch.Tensor,
        labels: torch.Tensor,
        k: int,
        everyone: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> torch.Tensor:
        """The mean update of every cluster, as it may leave the server, (k, p).

        Whatever is made of updates and sent to clients goes through here. What the server only looks at is made by
        `aggregation`.

        Args:
            updates: The updates of the clients that answered, (m, p).
            weights: The weight of each, (m,), > 0. Differential privacy weighs all clients alike.
            labels: The cluster of each, (m,) in 0..k-1.
            k: The number of clusters.
            everyone: The cluster of every client, whether it answered or not, (n,); -1 for a pending client.
            purpose: What the means are for; several means of one round have different purposes.
            round: The round.
        """
        if self.privacy is not None:
            return self.privacy.means(updates, labels, k, everyone, purpose, round)
        return self.aggregation(updates, weights, labels, k)
