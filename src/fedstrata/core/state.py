"""The state of an algorithm between two rounds, with the tree of all clusters, and what may happen to its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

from fedstrata.base.errors import ContractError
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True)
class Decision:
    """What was decided about a cluster in one round. ``report/words.toml`` has a sentence for every kind.

    Attributes:
        kind: What was decided, as a snake_case name; or the sentence itself, such as ``"p = {p:.2g} is too large"``.
        layer: The layers that were compared; None if none were.
        values: The numbers that decided, by name.
    """

    kind: str
    layer: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """One cluster of the tree.

    Attributes:
        id: The permanent id of the cluster, its place in the tree.
        parent: The cluster that it was split from; None for the first.
        members: The ids of its clients, ascending. Those of a leaf are kept up to date.
        born: The round in which it was made.
        split: The round in which it was split or dissolved; None for a leaf.
        decision: The latest decision about it; None before the first.
    """

    id: int
    parent: int | None
    members: tuple[int, ...]
    born: int
    split: int | None = None
    decision: Decision | None = None


Tree = tuple[Node, ...]
"""All nodes in the order of their ids."""


def descends(tree: Tree, node: int, ancestor: int) -> bool:
    """Whether a node is an ancestor itself or one of its descendants; all by their ids."""
    while node > ancestor and (parent := tree[node].parent) is not None:
        node = parent
    return node == ancestor


def nearest_open_ancestor(tree: Tree, node: int) -> int:
    """The nearest of a node and its ancestors that has a leaf below it or is one."""
    leaves = [leaf.id for leaf in tree if leaf.split is None]
    while (parent := tree[node].parent) is not None and not any(descends(tree, leaf, node) for leaf in leaves):
        node = parent
    return node


def with_decisions(tree: Tree, decisions: Mapping[int, Decision]) -> Tree:
    """The tree with the decisions about some nodes, by node id."""
    return tuple(replace(node, decision=decisions.get(node.id, node.decision)) for node in tree)


def with_children(tree: Tree, parents: Sequence[int | None], round: int) -> tuple[Tree, list[int]]:
    """Split every node that several clusters come from, and close every leaf that no cluster comes from.

    Args:
        tree: The tree before the round.
        parents: The node that each new cluster comes from; None for a cluster that newcomers found.
        round: The number of the round, counted from 1.

    Returns:
        The tree with a child for each cluster of a split node, and the node of each new cluster. A founded cluster is
        a child of the first node. If the first node is still a leaf it is split for that, because only leaves have
        clients. A leaf whose clients all went to other clusters ends in this round, without a child.
    """
    origins = [0 if parent is None else parent for parent in parents]
    children = Counter(origins)
    grown = [replace(node, split=round) if node.split is None and children[node.id] != 1 else node for node in tree]
    nodes = []
    for parent, origin in zip(parents, origins, strict=True):
        if parent is None or children[origin] > 1:
            nodes.append(len(grown))
            grown.append(Node(id=len(grown), parent=origin, members=(), born=round))
        else:
            nodes.append(origin)
    return tuple(grown), nodes


@dataclass(frozen=True)
class ServerMemory:
    """What `Problem.checks` or `Problem.server` remembers between rounds, in a subclass of theirs. Here nothing."""

    def forgetting(self, clients: torch.Tensor) -> ServerMemory:
        """The same without what is known of some clients, bool (n,)."""
        return self


@dataclass(frozen=True)
class State:
    """All that an algorithm keeps between rounds. An algorithm that needs more adds its own parts as fields.

    Attributes:
        models: The model of each cluster, (k, p) float32.
        labels: The cluster of each client, (n,) int64 in 0..k-1, or -1 while the client is pending.
        nodes: The tree node of each cluster, (k,) int64.
        waiting: The tree node at which a pending client waits, (n,) int64; -1 for the others.
        round: The number of rounds that are done.
        tree: Every cluster of the run so far.
        server: What `Problem.server` remembers; None before the first round.
        history: What `Problem.checks` remembers of the updates of clients.
    """

    models: torch.Tensor
    labels: torch.Tensor
    nodes: torch.Tensor
    waiting: torch.Tensor
    round: int
    tree: Tree
    server: ServerMemory | None = field(default=None, kw_only=True)
    history: ServerMemory = field(default=ServerMemory(), kw_only=True)

    def __post_init__(self) -> None:
        """Check the invariants that every algorithm relies on."""
        k = len(self.models)
        if self.nodes.shape != (k,) or self.labels.shape != self.waiting.shape:
            raise ContractError(f"expected {k} nodes and as many labels as waiting places, found {self.nodes.tolist()}")
        # Of a few numbers, calls of numpy take a fraction of the time of torch's.
        labels = self.labels.numpy()
        if labels.min(initial=-1) < -1 or labels.max(initial=-1) >= k:
            raise ContractError(f"expected labels in -1..{k - 1}, found {labels.tolist()}")
        if ((labels < 0) != (self.waiting.numpy() >= 0)).any():
            raise ContractError("expected exactly the pending clients to wait at a tree node")

    def forgetting(self, clients: torch.Tensor) -> Self:
        """The state without what else an algorithm remembers of clients, ids, that have left or have other data now."""
        return self


StateT = TypeVar("StateT", bound=State)


def with_members(state: StateT) -> StateT:
    """The state whose tree has the present members of every cluster."""
    tree = list(state.tree)
    for cluster, node in enumerate(state.nodes.tolist()):
        members = (state.labels == cluster).nonzero().flatten().tolist()
        tree[node] = replace(tree[node], members=tuple(members))
    return replace(state, tree=tuple(tree))


def extend_state(state: State, kind: type[StateT], **parts: Any) -> StateT:
    """Make the state of an algorithm that remembers more than a plain state.

    Args:
        state: The plain state, such as that of `initial_state`.
        kind: The class of the new state, a frozen subclass of `State`.
        parts: The fields that the class adds, by their names.

    Returns:
        A state of that class.
    """
    return kind(**{each.name: getattr(state, each.name) for each in fields(State)}, **parts)


def tree_events(before: State, after: State) -> list[dict[str, Any]]:
    """What a round did to the tree: an event for each cluster that was split, and for each that ended without a child.

    Args:
        before: The state before the round.
        after: The state after it.

    Returns:
        The events as `fedstrata.records.schema` has them: "split", with the children and the values of the decision,
        in the order of the nodes, then "dissolve", with the clusters that the clients went to.
    """
    events = list[dict[str, Any]]()
    gone = {node.id: node for node in after.tree if node.split == after.round}
    for node in gone.values():
        into = [child.id for child in after.tree if child.parent == node.id]
        if into:
            decision = node.decision or Decision("")
            cause = {"layer": decision.layer, "why": decision.kind, "values": dict(decision.values)}
            events.append({"kind": "split", "node": node.id, "into": into, **cause})
    parents = {node.parent for node in after.tree}
    for cluster, of_cluster in enumerate(before.nodes.tolist()):
        if of_cluster in gone and of_cluster not in parents:
            labels = after.labels[before.labels == cluster].unique()
            events.append({"kind": "dissolve", "node": of_cluster, "into": after.nodes[labels[labels >= 0]].tolist()})
    return events


def make_pending(state: StateT, clients: Sequence[int], node: int | None = None) -> StateT:
    """Make clients pending.

    Args:
        state: The state between two rounds.
        clients: The ids of the clients.
        node: The node where they wait. None is the present node of each client. Newcomers and clients whose data
            changed wait at 0, because every cluster below it may fit them.

    Returns:
        The state with these clients pending.
    """
    ids = torch.tensor(list(clients), dtype=torch.int64)
    here = torch.where(state.labels[ids] >= 0, state.nodes[state.labels[ids]], state.waiting[ids])
    waiting = state.waiting.index_copy(0, ids, here if node is None else torch.full_like(ids, node))
    gone = torch.zeros_like(state.labels, dtype=torch.bool).index_fill(0, ids, True)
    pending = replace(
        state,
        labels=state.labels.index_fill(0, ids, -1),
        waiting=waiting,
        history=state.history.forgetting(gone),
    )
    return with_members(pending).forgetting(ids)


def reassign(state: StateT, clusters: Mapping[int, int]) -> StateT:
    """Move clients to given clusters (misplaced clients of HiCFL, Fig. 11).

    Args:
        state: The state between two rounds.
        clusters: The new cluster of some clients, 0..k-1, by client id.

    Returns:
        The state with these clients in their new clusters.
    """
    ids = torch.tensor(list(clusters), dtype=torch.int64)
    targets = torch.tensor(list(clusters.values()), dtype=torch.int64)
    labels = state.labels.index_copy(0, ids, targets)
    waiting = state.waiting.index_fill(0, ids, -1)
    return with_members(replace(state, labels=labels, waiting=waiting))
