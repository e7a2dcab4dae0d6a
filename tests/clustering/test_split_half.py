from itertools import permutations

import numpy as np
import pytest
import torch
from drawn import groups, noise, seeded, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clustering import (
    PermutationResult,
    centred,
    in_views,
    likeness,
    smallest_sure_p,
    split_half_test,
)
from fedstrata.clustering.patterns import unit, z_of_patterns

few = settings(deadline=None, max_examples=20)


def compared(
    first: torch.Tensor, second: torch.Tensor, layers: dict[str, torch.Tensor], draw: torch.Generator, level: float
) -> PermutationResult:
    """The test of updates by both halves, (m, p) each."""
    one, other = (likeness(half, in_views(layers.values())) for half in (first, second))
    return split_half_test(one, other, draw, level, tuple(layers))


def test_two_pairs_are_found_again_in_8_of_their_24_permutations() -> None:
    """P = Q = S(P), so Z = 2 sqrt(2) / sqrt(4); 8 permutations keep both pairs, 16 have <P, Q> = -1/2."""
    found = split_half_test(groups(2, 2), groups(2, 2), seeded(), level=0.4, names=["conv"])
    assert found.tested and found.confirmed and found.reason == ""
    assert (found.layer, found.drawn, found.proposal.tolist()) == ("conv", 24, [False, False, True, True])
    assert found.statistic == pytest.approx(2**0.5) and found.contrast == 1.0
    assert found.p == found.floor == pytest.approx(8 / 24)


def test_a_level_that_cannot_be_reached_spends_nothing() -> None:
    found = split_half_test(groups(2, 2), groups(2, 2), seeded(), level=0.3)
    assert not found.tested and not found.confirmed and (found.p, found.drawn) == (1.0, 0)
    assert found.reason == "level_out_of_reach"
    assert not found.proposal.any() and found.floor == pytest.approx(1 / 3)


@pytest.mark.parametrize(("m", "floor"), [(6, 1 / 10), (7, 1 / 35), (8, 1 / 35), (10, 1 / 126)])
def test_the_floor_is_the_share_of_permutations_that_keep_two_equal_groups(m: int, floor: float) -> None:
    found = split_half_test(groups(m // 2, m - m // 2), groups(m // 2, m - m // 2), seeded(), level=0.2)
    assert found.floor == pytest.approx(floor)
    assert found.p == pytest.approx(floor, abs=0.01)  # from 7 members on, permutations are drawn


def test_z_has_mean_0_and_variance_1_over_all_permutations_whatever_the_patterns() -> None:
    first, second = (unit(centred(noise(6, seeded(seed))[0] ** 3)) for seed in (1, 2))
    orders = torch.tensor(list(permutations(range(6))))
    heights = z_of_patterns(first.expand(720, 6, 6), second[orders[:, :, None], orders[:, None, :]])
    assert float(heights.mean()) == pytest.approx(0, abs=1e-12)
    assert float(heights.square().mean()) == pytest.approx(1)
    found = split_half_test(first[None], second[None], seeded(), level=0.2)
    assert found.statistic == pytest.approx(float(heights[0]))
    assert found.p == pytest.approx(float((heights >= heights[0] - 1e-9).double().mean()))


@pytest.mark.parametrize("sizes", [(10, 10), (5, 5, 5, 5), (12, 5, 3)])
def test_groups_are_found_and_split_without_tearing_one(sizes: tuple[int, ...]) -> None:
    first, second = updates(2, *sizes, apart=0.8, draw=seeded(1), p=200)
    layers = {"conv": torch.arange(50), "fc": torch.arange(50, 200)}
    found = compared(first, second, layers, seeded(), level=0.01)
    assert found.confirmed and found.p <= 0.01 and found.drawn == 1000
    assert found.layer in layers
    for side in found.proposal.split(list(sizes)):
        assert len(side.unique()) == 1


def test_layers_are_named_by_where_the_groups_are() -> None:
    first, second = torch.randn(2, 12, 90, generator=seeded(3))
    for half in (first, second):
        half[:6, 30:60] += 1.0
    layers = {name: torch.arange(start, start + 30) for name, start in (("a", 0), ("b", 30), ("c", 60))}
    found = compared(first, second, layers, seeded(), level=0.03)
    assert found.layer == "b" and found.confirmed
    assert found.proposal.tolist() == [False] * 6 + [True] * 6


@pytest.mark.slow
@pytest.mark.parametrize(("m", "views", "level"), [(6, 1, 0.1), (8, 3, 0.03), (20, 2, 0.03)])
def test_alike_clients_are_split_as_often_as_the_level_says(m: int, views: int, level: float) -> None:
    draw, values = seeded(m), []
    for _ in range(150):
        first, second = torch.randn(2, m, 20 * views, generator=draw)
        layers = {str(view): torch.arange(20 * view, 20 * view + 20) for view in range(views)}
        values.append(compared(first, second, layers, draw, level).p)
    rates = [np.mean(np.array(values) <= level) for level in (0.05, 0.2, 0.5)]
    assert rates == pytest.approx([0.05, 0.2, 0.5], abs=0.06)


@pytest.mark.slow
def test_likeness_keeps_the_level_when_one_client_has_ten_times_the_samples_of_another() -> None:
    draw, noises, values = seeded(5), 10 ** torch.linspace(0.5, 0, 20)[:, None], []
    for _ in range(200):
        first, second = (3 + noises * torch.randn(20, 100, generator=draw) for _ in range(2))
        values.append(compared(first, second, {"all": torch.arange(100)}, draw, level=0.05).confirmed)
    assert np.mean(values) < 0.1


def test_stopping_early_decides_as_drawing_to_the_end_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def decisions() -> list[tuple[bool, int]]:
        results = []
        for seed in range(30):
            first, second = (0.15 * groups(6, 6) + 0.3 * noise(12, seeded(100 * seed + half)) for half in (1, 2))
            found = split_half_test(first, second, seeded(seed), level=0.05)
            results.append((found.confirmed, found.drawn))
        return results

    early = decisions()
    monkeypatch.setattr("fedstrata.clustering.permutations.stop_after", lambda level: 10**9)
    late = decisions()
    assert [confirmed for confirmed, _ in early] == [confirmed for confirmed, _ in late]
    assert {confirmed for confirmed, _ in late} == {True, False}
    assert {drawn for _, drawn in late} == {1000} and min(drawn for _, drawn in early) < 100


@few
@given(st.integers(5, 9), st.integers(0, 2**20))
def test_reordered_clients_get_the_same_statistic_and_proposal(m: int, seed: int) -> None:
    first, second = (noise(m, seeded(seed + half), views=2) for half in (0, 1))
    order = torch.randperm(m, generator=seeded(seed))
    found = split_half_test(first, second, seeded(), level=0.5)
    again = split_half_test(first[:, order][:, :, order], second[:, order][:, :, order], seeded(), level=0.5)
    assert again.statistic == pytest.approx(found.statistic) and again.layer == found.layer
    moved = found.proposal[order]
    assert torch.equal(again.proposal, moved ^ moved[0])


@few
@given(st.integers(0, 2**20), st.floats(1e-3, 1e3))
def test_neither_the_scale_of_updates_nor_which_half_is_first_matters(seed: int, scale: float) -> None:
    first, second = torch.randn(2, 6, 12, generator=seeded(seed), dtype=torch.float64)
    layers = {"all": torch.arange(12)}
    found = compared(first, second, layers, seeded(), level=0.5)
    scaled = compared(scale * first, second / scale, layers, seeded(), level=0.5)
    swapped = compared(second, first, layers, seeded(), level=0.5)
    assert scaled.p == swapped.p == found.p
    assert scaled.statistic == pytest.approx(found.statistic) and swapped.statistic == pytest.approx(found.statistic)


@pytest.mark.parametrize("few_clients", [0, 1, 2, 3])
def test_fewer_than_four_members_are_not_tested(few_clients: int) -> None:
    rows = torch.randn(few_clients, 5, generator=seeded())
    found = compared(rows, rows, {"all": torch.arange(5)}, seeded(), level=0.9)
    assert found.reason == "too_few_members" and found.p == 1.0


def test_similarities_without_a_pattern_or_not_finite_give_no_test() -> None:
    flat, broken = torch.ones(1, 8, 8), torch.full((1, 8, 8), torch.nan)
    assert split_half_test(flat, flat, seeded(), 0.05).reason == "no_pattern"
    assert split_half_test(groups(4, 4), broken, seeded(), 0.05).reason == "similarities_not_finite"
    both = torch.cat([flat, groups(5, 5)[:, :8, :8]])
    mixed = split_half_test(both, both, seeded(), 0.05)
    assert mixed.tested and mixed.layer == "1"


@pytest.mark.parametrize(("m", "p"), [(4, 1 / 3), (5, 1 / 10), (6, 1 / 10), (8, 1 / 35), (20, 2 / 184756)])
def test_the_smallest_sure_p_is_the_share_of_permutations_that_keep_two_clear_groups(m: int, p: float) -> None:
    """Of 4: 3 ways to make two pairs. Of 5: 10 to make a pair and a triple."""
    assert smallest_sure_p(m) == pytest.approx(p)
