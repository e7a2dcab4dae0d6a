"""What the server makes of the mean update of a cluster: FedAvg's step, or a step of an optimiser of its own.

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

ServerOptimizerName = Literal["none", "momentum", "adagrad", "yogi", "adam"]
"""The optimisers of the server."""


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


@dataclass(frozen=True)
class ServerMoments:
    """The moments of the server's optimiser.

    Attributes:
        nodes: The tree node of each cluster that has moments, (k',) int64.
        first: The first moment of each (m), (k', p) float32.
        second: The second moment of each (v), (k', p) float32; (k', 0) for "momentum".
    """

    nodes: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


def server_step(
    optimizer: ServerOptimizer,
    layout: Layout,
    moments: ServerMoments | None,
    origins: Sequence[int | None],
    nodes: Sequence[int],
    updates: torch.Tensor,
    answered: torch.Tensor,
    sent_as_values: Mask = (),
) -> tuple[torch.Tensor, ServerMoments | None]:
    """How far the model of each cluster moves.

    A cluster of which nobody answered stays where it is, and so do its moments. Buffers, such as the running
    statistics of BatchNorm, move by the mean update: a step along them has no meaning. Neither has a step along
    tensors that clients sent as values, for no client starts from the cluster's own.

    Args:
        optimizer: The optimiser.
        layout: The tensors of the network.
        moments: The moments after the last round; None before the first.
        origins: The node of the cluster that each cluster goes on from, k' in all; None for one without an origin.
        nodes: The node of each cluster after this round, k' in all.
        updates: The mean update of each cluster (Delta), (k', p).
        answered: Which clusters have an update, bool (k',).
        sent_as_values: The tensors whose updates lead to the mean of values that clients sent
            (`LocalTask.upload_values`), (l,); or () for none. They move by the mean update, at any learning rate.

    Returns:
        The moves, (k', p), and the moments after the round; None for an optimiser without moments.
    """
    buffers = layout.columns(layout.buffers)
    values = layout.columns(sent_as_values or layout.nothing)
    if optimizer.name == "none":
        if optimizer.lr == 1:
            return updates, None
        moves = updates * optimizer.lr
        for unstepped in (buffers, values):
            moves[:, unstepped] = updates[:, unstepped]
        return moves, None
    before = _inherited(optimizer, moments, origins, updates)
    first = optimizer.momentum * before.first
    if optimizer.name == "momentum":
        first = first + updates
        moves = optimizer.lr * first
        second = before.second
    else:
        first = first + (1 - optimizer.momentum) * updates
        second = _second_moment(optimizer, before.second, updates.square())
        moves = optimizer.lr * first / (second.sqrt() + optimizer.tau)
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
    moments: ServerMoments | None,
    origins: Sequence[int | None],
    updates: torch.Tensor,
) -> ServerMoments:
    """The moments that each cluster begins the round with: those of its origin, or fresh ones."""
    first = torch.zeros_like(updates)
    second = torch.full_like(updates, optimizer.tau**2) if optimizer.name != "momentum" else updates[:, :0]
    known = {} if moments is None else {node: row for row, node in enumerate(moments.nodes.tolist())}
    for cluster, origin in enumerate(origins):
        if moments is not None and origin in known:
            first[cluster] = moments.first[known[origin]]
            second[cluster] = moments.second[known[origin]]
    return ServerMoments(torch.tensor([-1 if node is None else node for node in origins]), first, second)
