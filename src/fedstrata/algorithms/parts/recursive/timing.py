"""When to split: as soon as one layer of the members is stable, long before their models have converged.

Gong et al., IEEE TMC 2024, section IV-B, timing of bi-partitioning a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.parts.recursive.recursion import longest_norm, mean_norm
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Decision, Problem, Result
from fedstrata.lazy_torch import torch

EPSILON = 0.5
"""epsilon by itself: this many times the step size (section V-A)."""


def epsilon_of(epsilon: float | str, lr: float) -> float:
    """A threshold of stability as given, or the round's where it is ``"auto"``."""
    return EPSILON * lr if isinstance(epsilon, str) else epsilon


@dataclass(frozen=True)
class Timing:
    """The test of one cluster in one round.

    Attributes:
        epsilon: stability below which a layer is stable.
        rho: ratio of the mean to the longest update from which on the members agree.
        eps2: longest update below which the members have converged.
        each: whether a layer must be stable in every member; else in their mean.
    """

    epsilon: float
    rho: float
    eps2: float = 0.0
    each: bool = False

    def watched(self, steady: torch.Tensor) -> torch.Tensor:
        """What must be below epsilon: one stability for each layer, (layers,), of those of one member at least."""
        return steady.amax(dim=0) if self.each else steady.mean(dim=0)

    def examine(self, problem: Problem, fresh: Result, steady: torch.Tensor) -> tuple[bool, tuple[Decision, ...]]:
        """Whether a cluster may be split now.

        Args:
            problem: fixed for the run.
            fresh: rows of the members that are present.
            steady: stability of their layers, (m, layers).

        Returns:
            Whether it may; and what was seen of each stable layer, the stablest first, with the reason if it may not.
            If none is stable, that is said of the one that is nearest to it.
        """
        means, worst, watched = steady.mean(dim=0), steady.amax(dim=0), self.watched(steady)
        order = means.argsort(stable=True).tolist()
        stable = [layer for layer in order if watched[layer] < self.epsilon]  # Eq. 15, one layer for all members
        nearest = int(watched.argmin())
        mean = mean_norm(problem, fresh)
        longest = longest_norm(fresh.updates.only(problem.layout.columns(problem.layout.select("all"))).values)
        ratio = mean / longest if longest > STILL else 1.0  # members none of whom moves agree
        norms = {"mean_norm": mean, "max_norm": longest, "ratio": ratio, "rho": self.rho}
        held = ""
        if not stable:
            whom = "every member" if self.each else "the members' mean"
            held = f"no layer is stable in {whom}: {float(watched[nearest]):.4g} is not below {self.epsilon:.4g}"
        elif ratio >= self.rho:
            held = f"the members agree: mean update / longest update {ratio:.3f} is not below rho = {self.rho:g}"
        elif longest < self.eps2:
            held = f"the members have converged: longest update {longest:.4g} is below eps2 = {self.eps2:.4g}"
        decisions = []
        for layer in stable or [nearest]:
            own = {"stability": float(means[layer]), "max_stability": float(worst[layer]), "epsilon": self.epsilon}
            decisions.append(Decision(held, problem.layout.layers[layer], {**own, **norms}))
        return not held, tuple(decisions)
