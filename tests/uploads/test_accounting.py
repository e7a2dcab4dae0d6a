"""Epsilon against accountants of other kinds, computed here."""

from decimal import Decimal, getcontext
from math import comb, exp, log, sqrt

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.stats import norm

from fedstrata.base.errors import ExperimentError
from fedstrata.uploads.accounting import Exposure, Sampled, epsilon_of, noise_for

_LAST_ORDER = 32
"""The largest order of a Rényi divergence that is looked at."""


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Balle and Wang, ICML 2018, Theorem 8: delta of the Gaussian mechanism, of sensitivity 1, solved for epsilon."""
    mu = 1 / noise

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0.0, 200.0))


@pytest.mark.parametrize(("noise", "rounds"), [(5.0, 50), (20.0, 100), (1.0, 1), (3.12, 27), (0.8, 20)])
def test_rounds_of_all_clients_are_one_gaussian_mechanism_with_less_noise(noise: float, rounds: int) -> None:
    found = epsilon_of(Exposure("add_or_remove_one", rounds), noise, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(noise / sqrt(rounds), 1e-5), rel=0.01)


def test_a_client_in_the_place_of_another_moves_a_sum_twice_as_far() -> None:
    assert epsilon_of(Exposure("replace_one", 30), 8.0, 1e-5) == pytest.approx(
        gaussian_epsilon(4.0 / sqrt(30), 1e-5), rel=0.01
    )


def poisson_epsilon(noise: float, share: float, rounds: int, delta: float) -> float:
    """By the distribution of the privacy loss on a grid, convolved with itself, for either neighbour."""
    step = 2e-4
    x = np.linspace(-12 * noise, 12 * noise + 1, 2_000_001)
    away, here = norm.pdf(x, 0, noise), norm.pdf(x, 1, noise)
    mixed = (1 - share) * away + share * here
    width = x[1] - x[0]
    worst = 0.0
    for mass, loss in ((mixed, np.log(mixed / away)), (away, np.log(away / mixed))):
        half = int(np.abs(loss).max() / step) + 1
        density = np.bincount(np.rint(loss / step).astype(int) + half, mass * width, 2 * half + 1)
        total, center = density, half
        for _ in range(rounds - 1):
            total, center = fftconvolve(total, density), center + half
        losses = (np.arange(len(total)) - center) * step

        def excess(epsilon: float, losses: np.ndarray = losses, total: np.ndarray = total) -> float:
            above = losses > epsilon
            return float((total[above] * -np.expm1(epsilon - losses[above])).sum()) - delta

        worst = max(worst, float(brentq(excess, 0.0, losses[-1])))
    return worst


@pytest.mark.parametrize(("noise", "share", "rounds"), [(2.5, 0.2, 10), (1.0, 0.1, 8)])
def test_poisson_sampling_lowers_epsilon_by_as_much_as_the_loss_on_a_grid_says(
    noise: float, share: float, rounds: int
) -> None:
    exposure = Exposure("add_or_remove_one", 0, (Sampled(rounds, 100, 100 * share, fixed=False),))
    found = epsilon_of(exposure, noise, 1e-5)
    assert found == pytest.approx(poisson_epsilon(noise, share, rounds, 1e-5), rel=0.01)
    assert found < epsilon_of(exposure.with_full_participation, noise, 1e-5)


def fixed_size_epsilon(noise: float, share: float, rounds: int, delta: float) -> float:
    """Wang et al., AISTATS 2019, Theorem 9 and its remark on tighter terms; converted as by Canonne et al., 2020."""
    getcontext().prec = 80
    q = Decimal(share)
    moments = [(Decimal(i * (i - 1)) / (2 * Decimal(noise) ** 2)).exp() for i in range(_LAST_ORDER + 2)]

    def difference(order: int) -> Decimal:
        """The forward difference of the moments, at 0."""
        return sum((Decimal((-1) ** (order - i) * comb(order, i)) * moments[i] for i in range(order + 1)), Decimal(0))

    epsilons = list[float]()
    for order in range(2, _LAST_ORDER + 1):
        total = 1 + q**2 * comb(order, 2) * min(4 * (moments[2] - 1), 2 * moments[2])
        for j in range(3, order + 1):
            root = (difference(2 * (j // 2)) * difference(2 * ((j + 1) // 2))).sqrt()
            total += 4 * q**j * comb(order, j) * root
        renyi = rounds * float(total.ln()) / (order - 1)
        epsilons.append(renyi + log(1 - 1 / order) - log(delta * order) / (order - 1))
    return min(epsilons)


@pytest.mark.parametrize(("noise", "share", "rounds"), [(10.0, 0.2, 30), (6.0, 0.05, 100)])
def test_cohorts_of_a_fixed_size_are_accounted_for_as_their_paper_says(noise: float, share: float, rounds: int) -> None:
    exposure = Exposure("replace_one", 0, (Sampled(rounds, 1000, 1000 * share, fixed=True),))
    found = epsilon_of(exposure, noise, 1e-5)
    # One client in the place of another moves a sum twice as far.
    assert found == pytest.approx(fixed_size_epsilon(noise / 2, share, rounds, 1e-5), rel=0.01)
    assert found < epsilon_of(exposure.with_full_participation, noise, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("sampled", [(), (Sampled(20, 100, 30.0, fixed=False),)])
def test_the_noise_for_an_epsilon_reaches_it_and_is_hardly_more_than_needed(
    epsilon: float, sampled: tuple[Sampled, ...]
) -> None:
    exposure = Exposure("add_or_remove_one", 7, sampled)
    noise = noise_for(exposure, epsilon, 1e-5)
    assert epsilon_of(exposure, noise, 1e-5) <= epsilon < epsilon_of(exposure, noise / 1.002, 1e-5)


def test_extra_sums_are_charged_as_if_every_client_were_drawn() -> None:
    sampled = (Sampled(10, 100, 20.0, fixed=False),)
    more = epsilon_of(Exposure("add_or_remove_one", 2, sampled), 3.0, 1e-5)
    assert epsilon_of(Exposure("add_or_remove_one", 0, sampled), 3.0, 1e-5) < more
    assert more <= epsilon_of(Exposure("add_or_remove_one", 12), 3.0, 1e-5)


def test_who_adds_to_no_sum_gives_nothing_away() -> None:
    assert epsilon_of(Exposure("add_or_remove_one", 0), 1.0, 1e-5) == 0.0


def test_an_epsilon_that_no_noise_reaches_is_an_error() -> None:
    with pytest.raises(ExperimentError, match=r"privacy\.epsilon = 1e-12: no noise is enough"):
        noise_for(Exposure("replace_one", 1_000_000), 1e-12, 1e-15)
