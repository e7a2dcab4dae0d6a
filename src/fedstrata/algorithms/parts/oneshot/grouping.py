"""What the algorithms that group their clients once have in common: one cluster until enough can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.algorithms.parts.keys import Linkage
from fedstrata.clustering import agglomerate, natural_cut
from fedstrata.core import Decision, Diagnostics, Matrix, Problem, Report, Rows, State, aggregate, selected
from fedstrata.lazy_torch import torch

LEAST = 2
"""Clients without which nothing can be grouped."""

Distance = Callable[[torch.Tensor], torch.Tensor]
"""Rows (m, q) -> distances (m, m)."""


@dataclass(frozen=True)
class Clustered(State):
    """Adds the round in which the clients were grouped, 0 before it."""

    clustered: int


C = TypeVar("C", bound=Clustered)


@dataclass(frozen=True)
class Groups:
    """Who belongs together.

    Attributes:
        labels: of the clients that were compared, (m,) int64, any numbers.
        decision: why.
        matrices: what they were compared by.
    """

    labels: torch.Tensor
    decision: Decision
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Quorum:
    """When clients are grouped: as soon as enough of them can be compared.

    Attributes:
        share: of those who count that must be there.
        members: who counts, (n,) bool.
        there: what is said about those that are.
        least: number of clients that must be there.
        first: first round in which clients are grouped.
    """

    share: float
    members: torch.Tensor
    there: str
    least: int = LEAST
    first: int = 1

    def lacks(self, present: int, round: int) -> str:
        """Why so many clients cannot be grouped in a round; empty where they can."""
        size = int(self.members.sum())
        if present >= self.least and present / size >= self.share and round >= self.first:
            return ""
        since = f", from round {self.first} on" if self.first > 1 else ""
        return f"{present} of {size} {self.there}; {self.least} and a share of {self.share:g} are needed{since}"


def answering(share: float, report: Report, labels: torch.Tensor, least: int = LEAST, first: int = 1) -> Quorum:
    """A share of the members that were asked in a round: updates are compared with those of the same round only."""
    return Quorum(share, selected(report, labels >= 0), "asked members answered", least, first)


def divide(
    problem: Problem,
    state: C,
    report: Report,
    labels: torch.Tensor,
    rows: Rows,
    quorum: Quorum,
    group: Callable[[Rows], Groups],
) -> tuple[C, Diagnostics]:
    """Split the only cluster into groups, if enough clients can be compared; average inside what there then is.

    Args:
        problem: fixed for the run.
        state: before the round, and before the clustering.
        report: its first result holds the updates that count.
        labels: 0 for who is in the cluster, -1 for who still has to come, (n,).
        rows: what is compared, of the clients that are there; the others become pending if there is a split.
        quorum: how many that must be.
        group: rows in the order of their ids -> who belongs together.
    """
    lacks = quorum.lacks(len(rows.clients), state.round + 1)
    if lacks:
        return aggregate(problem, state, report, labels, decisions={0: Decision(lacks)})
    clients = rows.clients.sort().values
    groups = group(Rows(clients, rows.of(clients)))
    # Clusters are numbered by their smallest member.
    found = list(dict.fromkeys(groups.labels.tolist()))
    # Where nobody is told apart, those that were not compared have nothing to wait for.
    labels = torch.full_like(labels, -1) if len(found) > 1 else labels
    labels = labels.index_copy(0, clients, torch.tensor([found.index(name) for name in groups.labels.tolist()]))
    origin = torch.zeros(len(found), dtype=torch.int64)
    moved, diagnostics = aggregate(problem, state, report, labels, origin, {0: groups.decision})
    return replace(moved, clustered=moved.round), replace(diagnostics, matrices=groups.matrices)


@dataclass(frozen=True)
class Agglomeration:
    """Groups that merge up to a cut.

    Attributes:
        cut: distance up to which groups merge; ``"auto"`` is the largest step of the merge heights.
        linkage: how far apart two groups are.
        distance: how far apart two clients are.
        measure: name of that.
        layer: name of what is compared.
        resolution: least difference of two distances that can be told.
    """

    cut: float | str
    linkage: Linkage
    distance: Distance
    measure: str
    layer: str
    resolution: float = 0.0

    def merge(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Labels (m,) of rows (m, q), the distances that they were merged by (m, m), and the cut."""
        matrix = self.distance(rows)
        cut = natural_cut(matrix, self.linkage, self.resolution) if isinstance(self.cut, str) else self.cut
        return agglomerate(matrix, cut, self.linkage), matrix, cut

    def groups(self, rows: Rows) -> Groups:
        """Who belongs together by one clustering of all clients that are there."""
        labels, matrix, cut = self.merge(rows.values)
        k, finite = int(labels.max()) + 1, cut < torch.inf
        why = f"{k} groups of {len(labels)} clients: " + (f"cut at {cut:.4g}" if finite else "no clear step to cut at")
        seen = {"groups": float(k), "clients": float(len(labels)), **({"cut": cut} if finite else {})}
        matrices = (Matrix(0, self.layer, self.measure, rows.clients, matrix),)
        return Groups(labels, Decision(why, self.layer, seen), matrices)
