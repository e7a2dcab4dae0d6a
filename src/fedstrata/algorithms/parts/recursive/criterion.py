"""Sattler's criterion: is the cluster's model stationary for the cluster, yet not for its members?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.keys import Linkage
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, longest_norm, mean_norm
from fedstrata.clustering import bipartition, cosine, euclidean, separable
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Decision, Matrix, Problem, Result
from fedstrata.lazy_torch import torch

STATIONARY = 0.1
"""eps1 by itself: this share of the largest update seen in the cluster (Sattler et al. 2020, section V)."""

PROGRESS = 4.0
"""eps2 by itself: this many times eps1, the ratio of the authors' own experiments (0.4 and 1.6)."""


def threshold(value: float | str, peak: torch.Tensor, share: float) -> float:
    """A threshold as given, or a share of the largest norm seen where it is ``"auto"``."""
    return share * float(peak) if isinstance(value, str) else value


@dataclass(frozen=True)
class Examined:
    """The members of one cluster that are present, and what of them is compared.

    Attributes:
        node: tree id of the cluster.
        fresh: their rows, whole.
        updates: what is compared, (m, q).
        scope: updates whose norms eps2 looks at, (m, ...); by default those that are compared.
        start: the cluster's model in the compared columns, (q,); only measures of weights need it.
    """

    node: int
    fresh: Result
    updates: torch.Tensor
    scope: torch.Tensor | None = None
    start: torch.Tensor | None = None


@dataclass(frozen=True)
class Criterion:
    """The test of one cluster in one round.

    Attributes:
        eps1: the mean update must be shorter.
        eps2: the longest compared update must be longer.
        gamma: largest approximation error that Theorem 1 assumes.
        linkage: of the bipartition.
        layer: name of what is compared.
        measure: what proposes: cosine or l2, of updates (dcos, dl2) or of weights (cos, l2).
        recheck: examine a cluster again after all its members had converged.
        freeze: never examine a cluster again after Theorem 1 refused a split.
    """

    eps1: float
    eps2: float
    gamma: float
    linkage: Linkage
    layer: str
    measure: str = "dcos"
    recheck: bool = True
    freeze: bool = False

    def judge(self, problem: Problem, members: Examined) -> SplitDecision:
        """Decide about a cluster by its members that are present."""
        mean = mean_norm(problem, members.fresh)  # LayerCFL Eq. 27
        longest = longest_norm(members.updates if members.scope is None else members.scope)  # Eq. 28
        seen = {"mean_norm": mean, "max_norm": longest, "eps1": self.eps1, "eps2": self.eps2}
        if mean >= self.eps1:
            return self._keep(f"mean update {mean:.4g} is not below eps1 = {self.eps1:.4g}", seen)
        if longest <= max(self.eps2, STILL):  # a cluster in which nobody moves has no directions to compare
            why = f"longest update {longest:.4g} is not above eps2 = {self.eps2:.4g}"
            return replace(self._keep(why, seen), final=not self.recheck)
        return self.propose(members, seen)

    def propose(self, members: Examined, seen: Mapping[str, float]) -> SplitDecision:
        """Bipartition a cluster whose time has come, if Theorem 1 lets it.

        Args:
            members: of the cluster.
            seen: the values that said that its time has come.
        """
        cosines = cosine(members.updates)  # Eq. 26
        values = cosines if self.measure == "dcos" else self._measured(members)
        matrix = Matrix(members.node, self.layer, self.measure, members.fresh.updates.clients, values)
        second = bipartition(values if self.measure.endswith("cos") else -values, linkage=self.linkage).bool()
        cross = float(cosines[~second][:, second].max())
        bound = math.sqrt((1 - cross) / 2)
        seen = {**seen, "cross_max": cross, "bound": bound, "gamma": self.gamma}
        sizes = f"{int((~second).sum())} and {int(second.sum())} clients"
        theorem = f"{sizes}, largest cosine across {cross:.3f}, Theorem 1's bound {bound:.3f}"
        if separable(cross, self.gamma):
            why = f"{theorem} is above gamma = {self.gamma:.3f}"
            return SplitDecision(Decision(why, self.layer, seen), second=second, matrix=matrix)
        why = f"{theorem} is not above gamma = {self.gamma:.3f}"
        return replace(self._keep(why, seen), matrix=matrix, final=self.freeze)

    def _measured(self, members: Examined) -> torch.Tensor:
        """Cosines or distances of updates or weights, (m, m) (Eq. 23 to 25)."""
        rows, start = members.updates, members.start
        rows = rows if self.measure.startswith("d") or start is None else start + rows
        return cosine(rows) if self.measure.endswith("cos") else euclidean(rows)

    def _keep(self, why: str, seen: dict[str, float]) -> SplitDecision:
        return SplitDecision(Decision(why, self.layer, seen))
