"""The test of Strata: is who is like whom in one half of the clients' data found again in the other half?

Every client has two updates, A and B, of two disjoint halves of its data, trained in parallel from one model. If all
clients share one distribution, it does not matter which A stands beside which B. So the clients of B are re-paired at
random, and what A and B agree on is compared with what they agree on by chance.

A pattern is what is left of similarities once every client's level is taken out (`centred`). Let P and Q be those of
A and of B, both of norm 1, and S(P) the *sharpened* P: each of its directions weighed by its own strength once more,
since what is weak is noise. Each half proposes, the other judges::

    Z = (<S(P), Q> + <P, S(Q)>) sqrt(m (m - 3) / 2) / sqrt(2 + 2 <S(P), P> <S(Q), Q>)

Over all m! re-pairings Z has mean 0 and variance 1, exactly and whatever P and Q are: <P, Q> has the variance
2 / (m (m - 3)), because all rows of both sum to 0. So layers can be compared without having drawn a re-pairing, the
largest Z over the layers is the statistic, and drawing may stop at any time without harm.

Against the bipartition by average linkage of one half, judged by its contrast T in the other (the first proposal for
Strata), Z finds several or large groups at about two thirds of the difference. T is better where two or three clients
stand against many, and neither finds a lone one. ``experiments/null_synthetic.py`` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import ceil, comb, factorial, inf, prod

from fedstrata.clustering.arrays import Array, Numbers, square, tensor
from fedstrata.clustering.patterns import centre, contrast, likeness, propose, re_paired, scale, sharpened, unit
from fedstrata.clustering.similarity import STILL, norms
from fedstrata.clustering.views import Views
from fedstrata.lazy_torch import torch

FEWEST = 4
"""Members below which no two groups of two exist, and a pattern without the levels is 0."""

ENOUGH = 20
"""Re-arrangements as clear as the true one that end the drawing at the soonest: then p is known to a quarter."""

LEAST = 999
"""Re-pairings at least, if that many are needed to reach them."""

TIE = 1e-9
"""Statistics that differ by no more are equal, and that counts against the split."""

BATCH = 64
"""Re-pairings that are compared at a time, and then counted one by one."""


@dataclass(frozen=True)
class Confirmation:
    """What a test said.

    Attributes:
        proposal: one side of the clearest split into two by all evidence of the layer, bool (m,), client 0 outside.
        layer: name of the view with the largest statistic; empty without a test.
        statistic: Z of that view: how far A and B agree, in standard deviations of chance.
        contrast: mean similarity within the sides of the proposal minus that across, over different clients.
        p: probability of such a statistic if all members are alike; 1 without a test.
        floor: p that two clear groups of the best sizes are sure to reach among so many members; chance may do better.
        level: p up to which a split is confirmed.
        drawn: re-pairings that were compared, the true one included; 0 without a test.
        statistics: Z of every view, by its name.
        reason: why no test was made, in words; empty after a test.
    """

    proposal: torch.Tensor
    layer: str
    statistic: float
    contrast: float
    p: float
    floor: float
    level: float
    drawn: int
    statistics: Mapping[str, float]
    reason: str

    @property
    def tested(self) -> bool:
        """Whether there was a test; if not, nothing of a budget is spent."""
        return not self.reason

    @property
    def confirmed(self) -> bool:
        """Whether the members are to be split."""
        return self.tested and self.p <= self.level


def twin_test(
    a: Array, b: Array, layers: Mapping[str, torch.Tensor], generator: torch.Generator, level: float
) -> Confirmation:
    """Test updates of one twin round; evidence of several rounds is averaged first and given to `confirm`.

    Args:
        a: updates by the first halves, (m, p).
        b: updates by the second halves of the same clients, (m, p).
        layers: what is looked at: names and columns.
        generator: torch's, of the CPU.
        level: p up to which a split is confirmed.

    Returns:
        The decision; none if an update is not finite, or is 0 in a layer.

    Raises:
        ValueError: when the shapes differ, or as `confirm`.
    """
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(f"expected two of shape (m, p), found {tuple(a.shape)} and {tuple(b.shape)}")
    if reason := unusable(a, layers.values()) or unusable(b, layers.values()):
        return untested(len(a), level, reason)
    first, second = likeness(a, layers.values()), likeness(b, layers.values())
    return confirm(first, second, generator, level, tuple(layers))


def confirm(
    first: Array,
    second: Array,
    generator: torch.Generator,
    level: float,
    names: Sequence[str] | None = None,
    strata: Numbers | None = None,
) -> Confirmation:
    """Test similarities, which may be means over rounds as long as the halves stay disjoint.

    Valid if (A, B) of the members can be re-paired: A and B of a client depend on each other only through the model
    that all started from, and the members share one distribution and one number of samples. With `likeness` unequal
    noise does little harm, with `cosine` much (cosines with a noisy client are all low, in both halves).

    Enough re-pairings are drawn for the level, and no more than decide: Besag and Clifford, "Sequential Monte Carlo
    p-values" (1991). If there are no more re-pairings than that, each is taken once.

    Args:
        first: similarities by the first halves, (v, m, m), each symmetric; the diagonals are not read.
        second: the same by the second halves.
        generator: torch's, of the CPU.
        level: p up to which a split is confirmed, in (0, 1).
        names: of the views, (v,); their numbers without.
        strata: clients are re-paired only with those of the same number, (m,); all with all without. Z is then no
            longer of variance 1 for each view, which costs power but not validity.

    Returns:
        The decision; none with fewer than four members, or too few for the level, or similarities that are not
        finite or have no pattern.

    Raises:
        ValueError: when the shapes differ, a matrix is not symmetric, or the level is none.
    """
    if first.ndim != 3 or tuple(first.shape) != tuple(second.shape) or not len(first):
        raise ValueError(f"expected two of shape (v, m, m), found {tuple(first.shape)} and {tuple(second.shape)}")
    m, planned = first.shape[1], drawings(level)
    named = tuple(str(view) for view in range(len(first))) if names is None else tuple(names)
    within = tensor(torch.zeros(m) if strata is None else strata)
    blocks = [(within == stratum).nonzero().flatten() for stratum in within.unique()]
    sure = surest([len(block) for block in blocks])
    reason = _impossible(m, sure, level)
    if not reason and not bool(tensor(first).isfinite().all() and tensor(second).isfinite().all()):
        reason = "similarities that are not finite"
    if reason:
        return untested(m, level, reason, sure)
    halves = [centre(torch.stack([torch.from_numpy(square(matrix)) for matrix in half])) for half in (first, second)]
    one, other = (unit(half) for half in halves)
    if not bool((one.abs().amax(dim=(1, 2)) * other.abs().amax(dim=(1, 2))).any()):
        return untested(m, level, "similarities without a pattern", sure)
    proposes = torch.cat([unit(sharpened(one)), one])
    judges = torch.cat([other, unit(sharpened(other))])
    weight = scale(one, other, proposes[: len(one)], judges[len(one) :])

    def heights(orders: torch.Tensor) -> torch.Tensor:
        directions = re_paired(proposes, judges, orders)  # (q, 2 v)
        return (
            2 * (directions[:, : len(one)] + directions[:, len(one) :]) * weight
        )  # twice: each pair stands in a matrix twice

    observed = heights(torch.arange(m)[None])[0]
    largest = float(observed.max())
    if prod(factorial(len(block)) for block in blocks) <= planned + 1:
        p, drawn = compare(lambda some: heights(some).amax(dim=1), largest, _every(blocks), inf)
    else:
        orders = _at_random(blocks, generator, planned)
        p, drawn = compare(lambda some: heights(some).amax(dim=1), largest, orders, enough(level))
    view = int(observed.argmax())
    proposal = propose(halves[0][view] + halves[1][view])
    apart = sum(contrast(half[view], proposal) for half in (first, second)) / 2
    values = dict(zip(named, observed.tolist(), strict=True))
    least = max(sure, 1 / (planned + 1))
    return Confirmation(proposal, named[view], float(observed[view]), apart, p, least, level, drawn, values, "")


def compare(
    statistic: Callable[[torch.Tensor], torch.Tensor],
    observed: float,
    orders: Iterator[torch.Tensor],
    enough: float,
) -> tuple[float, int]:
    """How often re-arrangements do as well as what was observed, which counts as one of them.

    Args:
        statistic: of orders (q, s), (q,).
        observed: the statistic of the true order.
        orders: others, (s,) each.
        enough: so many that do as well end it; infinite where they do not come at random.

    Returns:
        p, and the number of orders that it needed.
    """
    drawn, reached = 0, 0
    while batch := list(islice(orders, BATCH)):
        for value in statistic(torch.stack(batch)).tolist():
            drawn += 1
            reached += value >= observed - TIE
            if reached == enough:
                return reached / drawn, drawn + 1
    return (reached + 1) / (drawn + 1), drawn + 1


def drawings(level: float) -> int:
    """Re-arrangements to draw for a level.

    Raises:
        ValueError: when the level is none.
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level in (0, 1), found {level}")
    return max(LEAST, ceil(10 / level) - 1)


def enough(level: float) -> int:
    """As many re-arrangements that do as well end the drawing: more than p up to the level could have in the end."""
    return max(ENOUGH, int(level * (drawings(level) + 1)) + 1)


def untested(m: int, level: float, reason: str, least: float = 1.0) -> Confirmation:
    """No test of m members, and why."""
    return Confirmation(torch.zeros(m, dtype=torch.bool), "", 0.0, 0.0, 1.0, least, level, 0, {}, reason)


def unusable(updates: Array, views: Views) -> str:
    """Why updates (m, p) say nothing about their clients in one of the views; empty if they do in all."""
    lengths = norms(updates, views)
    if not bool(lengths.isfinite().all()):
        return "updates that are not finite"
    return "" if bool((lengths > STILL).all()) else "updates that are 0"


def _every(blocks: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """All orders (m,) that re-pair only within blocks of clients, but for the first, the true one."""
    place = torch.cat(blocks).argsort()
    for parts in islice(product(*(permutations(block.tolist()) for block in blocks)), 1, None):
        yield torch.tensor([client for part in parts for client in part])[place]


def _at_random(blocks: list[torch.Tensor], generator: torch.Generator, count: int) -> Iterator[torch.Tensor]:
    """Random orders (m,) that re-pair only within blocks of clients."""
    place = torch.cat(blocks).argsort()
    for _ in range(count):
        yield torch.cat([block[torch.randperm(len(block), generator=generator)] for block in blocks])[place]


def surest(sizes: list[int]) -> float:
    """The p that two clear groups of the best sizes are sure to reach: the share of re-pairings that keep them.

    Args:
        sizes: of the blocks of clients that are re-paired among themselves.
    """
    # Blocks of even size all swap their halves into the same two groups.
    return (2 if all(size % 2 == 0 for size in sizes) else 1) / prod(comb(size, size // 2) for size in sizes)


def _impossible(m: int, sure: float, level: float) -> str:
    """Why so few members cannot be tested; empty if they can."""
    if m < FEWEST:
        return f"{m} members, at least {FEWEST} are needed"
    return f"{m} members reach p = {sure:.2g} at best, above the level {level:.2g}" if sure > level else ""
