"""How many samples a client needs to take part in a split-half test, and who takes part."""

import pytest
import torch

from fedstrata.algorithms.evidence.split_half import needed_samples, select_participants
from fedstrata.core import initial_state
from fedstrata.testing import toy_problem


@pytest.mark.parametrize(
    ("sizes", "folds", "needed"),
    [
        ([300] * 20, 2, 48),  # folds of 24 are enough, whatever clients have
        ([300] * 20, 4, 96),
        ([40] * 20, 2, 40),  # all have folds of 20
        ([40] * 20, 4, 40),
        ([41] * 20, 4, 40),  # folds are of whole samples
        ([40] * 10 + [300] * 10, 2, 48),  # half have enough
        ([40] * 11 + [300] * 9, 2, 40),
        ([10, 20, 30], 2, 20),  # two of three have 20
        ([4] * 20, 2, 16),  # folds of eight at least
        ([0] * 5 + [40] * 5, 2, 40),  # of five, nothing is known
        ([0] * 5, 2, 48),
    ],
)
def test_a_fold_is_as_large_as_half_of_the_members_can_fill_between_8_and_24(
    sizes: list[int], folds: int, needed: int
) -> None:
    assert needed_samples(torch.tensor(sizes), folds) == needed


@pytest.mark.parametrize(
    ("sizes", "folds", "able"),
    [
        ([40] * 20, 2, 20),
        ([40] * 12 + [30] * 8, 2, 12),  # 30 are too few: the folds of the others would shrink
        ([60] * 6, 4, 6),  # of six clients two folds show nothing
        ([60] * 12, 2, 12),  # two folds of 24 are better than four of 15, and cost half
        ([100] * 12, 4, 12),
    ],
)
def test_small_clients_take_part(sizes: list[int], folds: int, able: int) -> None:
    problem = toy_problem(clients=len(sizes))
    found = select_participants(problem, initial_state(problem), torch.tensor(sizes), 0.025)
    assert found is not None and (len(found.clients), found.folds) == (able, folds)


def test_of_many_clients_the_others_stay_when_one_is_too_small() -> None:
    problem = toy_problem(clients=300)
    state, sizes = initial_state(problem), torch.full((300,), 200)
    first = select_participants(problem, state, sizes, 0.025)
    later = select_participants(problem, state, sizes.index_fill(0, torch.tensor([299]), 10), 0.025)
    assert first is not None and later is not None and len(later.clients) == 200
    assert int(torch.isin(later.clients, first.clients).sum()) >= 199
