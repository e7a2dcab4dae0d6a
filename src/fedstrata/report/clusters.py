"""The clusters of a run as the whole page shows them: their order and colours, their tree, and what decided."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.arrays import ClientMatrix, known_scores
from fedstrata.records.schema import Event, Predictions, Round, Scores, TreeNode
from fedstrata.report.catalogue import WORDS
from fedstrata.report.differences import Effect
from fedstrata.report.drawing import GREY, blend, palette
from fedstrata.report.reader import RunRecords
from fedstrata.report.references import Gain, effects, gain, mean_effect
from fedstrata.report.words import ClientNames


@dataclass(frozen=True)
class TreeRow:
    """A node of the tree, in depth-first order.

    Attributes:
        node: The node.
        depth: Its depth; the root has 0.
        next_depth: The depth of the next row; 0 after the last row.
    """

    node: TreeNode
    depth: int
    next_depth: int


@dataclass(frozen=True)
class SplitMatrices:
    """The matrices by which a node was split.

    Attributes:
        at: The round of the split, which may come after that of the matrices.
        event: The split.
        matrices: The matrices of the node's clients, all of one round.
    """

    at: Round
    event: Event
    matrices: tuple[ClientMatrix, ...]


@dataclass(frozen=True)
class Clusters:
    """The clusters of a run; tree nodes are in depth-first order everywhere."""

    records: RunRecords

    @cached_property
    def measured(self) -> dict[int, tuple[int, float]]:
        """The number of test samples and the metric of each client, by the newest scores; without unknown ones."""
        return {} if self.scores is None else known_scores(self.scores)

    @cached_property
    def means(self) -> dict[int, float]:
        """The mean metric of each final cluster's clients, by the newest scores."""
        values: dict[int, list[float]] = {}
        for client, (_, value) in self.measured.items():
            values.setdefault(self.node_of.get(client, -1), []).append(value)
        return {node: float(np.mean(values[node])) for node in self.finals if node in values}

    @cached_property
    def effects(self) -> dict[str, dict[int, Effect | None]]:
        """The difference of each client from each reference, by algorithm; None where its chance is not known."""
        return {
            name: effects(self.measured, each.by_client, self.metric, self._predictions, each.predictions)
            for name, each in self.records.references.items()
        }

    @cached_property
    def mean_effects(self) -> dict[str, Effect | None]:
        """The difference of the mean over clients from each reference, by algorithm."""
        references = self.records.references.items()
        return {name: mean_effect(self._predictions, each.predictions, self.metric) for name, each in references}

    @cached_property
    def _predictions(self) -> dict[int, Predictions]:
        return {} if self.records.predictions is None else self.records.predictions.by_client()

    @cached_property
    def gains(self) -> dict[str, Gain]:
        """Whom the run serves better or worse than each reference, by algorithm."""
        return {name: gain(each) for name, each in self.effects.items()}

    @cached_property
    def counts(self) -> dict[str, Counter[int]]:
        """In how many rounds each client was in the cohort, absent, and rejected."""
        rounds = self.records.rounds
        kinds = ("cohort", "absent", "rejected")
        return {kind: Counter(chain.from_iterable(getattr(each, kind) for each in rounds)) for kind in kinds}

    @cached_property
    def pending(self) -> frozenset[int]:
        """The clients that wait for a cluster."""
        return frozenset(self.records.last.pending if self.records.last else ())

    @property
    def metric(self) -> MetricInfo:
        """What the scores are."""
        return self.records.metric

    @cached_property
    def clustered(self) -> bool:
        """Whether the algorithm clusters clients at all: it has several clusters, or decided against it."""
        several = len(self.records.tree) > 1 or any(each.clusters > 1 for each in self.records.rounds)
        return several or any(node.why for node in self.records.tree)

    @cached_property
    def rows(self) -> tuple[TreeRow, ...]:
        """The tree, parents before children."""
        children: dict[int | None, list[TreeNode]] = {}
        for node in self.records.tree:
            children.setdefault(node.parent, []).append(node)
        order: list[tuple[TreeNode, int]] = []
        stack = [(node, 0) for node in reversed(children.get(None, []))]
        while stack:
            node, depth = stack.pop()
            order.append((node, depth))
            stack += [(child, depth + 1) for child in reversed(children.get(node.id, []))]
        depths = [depth for _, depth in order] + [0]
        return tuple(TreeRow(node, depth, depths[place + 1]) for place, (node, depth) in enumerate(order))

    @cached_property
    def names(self) -> ClientNames:
        """The names of the clients."""
        return ClientNames(self.records.data.names if self.records.data else ())

    @cached_property
    def place(self) -> dict[int, int]:
        """The row of each node."""
        return {row.node.id: place for place, row in enumerate(self.rows)}

    @cached_property
    def node_of(self) -> dict[int, int]:
        """The node of each client in the newest round; -1 for a client that is not in the federation."""
        return dict(enumerate(self.records.last.labels)) if self.records.last else {}

    @cached_property
    def finals(self) -> tuple[int, ...]:
        """The nodes that hold clients in the newest round."""
        held = {node for client, node in self.node_of.items() if client not in self.pending and node >= 0}
        return tuple(sorted(held, key=self.rank))

    @cached_property
    def order(self) -> list[int]:
        """All clients by final cluster, then by id."""
        return sorted(self.node_of, key=self.client_rank)

    def rank(self, node: int) -> tuple[int, int]:
        """Return a key that sorts nodes; those that the tree does not hold come last."""
        return self.place.get(node, len(self.place)), node

    def client_rank(self, client: int) -> tuple[int, int, int]:
        """Return a key that sorts clients by final cluster, then by id."""
        return *self.rank(self.node_of.get(client, -1)), client

    def find_ancestor(self, node: int, nodes: list[int]) -> int | None:
        """Return the one of some nodes that a node is or descends from."""
        found: int | None = node
        while found is not None and found not in nodes:
            found = self.records.tree[found].parent if 0 <= found < len(self.records.tree) else None
        return found

    @cached_property
    def splits(self) -> tuple[SplitMatrices, ...]:
        """One for each node that was split by matrices."""
        splits = {event.node: (each, event) for each in self.records.rounds for event in each.splits}
        by_node: dict[int, list[ClientMatrix]] = {}
        for matrix in self.records.matrices:
            # Strata evaluates a split before it makes it; and matrices from after a split did not decide it.
            if matrix.node in splits and matrix.round <= splits[matrix.node][0].round:
                by_node.setdefault(matrix.node, []).append(matrix)
        found = []
        for node in sorted(by_node, key=self.rank):
            latest = max(matrix.round for matrix in by_node[node])
            matrices = tuple(matrix for matrix in by_node[node] if matrix.round == latest)
            found.append(SplitMatrices(*splits[node], matrices))
        return tuple(found)

    @cached_property
    def colours(self) -> dict[int, str]:
        """The colour of each node: final ones have one of their own, their ancestors the mixture of those below."""
        colours = {node: palette(place) for place, node in enumerate(self.finals)}
        below: dict[int, list[str]] = {node: [colour] for node, colour in colours.items()}
        for node in reversed(self.records.tree):
            if node.id not in colours:
                colours[node.id] = blend(below.get(node.id) or [GREY])
            if node.parent is not None:
                below.setdefault(node.parent, []).extend(below.get(node.id, []))
        return colours

    @cached_property
    def used_values(self) -> list[str]:
        """The values of decisions in the tree whose meaning is known, in the order of the catalogue."""
        used = {name for node in self.records.tree for name in node.criteria}
        return [name for name in WORDS["value"] if name in used]

    def colour(self, node: int) -> str:
        """Return the colour of a node; grey for one that the tree does not hold."""
        return self.colours.get(node, GREY)

    def alive(self, node: int, number: int) -> bool:
        """Return whether a node was still a cluster after a round."""
        tree = self.records.tree
        return not 0 <= node < len(tree) or (split := tree[node].split) is None or split > number

    @property
    def scores(self) -> Scores | None:
        """The newest scores of the clients."""
        return self.records.scores[max(self.records.scores)] if self.records.scores else None
