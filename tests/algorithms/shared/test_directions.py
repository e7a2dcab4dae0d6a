"""Clients whose updates point backwards: the cosines by hand, who is left out, and who comes back."""

from math import sqrt

import pytest
import torch

from fedstrata.algorithms.shared.directions import Directions, no_directions, with_directions
from fedstrata.core import TRAIN, Layout, Report, Result, Rows, TensorSpec

ALL = torch.zeros(5, dtype=torch.int64)
WEIGHT = TensorSpec("head.weight", "head", "linear", (1,))
BUFFER = TensorSpec("norm.running_var", "norm", "buffer", (1,))


def after_round(
    known: Directions,
    labels: torch.Tensor,
    *updates: list[float],
    ids: list[int] | None = None,
    chosen: list[int] | None = None,
    layout: Layout | None = None,
) -> Directions:
    """What is known after a round of updates by clients that have trained the model of their cluster.

    Args:
        known: What was known before.
        labels: The cluster of each client.
        updates: The updates of those who answered.
        ids: Who answered; by default the first clients.
        chosen: Whose models they have trained, where these are not those of their clusters.
        layout: By default one linear layer.
    """
    clients = torch.tensor(ids or range(len(updates)))
    m = len(clients)
    trained = labels[clients] if chosen is None else torch.tensor(chosen)
    result = Result(Rows(clients, torch.tensor(updates)), trained, torch.ones(m), torch.zeros(m, 1))
    linear = Layout((TensorSpec("head.weight", "head", "linear", (len(updates[0]),)),))
    return with_directions(known, layout or linear, Report({TRAIN: result}), labels)


def test_the_cosine_is_that_with_the_sum_of_the_unit_vectors_of_the_others() -> None:
    """Three clients: along x, along y, and along x twice as long."""
    known = after_round(no_directions(3), torch.zeros(3).long(), [1.0, 0.0], [0.0, 3.0], [2.0, 0.0])
    # The others of the first are (0, 1) and (1, 0); those of the second are both (1, 0).
    assert known.means.tolist() == pytest.approx([1 / sqrt(2), 0.0, 1 / sqrt(2)], abs=1e-6)
    assert known.weights.tolist() == [1.0, 1.0, 1.0]
    assert not known.left_out.any()


def test_an_update_of_zeros_has_no_direction() -> None:
    known = after_round(no_directions(4), ALL[:4], [1.0], [1.0], [2.0], [0.0])
    assert known.means.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert known.weights.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_others_that_cancel_out_have_no_direction() -> None:
    """One client moves, and two send zeros. Of the two that move against each other, a third one sees nothing."""
    alone = after_round(no_directions(3), ALL[:3], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0])
    assert alone.weights.tolist() == [0.0, 0.0, 0.0]
    torn = after_round(no_directions(3), ALL[:3], [1.0, 0.0], [-1.0, 0.0], [0.1, 1.0])
    assert torn.weights.tolist() == [1.0, 1.0, 0.0]


def test_normalisation_layers_and_buffers_say_nothing() -> None:
    """Five weights agree, and two running variances fall while three rise."""
    layout = Layout((WEIGHT, BUFFER))
    known = after_round(no_directions(5), ALL, *[[1.0, 9.0]] * 3, *[[1.0, -9.0]] * 2, layout=layout)
    assert known.means.tolist() == [1.0] * 5


def test_only_who_has_trained_the_model_of_its_cluster_is_compared() -> None:
    known = after_round(no_directions(5), ALL, *[[1.0]] * 4, [-1.0], chosen=[0, 0, 0, 0, 1])
    assert known.weights.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_a_flipped_client_is_left_out_and_no_more_in_the_sum_of_the_others() -> None:
    known = after_round(no_directions(5), ALL, [1.0], [1.0], [2.0], [-1.0], [3.0])
    assert known.left_out.tolist() == [False, False, False, True, False]
    assert known.means.tolist() == [1.0, 1.0, 1.0, -1.0, 1.0]


def test_two_of_five_hide_each_other_and_two_of_six_do_not() -> None:
    """Of unit vectors along one line, an honest one of five has others that sum to 2 - 2 = 0, and of six to 3 - 2."""
    five = after_round(no_directions(5), ALL, *[[1.0]] * 3, [-1.0], [-1.0])
    six = after_round(no_directions(6), torch.zeros(6).long(), *[[1.0]] * 4, [-1.0], [-1.0])
    assert not five.left_out.any()
    assert six.left_out.tolist() == [False] * 4 + [True] * 2


def test_clients_whose_wishes_cancel_out_are_not_left_out() -> None:
    """Twelve and eight clients in two directions whose sum is zero: the median cosine is negative."""
    updates = [[2.0, 0.1]] * 12 + [[-3.0, 0.1]] * 8
    known = after_round(no_directions(20), torch.zeros(20).long(), *updates)
    honest = after_round(no_directions(20), torch.zeros(20).long(), *[[2.0, 1.0]] * 10, *[[-2.0, 1.0]] * 10)
    assert not honest.left_out.any()
    assert known.means[12:].max() < 0 < known.means[:12].min()  # by unit vectors, eight are a minority


def test_clusters_are_compared_by_themselves_and_pending_clients_are_not() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, -1])
    known = after_round(no_directions(7), labels, *[[1.0]] * 3, *[[-1.0]] * 4)
    assert not known.left_out.any()
    assert known.weights.tolist() == [1.0] * 6 + [0.0]


def left_out(*clients: int, of: int) -> Directions:
    """Some of several clients were left out; all had a mean cosine of -1/2."""
    out = torch.zeros(of, dtype=torch.bool)
    out[list(clients)] = True
    return Directions(torch.full((of,), -2.0), torch.full((of,), 4.0), out)


def test_half_of_a_cluster_is_a_group_of_its_own_and_begins_anew() -> None:
    """Three of five that were left out, and three of seven."""
    five = after_round(left_out(0, 1, 2, of=5), ALL, *[[1.0]] * 5)
    assert not five.left_out.any()
    assert five.means.tolist() == [1.0] * 5
    seven = after_round(left_out(0, 1, 2, of=7), torch.zeros(7).long(), *[[1.0]] * 3, *[[-1.0]] * 4)
    assert seven.left_out.tolist() == [True] * 3 + [False] * 4


def test_half_is_half_of_the_members_and_not_of_those_who_answer() -> None:
    """Two of eight are left out, and both answer among four."""
    known = after_round(left_out(0, 1, of=8), torch.zeros(8).long(), [-1.0], [-1.0], [1.0], [1.0])
    assert known.left_out.tolist() == [True, True] + [False] * 6


def test_a_cluster_of_two_begins_anew() -> None:
    """They were left out of the cluster that they come from."""
    known = after_round(left_out(0, 1, of=5), torch.tensor([1, 1, 0, 0, 0]), *[[1.0]] * 5)
    assert not known.left_out.any()


def test_two_clients_have_no_direction() -> None:
    known = after_round(no_directions(2), torch.zeros(2).long(), [1.0], [-1.0])
    assert known.weights.tolist() == [0.0, 0.0]


def test_a_client_comes_back_when_its_mean_cosine_is_positive() -> None:
    """After one round at -1 and t at 1 the sum is -0.9^t + (1 - 0.9^t) / 0.1: positive from the first of them on."""
    known = after_round(no_directions(4), ALL[:4], [1.0], [1.0], [1.0], [-1.0])
    assert known.left_out.tolist() == [False, False, False, True]
    known = after_round(known, ALL[:4], [1.0], [1.0], [1.0], [1.0])
    assert known.means[3].item() == pytest.approx((1 - 0.9) / 1.9)
    assert not known.left_out.any()


def test_who_comes_late_begins_anew() -> None:
    known = Directions(torch.tensor([2.0, -3.0]), torch.tensor([4.0, 4.0]), torch.tensor([False, True]))
    fresh = known.forgetting(torch.tensor([False, True]))
    assert fresh.cosines.tolist() == [2.0, 0.0]
    assert fresh.weights.tolist() == [4.0, 0.0]
    assert not fresh.left_out.any()
