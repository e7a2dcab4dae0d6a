"""What the server does beside averaging: a step of an optimiser after the mean.

FedAvgM: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", arXiv 1909.06335, 2019. FedAdagrad, FedYogi and FedAdam: Reddi et al., "Adaptive federated
optimization", ICLR 2021, Algorithm 2. Each cluster has moments of its own, which its children inherit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.state import ServerMemory

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
