from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedstrata.clustering import error_rate_test

TWO = torch.tensor([True, False])


def test_the_bound_is_hoeffdings_by_hand() -> None:
    """Two clients of 100 and 200 samples that err 0.5 and 0.2 less: exp(-2 0.7^2 / (4 / 100 + 4 / 200))."""
    p = error_rate_test([0.1, 0.2], [0.6, 0.4], TWO, [100, 200])
    assert p == pytest.approx(exp(-2 * 0.49 / 0.06))


def test_every_client_of_a_group_counts_as_much_as_another() -> None:
    """Means of 2 clients: weights of 1/2, so (1/2)^2 (4 / 100 + 4 / 50) for the first group, 4 / 25 for the second."""
    first = torch.tensor([True, True, False])
    p = error_rate_test([0.0, 0.0, 0.0], [0.5, 0.3, 0.1], first, [100, 50, 25])
    assert p == pytest.approx(exp(-2 * 0.5**2 / (0.25 * 0.12 + 0.16)))


@pytest.mark.parametrize("first", [[True, True], [False, False]])
def test_one_group_alone_proves_nothing(first: list[bool]) -> None:
    assert error_rate_test([0.0, 0.0], [1.0, 1.0], torch.tensor(first), [100, 100]) == 1.0


def test_models_that_suit_others_better_prove_nothing() -> None:
    assert error_rate_test([0.5, 0.5], [0.1, 0.1], TWO, [1000, 1000]) == 1.0


@given(
    own=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    other=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    sides=st.lists(st.booleans(), min_size=4, max_size=4),
    more=st.floats(1, 100),
)
def test_which_group_is_first_does_not_matter_and_more_samples_prove_more(
    own: list[float], other: list[float], sides: list[bool], more: float
) -> None:
    first, samples = torch.tensor(sides), torch.tensor([20.0, 30.0, 40.0, 50.0])
    p = error_rate_test(own, other, first, samples)
    assert 0 <= p <= 1 and error_rate_test(own, other, ~first, samples) == pytest.approx(p)
    assert error_rate_test(own, other, first, samples * more) <= p + 1e-12


def test_alike_clients_are_told_apart_no_more_often_than_the_bound_says() -> None:
    """The hardest case: each model errs where the other does not, on a sample of either kind with equal chance."""
    draw, n, runs = np.random.default_rng(0), 60, 4000
    share = draw.binomial(n, 0.5, size=(runs, 2)) / n  # of samples of the first kind, of each client
    ps = [error_rate_test([a, 1 - b], [1 - a, b], TWO, [n, n]) for a, b in share]
    for level in (0.05, 0.2):
        assert binomtest(int(np.sum(np.array(ps) <= level)), runs).proportion_ci().low <= level
    assert min(ps) < 0.2  # or nothing was tried
