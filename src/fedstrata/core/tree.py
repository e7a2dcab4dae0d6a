"""The cluster tree: every cluster that ever was, and why it did or did not split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Decision:
    """What was decided about a cluster in one round.

    Attributes:
        why: one sentence.
        layer: the layers that were compared, None if none were.
        values: the values that decided, by name.
    """

    why: str
    layer: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """One cluster of the tree.

    Attributes:
        id: permanent, its place in the tree.
        parent: the cluster that it was split from, None for the first.
        members: client ids, ascending; those of a leaf are kept up to date.
        born: the round that made it.
        split: the round that split it, or in which its last clients went elsewhere; None for a leaf.
        decision: the latest decision about it, None before the first.
    """

    id: int
    parent: int | None
    members: tuple[int, ...]
    born: int
    split: int | None = None
    decision: Decision | None = None


Tree = tuple[Node, ...]
"""Nodes in the order of their ids."""


def descends(tree: Tree, node: int, ancestor: int) -> bool:
    """Whether `node` is `ancestor` or was split off from it, directly or not."""
    while node > ancestor:
        parent = tree[node].parent
        if parent is None:
            return False
        node = parent
    return node == ancestor


def nearest_open_ancestor(tree: Tree, node: int) -> int:
    """The nearest of a node and its ancestors that is, or was split into, a leaf."""
    leaves = [leaf.id for leaf in tree if leaf.split is None]
    while (parent := tree[node].parent) is not None and not any(descends(tree, leaf, node) for leaf in leaves):
        node = parent
    return node


def with_decisions(tree: Tree, decisions: Mapping[int, Decision]) -> Tree:
    """Write down what was decided about some nodes."""
    return tuple(replace(node, decision=decisions.get(node.id, node.decision)) for node in tree)


def with_children(tree: Tree, parents: Sequence[int | None], round: int) -> tuple[Tree, list[int]]:
    """Split every node that several clusters come from, close every leaf that none comes from.

    Args:
        tree: before the round.
        parents: the node that each new cluster comes from; None for one that newcomers found.
        round: counted from 1.

    Returns:
        The tree with a child for each cluster of a split node, and the node of every new cluster. A founded cluster
        is a child of the first node, which is split for it if it was still a leaf: only leaves have clients. A leaf
        whose clients all went elsewhere ends in this round too, without a child.
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
    """Renew the members of some nodes."""
    return tuple(replace(node, members=tuple(members.get(node.id, node.members))) for node in tree)
