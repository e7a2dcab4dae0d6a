"""Clients whose updates point backwards: the cosines by hand, who is left out, and who comes back."""

from math import sqrt

import pytest
import torch

from fedstrata.algorithms.shared.directions import Directions, no_directions, with_directions
from fedstrata.core import TRAIN, Report, Result, Rows

ALL = torch.zeros(5, dtype=torch.int64)


def report(*updates: list[float], ids: list[int] | None = None) -> Report:
    clients = torch.tensor(ids or range(len(updates)))
    m = len(clients)
    return Report(
        {
            TRAIN: Result(
                Rows(clients, torch.tensor(updates)),
                torch.zeros(m, dtype=torch.int64),
                torch.ones(m),
                torch.zeros(m, 1),
            )
        }
    )


def test_the_cosine_is_that_with_the_sum_of_the_unit_vectors_of_the_others() -> None:
    """Three clients: along x, along y, and along x twice as long."""
    known = with_directions(no_directions(3), report([1.0, 0.0], [0.0, 3.0], [2.0, 0.0]), torch.zeros(3).long())
    # The others of the first are (0, 1) and (1, 0); those of the second are both (1, 0).
    assert known.means.tolist() == pytest.approx([1 / sqrt(2), 0.0, 1 / sqrt(2)], abs=1e-6)
    assert known.weights.tolist() == [1.0, 1.0, 1.0]
    assert not known.left_out.any()


def test_an_update_of_zeros_has_no_direction() -> None:
    known = with_directions(no_directions(4), report([1.0], [1.0], [2.0], [0.0]), ALL[:4])
    assert known.means.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_a_flipped_client_is_left_out_and_no_more_in_the_sum_of_the_others() -> None:
    known = with_directions(no_directions(5), report([1.0], [1.0], [2.0], [-1.0], [3.0]), ALL)
    assert known.left_out.tolist() == [False, False, False, True, False]
    assert known.means.tolist() == [1.0, 1.0, 1.0, -1.0, 1.0]


def test_two_of_five_hide_each_other_and_two_of_six_do_not() -> None:
    """Of unit vectors along one line, an honest one of five has others that sum to 2 - 2 = 0, and of six to 3 - 2."""
    five = with_directions(no_directions(5), report(*[[1.0]] * 3, [-1.0], [-1.0]), ALL)
    six = with_directions(no_directions(6), report(*[[1.0]] * 4, [-1.0], [-1.0]), torch.zeros(6).long())
    assert not five.left_out.any()
    assert six.left_out.tolist() == [False] * 4 + [True] * 2


def test_clients_whose_wishes_cancel_out_are_not_left_out() -> None:
    """Twelve and eight clients in two directions whose sum is zero: the median cosine is negative."""
    updates = [[2.0, 0.1]] * 12 + [[-3.0, 0.1]] * 8
    known = with_directions(no_directions(20), report(*updates), torch.zeros(20).long())
    honest = with_directions(no_directions(20), report(*[[2.0, 1.0]] * 10, *[[-2.0, 1.0]] * 10), torch.zeros(20).long())
    assert not honest.left_out.any()
    assert known.means[12:].max() < 0 < known.means[:12].min()  # by unit vectors, eight are a minority


def test_clusters_are_compared_by_themselves_and_pending_clients_are_not() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, -1])
    known = with_directions(no_directions(7), report(*[[1.0]] * 3, *[[-1.0]] * 4), labels)
    assert not known.left_out.any()
    assert known.weights.tolist() == [1.0] * 6 + [0.0]


def test_half_of_a_cluster_is_a_group_of_its_own_and_begins_anew() -> None:
    """Three of five that were left out, and three of seven."""
    known = Directions(torch.full((7,), -2.0), torch.full((7,), 4.0), torch.tensor([True] * 3 + [False] * 4))
    five = with_directions(known, report(*[[1.0]] * 5), ALL)
    assert not five.left_out.any()
    assert five.means.tolist()[:5] == [1.0] * 5
    seven = with_directions(known, report(*[[1.0]] * 3, *[[-1.0]] * 4), torch.zeros(7).long())
    assert seven.left_out.tolist() == [True] * 3 + [False] * 4


def test_two_clients_have_no_direction() -> None:
    known = with_directions(no_directions(2), report([1.0], [-1.0]), torch.zeros(2).long())
    assert known.weights.tolist() == [0.0, 0.0]


def test_a_client_comes_back_when_its_mean_cosine_is_positive() -> None:
    """After one round at -1 and t at 1 the sum is -0.9^t + (1 - 0.9^t) / 0.1: positive from the first of them on."""
    known = with_directions(no_directions(4), report([1.0], [1.0], [1.0], [-1.0]), ALL[:4])
    assert known.left_out.tolist() == [False, False, False, True]
    known = with_directions(known, report([1.0], [1.0], [1.0], [1.0]), ALL[:4])
    assert known.means[3].item() == pytest.approx((1 - 0.9) / 1.9)
    assert not known.left_out.any()


def test_who_comes_late_begins_anew() -> None:
    known = Directions(torch.tensor([2.0, -3.0]), torch.tensor([4.0, 4.0]), torch.tensor([False, True]))
    fresh = known.forgetting(torch.tensor([False, True]))
    assert fresh.cosines.tolist() == [2.0, 0.0]
    assert fresh.weights.tolist() == [4.0, 0.0]
    assert not fresh.left_out.any()
