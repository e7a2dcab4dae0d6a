"""Clipped sums with Gaussian noise, and fixed denominators."""

from dataclasses import replace

import pytest
import torch

from builders import trained
from fedstrata.core import Layout, Rows, ServerOptimizer, TensorSpec, aggregate, fixed_clusters
from fedstrata.testing import toy_problem
from fedstrata.uploads.noise import CentralNoise, NoiseSeed, clip_to_norm, gaussian_noise

LAYOUT = Layout((TensorSpec("a.weight", "a", "linear", (2,)), TensorSpec("b.weight", "b", "linear", (1,))))
QUIET = CentralNoise(LAYOUT, (True, True), clip_norm=5.0, noise_multiplier=0.0)
NOISY = replace(QUIET, noise_multiplier=2.0)


def rows(**updates: list[float]) -> Rows:
    return Rows(torch.tensor([int(name[1:]) for name in updates]), torch.tensor(list(updates.values())))


def means(privacy: CentralNoise, updates: Rows, labels: list[int], everyone: list[int], k: int = 2) -> torch.Tensor:
    """The means of k clusters in round 1, by the cluster of each client that answered, and of every client."""
    ones, everywhere = torch.ones(len(labels)), torch.tensor(everyone)
    found, _ = privacy.means(updates, ones, torch.tensor(labels), k, everywhere, purpose="train", round=1)
    return found


def test_an_update_is_scaled_down_to_the_largest_norm_and_never_up() -> None:
    assert clip_to_norm(torch.tensor([6.0, 8.0]), 5.0).tolist() == [3.0, 4.0]  # norm 10
    assert clip_to_norm(torch.tensor([0.3, 0.4]), 5.0).tolist() == pytest.approx([0.3, 0.4])
    assert clip_to_norm(torch.zeros(2), 5.0).tolist() == [0.0, 0.0]


def test_a_cluster_moves_by_the_sum_of_clipped_updates_over_the_number_of_its_members() -> None:
    updates = rows(c0=[6.0, 8.0, 0.0], c1=[1.0, 1.0, 1.0], c3=[0.0, 0.0, 2.0])
    found = means(QUIET, updates, [0, 0, 1], [0, 0, 0, 1])  # client 2 did not answer
    assert torch.allclose(found, torch.tensor([[4 / 3, 5 / 3, 1 / 3], [0.0, 0.0, 2.0]]))


def test_the_denominator_is_the_expected_number_where_some_clients_take_part() -> None:
    some = replace(QUIET, answers=lambda round: 2.0)
    updates = rows(c0=[1.0, 0.0, 0.0])

    def mean(*everyone: int) -> float:
        return float(means(some, updates, [0], [*everyone])[0, 0])

    assert mean(0, 0, 0, 0) == 1 / 2
    # Of 4 clients 2 are placed: as many pending ones take part and may belong to the cluster.
    assert mean(0, 0, -1, -1) == 1 / 2
    # 3 of 4 clients are in the cluster: 1.5 of 2 answers are expected of it.
    assert mean(0, 0, 0, 1) == pytest.approx(1 / 1.5)


def test_clients_that_left_are_not_expected() -> None:
    """Two of four clients have left, and half of the others are drawn: one answer, and its update is the mean."""
    half = replace(QUIET, answers=lambda round: 1.0)
    assert means(half, rows(c0=[1.0, 2.0, 0.0]), [0], [0, 0, -1, -1], k=1).tolist() == [[1.0, 2.0, 0.0]]


def test_a_client_moves_a_sum_by_the_clipping_norm_at_most() -> None:
    draw = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 1e3, 1e30):
        values = scale * torch.randn(4, 3, generator=draw)
        labels = torch.tensor([0, 0, 1, 1])
        whole = QUIET.sums(Rows(torch.arange(4), values), labels, 2, "train", 1)
        without = QUIET.sums(Rows(torch.arange(3), values[:3]), labels[:3], 2, "train", 1)
        assert float((whole - without).norm()) <= QUIET.clip_norm * (1 + 1e-6)


def test_the_noise_has_the_scale_that_is_accounted_for() -> None:
    layout = Layout((TensorSpec("a.weight", "a", "linear", (100_000,)),))
    privacy = CentralNoise(layout, (True,), clip_norm=5.0, noise_multiplier=2.0)
    nobody = Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 100_000))
    sums = privacy.sums(nobody, torch.empty(0, dtype=torch.int64), 2, "train", 1)
    # The standard deviation of 100,000 draws is known to 0.22 %, their mean to 0.032: four of these are allowed.
    assert sums.std(dim=1).tolist() == pytest.approx([10.0, 10.0], rel=0.009)
    assert sums.mean(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=0.13)
    assert abs(float(torch.corrcoef(sums)[0, 1])) < 4 / 100_000**0.5
    # A tenth of 4.55 % of normal draws lies beyond two standard deviations on average in every part.
    assert float((sums.abs() > 20.0).double().mean()) == pytest.approx(0.0455, abs=0.002)


def test_the_noise_depends_on_seed_run_round_purpose_and_cluster_and_not_on_the_order_of_clients() -> None:
    updates = rows(c0=[1.0, 2.0, 0.0], c1=[0.0, 1.0, 1.0], c2=[3.0, 0.0, 0.0])
    labels = torch.tensor([0, 1, 1])

    def sums(privacy: CentralNoise = NOISY, purpose: str = "train", round: int = 1) -> torch.Tensor:
        return privacy.sums(updates, labels, 2, purpose, round)

    backwards = Rows(updates.clients.flip(0), updates.values.flip(0))
    assert torch.equal(NOISY.sums(backwards, labels.flip(0), 2, "train", 1), sums())
    others = [sums(round=2), sums(purpose="body"), sums(replace(NOISY, noise_seed=NoiseSeed(1)))]
    others.append(sums(replace(NOISY, noise_seed=NoiseSeed(0, run="another"))))
    assert not any(bool((other == sums()).any()) for other in others)
    noise = sums() - QUIET.sums(updates, labels, 2, "train", 1)
    assert not bool((noise[0] == noise[1]).any())


def test_other_numbers_get_other_noise_and_the_same_get_the_same() -> None:
    """A round that is played again with other clients: the difference of both sums must not be one client's update."""
    updates = rows(c0=[1.0, 2.0, 0.0], c1=[0.0, 1.0, 1.0])
    labels = torch.tensor([0, 0])
    both = NOISY.sums(updates, labels, 1, "train", 1)
    again = NOISY.sums(updates, labels, 1, "train", 1)
    one = NOISY.sums(updates.at(torch.tensor([0])), labels[:1], 1, "train", 1)
    assert torch.equal(both, again)
    assert bool(((both - one - torch.tensor([[0.0, 1.0, 1.0]])).abs() > 0.01).all())


def test_all_bits_of_a_secret_count() -> None:
    """A generator of torch takes the lowest 32 bits of a seed: these two secrets would have the same noise there."""
    hidden = torch.zeros(4, dtype=torch.float64)

    def noise(secret: int) -> torch.Tensor:
        return gaussian_noise(hidden, 1.0, NoiseSeed(secret), ("train", 1, 0))

    assert torch.equal(noise(7), noise(7))
    assert not bool((noise(7) == noise(7 + 2**32)).any()) and not bool((noise(7) == noise(7 + 2**127)).any())


def test_tensors_that_are_not_uploaded_get_neither_an_update_nor_noise() -> None:
    privacy = replace(NOISY, released=(True, False))
    found = privacy.sums(rows(c0=[0.0, 0.0, 1e6]), torch.tensor([0]), 1, "train", 1)
    assert found[0, 2] == 0.0 and bool((found[0, :2] != 0).all())


def test_small_clusters_keep_their_model() -> None:
    privacy = replace(NOISY, least_clients=3)
    updates = rows(c0=[1.0, 0.0, 0.0], c3=[1.0, 0.0, 0.0])
    found = means(privacy, updates, [0, 1], [0, 0, 0, 1], k=3)
    assert bool((found[0] != 0).all()) and found[1:].tolist() == [[0.0] * 3] * 2


def test_a_cluster_that_has_become_too_small_takes_no_step_with_the_old_moments() -> None:
    """Both clusters move by 1. Then one loses a member, and nobody's update says anything: momentum moves the other."""
    layout = toy_problem(6).layout
    privacy = CentralNoise(layout, layout.everything, clip_norm=100.0, noise_multiplier=0.0, least_clients=3)
    problem = replace(toy_problem(6), aggregation=privacy, server=ServerOptimizer("momentum", momentum=0.5))
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    state = fixed_clusters(problem, labels, 2, "given")
    ones = torch.ones(6, layout.p)
    first, _ = aggregate(problem, state, trained(ones, chosen=labels), labels)
    second, _ = aggregate(problem, first, trained(0 * ones, chosen=labels), torch.tensor([0, 0, 0, 1, 1, -1]))
    assert torch.allclose(first.models - state.models, torch.tensor(1.0))
    assert torch.allclose(second.models - first.models, torch.tensor([[0.5], [0.0]]))


def test_groups_that_share_clients_share_the_noise_of_their_parts() -> None:
    updates = rows(c0=[1.0, 0.0, 0.0], c1=[0.0, 1.0, 0.0], c2=[0.0, 0.0, 1.0])
    parts = torch.tensor([0, 0, 1])
    unions = torch.tensor([[True, True], [True, False], [False, True]])
    members = torch.tensor([3, 2, 1])
    sums = NOISY.sums(updates, parts, 2, "holdout", 4)
    found = NOISY.means_of_unions(updates, parts, unions, members, "holdout", 4)
    assert torch.allclose(found, torch.stack([(sums[0] + sums[1]) / 3, sums[0] / 2, sums[1]]).float())
