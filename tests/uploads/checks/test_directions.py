"""Clients whose updates point backwards: the cosines by hand, who is left out, and who comes back."""

from collections.abc import Iterator
from dataclasses import fields, replace
from math import sqrt

import numpy as np
import pytest
import torch

from builders import trained
from fedstrata.core import Layout, TensorSpec, row_products
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.directions import DirectionHistory, no_directions, reassigned, with_directions

ALL = torch.zeros(5, dtype=torch.int64)
WEIGHT = TensorSpec("head.weight", "head", "linear", (1,))
BUFFER = TensorSpec("norm.running_var", "norm", "buffer", (1,))


def means(known: DirectionHistory) -> torch.Tensor:
    """The mean cosine of each client, (n,); 0 before its first upload."""
    return known.cosines / known.weights.clamp_min(1.0)


def after_round(
    known: DirectionHistory,
    labels: torch.Tensor,
    *updates: list[float],
    ids: list[int] | None = None,
    chosen: list[int] | None = None,
    layout: Layout | None = None,
) -> DirectionHistory:
    """What is known after a round of updates by clients that have trained the model of their cluster.

    Args:
        known: What was known before.
        labels: The cluster of each client.
        updates: The updates of those who answered.
        ids: Who answered; by default the first clients.
        chosen: Whose models they have trained, where these are not those of their clusters.
        layout: By default one linear layer.
    """
    clients = ids or list(range(len(updates)))
    report = trained(torch.tensor(updates), clients, labels[clients] if chosen is None else chosen)
    linear = Layout((TensorSpec("head.weight", "head", "linear", (len(updates[0]),)),))
    return with_directions(known, compared_updates(layout or linear, report, labels), labels)


def test_the_cosine_is_that_with_the_sum_of_the_unit_vectors_of_the_others() -> None:
    """Three of five clients move: along x, along y, and along x twice as long."""
    known = after_round(no_directions(5), ALL, [1.0, 0.0], [0.0, 3.0], [2.0, 0.0], *[[0.0, 0.0]] * 2)
    # The others of the first are (0, 1) and (1, 0); those of the second are both (1, 0).
    assert means(known).tolist() == pytest.approx([1 / sqrt(2), 0.0, 1 / sqrt(2), 0.0, 0.0], abs=1e-6)
    assert known.weights.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert not known.left_out.any()


def test_an_update_of_zeros_has_no_direction() -> None:
    known = after_round(no_directions(5), ALL, [1.0], [1.0], [2.0], [3.0], [0.0])
    assert means(known).tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert known.weights.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_others_that_cancel_out_have_no_direction() -> None:
    """One client moves, and the rest send zeros. Of the two that move against each other, a third one sees nothing."""
    zeros = [[0.0, 0.0]] * 4
    alone = after_round(no_directions(5), ALL, [1.0, 2.0], *zeros)
    assert alone.weights.tolist() == [0.0] * 5
    torn = after_round(no_directions(5), ALL, [1.0, 0.0], [-1.0, 0.0], [0.1, 1.0], *zeros[:2])
    assert torn.weights.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_of_four_clients_one_may_differ_honestly() -> None:
    """As one hospital of four with other patients does."""
    four = after_round(no_directions(4), ALL[:4], [1.0], [1.0], [1.0], [-1.0])
    assert four.weights.tolist() == [0.0] * 4 and not four.left_out.any()


def test_normalisation_layers_and_buffers_say_nothing() -> None:
    """Five weights agree, and two running variances fall while three rise."""
    layout = Layout((WEIGHT, BUFFER))
    known = after_round(no_directions(5), ALL, *[[1.0, 9.0]] * 3, *[[1.0, -9.0]] * 2, layout=layout)
    assert means(known).tolist() == [1.0] * 5


def test_only_who_has_trained_the_model_of_its_cluster_is_compared() -> None:
    known = after_round(no_directions(6), torch.zeros(6).long(), *[[1.0]] * 5, [-1.0], chosen=[0] * 5 + [1])
    assert known.weights.tolist() == [1.0] * 5 + [0.0]


def test_a_flipped_client_is_left_out_and_no_more_in_the_sum_of_the_others() -> None:
    known = after_round(no_directions(5), ALL, [1.0], [1.0], [2.0], [-1.0], [3.0])
    assert known.left_out.tolist() == [False, False, False, True, False]
    assert means(known).tolist() == [1.0, 1.0, 1.0, -1.0, 1.0]


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
    assert means(known)[12:].max() < 0 < means(known)[:12].min()  # by unit vectors, eight are a minority


def test_clusters_are_compared_by_themselves_and_pending_clients_are_not() -> None:
    labels = torch.tensor([0] * 5 + [1] * 5 + [-1])
    known = after_round(no_directions(11), labels, *[[1.0]] * 5, *[[-1.0]] * 6)
    assert not known.left_out.any()
    assert known.weights.tolist() == [1.0] * 10 + [0.0]


def left_out(*clients: int, of: int) -> DirectionHistory:
    """Some of several clients were left out; all had a mean cosine of -1/2."""
    out = torch.zeros(of, dtype=torch.bool)
    out[list(clients)] = True
    return replace(no_directions(of), cosines=torch.full((of,), -2.0), weights=torch.full((of,), 4.0), left_out=out)


def test_half_of_a_cluster_is_a_group_of_its_own_and_begins_anew() -> None:
    """Three of five that were left out, and three of seven."""
    five = after_round(left_out(0, 1, 2, of=5), ALL, *[[1.0]] * 5)
    assert not five.left_out.any()
    assert means(five).tolist() == [1.0] * 5
    seven = after_round(left_out(0, 1, 2, of=7), torch.zeros(7).long(), *[[1.0]] * 3, *[[-1.0]] * 4)
    assert seven.left_out.tolist() == [True] * 3 + [False] * 4


def test_half_is_half_of_the_members_and_not_of_those_who_answer() -> None:
    """Two of eight are left out, and both answer among four."""
    known = after_round(left_out(0, 1, of=8), torch.zeros(8).long(), [-1.0], [-1.0], [1.0], [1.0])
    assert known.left_out.tolist() == [True, True] + [False] * 6


def test_a_client_comes_back_when_its_mean_cosine_is_positive() -> None:
    """After one round at -1 and t at 1 the sum is -0.9^t + (1 - 0.9^t) / 0.1: positive from the first of them on."""
    known = after_round(no_directions(5), ALL, *[[1.0]] * 4, [-1.0])
    assert known.left_out.tolist() == [False] * 4 + [True]
    known = after_round(known, ALL, *[[1.0]] * 5)
    assert means(known)[4].item() == pytest.approx((1 - 0.9) / 1.9)
    assert not known.left_out.any()


def after_rounds(known: DirectionHistory, *rounds: list[float]) -> DirectionHistory:
    """What is known after rounds in which one cluster sends these numbers, all of one weight."""
    for sent in rounds:
        known = after_round(known, torch.zeros(len(sent)).long(), *[[number] for number in sent])
    return known


TOGETHER = [1.0, 1.0, 1.0, 1.0, 1.0]
TWO_TURN = [1.0, 1.0, 1.0, -1.0, -1.0]


def test_two_of_five_that_turn_round_are_left_out_in_their_third_round() -> None:
    """Their means go on being positive: after five rounds at 1, three at -1 make 4.10 * 0.73 - 2.71 = 0.27."""
    twice = after_rounds(no_directions(5), *[TOGETHER] * 5, *[TWO_TURN] * 2)
    assert twice.backward_rounds.tolist() == [0, 0, 0, 2, 2]
    assert not twice.left_out.any()
    thrice = after_rounds(twice, TWO_TURN)
    assert means(thrice)[3].item() > 0
    assert thrice.left_out.tolist() == [False, False, False, True, True]


def test_who_has_turned_comes_back_when_a_round_points_forwards() -> None:
    known = after_rounds(no_directions(5), *[TOGETHER] * 5, *[TWO_TURN] * 3, TOGETHER)
    assert known.backward_rounds.tolist() == [0] * 5
    assert not known.left_out.any()


def test_halves_of_a_cluster_have_no_larger_side() -> None:
    """Three of six turn; and one of three, where the larger side has two."""
    six = after_rounds(no_directions(6), [1.0] * 6, *[[1.0] * 3 + [-1.0] * 3] * 3)
    three = after_rounds(no_directions(3), [1.0] * 3, *[[1.0, 1.0, -1.0]] * 3)
    assert six.backward_rounds.tolist() == [0] * 6
    assert three.backward_rounds.tolist() == [0] * 3


def test_a_weak_larger_side_says_nothing() -> None:
    """Five axes and a small common part: unit vectors with cosines of 0.01 / 1.01 with each other."""
    common = torch.full((5, 1), 0.1)
    apart = torch.cat([torch.eye(5), common * torch.tensor(TWO_TURN)[:, None]], dim=1).tolist()
    known = after_round(no_directions(5), ALL, *[[0.0] * 5 + [1.0]] * 5)
    for _ in range(3):
        known = after_round(known, ALL, *apart)
    assert known.backward_rounds.tolist() == [0] * 5


def gone_along(*means: float) -> DirectionHistory:
    """What is known of clients with these mean cosines."""
    return replace(no_directions(len(means)), cosines=torch.tensor(means), weights=torch.ones(len(means)))


def test_only_who_has_gone_with_the_others_can_turn() -> None:
    """Three quarters of the median, which is 0.4, are 0.3. In a cluster that is not of one mind nobody can turn."""
    known = after_rounds(gone_along(0.4, 0.4, 0.4, 0.31, 0.29), *[TWO_TURN] * 3)
    assert known.backward_rounds.tolist() == [0, 0, 0, 3, 0]
    for means in ((0.2, 0.2, 0.2, 0.3, 0.3), (0.0,) * 5):
        assert not after_rounds(gone_along(*means), *[TWO_TURN] * 3).backward_rounds.any()


def test_who_was_left_out_has_to_point_forwards_in_its_new_cluster() -> None:
    """Two of five with flipped signs come from a larger cluster; one of them is honest, and wanted something else."""
    moving = torch.tensor([False, False, False, True, True])
    known = reassigned(left_out(3, 4, of=5), moving)
    assert known.left_out.tolist() == moving.tolist()
    assert means(known).tolist() == [-0.5, -0.5, -0.5, 0.0, 0.0]
    known = after_round(known, ALL, [1.0], [1.0], [1.0], [-1.0], [1.0])
    assert known.left_out.tolist() == [False, False, False, True, False]


def test_who_was_not_left_out_begins_anew_in_its_new_cluster() -> None:
    known = reassigned(left_out(of=2), torch.tensor([True, False]))
    assert means(known).tolist() == [0.0, -0.5]
    assert not known.left_out.any()


def clusters_that_turn(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The labels, clients and updates of twelve rounds of clusters 0, 2 and 7, of 3, 9 and 18 clients or fewer.

    Some are away in each round, and every fifth client turns after the fifth round. In the last rounds, clients of
    cluster 7 want different models.
    """
    draw = np.random.default_rng(seed)
    labels = torch.from_numpy(np.repeat([0, 2, 7], [3, 9, 18]))
    wishes = {cluster: draw.normal(size=8) for cluster in (0, 2, 7)}
    for round in range(12):
        clients = torch.from_numpy(np.sort(draw.permutation(30)[:27]))
        updates = np.stack([wishes[cluster] for cluster in labels[clients].tolist()])
        if round > 5:
            updates[clients.numpy() % 5 == 0] *= -1.0
        if round > 9:
            updates[clients.numpy() >= 12] = draw.normal(size=(int((clients >= 12).sum()), 8))
        yield labels, clients, torch.from_numpy(updates + draw.normal(0, 0.3, updates.shape)).float()


def of_round(
    known: DirectionHistory, labels: torch.Tensor, clients: torch.Tensor, updates: torch.Tensor
) -> DirectionHistory:
    return after_round(known, labels, *updates.tolist(), ids=clients.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_all_clusters_at_once_are_as_each_by_itself(seed: int) -> None:
    """A cluster in which nobody answers stays as it is, also where it is small or half of it are left out."""
    together = no_directions(30)
    alone = {cluster: no_directions(30) for cluster in (0, 2, 7)}
    turned = torch.zeros(30, dtype=torch.bool)
    for labels, clients, updates in clusters_that_turn(seed):
        together = of_round(together, labels, clients, updates)
        turned |= together.left_out
        for cluster in alone:
            here = labels[clients] == cluster
            if here.any():
                own = torch.where(labels == cluster, labels, -1)
                alone[cluster] = of_round(alone[cluster], own, clients[here], updates[here])
    assert turned.any()
    for cluster, known in alone.items():
        members = labels == cluster
        for field in fields(known):
            found = getattr(together, field.name)[members].double()
            assert found.allclose(getattr(known, field.name)[members].double(), atol=1e-6), field.name


def test_the_order_of_the_report_changes_no_bit() -> None:
    there, back = no_directions(30), no_directions(30)
    for labels, clients, updates in clusters_that_turn(0):
        there = of_round(there, labels, clients, updates)
        back = of_round(back, labels, clients.flip(0), updates.flip(0))
    for field in fields(there):
        assert getattr(there, field.name).equal(getattr(back, field.name)), field.name


def test_many_clients_are_compared_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sums and power iterations, in place of the inner products of each two updates."""
    usual = slow = no_directions(30)
    for labels, clients, updates in clusters_that_turn(0):
        usual = of_round(usual, labels, clients, updates)
        with monkeypatch.context() as patched:
            patched.setattr(row_products, "_FEW_ROWS", 0)
            slow = of_round(slow, labels, clients, updates)
        assert slow.cosines.allclose(usual.cosines, atol=1e-5)
        assert slow.left_out.equal(usual.left_out) and slow.backward_rounds.equal(usual.backward_rounds)


def test_clusters_in_which_nobody_answers_stay_as_they_are() -> None:
    """Half of the second cluster are left out, and remain so."""
    known = left_out(4, 5, of=8)
    after = after_round(known, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), *[[1.0]] * 4, ids=[0, 1, 2, 3])
    assert after.left_out.tolist() == [False] * 4 + [True] * 2 + [False] * 2
