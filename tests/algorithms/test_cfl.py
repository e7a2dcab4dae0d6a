import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import layout_with
from fedstrata.algorithms.cfl import CFL
from fedstrata.clustering import ari
from fedstrata.core.aggregation import Rule, RuleAggregation, plain_mean, weighted_mean
from fedstrata.testing import Scripted, play, toy_problem
from fedstrata.uploads.rules import geometric_median, krum, median
from recorded import decision_of, metric

PLANE = layout_with({"conv.weight": 2})
TORN = torch.tensor([[2.0, 0.0], [2.0, 0.2], [-2.0, 0.0], [-2.0, -0.2]])
"""semantics.md, golden case 4b: two pairs that pull in opposite directions."""


def few(**keys: Any) -> CFL:
    """CFL that may split a few clients, with the gamma of the golden cases."""
    return CFL(**{"min_split": 2, "gamma": 0.5, **keys})


def test_the_criterion_reproduces_golden_case_4b() -> None:
    problem = toy_problem(4, PLANE)
    state, diagnostics = play(few(eps1=0.1, eps2=1.0), problem, [TORN])
    assert state.labels.tolist() == [0, 0, 1, 1]
    seen = decision_of(state).values
    assert decision_of(state).kind == "split" and seen["first_part"] == seen["second_part"] == 2
    assert seen["cross_max"] == pytest.approx(-0.995037, abs=1e-6)
    assert seen["bound"] == pytest.approx(0.998759, abs=1e-6)
    assert diagnostics[0].events[0]["into"] == [1, 2]
    assert diagnostics[0].matrices[0].clients.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("sizes", "mean"), [((3, 1, 1, 1), 0.666667), ((10, 10, 20, 20), 0.667499), ((1,) * 4, 0.0)])
def test_the_mean_update_is_weighted_by_samples(sizes: tuple[int, ...], mean: float) -> None:
    state, _ = play(few(eps1=1e-9, eps2=1.0), toy_problem(4, PLANE), [TORN], sizes=torch.tensor(sizes))
    if mean == 0:
        assert len(state.tree) == 3
    else:
        decision = decision_of(state)
        assert decision.kind == "not_stationary" and decision.values["eps1"] == 1e-9
        assert decision.values["mean_norm"] == pytest.approx(mean, abs=1e-6)
        assert decision.values["max_norm"] == pytest.approx(2.009975, abs=1e-6)


def test_a_cluster_whose_members_all_converged_is_not_split() -> None:
    state, _ = play(few(eps1=0.1, eps2=3.0), toy_problem(4, PLANE), [TORN])
    assert len(state.models) == 1 and decision_of(state).kind == "members_converged"
    assert decision_of(state).values["eps2"] == 3.0


def test_theorem_1_refuses_a_split_of_similar_members() -> None:
    close = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [1.0, 0.05]])
    state, diagnostics = play(few(eps1=10.0, eps2=0.5), toy_problem(4, PLANE), [close])
    assert len(state.models) == 1 and len(diagnostics[0].matrices) == 1
    assert decision_of(state).kind == "theorem_1_not_met" and decision_of(state).values["gamma"] == 0.5
    state, _ = play(few(eps1=10.0, eps2=0.5, gamma=0.0), toy_problem(4, PLANE), [close])
    assert len(state.models) == 2  # Without the theorem any proposal is accepted.


def test_second_split_moves_clients_by_id_not_by_position() -> None:
    """Sattler's notebook and FL-bench lose clients here: they store positions inside a cluster as client ids."""
    axes = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    truth = torch.tensor([0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3])
    coarse = axes[truth] * torch.tensor([3.0, 0.5])
    fine = axes[truth] * torch.tensor([0.05, 3.0])
    state, _ = play(few(eps1=10.0, eps2=0.5), toy_problem(12, PLANE), [coarse, fine])
    assert ari(state.labels, truth) == 1.0
    assert sorted(state.labels.bincount().tolist()) == [3, 3, 3, 3]


def test_no_client_is_lost_in_three_nested_splits() -> None:
    truth = torch.arange(32) % 8
    bits = torch.stack([(truth >> bit) & 1 for bit in range(3)], dim=1) * 2.0 - 1
    cube = layout_with({"conv.weight": 3})
    rounds = [bits * torch.tensor(scale) for scale in ([3.0, 0.1, 0.1], [0.1, 3.0, 0.1], [0.1, 0.1, 3.0])]
    state, _ = play(few(eps1=10.0, eps2=0.5), toy_problem(32, cube), rounds)
    assert ari(state.labels, truth) == 1.0 and len(state.models) == 8
    leaves = [node.members for node in state.tree if node.split is None]
    assert sorted(client for members in leaves for client in members) == list(range(32))


def test_the_automatic_eps1_is_a_multiple_of_the_mean_of_independent_updates() -> None:
    """sqrt(sum w_i^2 |d_i|^2) = sqrt((1/2)^2 9 + (1/4)^2 16 + (1/4)^2 4) = sqrt(3.5)."""
    updates = torch.tensor([[3.0, 0.0], [0.0, 4.0], [2.0, 0.0]])
    state, _ = play(few(), toy_problem(3, PLANE), [updates], sizes=torch.tensor([20, 10, 10]))
    assert decision_of(state).values["eps1"] == pytest.approx(1.5 * math.sqrt(3.5))


def test_where_clients_count_equally_the_automatic_eps1_has_equal_weights() -> None:
    problem = replace(toy_problem(2, PLANE), aggregation=RuleAggregation(plain_mean))
    state, _ = play(few(), problem, [torch.tensor([[3.0, 0.0], [0.0, 4.0]])], sizes=torch.tensor([30, 10]))
    assert decision_of(state).values["eps1"] == pytest.approx(1.5 * 2.5)


def test_the_automatic_eps2_is_a_share_of_the_longest_update_which_parts_inherit() -> None:
    opposed = torch.tensor([[10.0, 0.0], [8.0, 0.0], [-10.0, 0.0], [-8.0, 0.0]])
    state, _ = play(few(), toy_problem(4, PLANE), [opposed])
    assert state.cluster_history.max_norms.tolist() == [10.0, 10.0]
    torn = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [3.0, 0.0], [-3.0, 0.0]])
    state, _ = play(few(), toy_problem(4, PLANE), [opposed, torn])
    for node in (1, 2):
        decision = state.tree[node].decision
        assert decision is not None and decision.kind == "members_converged"  # 3 is less than 0.35 times 10
        assert decision.values["eps2"] == pytest.approx(3.5)


def test_nothing_is_split_before_the_first_round_that_is_allowed() -> None:
    state, diagnostics = play(few(eps1=0.1, eps2=1.0, first=3), toy_problem(4, PLANE), [TORN] * 3)
    assert [len(note.events) for note in diagnostics] == [0, 0, 1] and len(state.models) == 2


def test_a_cluster_waits_for_a_quorum_of_its_members() -> None:
    problem, algorithm = toy_problem(8, PLANE), few(eps1=10.0, eps2=0.5, quorum=0.75)
    updates = [TORN.repeat(2, 1)] * 2
    state, diagnostics = play(algorithm, problem, updates, absent=[[1, 3, 7], [1, 7]])
    assert [len(note.events) for note in diagnostics] == [0, 1]
    assert state.labels.tolist() == [0, -1, 1, 1, 0, 0, 1, -1]
    assert state.waiting.tolist() == [-1, 0, -1, -1, -1, -1, -1, 0]


def test_a_member_that_was_not_drawn_says_nothing_about_absence() -> None:
    """Half of the clients drawn and a fifth of those lost: 40 % of the members never made a quorum of 0.5."""
    problem, algorithm = toy_problem(10, PLANE), few(eps1=10.0, eps2=0.5)
    state, _ = play(algorithm, problem, [TORN.repeat(3, 1)[:10]], cohorts=[[0, 1, 2, 3, 6]], absent=[[6]])
    assert state.labels.tolist() == [0, 0, 1, 1, -1, -1, -1, -1, -1, -1]


def test_scaling_all_updates_and_thresholds_changes_no_decision() -> None:
    draw = torch.Generator().manual_seed(3)
    updates = [torch.randn(9, 2, generator=draw) for _ in range(4)]
    once, _ = play(few(eps1=1.0, eps2=0.5), toy_problem(9, PLANE), updates)
    large, _ = play(few(eps1=8.0, eps2=4.0), toy_problem(9, PLANE), [8 * update for update in updates])
    assert torch.equal(once.labels, large.labels)


@pytest.mark.parametrize("length", [0.0, 1e-14])
def test_updates_without_a_direction_are_never_split(length: float) -> None:
    state, _ = play(few(eps1=1.0, eps2=0.0), toy_problem(4, PLANE), [TORN * length])
    assert len(state.models) == 1 and not math.isnan(float(state.models.sum()))


def test_exactly_a_quorum_is_enough() -> None:
    """0.56 * 25 is 14.000000000000002: counted in floating point, 14 of 25 would never do."""
    algorithm, problem = few(eps1=10.0, eps2=0.5, quorum=0.56), toy_problem(25, PLANE)
    updates = TORN.repeat(7, 1)[:25]
    state, _ = play(algorithm, problem, [updates], absent=[range(14, 25)])
    assert len(state.models) == 2
    state, _ = play(algorithm, problem, [updates], absent=[range(13, 25)])
    values = {"answered": 13, "asked": 25, "not_ready": 0, "min_split": 2, "quorum": 0.56}
    assert decision_of(state).kind == "too_few_members" and decision_of(state).values == values


def test_the_norms_that_thresholds_are_chosen_by_are_recorded_every_round() -> None:
    _, diagnostics = play(few(eps1=0.1, eps2=1.0), toy_problem(4, PLANE), [TORN])
    assert metric(diagnostics[0], "max_norm", node=0) == pytest.approx(2.009975, abs=1e-6)
    assert metric(diagnostics[0], "mean_norm", node=0) == 0.0


def test_norms_of_long_updates_do_not_overflow() -> None:
    state, _ = play(few(eps1=1.0, eps2=1.0), toy_problem(4, PLANE), [1e25 * TORN])
    assert len(state.models) == 2


@pytest.mark.parametrize("rule", [weighted_mean, median, geometric_median, krum])
def test_a_cluster_is_stationary_by_the_mean_whatever_rule_moves_its_model(rule: Rule) -> None:
    """Two groups, of 6 and of 4 clients, that want the opposite; a robust rule follows the larger one."""
    direction = torch.tensor([1.0, 0.0])
    noise = 0.05 * torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    updates = direction * torch.tensor([1.0] * 6 + [-1.0] * 4)[:, None] + noise
    problem = replace(toy_problem(10, PLANE), aggregation=RuleAggregation(rule))
    state, _ = play(few(eps1=0.5, eps2=0.5), problem, [updates])
    assert state.labels.tolist() == [0] * 6 + [1] * 4


def test_a_pending_client_is_placed_in_the_leaf_that_it_chose() -> None:
    algorithm, problem = few(eps1=10.0, eps2=0.5), toy_problem(4, PLANE)
    state, _ = play(algorithm, problem, [TORN], cohorts=[[0, 1, 2]])
    report = Scripted([TORN]).run(algorithm.plan(problem, state, torch.arange(4)))
    assert state.labels.tolist() == [0, 0, 1, -1]
    assert algorithm.assign(problem, state, report).tolist() == [0, 0, 1, 0]
    use = algorithm.evaluations(problem, state, torch.arange(4))["client"]
    assert use.candidates.tolist() == [[0, -1], [0, -1], [1, -1], [0, 1]]
