"""Where to split: between who points the way of the cluster's reference and who does not, in one stable layer.

Gong et al., IEEE TMC 2024, section IV-B, bi-partitioning a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fedstrata.algorithms.parts.recursive.recursion import SplitDecision
from fedstrata.clustering import cosine, reference_split
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Decision, Matrix, Problem, Result
from fedstrata.lazy_torch import torch

FEW = 6
"""Pairs below which nothing is said about their scatter: those of four clients."""

CLOSE = 0.5
"""Mean cosine of so few that agree: 60 degrees."""


@dataclass(frozen=True)
class Sides:
    """How a cluster whose time has come is split.

    Attributes:
        negative: whether the two sides must point away from each other in the mean.
        clear: by how many standard errors the sides must be apart, see `_clarity`; 0 asks for nothing.
        ending: the ending that splits members even if they all point one way; empty before it.
    """

    negative: bool
    clear: float
    ending: str = ""

    def split(
        self, problem: Problem, node: int, fresh: Result, steady: torch.Tensor, stable: Sequence[Decision]
    ) -> SplitDecision:
        """Split a cluster by the first of its stable layers that has two sides.

        The stablest one is often the first convolution, in which everyone points one way whatever the skew.

        Args:
            problem: fixed for the run.
            node: tree id of the cluster.
            fresh: rows of the members that are present.
            steady: stability of their layers, (m, layers), in which the smallest is the reference's.
            stable: what was seen of each stable layer, the stablest first; one at least.

        Returns:
            The split; where there is none, why the stablest layer has none.
        """
        # A generator: a layer is looked at only if those before it have no sides.
        tried = (self._within(problem, node, fresh, steady, seen) for seen in stable)
        stablest = next(tried)
        return next((decision for decision in chain([stablest], tried) if decision.second is not None), stablest)

    def _within(
        self, problem: Problem, node: int, fresh: Result, steady: torch.Tensor, seen: Decision
    ) -> SplitDecision:
        """Split a cluster by the sign of the cosine to its reference in one layer, unless nobody is on the other side.

        An ending goes on without the mean update, which all have in common: what is left points both ways.
        """
        layer, layout = str(seen.layer), problem.layout
        steadiness = steady[:, layout.layers.index(layer)]
        updates = fresh.updates.only(layout.columns(layout.select(layer))).values.double()
        reference, together = reference_split(updates, steadiness)  # Eq. 17 and 18
        if self.ending and bool(together.all()):
            reference, together = reference_split(updates - updates.mean(dim=0), steadiness)
        client = int(fresh.updates.clients[reference])
        criteria = {**seen.values, "reference": float(client)}
        if bool(together.all()):
            why = f"everyone points the way of client {client}, the reference"
            return SplitDecision(replace(seen, why=why, values=criteria))
        cosines = cosine(updates)
        matrix = Matrix(node, layer, "dcos", fresh.updates.clients, cosines)
        cross, apart_by = float(cosines[together][:, ~together].mean()), _clarity(cosines, together, reference)
        known = {"clarity": apart_by} if math.isfinite(apart_by) else {}
        criteria = {**criteria, "cross_mean": cross, **known}
        apart = f"{int(together.sum())} clients with client {client}, the reference, and {int((~together).sum())} not"
        sides = f"{self.ending} ending: {apart}" if self.ending else apart
        if self.negative and cross >= 0:
            why = f"{sides}: mean cosine across {cross:.3f} is not below 0"
            return SplitDecision(replace(seen, why=why, values=criteria), matrix=matrix)
        if self.clear and apart_by < self.clear:
            why = f"{sides}: {_words(apart_by)}, at least {self.clear:g} are needed"
            return SplitDecision(replace(seen, why=why, values=criteria), matrix=matrix)
        why = f"{sides}; mean cosine across {cross:.3f}"
        return SplitDecision(replace(seen, why=why, values=criteria), second=~together, matrix=matrix)


def _clarity(cosines: torch.Tensor, together: torch.Tensor, reference: int) -> float:
    """By how many standard errors those with the reference are more like each other than like the other side.

    The sides are chosen by the sign of the cosine to the reference, and a sign is always found: when a model has
    converged, the updates of identical clients add up to nothing and half of them point away from any one. So the
    pairs with the reference itself do not count, those within must agree in the mean and those across must not.

    Returns:
        Welch's t of the cosines (m, m) on the reference's side against those across; -inf where a mean has the wrong
        sign; of few pairs, inf where they agree closely and -inf where they do not.
    """
    others = torch.arange(len(cosines)) != reference
    every = torch.ones_like(cosines, dtype=torch.bool).triu(diagonal=1)
    pairs, near, apart = every & others[:, None] & others, together[:, None] & together, together[:, None] != together
    within, across = cosines[pairs & near], cosines[pairs & apart]
    if min(len(within), len(across)) < FEW:
        # Too few to scatter: then they must agree closely, and the reference counts.
        same = cosines[every & near] if int(together.sum()) > 1 else cosines[every & ~near & ~apart]
        agree = not len(same) or bool(same.mean() >= CLOSE)
        return math.inf if agree and not bool(across.mean() >= 0) else -math.inf
    if bool((within.mean() <= 0) | (across.mean() >= 0)):
        return -math.inf
    error = (within.var() / len(within) + across.var() / len(across)).sqrt()
    return float((within.mean() - across.mean()) / error.clamp(min=STILL))


def _words(clarity: float) -> str:
    if clarity == -math.inf:
        return "without the reference, those on one side do not agree or the sides do"
    return f"without the reference, the sides are only {clarity:.1f} standard errors apart"
