import numpy as np
import pytest
import torch
from drawn import seeded, updates

from fedstrata.clustering import PermutationResult, fold_test, in_views, likeness

LAYERS = {"all": torch.arange(60), "first": torch.arange(30)}


def similarity_of(folds: torch.Tensor) -> torch.Tensor:
    """The similarity of all folds (f, m, 60) in all layers, (v, f m, f m)."""
    return likeness(folds.flatten(0, 1), in_views(LAYERS.values()))


def groups_tested(folds: torch.Tensor, draw: torch.Generator, level: float) -> PermutationResult:
    return fold_test(similarity_of(folds), len(folds), draw, level, tuple(LAYERS))


@pytest.mark.parametrize(("f", "half"), [(2, 4), (4, 4), (4, 3), (3, 3), (4, 2)])
def test_two_groups_among_few_clients_are_found_far_below_what_re_pairing_could_reach(f: int, half: int) -> None:
    """Re-pairing whole halves reaches 1/35, 1/10 and 1/3 with 8, 6 and 4 clients."""
    found = groups_tested(updates(f, half, half, apart=3.0, draw=seeded(1)), seeded(), level=0.01)
    assert found.confirmed and found.p <= 0.01
    # Deals of 2 folds to 8 clients that give each client folds of one group: C(8, 4) of C(16, 8).
    assert found.floor == pytest.approx(70 / 12870 if f == 2 else 0.001)
    assert found.proposal.tolist() == [False] * half + [True] * half
    assert found.statistic > 0 and found.contrast > 0


@pytest.mark.slow
@pytest.mark.parametrize(("f", "m"), [(2, 8), (3, 4), (4, 5)])
def test_identical_clients_are_split_as_often_as_the_level_says(f: int, m: int) -> None:
    draw, values = seeded(10 * f + m), []
    for _ in range(100):
        values.append(groups_tested(updates(f, m, draw=draw), draw, level=0.02).p)
    rates = [np.mean(np.array(values) <= level) for level in (0.05, 0.2, 0.5)]
    assert rates == pytest.approx([0.05, 0.2, 0.5], abs=0.09)


@pytest.mark.slow
def test_evidence_may_be_means_over_rounds() -> None:
    rounds = [similarity_of(updates(4, 4, 4, apart=1.2, draw=seeded(seed))) for seed in range(3)]
    mean = torch.stack(rounds).mean(dim=0)
    alone = max(fold_test(alike, 4, seeded(), 0.03).statistic for alike in rounds)
    assert fold_test(mean, 4, seeded(), 0.03).statistic > alone
    assert fold_test(mean.numpy(), 4, seeded(), 0.03).confirmed


def test_what_says_nothing_is_not_tested() -> None:
    folds = updates(4, 5, draw=seeded())
    for value, reason in ((1.0, "no_pattern"), (torch.nan, "similarities_not_finite")):
        alike = torch.full((1, 20, 20), value)
        assert fold_test(alike, 4, seeded(), 0.05).reason == reason
    few = groups_tested(folds[:2, :4], seeded(), 0.03)
    assert few.floor == pytest.approx(6 / 70)  # C(4, 2) of C(8, 4)
    assert few.reason == "level_out_of_reach"
    assert groups_tested(folds[:, :3], seeded(), 0.05).reason == "too_few_members"
