"""Clients that send the same update: which of them count."""

import torch

from fedstrata.algorithms.shared.copied_updates import originals_of
from fedstrata.core import TRAIN, Report, Result, Rows


def originals(
    updates: list[list[float]], labels: list[int], ids: list[int] | None = None, chosen: list[int] | None = None
) -> list[int]:
    """Whose update each client has sent, by the updates of those who answered."""
    clients = torch.tensor(range(len(updates)) if ids is None else ids)
    known = torch.tensor(labels)
    trained = known[clients] if chosen is None else torch.tensor(chosen)
    m = len(clients)
    result = Result(Rows(clients, torch.tensor(updates)), trained, torch.ones(m), torch.zeros(m, 1))
    return originals_of(Report({TRAIN: result}), known).tolist()


DISTINCT = [[1.0, 0.0], [0.9, 0.1], [1.1, 0.2], [0.8, -0.1]]


def test_the_smallest_id_counts_of_those_that_send_the_same() -> None:
    sent = [*DISTINCT, [-1.0, 0.5], [1.2, 0.0], [-1.0, 0.5], [0.7, 0.3], [-1.0, 0.5]]
    assert originals(sent, [0] * 9) == [0, 1, 2, 3, 4, 5, 4, 7, 4]


def test_the_order_of_the_report_does_not_matter() -> None:
    sent = [[-1.0, 0.5], *DISTINCT, [-1.0, 0.5]]
    assert originals(sent, [0] * 6, ids=[5, 3, 0, 1, 4, 2]) == [0, 1, 2, 3, 4, 2]


def test_updates_of_equal_norm_may_differ() -> None:
    assert originals([*DISTINCT, [3.0, 4.0], [4.0, 3.0]], [0] * 6) == list(range(6))


def test_the_same_is_meant_up_to_rounding() -> None:
    """The distance is at most 1e-4 of the norm."""
    assert originals([*DISTINCT, [2.0, 0.0], [2.0, 1e-4]], [0] * 6) == [0, 1, 2, 3, 4, 4]
    assert originals([*DISTINCT, [2.0, 0.0], [2.0, 1e-3]], [0] * 6) == list(range(6))


def test_where_half_of_a_cluster_send_what_others_send_everyone_counts() -> None:
    """Two of five may be sybils. Two of four, or two pairs of seven and eight, are what the cluster is like."""
    same = [[-1.0, 0.5]] * 2
    assert originals([*DISTINCT[:3], *same], [0] * 5) == [0, 1, 2, 3, 3]
    assert originals([*DISTINCT[:2], *same], [0] * 4) == list(range(4))
    two_pairs = [*DISTINCT, *same, *[[2.0, 0.0]] * 2]
    assert originals(two_pairs, [0] * 8) == list(range(8))
    assert originals([*two_pairs, [0.5, 0.5]], [0] * 9) == [0, 1, 2, 3, 4, 4, 6, 6, 8]


def test_updates_of_zero_say_nothing() -> None:
    assert originals([*DISTINCT, [0.0, 0.0], [0.0, 0.0]], [0] * 6) == list(range(6))


def test_clusters_are_compared_by_themselves_and_only_who_has_trained_its_model() -> None:
    same = [[-1.0, 0.5]] * 2
    assert originals([*DISTINCT, *same], [0, 0, 0, 1, 0, 1]) == list(range(6))
    assert originals([*DISTINCT, *same], [0] * 6, chosen=[0, 0, 0, 0, 0, 1]) == list(range(6))
    assert originals([*DISTINCT, *same], [0, 0, 0, 0, -1, -1]) == list(range(6))


def test_nobody_answers() -> None:
    result = Result(
        Rows(torch.tensor([], dtype=torch.int64), torch.zeros(0, 2)),
        torch.tensor([], dtype=torch.int64),
        torch.zeros(0),
        torch.zeros(0, 1),
    )
    assert originals_of(Report({TRAIN: result}), torch.zeros(3, dtype=torch.int64)).tolist() == [0, 1, 2]
