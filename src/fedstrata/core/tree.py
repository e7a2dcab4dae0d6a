"""The cluster tree: every cluster of a run, and why it was or was not split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Decision:
    """What was decided about a cluster in one round. `fedstrata.report.decisions` has a sentence for every kind.

    Attributes:
        kind: What was decided, as a snake_case name.
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
    """Whether a node is an ancestor itself or one of its descendants."""
    while node > ancestor:
        parent = tree[node].parent
        if parent is None:
            return False
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


def with_members(tree: Tree, members: Mapping[int, Sequence[int]]) -> Tree:
    """The tree with new members of some nodes, by node id."""
    return tuple(replace(node, members=tuple(members.get(node.id, node.members))) for node in tree)
