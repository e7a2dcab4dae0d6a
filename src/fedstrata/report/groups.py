"""The order and the colours that clusters have on the whole page, their tree as rows, and what decided about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedstrata.report.colours import GREY, blend, tint
from fedstrata.report.records import Matrix, Node, Records, Round, Scores


@dataclass(frozen=True)
class Row:
    """A node of the tree in the order of a walk, with its depth and that of the row behind it."""

    node: Node
    depth: int
    after: int


@dataclass(frozen=True)
class Decision:
    """The examination by which a node was split, or the latest one of a node that was not.

    Attributes:
        node: its id.
        at: the round of the split, which may come after that of the examination; else the round of the latter.
        event: the split; None where there was none.
        layer: that decided, if one did.
        matrices: what the members were compared by.
    """

    node: int
    at: Round
    event: Mapping[str, Any] | None
    layer: str | None
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Groups:
    """What every part of the page asks about clusters."""

    records: Records

    @cached_property
    def sought(self) -> bool:
        """Whether the algorithm groups clients at all: it has several clusters, or has said why not."""
        several = len(self.records.tree) > 1 or any(each.clusters > 1 for each in self.records.rounds)
        return several or any(node.why for node in self.records.tree)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The tree, parents before children."""
        children: dict[int | None, list[Node]] = {}
        for node in self.records.tree:
            children.setdefault(node.parent, []).append(node)
        walk: list[tuple[Node, int]] = []
        ahead = [(node, 0) for node in reversed(children.get(None, []))]
        while ahead:
            node, depth = ahead.pop()
            walk.append((node, depth))
            ahead += [(child, depth + 1) for child in reversed(children.get(node.id, []))]
        depths = [depth for _, depth in walk] + [0]
        return tuple(Row(node, depth, depths[place + 1]) for place, (node, depth) in enumerate(walk))

    @cached_property
    def place(self) -> dict[int, int]:
        """Where each node stands in the walk."""
        return {row.node.id: place for place, row in enumerate(self.rows)}

    @cached_property
    def label(self) -> dict[int, int]:
        """The node of each client in the newest round; -1 for who is not in the federation."""
        return dict(enumerate(self.records.last.labels)) if self.records.last else {}

    @cached_property
    def finals(self) -> tuple[int, ...]:
        """The nodes that hold clients in the newest round, in the order of the walk."""
        waiting = set(self.records.last.pending) if self.records.last else set()
        held = {node for client, node in self.label.items() if client not in waiting and node >= 0}
        return tuple(sorted(held, key=self.rank))

    def rank(self, node: int) -> tuple[int, int]:
        """A key that sorts nodes in the order of the walk; those that the tree does not know come last."""
        return self.place.get(node, len(self.place)), node

    def final_rank(self, client: int) -> tuple[int, int, int]:
        """A key that sorts clients by final cluster, then by id."""
        return *self.rank(self.label.get(client, -1)), client

    @cached_property
    def order(self) -> list[int]:
        """All clients by final cluster, then by id."""
        return sorted(self.label, key=self.final_rank)

    def below(self, label: int, ancestors: list[int]) -> int | None:
        """The one of these nodes that a label lies in, itself or further down."""
        node: int | None = label
        while node is not None and node not in ancestors:
            node = self.records.tree[node].parent if 0 <= node < len(self.records.tree) else None
        return node

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each node that was examined, in the order of the walk."""
        by_round = {each.round: each for each in self.records.rounds}
        split = {event.get("node"): (each, event) for each in self.records.rounds for event in each.splits}
        layers = {node.id: node.layer for node in self.records.tree}
        found = []
        for node in sorted({matrix.node for matrix in self.records.matrices}, key=self.rank):
            own = [matrix for matrix in self.records.matrices if matrix.node == node]
            at, event = split.get(node, (None, None))
            # Strata tries a split before it makes it; and what was compared after a split did not decide it.
            before = [matrix.round for matrix in own if at is None or matrix.round <= at.round]
            if not before:
                continue
            matrices = tuple(matrix for matrix in own if matrix.round == max(before))
            layer = event.get("layer") if event else layers.get(node)
            found.append(Decision(node, at or by_round[max(before)], event, layer, matrices))
        return tuple(found)

    @cached_property
    def colours(self) -> dict[int, str]:
        """A colour for each node: one of its own for final ones, their mixture for those that they came from."""
        colours = {node: tint(place) for place, node in enumerate(self.finals)}
        below: dict[int, list[str]] = {node: [colour] for node, colour in colours.items()}
        for node in reversed(self.records.tree):
            if node.id not in colours:
                colours[node.id] = blend(below.get(node.id, [GREY]))
            if node.parent is not None:
                below.setdefault(node.parent, []).extend(below.get(node.id, []))
        return colours

    def colour(self, node: int) -> str:
        """The colour of a node, grey for one that the tree does not know."""
        return self.colours.get(node, GREY)

    def alive(self, node: int, number: int) -> bool:
        """Whether a node was still a cluster after a round."""
        tree = self.records.tree
        return not 0 <= node < len(tree) or (split := tree[node].split) is None or split > number

    @property
    def scores(self) -> Scores | None:
        """The newest scores of the clients."""
        return self.records.scores[max(self.records.scores)] if self.records.scores else None
