"""Clients that send the same update: which of them count."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import trained
from fedstrata.core import Layout, TensorSpec
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.copied_updates import copied


def copies(
    updates: list[list[float]],
    labels: list[int],
    ids: list[int] | None = None,
    chosen: list[int] | None = None,
    left_out: Sequence[int] = (),
    more: tuple[TensorSpec, ...] = (),
) -> list[int]:
    """Who does not count, by the updates of those who answered: of a linear layer, and of more tensors."""
    clients = torch.tensor(range(len(updates)) if ids is None else ids, dtype=torch.int64)
    known = torch.tensor(labels)
    width = len(updates[0]) if updates else 2
    layout = Layout((TensorSpec("head.weight", "head", "linear", (width - len(more),)), *more))
    report = trained(torch.tensor(updates).view(-1, width), clients, known[clients] if chosen is None else chosen)
    found = copied(compared_updates(layout, report, known), np.isin(clients.numpy(), left_out))
    return sorted(clients.numpy()[found].tolist())


DISTINCT = [[1.0, 0.0], [0.9, 0.1], [1.1, 0.2], [0.8, -0.1]]


def test_the_smallest_id_counts_of_those_that_send_the_same() -> None:
    sent = [*DISTINCT, [-1.0, 0.5], [1.2, 0.0], [-1.0, 0.5], [0.7, 0.3], [-1.0, 0.5]]
    assert copies(sent, [0] * 9) == [6, 8]


def test_the_order_of_the_report_does_not_matter() -> None:
    sent = [[-1.0, 0.5], *DISTINCT, [-1.0, 0.5]]
    assert copies(sent, [0] * 6, ids=[5, 3, 0, 1, 4, 2]) == [5]


def test_updates_of_equal_norm_may_differ() -> None:
    assert copies([*DISTINCT, [3.0, 4.0], [4.0, 3.0]], [0] * 6) == []


def test_the_same_is_meant_up_to_rounding() -> None:
    """The distance is at most 1e-4 of the norm."""
    assert copies([*DISTINCT, [2.0, 0.0], [2.0, 1e-4]], [0] * 6) == [5]
    assert copies([*DISTINCT, [2.0, 0.0], [2.0, 1e-3]], [0] * 6) == []


def test_copies_are_found_that_move_little_where_updates_are_compared_first() -> None:
    """Of 20,000 columns, the second and the third are not among the 4096 of the first comparison."""
    sent = [[0.0] * 20_000 for _ in range(8)]
    for client, update in enumerate(sent):
        update[0] = 0.0 if client >= 5 else 1.0 + client
        update[1 if client >= 5 else 2] = 1.0
    assert copies(sent, [0] * 8) == [6, 7]


def test_where_half_of_a_cluster_send_what_others_send_everyone_counts() -> None:
    """Two of five may be sybils. Two of four, or two pairs of seven and eight, are what the cluster is like."""
    same = [[-1.0, 0.5]] * 2
    assert copies([*DISTINCT[:3], *same], [0] * 5) == [4]
    assert copies([*DISTINCT[:2], *same], [0] * 4) == []
    two_pairs = [*DISTINCT, *same, *[[2.0, 0.0]] * 2]
    assert copies(two_pairs, [0] * 8) == []
    assert copies([*two_pairs, [0.5, 0.5]], [0] * 9) == [5, 7]


def test_updates_of_zero_say_nothing() -> None:
    assert copies([*DISTINCT, [0.0, 0.0], [0.0, 0.0]], [0] * 6) == []


def test_clusters_are_compared_by_themselves_and_only_who_has_trained_its_model() -> None:
    same = [[-1.0, 0.5]] * 2
    assert copies([*DISTINCT, *same], [0, 0, 0, 1, 0, 1]) == []
    assert copies([*DISTINCT, *same], [0] * 6, chosen=[0, 0, 0, 0, 0, 1]) == []
    assert copies([*DISTINCT, *same], [0, 0, 0, 0, -1, -1]) == []


def test_of_those_who_send_the_same_one_counts_that_is_not_left_out() -> None:
    """Client 4 is left out, and sends what the honest client 5 sends."""
    assert copies([*DISTINCT, [-1.0, 0.5], [-1.0, 0.5]], [0] * 6, left_out=[4]) == [4]


def test_two_pairs_of_equal_norm_are_told_apart() -> None:
    pairs = [[3.0, 4.0], [4.0, 3.0], [3.0, 4.0], [4.0, 3.0]]
    assert copies([*DISTINCT, *pairs, [0.5, 0.5]], [0] * 9) == [6, 7]


def test_nobody_answers() -> None:
    assert copies([], [0] * 3) == []


def test_copies_with_running_statistics_of_their_own_are_found() -> None:
    sent = [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [1.1, 0.2, 0.0], [0.5, 0.5, 3.0], [0.5, 0.5, -3.0]]
    assert copies(sent, [0] * 5, more=(TensorSpec("norm.running_mean", "norm", "buffer", (1,)),)) == [4]


@given(st.lists(st.integers(0, 5), min_size=3, max_size=12), st.lists(st.integers(0, 1), min_size=12, max_size=12))
def test_whoever_sends_what_others_of_its_cluster_send_is_found(kinds: list[int], clusters: list[int]) -> None:
    """Updates of a few kinds and of nearly the same norm, and the definition by pairs."""
    sent = [[1.0, kind / 1e3] for kind in kinds]
    labels = clusters[: len(kinds)]
    expected = list[int]()
    for cluster in {0, 1}:
        members = [client for client, label in enumerate(labels) if label == cluster]
        alike = [client for client in members if [kinds[other] for other in members].count(kinds[client]) > 1]
        if 2 * len(alike) < len(members):
            expected += [
                client for client in alike if any(kinds[other] == kinds[client] for other in alike if other < client)
            ]
    assert copies(sent, labels) == sorted(expected)
