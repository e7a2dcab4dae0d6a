"""A frozen layer says nothing about anybody, and keeps nothing else from being said."""

from dataclasses import replace

import pytest
import torch

from builders import layout_with
from fedstrata.algorithms.evidence.fold_similarity import empty_similarity, groups_test, with_round
from fedstrata.algorithms.strata.algorithm import Strata
from fedstrata.algorithms.strata.split_tests import _test_cluster
from fedstrata.core import Layout, Rows, make_pending
from fedstrata.testing import toy_problem

CLIENTS = 12
PLAIN, FROZEN = layout_with({"head.weight": 30}), layout_with({"conv.weight": 4, "head.weight": 30})
either = pytest.mark.parametrize("layout", [PLAIN, FROZEN], ids=["none", "frozen"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def folds(layout: Layout, common: float = 0.0, own: float = 0.0, seed: int = 0) -> list[Rows]:
    """Two folds of clients that go one way, but for the last one, which goes another. A frozen layer stays."""
    draw = seeded(seed)
    ways = torch.randn(2, 30, generator=draw)
    made = []
    for _ in range(2):
        values = torch.zeros(CLIENTS, layout.p)
        values[:, -30:] = common * ways[0] + torch.randn(CLIENTS, 30, generator=draw)
        values[-1, -30:] += own * ways[1]
        made.append(Rows(torch.arange(CLIENTS), values))
    return made


@either
def test_a_newcomer_is_tested_beside_a_frozen_layer(layout: Layout) -> None:
    sent = folds(layout, common=1.0, own=3.0)
    newcomers = torch.arange(CLIENTS) == CLIENTS - 1
    similarity = with_round(layout, empty_similarity(layout, 2), sent)
    test = _test_cluster(layout, 0, similarity, sent, newcomers, seeded(), 0.1, 4)
    assert test.of_newcomers and test.decision.kind == "newcomers_differ"


@pytest.mark.filterwarnings("error")
def test_no_test_names_a_frozen_layer() -> None:
    named = set()
    for seed in range(20):
        similarity = with_round(FROZEN, empty_similarity(FROZEN, 2), folds(FROZEN, seed=seed))
        named.add(groups_test(FROZEN, similarity, seeded(seed), 0.05)[1].layer)
    assert "conv" not in named and "head" in named


def test_a_client_whose_data_change_while_it_is_pending_after_a_split_is_a_newcomer() -> None:
    pending = torch.arange(CLIENTS) == 3
    state = replace(
        Strata().init(toy_problem(CLIENTS)),
        pending_after_split=pending,
        labels=torch.where(pending, -1, 0),
        waiting=torch.where(pending, 0, -1),
        sizes=torch.full((CLIENTS,), 50),
    )
    changed = make_pending(state, [3], node=0)
    assert changed.pending_after_split.tolist() == [False] * CLIENTS
