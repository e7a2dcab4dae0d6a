"""The rules of aggregation that an experiment can name. Most are for clusters in which Byzantine clients send anything.

Each rule is applied inside every cluster, to the updates of its members. A cluster of one client has its update, and
one without any has zeros. No rule holds against half of a cluster.

The arguments of every rule are those of `fedstrata.core.aggregation.weighted_mean`, and its options have names. A new
rule is a function of the members of a cluster, and an entry in `AGGREGATIONS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from math import floor
from typing import Any

from fedstrata.base.lazy_torch import torch
from fedstrata.core.aggregation import Rule, RuleAggregation, plain_mean, weighted_mean
from fedstrata.core.rows import Rows

_CHUNK_VALUES = 2**22
"""The number of values that are looked at together: 32 MB in float64."""

_MAX_STEPS = 100
"""The largest number of steps of the geometric median. It mostly takes some ten."""

_SMOOTHING = 1e-6
"""A share of the median distance of updates from the first centre of the geometric median. Updates that are nearer than
this to the centre count as if they were so far away (nu of RFA). It keeps the weight of an update finite where that is
the median itself."""

_SHORT_STEP = 1e-3
"""A share of this smallest distance. The geometric median has converged when a step is shorter."""

_CLIPPING_STEPS = 3
"""The number of times that centred clipping moves its centre."""


@dataclass(frozen=True)
class _Members:
    """The updates of the members of one cluster, in the order of their ids.

    Attributes:
        values: The updates of all clients, (n, p).
        rows: The rows of the members in it, (m,).
        weights: The weight of each member, (m,) float64.
    """

    values: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor

    def __len__(self) -> int:
        """The number of members, m."""
        return len(self.rows)

    def column_chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Neighbouring columns, one chunk after the other, and the updates there, (m, width) float64."""
        p = self.values.shape[1]
        width = max(1, _CHUNK_VALUES // len(self))
        for first in range(0, p, width):
            columns = slice(first, min(first + width, p))
            yield columns, self.values[:, columns][self.rows].double()

    def row_of(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The row (p,) float64 that a rule makes of chunks of the updates, (m, width) -> (width,)."""
        row = torch.empty(self.values.shape[1], dtype=torch.float64)
        for columns, values in self.column_chunks():
            row[columns] = rule(values)
        return row

    def scaled_mean(self, factors: torch.Tensor) -> torch.Tensor:
        """The mean of the updates, each times its factor (m,), (p,)."""
        return self.row_of(lambda values: (values * factors[:, None]).sum(dim=0) / len(self))

    def weighted_mean(self, weights: torch.Tensor) -> torch.Tensor:
        """The mean of the updates with a weight each (m,), (p,)."""
        return self.scaled_mean(weights / weights.mean())

    def distances(self, centre: torch.Tensor) -> torch.Tensor:
        """The L2 distance of each update from a row (p,), (m,)."""
        squares = torch.zeros(len(self), dtype=torch.float64)
        for columns, values in self.column_chunks():
            squares += (values - centre[columns]).square().sum(dim=1)
        return squares.sqrt()


def _in_each_cluster(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Apply a rule from the updates of one cluster to a row, (p,) float64, in every cluster: (k, p) float32."""

    @wraps(rule)
    def of_clusters(
        updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int, **options: float | None
    ) -> torch.Tensor:
        found = torch.zeros(k, updates.values.shape[1])
        order = updates.clients.argsort()
        for cluster in labels.unique().tolist():
            rows = order[labels[order] == cluster]
            members = _Members(updates.values, rows, weights[rows].double())
            found[cluster] = rule(members, **options).float()
        return found

    return of_clusters


@_in_each_cluster
def median(members: _Members) -> torch.Tensor:
    """The median of each column: Yin et al., "Byzantine-robust distributed learning", ICML 2018, Definition 1.

    Of an even number of values it is the mean of the middle two. The weights are not used.
    """
    return _coordinate_median(members)


@_in_each_cluster
def trimmed_mean(members: _Members, *, byzantine_share: float = 0.2) -> torch.Tensor:
    """The mean of each column without its largest and smallest values: Yin et al., ICML 2018, Definition 2.

    Left out at each end is `byzantine_share` of the members (beta), rounded down. The weights are not used.
    """
    cut = _byzantine(len(members), byzantine_share)
    return members.row_of(lambda values: _middle_mean(values, cut))


@_in_each_cluster
def krum(members: _Members, *, byzantine_share: float = 0.2) -> torch.Tensor:
    """The one update that is nearest to its neighbours: Blanchard et al., NeurIPS 2017, Section 4.

    Of m members, f may be Byzantine: `byzantine_share` of them, rounded down, and less where 2 f + 2 < m does not hold.
    The score of an update is the sum of its squared distances from the nearest m - f - 2 of the others, at least one.
    The update of the lowest score is taken, of the lowest client id where several have it. The weights are not used.
    """
    return _mean_of_lowest_scores(members, _byzantine_of_krum(len(members), byzantine_share), 1)


@_in_each_cluster
def multi_krum(members: _Members, *, byzantine_share: float = 0.2) -> torch.Tensor:
    """The mean of the m - f updates with the lowest scores of `krum`: Blanchard et al., NeurIPS 2017, Section 4.

    The weights are not used.
    """
    byzantine = _byzantine_of_krum(len(members), byzantine_share)
    return _mean_of_lowest_scores(members, byzantine, len(members) - byzantine)


@_in_each_cluster
def geometric_median(members: _Members) -> torch.Tensor:
    """The row with the least weighted sum of distances from the updates (RFA): Pillutla et al., IEEE TSP 2022.

    It is found by their smoothed Weiszfeld algorithm, which begins at the weighted median of each column. Where updates
    lie there that are not the geometric median, the first step is that of Vardi and Zhang, PNAS 2000.
    """
    centre = _weighted_coordinate_median(members)
    distances = members.distances(centre)
    # Half of the weight lies so near. Fewer have no part in how much is smoothed, however far they are.
    ordered, order = distances.sort()
    half = float(ordered[_first_half(members.weights[order])])
    if not half:
        return centre
    nearest = _SMOOTHING * half
    if bool((distances <= nearest).any()):
        centre = _away_from_updates(members, centre, distances, nearest)
        distances = members.distances(centre)
    for _ in range(_MAX_STEPS):
        pulls = members.weights / distances.clamp(min=nearest)
        before, centre = centre, members.weighted_mean(pulls)
        if float((centre - before).norm()) <= _SHORT_STEP * nearest:
            break
        distances = members.distances(centre)
    return centre


@_in_each_cluster
def norm_clip(members: _Members, *, clip_norm: float | None = None, clip_quantile: float = 0.5) -> torch.Tensor:
    """The weighted mean of updates that are scaled down to a largest L2 norm.

    Sun et al., "Can you really backdoor federated learning?", 2019. The largest norm is `clip_norm`, or that quantile
    of the norms of the members, as in Andrew et al., "Differentially private learning with adaptive clipping", NeurIPS
    2021.
    """
    norms = members.distances(torch.zeros(members.values.shape[1]))
    factors = _clipping_factors(norms, _radius(norms, clip_norm, clip_quantile))
    return members.scaled_mean(factors * members.weights / members.weights.mean())


@_in_each_cluster
def centered_clip(members: _Members, *, clip_norm: float | None = None, clip_quantile: float = 0.5) -> torch.Tensor:
    """The mean of updates that are clipped around a centre.

    Karimireddy et al., "Learning from history for Byzantine robust optimization", ICML 2021, Algorithm 2. In the paper
    the first centre is the last aggregate. A cluster may be new or have other members, so here it is the median of each
    column. The largest distance from the centre (tau) is `clip_norm`, or that quantile of the distances of the members
    from the first one. The weights are not used.
    """
    centre = _coordinate_median(members)
    radius = _radius(members.distances(centre), clip_norm, clip_quantile)
    for _ in range(_CLIPPING_STEPS):
        factors = _clipping_factors(members.distances(centre), radius)
        # The mean of f (x - v), with a factor f for each update x and the centre v.
        centre = centre + members.scaled_mean(factors) - centre * factors.mean()
    return centre


def _byzantine(m: int, share: float) -> int:
    """How many of m members may be Byzantine: fewer than half of them."""
    # 0.29 of 100 is 28.999999999999996 by floating point.
    return min(floor(round(share * m, 9)), (m - 1) // 2)


def _byzantine_of_krum(m: int, share: float) -> int:
    """How many of m members may be Byzantine in Krum, whose proof needs 2 f + 2 < m."""
    return min(_byzantine(m, share), max((m - 3) // 2, 0))


def _coordinate_median(members: _Members) -> torch.Tensor:
    """The median of each column, (p,)."""
    return members.row_of(lambda values: _middle_mean(values, (len(values) - 1) // 2))


def _weighted_coordinate_median(members: _Members) -> torch.Tensor:
    """The median of each column by the weights of the members, (p,)."""
    weights = members.weights
    if bool((weights == weights[0]).all()):
        return _coordinate_median(members)

    def median(values: torch.Tensor) -> torch.Tensor:
        ordered, order = values.sort(dim=0)
        return ordered.gather(0, _first_half(weights[order])[None])[0]

    return members.row_of(median)


def _first_half(weights: torch.Tensor) -> torch.Tensor:
    """The first place of weights (m, ...) up to which they are half of all, int64 (...)."""
    sums = weights.double().cumsum(dim=0)
    return (sums >= sums[-1] / 2).int().argmax(dim=0)


def _middle_mean(values: torch.Tensor, cut: int) -> torch.Tensor:
    """The mean of each column (m, width) without its `cut` largest and `cut` smallest values."""
    return values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)


def _mean_of_lowest_scores(members: _Members, byzantine: int, kept: int) -> torch.Tensor:
    """The mean of the updates with the lowest scores of Krum, (p,).

    Args:
        members: The members.
        byzantine: The number of them that may be Byzantine (f).
        kept: The number of updates.
    """
    nearest = max(len(members) - byzantine - 2, 1)
    # The first of the sorted distances is that of an update from itself.
    scores = _squared_distances(members).sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)
    chosen = scores.argsort(stable=True)[:kept]
    return members.row_of(lambda values: values[chosen].mean(dim=0))


def _squared_distances(members: _Members) -> torch.Tensor:
    """The squared distances of the updates of all members from each other, (m, m).

    They come from inner products of differences from the median, so that one huge update costs no digits of the others.
    """
    products = torch.zeros(len(members), len(members), dtype=torch.float64)
    for _, values in members.column_chunks():
        centred = values - _middle_mean(values, (len(values) - 1) // 2)
        products += centred @ centred.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp(min=0).fill_diagonal_(0)


def _away_from_updates(
    members: _Members, centre: torch.Tensor, distances: torch.Tensor, nearest: float
) -> torch.Tensor:
    """A first centre (p,) away from the updates that lie there, if they are not the geometric median.

    They hold it by their weight. Where the others pull a little more, smoothed steps would hardly leave it: each is
    longer than the one before only by the ratio of the two.

    Args:
        members: The members.
        centre: The centre, (p,).
        distances: The distance of each update from it, (m,).
        nearest: The distance up to which an update lies there, as one does.
    """
    here = distances <= nearest
    pulls = torch.where(here, 0.0, members.weights / distances)
    way = members.weighted_mean(pulls) - centre
    pull = float(pulls.sum() * way.norm())
    held = float(members.weights[here].sum())
    return centre + (1 - held / pull) * way if pull > held else centre


def _radius(distances: torch.Tensor, given: float | None, quantile: float) -> float:
    """The distance to which updates are clipped: a given one, or a quantile of some distances (m,)."""
    return float(distances.quantile(quantile)) if given is None else given


def _clipping_factors(distances: torch.Tensor, radius: float) -> torch.Tensor:
    """The factor by which each of some vectors is shortened to a largest length, (m,)."""
    return (radius / distances.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1.0)


AGGREGATIONS: Mapping[str, Rule] = {
    "mean": weighted_mean,
    "plain_mean": plain_mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
    "krum": krum,
    "multi_krum": multi_krum,
    "norm_clip": norm_clip,
    "centered_clip": centered_clip,
}
"""The rules by the name that the key ``server.aggregation`` takes. Their keyword-only arguments are keys of the table
``server``."""

MEANS = ("mean", "plain_mean")
"""The rules that are not robust."""

MAY_HAND_ON_ONE = ("krum", "geometric_median")
"""The rules whose result may be the update of a single client: the geometric median is that of one with more than half
of the samples."""


def options_of(rule: str) -> tuple[str, ...]:
    """The names of the keyword-only arguments of a rule."""
    parameters = inspect.signature(AGGREGATIONS[rule]).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def aggregation_of(rule: str, values: Mapping[str, Any], *, least_clients: int) -> RuleAggregation:
    """The aggregation by the rule of a name.

    Args:
        rule: The name.
        values: The keys of the table ``server``, with the options of all rules.
        least_clients: The least number of clients whose updates move a model.
    """
    options = {name: values[name] for name in options_of(rule)}
    return RuleAggregation(partial(AGGREGATIONS[rule], **options) if options else AGGREGATIONS[rule], least_clients)
