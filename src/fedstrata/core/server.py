"""What the server does beside averaging: a step of an optimiser after the mean, and checks of updates before it.

FedAvgM: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", arXiv 1909.06335, 2019. FedAdagrad, FedYogi and FedAdam: Reddi et al., "Adaptive federated
optimization", ICLR 2021, Algorithm 2. Each cluster has moments of its own, which its children inherit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.messages import Report
from fedstrata.core.problem import UpdateChecks
from fedstrata.core.state import ServerMemory, State

ServerOptimizerName = Literal["none", "momentum", "adagrad", "yogi", "adam"]
"""The optimisers of the server."""


@dataclass(frozen=True)
class ServerMoments(ServerMemory):
    """The moments of the server's optimiser.

    Attributes:
        nodes: The tree node of each cluster that has moments, (k',) int64.
        first: The first moment of each (m), (k', p) float32.
        second: The second moment of each (v), (k', p) float32; (k', 0) for "momentum".
    """

    nodes: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


@dataclass(frozen=True)
class ServerOptimizer:
    """The optimiser of the server and its options.

    Attributes:
        name: The optimiser. "none" moves by the mean update itself (FedAvg).
        lr: The learning rate of the server (eta).
        momentum: The share of the old first moment (beta of FedAvgM, beta_1).
        beta2: The share of the old second moment of "yogi" and "adam" (beta_2).
        tau: What is added to the root of the second moment; its square is where that moment begins (tau).
    """

    name: ServerOptimizerName = "none"
    lr: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def step(
        self,
        layout: Layout,
        memory: ServerMemory | None,
        origins: Sequence[int | None],
        nodes: Sequence[int],
        updates: torch.Tensor,
        answered: torch.Tensor,
        sent_as_values: Mask = (),
    ) -> tuple[torch.Tensor, ServerMoments | None]:
        """How far the model of each cluster moves, and the moments after the round, as the server of a problem says it.

        Buffers, such as the running statistics of BatchNorm, move by the mean update: a step along them has no meaning.
        """
        buffers = layout.columns(layout.buffers)
        values = layout.columns(sent_as_values or layout.nothing)
        if self.name == "none":
            moves = updates * self.lr
            for unstepped in (buffers, values):
                moves[:, unstepped] = updates[:, unstepped]
            return moves, None
        before = _inherited(self, memory, origins, updates)
        first = self.momentum * before.first
        if self.name == "momentum":
            first = first + updates
            moves = self.lr * first
            second = before.second
        else:
            first = first + (1 - self.momentum) * updates
            second = _second_moment(self, before.second, updates.square())
            moves = self.lr * first / (second.sqrt() + self.tau)
        for unstepped in (buffers, values):
            moves[:, unstepped] = updates[:, unstepped]
        rows = answered[:, None]
        after = ServerMoments(
            nodes=torch.tensor(list(nodes), dtype=torch.int64),
            first=torch.where(rows, first, before.first),
            second=torch.where(rows, second, before.second),
        )
        return torch.where(rows, moves, 0.0), after


def _second_moment(optimizer: ServerOptimizer, before: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """The second moment after a round, (k', p), from the squares of the mean updates."""
    if optimizer.name == "adagrad":
        return before + squares
    share = 1 - optimizer.beta2
    if optimizer.name == "yogi":
        return before - share * squares * torch.sign(before - squares)
    return optimizer.beta2 * before + share * squares


def _inherited(
    optimizer: ServerOptimizer,
    memory: ServerMemory | None,
    origins: Sequence[int | None],
    updates: torch.Tensor,
) -> ServerMoments:
    """The moments that each cluster begins the round with: those of its origin, or fresh ones."""
    first = torch.zeros_like(updates)
    second = torch.full_like(updates, optimizer.tau**2) if optimizer.name != "momentum" else updates[:, :0]
    if isinstance(memory, ServerMoments):
        known = {node: row for row, node in enumerate(memory.nodes.tolist())}
        for cluster, origin in enumerate(origins):
            if origin in known:
                first[cluster] = memory.first[known[origin]]
                second[cluster] = memory.second[known[origin]]
    return ServerMoments(torch.tensor([-1 if node is None else node for node in origins]), first, second)


@dataclass(frozen=True)
class UpdateHistory(ServerMemory):
    """What is known of the updates of clients. Here nothing: those who check them remember more, in a subclass."""

    @property
    def suspect(self) -> torch.Tensor | None:
        """Whose updates may do harm, bool (n,); None where nobody checks it."""
        return None

    @property
    def drifted(self) -> torch.Tensor | None:
        """Whose data seem to have changed, bool (n,); None where nobody checks it."""
        return None

    def left_out(self, n: int) -> torch.Tensor:
        """Whose updates of the last round are left out of the means of clusters, bool (n,)."""
        return torch.zeros(n, dtype=torch.bool)

    def doubting(self, clients: torch.Tensor) -> UpdateHistory:
        """The same where some clients, ids, are doubted."""
        return self


def history_of(state: State) -> UpdateHistory:
    """What is known of the updates of clients; nothing where nobody checks them."""
    return state.history if isinstance(state.history, UpdateHistory) else UpdateHistory()


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


@runtime_checkable
class DecisionChecks(UpdateChecks, Protocol):
    """Checks by which decisions are made too, as Strata makes them."""

    def check(
        self,
        layout: Layout,
        history: ServerMemory,
        report: Report,
        before: torch.Tensor,
        labels: torch.Tensor,
        *,
        newcomers: torch.Tensor | None = None,
        chose: torch.Tensor | None = None,
    ) -> CheckedUpdates:
        """Check the updates of the normal training of a round. The first arguments are those of `counted`.

        Args:
            layout: The layout of the network.
            history: What was known before.
            report: The report of the round.
            before: The cluster of each client before the round, (n,).
            labels: The cluster of each client now, (n,).
            newcomers: Who was not compared with its cluster yet, bool (n,); None for nobody.
            chose: Who was offered the models of all clusters, bool (n,); None where nobody ever is, so that it is not
                asked whose data have changed.
        """
