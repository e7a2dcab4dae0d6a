"""What an algorithm remembers, and what may happen to its clients between two rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.core.tree import Tree, with_members
from fedstrata.errors import ContractError
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class State:
    """All that an algorithm remembers between rounds; one that needs more extends it.

    Attributes:
        models: one row per cluster, (k, p) float32.
        labels: cluster of each client, (n,) int64 in 0..k-1, or -1 while it is pending.
        nodes: tree id of each cluster, (k,) int64.
        waiting: tree node at which a pending client waits to be placed, (n,) int64; -1 for the others.
        round: rounds done.
        tree: every cluster that ever was.
    """

    models: torch.Tensor
    labels: torch.Tensor
    nodes: torch.Tensor
    waiting: torch.Tensor
    round: int
    tree: Tree

    def __post_init__(self) -> None:
        """Hold the invariants that every algorithm relies on."""
        k = len(self.models)
        if self.nodes.shape != (k,) or self.labels.shape != self.waiting.shape:
            raise ContractError(f"expected {k} nodes and as many labels as waiting places, found {self.nodes.tolist()}")
        if bool(((self.labels < -1) | (self.labels >= k)).any()):
            raise ContractError(f"expected labels in -1..{k - 1}, found {self.labels.tolist()}")
        if bool(((self.labels < 0) != (self.waiting >= 0)).any()):
            raise ContractError("expected exactly the pending clients to wait at a tree node")


S = TypeVar("S", bound=State)


def make_pending(state: S, clients: Sequence[int], node: int | None = None) -> S:
    """Make clients pending.

    Args:
        state: between two rounds.
        clients: their ids.
        node: where they wait to be placed; None is where each is now, 0 is where newcomers and clients whose data
            changed wait: anything below may suit them.
    """
    ids = torch.tensor(list(clients), dtype=torch.int64)
    here = torch.where(state.labels[ids] >= 0, state.nodes[state.labels[ids]], state.waiting[ids])
    waiting = state.waiting.index_copy(0, ids, here if node is None else torch.full_like(ids, node))
    return _peopled(replace(state, labels=state.labels.index_fill(0, ids, -1), waiting=waiting))


def reassign(state: S, clusters: Mapping[int, int]) -> S:
    """Put clients into clusters by force: client id -> cluster (HiCFL, Fig. 11)."""
    ids, targets = torch.tensor(list(clusters)), torch.tensor(list(clusters.values()))
    labels, waiting = state.labels.index_copy(0, ids, targets), state.waiting.index_fill(0, ids, -1)
    return _peopled(replace(state, labels=labels, waiting=waiting))


def _peopled(state: S) -> S:
    members = {node: (state.labels == c).nonzero().flatten().tolist() for c, node in enumerate(state.nodes.tolist())}
    return replace(state, tree=with_members(state.tree, members))
