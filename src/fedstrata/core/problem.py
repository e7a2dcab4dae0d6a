"""What is fixed for a whole run: the problem that an algorithm is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core.aggregation import Aggregation
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.messages import LocalTraining, Report
from fedstrata.core.state import ServerMemory


class UpdateChecks(Protocol):
    """Says which updates of a round count in the means of clusters, such as `fedstrata.uploads.checks`."""

    def no_history(self, clients: int) -> ServerMemory:
        """What is known before the first round, of n clients."""

    def counted(
        self, layout: Layout, history: ServerMemory, report: Report, before: torch.Tensor, labels: torch.Tensor
    ) -> tuple[Report, ServerMemory]:
        """Leave out, or shorten, updates of the normal training that may do harm.

        Args:
            layout: The tensors of the network.
            history: What was known before.
            report: The report of the round.
            before: The cluster of each client before the round, (n,); -1 for a pending client.
            labels: The cluster of each client now, (n,), by the same numbers.

        Returns:
            The report of what counts, whose events say what was done to whose updates, and what is now known.
        """


class Server(Protocol):
    """What the server makes of the mean update of a cluster, such as `fedstrata.core.ServerOptimizer`."""

    def step(
        self,
        layout: Layout,
        memory: ServerMemory | None,
        origins: Sequence[int | None],
        nodes: Sequence[int],
        updates: torch.Tensor,
        answered: torch.Tensor,
        sent_as_values: Mask = (),
    ) -> tuple[torch.Tensor, ServerMemory | None]:
        """How far the model of each cluster moves, (k', p), and what is remembered of the clusters after the round.

        Args:
            layout: The tensors of the network.
            memory: What was remembered after the last round; None before the first.
            origins: The node of the cluster that each cluster goes on from, k' in all; None for one without an origin.
            nodes: The node of each cluster after this round, k' in all.
            updates: The mean update of each cluster (Delta), (k', p).
            answered: Which clusters have one, bool (k',). The others stay where they are.
            sent_as_values: The tensors whose means are of values that clients sent (`LocalTask.upload_values`), (l,);
                or () for none. They move by the mean update.
        """


@dataclass(frozen=True)
class Problem:
    """What is fixed for a whole run. It is never saved.

    Attributes:
        layout: The tensors of the network.
        fresh: A function from a number to an independent initial model, (p,). All algorithms start from ``fresh(0)``.
        clients: The number of clients, n.
        aggregation: How models move by updates.
        seed: The seed of the run.
        rounds: The number of rounds of the run; None where it has no end.
        training: The local training before any schedule.
        lr_factor: The learning rate of a round as a share of the full one; rounds count from 1.
        classifies: Whether the loss is the cross-entropy of one class per sample, in nats.
        truth: The true group of each client, (n,). Only `oracle` and the measures may read it.
        checks: Says which updates count in these means; None where all do.
        server: What the server makes of the mean updates; None where models move by them (FedAvg).
        features: The number of numbers in a sample as networks read it; None where it is not known.
        public: Unlabelled samples on the server, normalised, (samples, ...); None when there are none.
        predict: A function from models (r, p) and inputs (b, ...) to class probabilities (r, b, classes).
    """

    layout: Layout
    fresh: Callable[[int], torch.Tensor]
    clients: int
    aggregation: Aggregation
    seed: int = 0
    rounds: int | None = None
    training: LocalTraining = field(default_factory=LocalTraining)
    lr_factor: Callable[[int], float] = lambda round: 1.0
    classifies: bool = True
    truth: torch.Tensor | None = None
    checks: UpdateChecks | None = None
    server: Server | None = None
    features: int | None = None
    public: torch.Tensor | None = None
    predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def training_of(self, round: int) -> LocalTraining:
        """The local training of a round, with its learning rate; rounds count from 1."""
        return replace(self.training, lr=self.training.lr * self.lr_factor(round))

    def generator(self, stream: str, round: int = 0) -> torch.Generator:
        """The server's random numbers: a function of the seed, the name of the stream and the round."""
        return generator(self.seed, stream, round)
