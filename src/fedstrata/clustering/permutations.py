"""What the tests of groups compute p by: permutations of the clients.

A permutation test gives the share of permutations with a statistic at least as large as the observed one. Permutations
are drawn until the decision is certain: Besag and Clifford, "Sequential Monte Carlo p-values", Biometrika 1991.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from math import ceil, comb, factorial, inf
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, tensor

_MIN_PERMUTATIONS = 999
"""The smallest number of permutations that are planned. Fewer are drawn if the decision is certain before."""

_MIN_REACHED = 20
"""The smallest number of permutations that end the drawing by reaching the observed statistic. The standard error of p
is then about a quarter of p."""

_TIE_TOLERANCE = 1e-9
"""Statistics that differ by no more are equal. A tie counts against the split."""

_BATCH_PERMUTATIONS = 64
"""The number of permutations that are computed at a time. They are counted one by one."""

Statistics: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""Z of every view (q, v) for each of some permutations (orders) of the clients or folds, (q, s) int64."""


@dataclass(frozen=True)
class PermutationResult:
    """The result of a permutation test.

    Attributes:
        proposal: The clearest split into two by all evidence of the layer, bool (m,). Client 0 is always outside.
        floor: The p that two clear groups of the best sizes are sure to reach among so many clients: the share of
            permutations that keep both groups. By chance, the identity may have a larger statistic than these, and p
            may be smaller.
        level: The p up to which a split is confirmed.
        layer: The name of the view with the largest statistic. It is empty without a test.
        statistic: Z of that view: how well the folds agree, in standard deviations over the permutations.
        contrast: The mean similarity within the sides of the proposal minus that across, over different clients.
        p: The probability of such a statistic if all clients share one distribution. It is 1 without a test.
        drawn: The number of permutations that were compared, the identity included. It is 0 without a test.
        reason: Why no test was made, as a snake_case name. It is empty after a test.
    """

    proposal: torch.Tensor
    floor: float
    level: float
    layer: str = ""
    statistic: float = 0.0
    contrast: float = 0.0
    p: float = 1.0
    drawn: int = 0
    reason: str = ""

    @property
    def tested(self) -> bool:
        """Whether there was a test. If there was none, nothing of a budget is spent."""
        return not self.reason

    @property
    def confirmed(self) -> bool:
        """Whether the test confirms that the clients form groups."""
        return self.tested and self.p <= self.level


def not_tested(m: int, level: float, reason: str, floor: float = 1.0) -> PermutationResult:
    """Make the result of clients that were not tested.

    Args:
        m: The number of clients.
        level: The level that the test would have had.
        reason: Why there was no test, as a name.
        floor: The p that two clear groups are sure to reach; 1 where it is unknown.

    Returns:
        A result that rejects nothing.
    """
    return PermutationResult(torch.zeros(m, dtype=torch.bool), floor, level, reason=reason)


def permutation_p(
    statistics: Statistics, observed: torch.Tensor, orders: Iterator[torch.Tensor], limit: float
) -> tuple[float, int]:
    """The share of permutations with a statistic at least as large as the observed one, which counts as one of them.

    The statistic is the largest Z over the views, of each permutation as well. So many views cost no error probability.

    Args:
        statistics: Z of every view for some permutations.
        observed: Z of every view for the identity, (v,).
        orders: The other permutations, (s,) each.
        limit: The drawing ends when so many permutations have reached the observed statistic. It is infinite where the
            permutations are not drawn at random.

    Returns:
        p, and the number of permutations that were compared.
    """
    largest = float(observed.max())
    drawn = 0
    reached = 0
    while batch := list(islice(orders, _BATCH_PERMUTATIONS)):
        for value in statistics(torch.stack(batch)).amax(dim=1).tolist():
            drawn += 1
            reached += value >= largest - _TIE_TOLERANCE
            if reached == limit:
                return reached / drawn, drawn + 1
    return (reached + 1) / (drawn + 1), drawn + 1


def random_p(
    statistics: Statistics, observed: torch.Tensor, size: int, generator: torch.Generator, level: float
) -> tuple[float, int]:
    """`permutation_p` of random permutations of so many clients or folds."""
    orders = (torch.randperm(size, generator=generator) for _ in range(permutations_for(level)))
    return permutation_p(statistics, observed, orders, stop_after(level))


def exact_or_random_p(
    statistics: Callable[[torch.Tensor], torch.Tensor],
    observed: torch.Tensor,
    m: int,
    generator: torch.Generator,
    level: float,
) -> tuple[float, int]:
    """The p of a statistic and how many permutations it took: all there are, if no more would be drawn."""
    if factorial(m) > permutations_for(level) + 1:
        return random_p(statistics, observed, m, generator, level)
    true_order_first = permutations(range(m))
    orders = (torch.tensor(order) for order in islice(true_order_first, 1, None))
    return permutation_p(statistics, observed, orders, inf)


def permutations_for(level: float) -> int:
    """The number of permutations to draw for a level.

    Raises:
        ValueError: When the level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level in (0, 1), found {level}")
    return max(_MIN_PERMUTATIONS, ceil(10 / level) - 1)


def stop_after(level: float) -> int:
    """The number of permutations that end the drawing by reaching the observed statistic: then p is above the level."""
    return max(_MIN_REACHED, int(level * (permutations_for(level) + 1)) + 1)


def smallest_sure_p(m: int) -> float:
    """Compute the p that two clear groups of the best sizes are sure to reach.

    Args:
        m: The number of clients.

    Returns:
        The share of permutations of the clients that keep the two groups.
    """
    return (1 if m % 2 else 2) / comb(m, m // 2)  # two groups of one size may change places


def reason_for_no_test(similarities: Sequence[Array], floor: float, level: float) -> str:
    """Why similarities cannot be tested, as a name; empty if they can."""
    if floor > level:
        return "level_out_of_reach"
    finite = all(bool(tensor(similarity).isfinite().all()) for similarity in similarities)
    return "" if finite else "similarities_not_finite"


def view_name(names: Sequence[str] | None, view: int) -> str:
    """The name of a view, or its number where views have no names."""
    return str(view) if names is None else names[view]
