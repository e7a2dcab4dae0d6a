"""A frozen layer says nothing about anybody, and keeps nothing else from being said."""

from dataclasses import replace

import pytest
import torch

from fedstrata.algorithms.evidence.fold_similarity import empty_similarity, groups_test, with_round
from fedstrata.algorithms.strata.algorithm import Strata
from fedstrata.algorithms.strata.split_tests import _test_cluster
from fedstrata.core import Layout, Problem, Report, Result, Rows, RuleAggregation, TensorSpec, make_pending

CLIENTS = 12
FROZEN = TensorSpec("conv.weight", "conv", "conv", (4,))
HEAD = TensorSpec("head.weight", "head", "linear", (30,))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(layout: Layout) -> Problem:
    return Problem(
        layout=layout, fresh=lambda number: torch.zeros(layout.p), clients=CLIENTS, aggregation=RuleAggregation()
    )


def folds(layout: Layout, common: float, own: float) -> list[Rows]:
    """Two folds of clients that go one way, but for the last one, which goes another. A frozen layer stays."""
    draw = seeded()
    ways = torch.randn(2, 30, generator=draw)
    made = []
    for _ in range(2):
        values = torch.zeros(CLIENTS, layout.p)
        values[:, -30:] = common * ways[0] + torch.randn(CLIENTS, 30, generator=draw)
        values[-1, -30:] += own * ways[1]
        made.append(Rows(torch.arange(CLIENTS), values))
    return made


@pytest.mark.parametrize("layout", [Layout((HEAD,)), Layout((FROZEN, HEAD))], ids=["none", "frozen"])
def test_a_newcomer_is_tested_beside_a_frozen_layer(layout: Layout) -> None:
    sent = folds(layout, common=1.0, own=3.0)
    newcomers = torch.zeros(CLIENTS, dtype=torch.bool).index_fill(0, torch.tensor([CLIENTS - 1]), True)
    similarity = with_round(layout, empty_similarity(layout, 2), sent)
    test = _test_cluster(layout, 0, similarity, sent, newcomers, seeded(), 0.1, 4)
    assert test.of_newcomers and test.decision.kind == "newcomers_differ"


@pytest.mark.filterwarnings("error")
def test_no_test_names_a_frozen_layer() -> None:
    layout = Layout((FROZEN, HEAD))
    named = set()
    for seed in range(20):
        draw = seeded(seed)
        sent = []
        for _ in range(2):
            values = torch.zeros(CLIENTS, layout.p)
            values[:, -30:] = torch.randn(CLIENTS, 30, generator=draw)
            sent.append(Rows(torch.arange(CLIENTS), values))
        _, result = groups_test(layout, with_round(layout, empty_similarity(layout, 2), sent), seeded(seed), 0.05)
        named.add(result.layer)
    assert "conv" not in named and "head" in named


@pytest.mark.parametrize("layout", [Layout((HEAD,)), Layout((FROZEN, HEAD))], ids=["none", "frozen"])
def test_a_frozen_layer_is_not_what_is_stable(layout: Layout) -> None:
    algorithm = Strata(test_schedule="stability")
    state = algorithm.init(problem(layout))
    draw = seeded()
    everyone = torch.arange(CLIENTS)
    for _ in range(4):
        plan = algorithm.plan(problem(layout), state, everyone)
        results = {}
        for name, task in plan.tasks.items():
            values = torch.zeros(CLIENTS, layout.p)
            values[:, -30:] = torch.randn(CLIENTS, 30, generator=draw)
            sizes = torch.full((CLIENTS,), 100)
            losses = torch.full(task.candidates.shape, torch.nan)
            results[name] = Result(Rows(everyone, values), torch.zeros(CLIENTS, dtype=torch.int64), sizes, losses)
        state, _ = algorithm.update(problem(layout), state, Report(results, cohort=everyone))
        assert state.monitor is not None and state.monitor.stable == ()


def test_a_client_whose_data_change_while_it_is_pending_after_a_split_is_a_newcomer() -> None:
    layout = Layout((HEAD,))
    algorithm = Strata()
    state = algorithm.init(problem(layout))
    pending = torch.zeros(CLIENTS, dtype=torch.bool).index_fill(0, torch.tensor([3]), True)
    state = replace(
        state,
        pending_after_split=pending,
        labels=torch.where(pending, -1, 0),
        waiting=torch.where(pending, 0, -1),
        sizes=torch.full((CLIENTS,), 50),
    )
    changed = make_pending(state, [3], node=0)
    assert changed.pending_after_split.tolist() == [False] * CLIENTS
