"""The similarity of folds over rounds: who is compared, and when there is no test."""

import torch

from builders import layout_with
from fedstrata.algorithms.evidence.fold_similarity import FoldSimilarity, groups_test, with_round
from fedstrata.clustering import PermutationResult
from fedstrata.core import Rows

LAYOUT = layout_with({"head.weight": 6})


def folds(clients: list[int], seed: int) -> list[Rows]:
    """Two folds of updates of clients of two groups: the even ids, and the odd ones."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.tensor(clients)
    direction = torch.where(ids % 2 == 0, 3.0, -3.0)[:, None]
    return [Rows(ids, direction + torch.randn(len(ids), 6, generator=draw)) for _ in range(2)]


def found_in(known: FoldSimilarity) -> tuple[torch.Tensor, PermutationResult]:
    """The clients that a test of groups compares, and its result."""
    return groups_test(LAYOUT, known, torch.Generator().manual_seed(0), level=0.05)


def test_only_clients_are_compared_of_whom_every_two_have_answered_in_the_same_round() -> None:
    """Clients 8 and 9 come in the second round alone, clients 0 and 1 in the first one."""
    first = with_round(LAYOUT, None, folds(list(range(8)), seed=0))
    both = with_round(LAYOUT, first, folds(list(range(2, 10)), seed=1))
    assert both.clients.tolist() == list(range(10)) and int(both.rounds[2, 3]) == 2 and int(both.rounds[0, 9]) == 0
    clients, _ = found_in(both)
    assert clients.tolist() == list(range(2, 10))


def test_groups_of_ten_clients_are_found() -> None:
    known = with_round(LAYOUT, None, folds(list(range(10)), seed=0))
    clients, result = found_in(known)
    assert clients.tolist() == list(range(10)) and result.confirmed
    assert result.proposal.tolist() in ([False, True] * 5, [True, False] * 5)


def test_fewer_than_four_clients_that_can_be_compared_are_not_tested() -> None:
    """Three are too few. Of twelve, three have answered together with all of the seven who did so before."""
    known = with_round(LAYOUT, None, folds(list(range(10)), seed=0))
    for ids, compared in (([0, 1, 2], 0), ([7, 8, 9, 10, 11], 3)):
        _, result = found_in(with_round(LAYOUT, known, folds(ids, seed=1)))
        assert not result.tested and result.reason == "too_few_answers"
        assert len(result.proposal) == compared


def test_who_has_a_layer_that_did_not_move_takes_no_part() -> None:
    halves = folds(list(range(6)), seed=0)
    halves[1].values[4] = 0.0
    assert with_round(LAYOUT, None, halves).clients.tolist() == [0, 1, 2, 3, 5]


def test_another_number_of_folds_begins_anew() -> None:
    known = with_round(LAYOUT, None, folds(list(range(8)), seed=0))
    four = with_round(LAYOUT, known, [*folds(list(range(5)), seed=2), *folds(list(range(5)), seed=3)])
    assert four.folds == 4 and four.clients.tolist() == list(range(5)) and int(four.rounds.max()) == 1
