"""How much a run gives away about a client, in epsilon and delta, and the noise for a wanted epsilon.

Google's dp-accounting does the accounting: the exact loss of Gaussian noise (Balle and Wang, "Improving the Gaussian
mechanism for differential privacy", ICML 2018), privacy loss distributions for Poisson sampling (Doroshenko et al.,
"Connect the dots", PoPETs 2022), and Rényi differential privacy for cohorts of a fixed size (Wang, Balle,
Kasiviswanathan, "Subsampled Rényi differential privacy and analytical moments accountant", AISTATS 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal

from fedstrata.base.errors import ExperimentError

Adjacency = Literal["add_or_remove_one", "replace_one"]
"""Which federations differ in one client: one of them lacks it, or has another one in its place."""

_ORDERS = (*range(2, 33), 40, 48, 64, 80, 96, 128, 192, 256)
"""The orders of Rényi divergences. The bound for cohorts of a fixed size is about whole numbers."""

_INTERVAL = 1e-3
"""The step of privacy losses. They are rounded up, which makes epsilon larger by some 1e-4."""

_LITTLE_NOISE = 0.1
"""With less noise, sampling hardly lowers epsilon, and the distributions of losses are too long to be computed."""

_PRECISION = 1e-3
"""The noise for a wanted epsilon is at most so much larger than needed, as a share of it."""

_MAX_NOISE = 1e9
"""The largest noise multiplier that is looked for."""


@dataclass(frozen=True)
class Sampled:
    """Rounds whose cohorts are drawn by chance.

    Attributes:
        rounds: The number of rounds.
        clients: The number of clients that are drawn from.
        expected: The number that is drawn, or the mean number where `fixed` is false.
        fixed: Whether cohorts have this very size. Otherwise each client is drawn by itself (Poisson sampling).
    """

    rounds: int
    clients: int
    expected: float
    fixed: bool


@dataclass(frozen=True)
class Exposure:
    """What a client adds to over a run. Each sum has Gaussian noise.

    Attributes:
        adjacency: Which federations must look alike.
        queries: The number of sums to which it adds for certain.
        sampled: Rounds in which it adds to one more sum if it is drawn.
    """

    adjacency: Adjacency
    queries: int
    sampled: tuple[Sampled, ...] = ()

    @property
    def with_full_participation(self) -> Exposure:
        """The same as if every client were drawn in every round. It gives away no less."""
        return replace(self, queries=self.queries + sum(each.rounds for each in self.sampled), sampled=())


def epsilon_of(exposure: Exposure, noise_multiplier: float, delta: float) -> float:
    """The epsilon that a run reaches.

    Args:
        exposure: What a client adds to.
        noise_multiplier: The standard deviation of the noise of a sum, divided by the clipping norm.
        delta: The delta that goes with it, in (0, 1).
    """
    # How far a sum differs between two such federations, in units of the clipping norm.
    sensitivity = 1.0 if exposure.adjacency == "add_or_remove_one" else 2.0
    noise = noise_multiplier / sensitivity
    epsilon = _of_gaussians(exposure.with_full_participation.queries, noise, delta)
    if not exposure.sampled or noise < _LITTLE_NOISE:
        return epsilon
    # Both are upper bounds. That for cohorts of a fixed size is the larger one if they are most of the clients.
    return min(epsilon, _of_cohorts(exposure, noise, delta))


def noise_for(exposure: Exposure, epsilon: float, delta: float) -> float:
    """The noise multiplier with which a run reaches an epsilon, at most 0.1 % more than needed.

    The arguments are those of `epsilon_of`.

    Raises:
        ExperimentError: When no noise is enough.
    """

    def enough(noise: float) -> bool:
        return epsilon_of(exposure, noise, delta) <= epsilon

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _MAX_NOISE:
            raise ExperimentError(f"privacy.epsilon = {epsilon:g}: no noise is enough for it; use a larger one")
    # The smallest noise that is enough, rounded up.
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _of_gaussians(queries: int, noise: float, delta: float) -> float:
    """The epsilon of some sums with noise. They are as one whose noise is smaller by the root of their number."""
    # Here, as devices load this package in every message, and do not need it.
    from scipy.optimize import brentq

    if not queries:
        return 0.0
    loss = _dp_accounting().pld.privacy_loss_mechanism.GaussianPrivacyLoss(noise / sqrt(queries))

    def excess(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-9))


def _of_cohorts(exposure: Exposure, noise: float, delta: float) -> float:
    """The epsilon where clients are drawn: independently of each other, or in cohorts of a fixed size.

    With a fixed size, the data of one client are replaced.
    """
    library = _dp_accounting()
    fixed = any(each.fixed for each in exposure.sampled)
    if fixed:
        accountant = library.rdp.RdpAccountant(_ORDERS, library.NeighboringRelation.REPLACE_ONE)
    else:
        accountant = library.pld.PLDAccountant(value_discretization_interval=_INTERVAL)
    if exposure.queries:
        accountant.compose(library.GaussianDpEvent(noise / sqrt(exposure.queries)))
    gaussian = library.GaussianDpEvent(noise)
    for each in exposure.sampled:
        if fixed:
            event = library.SampledWithoutReplacementDpEvent(each.clients, int(each.expected), gaussian)
        else:
            event = library.PoissonSampledDpEvent(min(each.expected / each.clients, 1.0), gaussian)
        accountant.compose(event, each.rounds)
    return float(accountant.get_epsilon(delta))


def _dp_accounting() -> Any:
    """The library, which takes a second to be imported.

    Raises:
        ExperimentError: When it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_mechanism
        import dp_accounting.rdp
    except ImportError as error:
        raise ExperimentError("privacy: expected dp-accounting; pip install 'fedstrata[privacy]'") from error
    return dp_accounting
