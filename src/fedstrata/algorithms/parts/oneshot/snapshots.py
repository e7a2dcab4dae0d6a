"""What newcomers are compared with (AdaCFL, section 5.4): the clusters as they were when they were made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.algorithms.parts.oneshot.grouping import Clustered
from fedstrata.clustering import euclidean
from fedstrata.clustering.hierarchy import FLAT
from fedstrata.core import Problem, Rows, initial_state
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Snapshots(Clustered):
    """Adds what newcomers are compared with.

    Attributes:
        centroids: some columns of each cluster's model when it was made, (k, q); (0, q) before the clustering.
        epsilon: distance beyond which a newcomer belongs to no cluster; 0 before the clustering.
        reference: the model that a newcomer trains, (p,).
        age: for how many rounds' epochs, at the step size of the clustering; 0 before it.
    """

    centroids: torch.Tensor
    epsilon: float
    reference: torch.Tensor
    age: int


N = TypeVar("N", bound=Snapshots)


def unclustered(problem: Problem, q: int) -> Snapshots:
    """Everyone in one cluster; the initial model is the reference, of which `q` columns will be compared."""
    return Snapshots(
        **vars(initial_state(problem)),
        clustered=0,
        centroids=torch.empty(0, q),
        epsilon=0.0,
        reference=problem.fresh(0),
        age=0,
    )


def snapshot(
    state: N, columns: torch.Tensor, weights: Rows, sizes: torch.Tensor, epsilon: float | str, cut: float | str
) -> N:
    """Keep what newcomers are compared with: the models of the clusters right after the clustering.

    They are the weighted means of what the members trained. The spread is 1.3 times the distance of the farthest
    member from the mean of its cluster's others, a clear step (as for `natural_cut`); infinity where every member is
    alone.

    Args:
        state: after the round of the clustering.
        columns: what is compared, (q,).
        weights: the members' models in that round, (m, q).
        sizes: training samples of each, (m,).
        epsilon: a distance, ``"spread"``, or ``"auto"`` for the largest distance between two clusters.
        cut: distance up to which the clusters merged, which is the epsilon of a single one, or ``"auto"``.
    """
    centroids, own = state.models[:, columns], state.labels[weights.clients]
    share = sizes / torch.zeros(len(centroids)).index_add(0, own, sizes.float())[own]
    # A member pulls its cluster's mean towards itself; a newcomer does not, so members are measured without that.
    others = ((weights.values - centroids[own]).norm(dim=1) / (1 - share))[share < 1]
    spread = FLAT * float(others.max()) if len(others) else torch.inf
    if epsilon == "auto":
        # Two means can be nearer to one another than a single client's noise takes it from its own.
        far = reach(centroids, spread if isinstance(cut, str) else cut)
        epsilon = max(far, spread) if spread < torch.inf else far
    bound = spread if isinstance(epsilon, str) else epsilon
    return replace(state, age=state.round, centroids=centroids, epsilon=bound)


def reach(centroids: torch.Tensor, alone: float) -> float:
    """Epsilon of AdaCFL, section 5.4: the largest distance between two clusters (k, q); `alone` if there is one."""
    return float(euclidean(centroids).max()) if len(centroids) > 1 else alone
