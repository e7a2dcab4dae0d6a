"""What is fixed for a whole run: the problem that an algorithm is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core.aggregation import Aggregation
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.messages import LocalTraining, Report
from fedstrata.core.state import ServerMoments, UpdateHistory


class Server(Protocol):
    """What the server makes of the mean update of a cluster, such as `fedstrata.core.ServerOptimizer`."""

    def step(
        self,
        layout: Layout,
        moments: ServerMoments | None,
        origins: Sequence[int | None],
        nodes: Sequence[int],
        updates: torch.Tensor,
        answered: torch.Tensor,
        sent_as_values: Mask = (),
    ) -> tuple[torch.Tensor, ServerMoments | None]:
        """How far the model of each cluster moves.

        A cluster of which nobody answered stays where it is, and so do its moments.

        Args:
            layout: The tensors of the network.
            moments: The moments after the last round; None before the first.
            origins: The node of the cluster that each cluster goes on from, k' in all; None for one without an origin.
            nodes: The node of each cluster after this round, k' in all.
            updates: The mean update of each cluster (Delta), (k', p).
            answered: Which clusters have an update, bool (k',).
            sent_as_values: The tensors whose updates lead to the mean of values that clients sent
                (`LocalTask.upload_values`), (l,); or () for none. They move by the mean update.

        Returns:
            The moves, (k', p), and the moments after the round; None for an optimiser without moments.
        """


@dataclass(frozen=True)
class CheckedUpdates:
    """The updates of a round.

    Attributes:
        history: What is now known.
        report: The report for decisions. Whoever keeps sending long updates sends none here that is longer than those
            of others, but for the normal training.
        counted: The report for the means of clusters, without the updates that are left out.
        events: What was done to whose updates, an event of each kind where there are some.
    """

    history: UpdateHistory
    report: Report
    counted: Report
    events: tuple[dict[str, Any], ...] = ()


class UpdateChecks(Protocol):
    """Says which updates of a round count in the means of clusters."""

    def no_history(self, clients: int) -> UpdateHistory:
        """What is known before the first round, of n clients."""

    def check(
        self,
        layout: Layout,
        history: UpdateHistory,
        report: Report,
        before: torch.Tensor,
        labels: torch.Tensor,
        *,
        newcomers: torch.Tensor | None = None,
        chose: torch.Tensor | None = None,
    ) -> CheckedUpdates:
        """Check the updates of the normal training of a round.

        Args:
            layout: The layout of the network.
            history: What was known before.
            report: The report of the round.
            before: The cluster of each client before the round, (n,); -1 for a pending client.
            labels: The cluster of each client now, (n,), by the same numbers.
            newcomers: Who was not compared with its cluster yet, bool (n,); None for nobody.
            chose: Who was offered the models of all clusters, bool (n,); None where nobody ever is, so that it is not
                asked whose data have changed.
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
        extra_uploads: Whether clients may be asked for updates whose number is not known before the run.
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
    extra_uploads: bool = True
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
