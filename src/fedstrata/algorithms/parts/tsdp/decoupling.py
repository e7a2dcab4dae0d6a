"""The two stages of decoupling (FedTSDP, Sections 3.2 and 3.3): by what models predict, then by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedstrata.clustering import dbscan, euclidean, jensen_shannon
from fedstrata.core import Matrix
from fedstrata.lazy_torch import torch

WIDE = 2.0
"""An automatic radius is this many times the median distance to the nearest other."""

WORDS = {"js": "predictions", "l2": "weights"}
"""What a measure looks at."""


@dataclass(frozen=True)
class Decoupled:
    """Groups of clients, and why.

    Attributes:
        groups: of each client, (m,) int64 in 0..g-1, none empty.
        matrices: what each stage compared; the second compared clients of one group of the first only, others are nan.
        radii: of the first stage, and of the second in every group of two or more that the first found, by name.
        figures: how many groups the first stage found, and the widest radius of the second.
        why: half a sentence.
    """

    groups: torch.Tensor
    matrices: tuple[Matrix, ...]
    radii: Mapping[str, float]
    figures: Mapping[str, float]
    why: str

    @property
    def layer(self) -> str:
        """What was compared."""
        return ", ".join(matrix.layer for matrix in self.matrices)


@dataclass(frozen=True)
class Decoupling:
    """How clients are grouped.

    Attributes:
        radius1: of the first stage, nats.
        radius2: of the second stage, or ``"auto"``.
        least: clients within a radius, itself counted, that make a client dense.
        stages: ``"both"``, ``"first"`` or ``"second"``.
        noise: ``"singleton"``: who is near nobody is alone; ``"nearest"``: it joins the cluster of the nearest client
            that is in one.
    """

    radius1: float
    radius2: float | str
    least: int
    stages: str
    noise: str

    def decouple(self, clients: torch.Tensor, predictions: torch.Tensor, models: torch.Tensor) -> Decoupled:
        """Group some clients.

        Args:
            clients: their ids, (m,).
            predictions: class probabilities of their models on one batch, (m, b, classes).
            models: their models, (m, q).
        """
        groups, matrices = torch.zeros_like(clients), list[Matrix]()
        radii, figures, before = dict[str, float](), dict[str, float](), ""
        if self.stages != "second":
            divergence = jensen_shannon(predictions)  # Eq. 5
            groups = self._dense(divergence, self.radius1)
            matrices.append(Matrix(0, "predictions", "js", clients, divergence))
            radii["radius1"], figures["groups_first"] = self.radius1, float(groups.max()) + 1
        if self.stages != "first":
            before = f", {int(groups.max()) + 1} by predictions alone" if matrices else ""
            distances, groups, inside = self._inside(groups, models)
            matrices.append(Matrix(0, "all", "l2", clients, distances))
            radii |= {f"radius2 around client {int(clients[row])}": radius for row, radius in inside.items()}
            figures["radius2"] = max(inside.values(), default=0.0)
        by = " and ".join(WORDS[matrix.measure] for matrix in matrices)
        count = int(groups.max()) + 1
        why = f"{count} group{'s' * (count > 1)} by {by}{before}"
        return Decoupled(groups, tuple(matrices), radii, figures, why)

    def _inside(self, first: torch.Tensor, models: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[int, float]]:
        """The second stage: distances (m, m), groups (m,), and the radius in each first group of two or more.

        A radius is that around the first row of its group.
        """
        distances = torch.full((len(models), len(models)), torch.nan, dtype=torch.float64)
        groups, found, radii = torch.zeros_like(first), 0, dict[int, float]()
        for group in range(int(first.max()) + 1):
            rows = (first == group).nonzero().flatten()
            distance = euclidean(models[rows])  # Eq. 9
            distances[rows[:, None], rows] = distance.double()
            radius = self._reach(distance)
            groups[rows] = found + self._dense(distance, radius)
            found = int(groups.max()) + 1
            if len(rows) > 1:
                radii[int(rows[0])] = radius
        return distances, groups, radii

    def _reach(self, distance: torch.Tensor) -> float:
        """The radius of the second stage among some clients."""
        if not isinstance(self.radius2, str):
            return self.radius2
        apart = distance.clone().fill_diagonal_(torch.inf)
        return WIDE * float(apart.amin(dim=1).quantile(0.5)) if len(distance) > 1 else 0.0

    def _dense(self, distance: torch.Tensor, radius: float) -> torch.Tensor:
        """DBSCAN, (m,) int64 in 0..g-1."""
        labels = dbscan(distance, radius, self.least)
        alone = labels.bincount()[labels] == 1
        if self.noise == "singleton" or self.least == 1 or bool(alone.all()):
            return labels
        apart = distance.clone().fill_diagonal_(torch.inf)
        labels[alone] = labels[~alone][apart[alone][:, ~alone].argmin(dim=1)]
        numbered: torch.Tensor = torch.unique(labels, return_inverse=True)[1]
        return numbered
