import numpy as np
import pytest
import torch

from fedstrata.clustering import confirm_folds, confirm_newcomers, fold_likeness, fold_test, newcomer_test

LAYERS = {"all": torch.arange(60), "first": torch.arange(30)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def updates(f: int, *sizes: int, apart: float = 0.0, draw: torch.Generator) -> torch.Tensor:
    """Updates (f, m, 60) of clients in groups."""
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    means = torch.randn(60, generator=draw) + apart * torch.randn(len(sizes), 60, generator=draw)
    return means[truth] + torch.randn(f, len(truth), 60, generator=draw)


def last(m: int, count: int = 1) -> torch.Tensor:
    return torch.arange(m) >= m - count


@pytest.mark.parametrize(("f", "half"), [(2, 4), (4, 4), (4, 3), (3, 3), (4, 2)])
def test_two_groups_among_few_clients_are_found_far_below_what_re_pairing_could_reach(f: int, half: int) -> None:
    """Re-pairing whole halves reaches 1/35, 1/10 and 1/3 with 8, 6 and 4 clients."""
    found = fold_test(updates(f, half, half, apart=3.0, draw=seeded(1)), LAYERS, seeded(), level=0.01)
    assert found.confirmed and found.p <= 0.01
    # Deals of 2 folds to 8 clients that give each client folds of one group: C(8, 4) of C(16, 8).
    assert found.floor == pytest.approx(70 / 12870 if f == 2 else 0.001)
    assert found.proposal.tolist() == [False] * half + [True] * half
    assert found.statistic == found.statistics[found.layer] == max(found.statistics.values()) and found.contrast > 0


@pytest.mark.parametrize(("f", "m"), [(2, 8), (3, 4), (4, 5)])
def test_identical_clients_are_split_as_often_as_the_level_says(f: int, m: int) -> None:
    draw, values = seeded(10 * f + m), []
    for _ in range(150):
        values.append(fold_test(updates(f, m, draw=draw), LAYERS, draw, level=0.05).p)
    rates = [np.mean(np.array(values) <= level) for level in (0.05, 0.2, 0.5)]
    assert rates == pytest.approx([0.05, 0.2, 0.5], abs=0.08)


@pytest.mark.parametrize("members", [1, 2, 8])
def test_identical_newcomers_are_set_apart_no_more_often_than_the_level_says(members: int) -> None:
    draw, values = seeded(members), []
    for _ in range(300):
        folds = updates(4, members + 1, draw=draw)
        values.append(newcomer_test(folds, last(members + 1), LAYERS, draw, level=0.1).confirmed)
    assert np.mean(values) < 0.15


@pytest.mark.parametrize(("members", "new"), [(1, 1), (2, 1), (6, 1), (6, 2)])
def test_newcomers_of_another_group_are_told_apart(members: int, new: int) -> None:
    folds = updates(4, members, new, apart=3.0, draw=seeded(2))
    found = newcomer_test(folds, last(members + new, new), LAYERS, seeded(), level=0.05)
    assert found.confirmed and torch.equal(found.proposal, last(members + new, new))
    assert found.contrast > 0 and found.drawn == 1000


def test_a_newcomer_that_differs_only_as_members_differ_from_each_other_founds_nothing() -> None:
    folds = updates(4, *[1] * 7, apart=2.0, draw=seeded(3))
    folds[:, 0] += folds[:, 0].mean(dim=0)  # a member that stands farther out
    found = newcomer_test(folds, last(7), LAYERS, seeded(), level=0.05)
    assert found.tested and not found.confirmed and found.p >= 1 / 6


def test_the_distance_of_two_lone_clients_is_that_of_their_folds() -> None:
    """Within each, the one pair of folds; minus twice the mean of the four pairs across; levels cancel."""
    alike = torch.tensor([[0, 0, 5, 1], [0, 0, 1, 3], [5, 1, 0, 0], [1, 3, 0, 0.0]])[None]
    found = confirm_newcomers(alike, 2, torch.tensor([False, True]), seeded(), level=0.5)
    assert found.contrast == pytest.approx(5 + 3 - 2 * (0 + 1 + 1 + 0) / 4)


def test_evidence_may_be_means_over_rounds() -> None:
    rounds = [fold_likeness(updates(4, 4, 4, apart=1.2, draw=seeded(seed)), LAYERS) for seed in range(3)]
    mean = torch.stack(rounds).mean(dim=0)
    assert confirm_folds(mean, 4, seeded(), 0.03).statistic > max(
        confirm_folds(alike, 4, seeded(), 0.03).statistic for alike in rounds
    )
    assert confirm_folds(mean.numpy(), 4, seeded(), 0.03).confirmed


def test_what_says_nothing_is_not_tested() -> None:
    folds = updates(4, 5, draw=seeded())
    broken, dead = folds.clone(), folds.clone()
    broken[1, 2, 3], dead[1, 2] = torch.nan, 0.0
    for wrong, reason in ((broken, "updates that are not finite"), (dead, "updates that are 0")):
        assert fold_test(wrong, LAYERS, seeded(), 0.05).reason == reason
        assert newcomer_test(wrong, last(5), LAYERS, seeded(), 0.05).reason == reason
    for value, reason in ((1.0, "similarities without a pattern"), (torch.nan, "similarities that are not finite")):
        alike = torch.full((1, 20, 20), value)
        assert confirm_folds(alike, 4, seeded(), 0.05).reason == reason
        assert confirm_newcomers(alike, 4, last(5), seeded(), 0.05).reason == reason
    few = fold_test(folds[:2, :4], LAYERS, seeded(), 0.03)
    assert few.floor == pytest.approx(6 / 70)  # C(4, 2) of C(8, 4)
    assert few.reason == "so few updates reach p = 0.086 at best, above the level 0.03"
    lone = newcomer_test(folds[:, :2], last(2), LAYERS, seeded(), 0.02)
    assert lone.floor == pytest.approx(1 / 35) and not lone.tested  # 8 updates in two sets of 4
    assert fold_test(folds[:, :3], LAYERS, seeded(), 0.05).reason == "3 members, at least 4 are needed"


def test_wrong_shapes_are_refused() -> None:
    folds = updates(4, 5, draw=seeded())
    for wrong in (folds[0], folds[:1]):
        with pytest.raises(ValueError, match="at least 2 folds"):
            fold_test(wrong, LAYERS, seeded(), 0.05)
    alike = fold_likeness(folds, LAYERS)
    for matrices, f in ((alike, 3), (alike, 1), (alike[0], 4), (alike[:0], 4), (alike[:, :8], 4)):
        with pytest.raises(ValueError, match="expected \\(v, f m, f m\\)"):
            confirm_folds(matrices, f, seeded(), 0.05)
    for new in (torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool), last(4)):
        with pytest.raises(ValueError, match="expected some of 5 clients to be new"):
            confirm_newcomers(alike, 4, new, seeded(), 0.05)
