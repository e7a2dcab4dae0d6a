"""Comparisons over several rounds: whose models are trained, what is measured, and when clusters are split by them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from folded import Folded, drive, groups_of

from builders import answer, layout_with, plan_of
from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.groups import GroupTree, single_group, with_confirmed_split
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of
from fedstrata.algorithms.strata.multi_round import (
    MultiRoundComparison,
    add_multi_round_tasks,
    advance_multi_round,
    allows_multi_round,
    multi_round_decision,
    start_multi_round,
)
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import (
    TRAIN,
    Decision,
    Plan,
    Problem,
    Report,
    Result,
    RuleAggregation,
    make_pending,
)
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save
from fedstrata.testing import toy_problem
from turns import same

PROBLEM = toy_problem(clients=5)
P = PROBLEM.layout.p


def groups(*inside: list[int], m: int = 4) -> torch.Tensor:
    return torch.stack([torch.zeros(m, dtype=torch.bool).index_fill(0, torch.tensor(each), True) for each in inside])


def tree() -> GroupTree:
    """Clients 0 to 3 in two sides, of which the second one is split into its two clients."""
    sides = with_confirmed_split(single_group(4), 0, *groups([0, 1], [2, 3]))
    return with_confirmed_split(sides, 2, *groups([2], [3]))


def unclear(tree: GroupTree) -> HoldoutComparison:
    """A comparison of personal models of clients from 1 on; client 0 is of another cluster."""
    start = torch.zeros(1, P)
    decision = Decision("groups_replicate", values={"p": 0.01})
    models = start.expand(len(tree), -1)
    clients = torch.arange(1, 1 + tree.inside.shape[1])
    return comparison_of(clients, tree, models, start, level=0.05, decision=decision, round=3)


def begun_comparison(rounds: int = 0) -> MultiRoundComparison:
    begun = start_multi_round(unclear(tree()), torch.full((P,), 2.0), 4, first=True)
    return MultiRoundComparison(begun.comparison, rounds)


def asked_of(cohort: list[int], *comparisons: MultiRoundComparison) -> Plan:
    """What some clients are asked in a round with comparisons."""
    plan = plan_of([[0]] * len(cohort), cohort=cohort, round=5)
    return add_multi_round_tasks(plan, PROBLEM, comparisons)


def candidates_of(plan: Plan, *names: str) -> list[list[int]]:
    return [plan.tasks[name].candidates[:, 0].tolist() for name in names]


def test_the_group_of_a_client_by_depth() -> None:
    everyone, sides, finest = tree().by_depth()
    assert everyone.tolist() == [0, 0, 0, 0] and sides.tolist() == [1, 1, 2, 2]
    assert finest.tolist() == [-1, -1, 3, 4]  # the first side is not split
    assert [nodes.tolist() for nodes in single_group(2).by_depth()] == [[0, 0]]


def test_only_confirmed_groups_are_tried_and_all_models_begin_with_that_of_the_cluster() -> None:
    finer = replace(tree(), confirmed=1)
    begun = start_multi_round(unclear(finer), torch.full((P,), 2.0), 4, first=True)
    assert torch.equal(begun.comparison.groups.inside, tree().inside[:3])
    assert torch.equal(begun.comparison.models, torch.full((3, P), 2.0))
    assert begun.comparison.decision == Decision("groups_replicate", values={"p": 0.01, "trained_rounds": 4.0})


def test_groups_below_three_splits_are_not_tried() -> None:
    """Of five clients, one after the other is parted from the rest."""
    chain = single_group(5)
    for first in range(4):
        rest = list(range(first + 1, 5))
        chain = with_confirmed_split(chain, 2 * first, *groups([first], rest, m=5))
    tried = chain.confirmed_only(max_depth=3)
    assert tried.confirmed == 3 and tried.parents.tolist() == [-1, 0, 0, 2, 2, 4, 4]
    assert torch.equal(tried.inside, chain.inside[:7])
    broad = with_confirmed_split(tree(), 1, *groups([0], [1])).confirmed_only(max_depth=1)
    assert broad.confirmed == 1 and torch.equal(broad.inside, tree().inside[:3])


def test_members_train_a_model_for_each_of_their_groups_on_half_a() -> None:
    asked = asked_of([0, 1, 3, 4], begun_comparison())
    assert len(asked.models) == 1 + 5
    names = ["trial 0", "trial 1", "trial 2"]
    assert list(asked.tasks) == [TRAIN, *names]
    # The models of the groups come after that of the cluster. Client 0 is not in it, and client 2 is absent.
    assert candidates_of(asked, *names) == [[-1, 1, 1, 1], [-1, 2, 3, 3], [-1, -1, 4, 5]]
    assert all(asked.tasks[name].fold == "A" for name in names)


def test_trained_models_are_measured_on_half_b_by_personal_models_of_half_a() -> None:
    asked = asked_of([0, 1, 3, 4], begun_comparison(rounds=4))
    for depth, candidates in enumerate([[-1, 1, 1, 1], [-1, 2, 3, 3], [-1, -1, 4, 5]]):
        tuning = [asked.tasks[f"trial {depth} tuning-{epoch}"] for epoch in (1, 2, 3, 4)]
        assert [task.training.lr / PROBLEM.training.lr for task in tuning] == pytest.approx([1.0, 0.75, 0.5, 0.25])
        assert [task.continues for task in tuning] == ["", *(f"trial {depth} tuning-{epoch}" for epoch in (1, 2, 3))]
        assert all(task.fold == "A" and not any(task.upload) for task in tuning)
        loss = asked.tasks[f"trial {depth} loss"]
        assert loss.continues == f"trial {depth} tuning-4" and not any(loss.trainable)
        assert loss.fold == loss.selection_fold == "B"
        assert loss.candidates.tolist() == [[model] * 5 for model in candidates]
        assert loss.shares is not None and loss.shares[0].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_two_comparisons_may_be_at_different_points() -> None:
    others = replace(begun_comparison(rounds=4).comparison, clients=torch.tensor([0, 6, 7, 8]))
    asked = asked_of([0, 1, 3], begun_comparison(), MultiRoundComparison(others, 4))
    assert candidates_of(asked, "trial 1", "trial 1 loss") == [[-1, 2, 3], [1 + 5 + 1, -1, -1]]


def result(clients: list[int], values: list[float], losses: torch.Tensor | None = None) -> Result:
    return answer(clients, torch.tensor(values)[:, None].expand(-1, P), losses=losses)


def test_the_model_of_a_group_moves_by_the_mean_of_its_members_updates() -> None:
    """Client 2 is absent. All models begin with 2. In "trial 0", 6 is more than twice the median of 2."""
    results = {
        "trial 0": result([1, 3, 4], [1.0, 2.0, 6.0]),
        "trial 1": result([1, 3, 4], [2.0, 3.0, 5.0]),
        "trial 2": result([3, 4], [-1.0, 7.0]),
    }
    after = advance_multi_round(PROBLEM, begun_comparison(), Report(results))
    assert after.rounds == 1 and not after.is_trained
    assert after.comparison.models[:, 0].tolist() == pytest.approx([2 + 7 / 3, 2 + 2.0, 2 + 4.0, 2 - 1.0, 2 + 7.0])


def test_a_round_in_which_a_group_did_not_train_does_not_count() -> None:
    results = {"trial 0": result([1, 2], [1.0, 2.0]), "trial 1": result([1, 2], [1.0, 3.0]), "trial 2": result([], [])}
    before = begun_comparison(2)
    assert advance_multi_round(PROBLEM, before, Report(results)) is before


def test_a_group_that_all_members_have_left_is_not_waited_for() -> None:
    """Client 3 is alone in a group of the second side."""
    begun = begun_comparison().only(torch.tensor([True, True, False, True]))
    assert begun is not None
    three = result([1, 2, 4], [1.0, 1.0, 1.0])
    results = {"trial 0": three, "trial 1": three, "trial 2": result([4], [1.0])}
    assert advance_multi_round(PROBLEM, begun, Report(results)).rounds == 1


def test_a_byzantine_client_that_scales_its_updates_counts_as_much_as_two() -> None:
    everyone = single_group(5)
    updates = result([1, 2, 3, 4, 5], [1.0, 1.0, 1.0, 1.0, -90.0])
    after = advance_multi_round(PROBLEM, MultiRoundComparison(unclear(everyone)), Report({"trial 0": updates}))
    assert after.comparison.models[0, 0] == pytest.approx((4 - 2) / 5)


def test_a_comparison_in_which_nobody_answers_or_that_diverges_is_given_up() -> None:
    assert not begun_comparison().is_given_up(17) and begun_comparison().is_given_up(4 + 14)
    models = begun_comparison().comparison.models.clone()
    models[2, 0] = torch.nan
    assert MultiRoundComparison(replace(begun_comparison().comparison, models=models)).is_given_up(5)


def test_clients_may_leave_until_a_side_is_empty() -> None:
    assert begun_comparison(2).only(torch.tensor([True, False, True, True])) is not None
    assert begun_comparison(2).only(torch.tensor([False, False, True, True])) is None


def with_groups_beyond_mixes(rounds: int = 1) -> MultiRoundComparison:
    """The same with two groups beyond class mixes: the first and third client, and the others."""
    begun = begun_comparison(rounds)
    sides = with_confirmed_split(single_group(4), 0, *groups([0, 2], [1, 3]))
    decision = Decision("groups_replicate", values={"p": 0.01, "beyond_mixes": 1.0})
    clients = torch.arange(1, 5)
    models = torch.full((3, P), 2.0)
    own = torch.full((1, P), 2.0)
    other = comparison_of(clients, sides, models, own, level=0.05, decision=decision, round=4)
    return replace(begun, beyond_mixes=replace(other, gain_level=0.001))


def test_a_later_comparison_of_the_same_clients_has_a_smaller_level() -> None:
    again = start_multi_round(unclear(tree()), torch.full((P,), 2.0), 14, first=False)
    assert (begun_comparison().comparison.gain_level, again.comparison.gain_level) == (0.15, 0.05)


MIXED = [0, 1] * 8
"""The hidden group of each of sixteen clients, of whom every two have the same class mix."""


def classifier() -> Problem:
    """Networks whose last layer has a bias, so that it shows the class mix."""
    return toy_problem(16, layout_with({"hidden.weight": (1, 6), "head.weight": (2, 1), "head.bias": 2}))


def trained_once(
    second: range = range(8, 16), absent: int | None = None, rounds: int = 0, backwards: bool = False
) -> MultiRoundComparison:
    """A comparison of sixteen clients after one more round, by default its first one.

    Args:
        second: Who is on the second of the confirmed sides; by default those of the class mixes.
        absent: Who has not answered.
        rounds: The rounds before it.
        backwards: Whether the answers come in descending order of the clients.
    """
    problem = classifier()
    first = [client for client in range(16) if client not in second]
    tree = with_confirmed_split(single_group(16), 0, *groups(first, [*second], m=16))
    models = torch.zeros(3, problem.layout.p)
    decision = Decision("groups_replicate", values={"p": 0.01})
    own = models[:1].clone()
    comparison = comparison_of(torch.arange(16), tree, models, own, level=0.05, decision=decision, round=3)
    begun = start_multi_round(comparison, torch.full((problem.layout.p,), 2.0), 4, first=True)
    rows = torch.zeros(16, problem.layout.p)
    mixes = torch.linspace(-1.0, 1.0, 8).repeat_interleave(2)
    rows[:, 2:6] = 3 * mixes[:, None]
    rows[:, -2:] = torch.stack([mixes, -mixes], dim=1)
    rows[:, :2] = torch.tensor(MIXED)[:, None].float()  # the hidden group moves two columns of the first layer by one
    clients = torch.tensor([client for client in range(16) if client != absent])
    clients = clients.flip(0) if backwards else clients
    done = answer(clients, rows[clients])
    return advance_multi_round(problem, replace(begun, rounds=rounds), Report({"trial 0": done, "trial 1": done}))


def test_two_groups_beyond_class_mixes_are_compared_too_after_the_first_round() -> None:
    """The confirmed sides are those of the class mixes; the first and the last eight clients."""
    after = trained_once()
    found = after.beyond_mixes
    assert after.rounds == 1 and found is not None
    assert torch.equal(found.groups.inside[1:], groups(list(range(0, 16, 2)), list(range(1, 16, 2)), m=16))
    assert found.decision.values == {"p": 0.01, "trained_rounds": 4.0, "beyond_mixes": 1.0}
    assert found.gain_level == 0.001
    # All models began with 2. The first column has moved by the mean of each group.
    moves = after.comparison.models[:, 0]
    assert found.models[:, 0].tolist() == pytest.approx([float(moves[0]), 2.0, 3.0], abs=0.2)
    assert torch.equal(found.models[0], after.comparison.models[0])


def test_the_groups_beyond_mixes_do_not_depend_on_the_order_of_the_answers() -> None:
    """Who is absent in the first round is in neither group."""
    one, other = (trained_once(absent=5, backwards=backwards) for backwards in (False, True))
    assert one.beyond_mixes is not None and same(one, other)
    inside = one.beyond_mixes.groups.inside[1:]
    assert not bool(inside[:, 5].any()) and int(inside.sum()) == 15


def test_the_confirmed_sides_are_not_tried_twice_and_groups_beyond_mixes_begin_in_the_first_round_or_never() -> None:
    assert trained_once(range(1, 16, 2)).beyond_mixes is trained_once(range(0, 16, 2)).beyond_mixes is None
    assert trained_once(rounds=1).beyond_mixes is None


def test_members_choose_between_the_models_beyond_mixes_on_half_a_and_measure_the_chosen_one() -> None:
    asked = asked_of([0, 1, 3, 4], with_groups_beyond_mixes())
    assert list(asked.tasks) == [TRAIN, "trial 0", "trial 1", "trial 2", "trial beside"]
    assert len(asked.models) == 1 + 5 + 3
    # The model of all is trained once. Those of the two groups beyond class mixes are the last two.
    choice = asked.tasks["trial beside"]
    assert choice.candidates.tolist() == [[-1, -1], [7, 8], [7, 8], [7, 8]]
    assert choice.fold == choice.selection_fold == "A"
    measured = asked_of([0, 1, 3, 4], with_groups_beyond_mixes(rounds=4))
    assert candidates_of(measured, "trial beside loss") == [[-1, 7, 7, 8]]


CONFIRMED = {
    "trial 0": result([1, 2, 3, 4], [1.0, 2.0, 3.0, 2.0]),
    "trial 1": result([1, 2, 3, 4], [1.0] * 4),
    "trial 2": result([3, 4], [1.0, 1.0]),
}
"""What the members train for the confirmed groups."""


def test_a_client_belongs_to_the_group_beyond_mixes_whose_model_it_has_chosen() -> None:
    """Client 4 is in the second group, and the model of the first has a lower loss. Client 2 did not answer."""
    losses = torch.tensor([[0.3, 0.4], [0.9, 0.2], [0.5, 0.6]])
    chosen = result([1, 3, 4], [1.0, 5.0, 3.0], losses)
    after = advance_multi_round(PROBLEM, with_groups_beyond_mixes(), Report({**CONFIRMED, "trial beside": chosen}))
    assert after.rounds == 2 and after.beyond_mixes is not None
    assert torch.equal(after.beyond_mixes.groups.inside, groups([0, 1, 2, 3], [0, 3], [1, 2]))
    assert after.comparison.models[:, 0].tolist() == [4.0, 3.0, 3.0, 3.0, 3.0]
    assert after.beyond_mixes.models[:, 0].tolist() == [4.0, 4.0, 7.0]


def test_a_model_whose_loss_is_no_number_is_not_chosen() -> None:
    """Of two that are not finite, the engines take the first."""
    losses = torch.tensor([[torch.nan, 9.0], [0.2, torch.inf], [torch.nan, torch.inf]])
    chosen = result([1, 3, 4], [1.0, 5.0, 5.0], losses)
    after = advance_multi_round(PROBLEM, with_groups_beyond_mixes(), Report({**CONFIRMED, "trial beside": chosen}))
    assert after.beyond_mixes is not None
    assert torch.equal(after.beyond_mixes.groups.inside[1:, [0, 2, 3]], torch.tensor([[0, 1, 1], [1, 0, 0]]).bool())


@pytest.mark.parametrize(("values", "losses"), [([1.0, torch.nan], [[0, 1], [1, 0]]), ([1.0, 1.0], [[0, 1], [0, 1]])])
def test_the_confirmed_groups_do_not_wait_for_those_beyond_mixes(values: list[float], losses: list[list[int]]) -> None:
    """The second group beyond class mixes diverges, or nobody has chosen its model."""
    chosen = result([1, 3], values, torch.tensor(losses).float())
    after = advance_multi_round(PROBLEM, with_groups_beyond_mixes(), Report({**CONFIRMED, "trial beside": chosen}))
    assert after.rounds == 2 and after.beyond_mixes is None


def measured(gains: list[float], gains_beyond: list[float]) -> MultiRoundComparison:
    """A comparison in which all lose 1 with the model of all, and so much less with those of their groups.

    Args:
        gains: With the model of the first side or the second; a side's own groups serve nobody.
        gains_beyond: With the model of the side beyond class mixes.
    """
    own = {0: 0.0, 1: gains[0], 2: gains[2], 3: -1.0, 4: -1.0}
    begun = with_groups_beyond_mixes(rounds=4)
    results = dict[str, Result]()
    for name, candidates in begun.candidates().items():
        models = candidates.flatten()
        clients = (models >= 0).nonzero().flatten().tolist()
        losses = [1.0 - own.get(int(models[place]), gains_beyond[place]) for place in clients]
        shares = torch.tensor(losses)[:, None].expand(-1, 5)
        results[f"{name} loss"] = result([1 + place for place in clients], [0.0] * len(clients), shares)
    return advance_multi_round(PROBLEM, begun, Report(results))


@pytest.mark.parametrize(
    ("gains", "gains_beyond", "split"),
    [
        ([0.2] * 4, [0.1] * 4, [0, 0, 1, 1]),
        ([0.2] * 4, [0.3] * 4, [0, 1, 0, 1]),
        ([-0.2] * 4, [0.1] * 4, [0, 1, 0, 1]),
        ([-0.2] * 4, [-0.1] * 4, [0, 0, 0, 0]),
    ],
)
def test_the_groups_are_split_that_lower_the_loss_most(
    gains: list[float], gains_beyond: list[float], split: list[int]
) -> None:
    decided = multi_round_decision(measured(gains, gains_beyond), 9, holdout_check=True)
    assert decided.groups.tolist() == split
    assert ("beyond_mixes" in decided.decision.values) is (split == [0, 1, 0, 1])


def test_one_round_alone_where_models_of_groups_may_not_be_shown() -> None:
    assert allows_multi_round(PROBLEM, unclear(tree()))
    two = RuleAggregation(least_clients=2)
    assert not allows_multi_round(replace(PROBLEM, aggregation=two), unclear(tree()))
    assert not allows_multi_round(replace(PROBLEM, extra_uploads=False), unclear(tree()))
    assert not allows_multi_round(PROBLEM, replace(unclear(tree()), start=None))
    assert not allows_multi_round(PROBLEM, replace(unclear(tree()), has_stand_ins=True))
    assert not allows_multi_round(PROBLEM, unclear(single_group(4)))


TWO = [0] * 10 + [1] * 10


def test_groups_that_differ_little_are_trained_for_four_rounds_before_they_are_split() -> None:
    turns = drive(Strata(holdout_models="personal"), Folded(TWO, apart=0.5, seed=1), 8)
    assert [turn.state.clusters[0].multi_round is not None for turn in turns] == [False] * 2 + [True] * 5 + [False]
    unclear = turns[2].decision()
    assert unclear.kind == "groups_replicate_without_gain" and unclear.values["level_gain"] == 0.001
    # Nothing is tested meanwhile. The normal training goes on.
    assert [list(turn.plan.tasks) for turn in turns[3:7]] == [[TRAIN, "trial 0", "trial 1"]] * 4
    assert groups_of(turns[7].state) == [list(range(10)), list(range(10, 20))]
    assert turns[7].decision().values["trained_rounds"] == 4
    assert [turn.events for turn in turns[2:8]] == [["multi_round"], [], [], [], [], ["split"]]


def test_a_comparison_ends_when_a_side_has_left_and_an_event_says_so() -> None:
    clients = Folded(TWO, apart=0.5, seed=1)
    tried = drive(Strata(holdout_models="personal"), clients, 4)[-1].state
    left = make_pending(tried, list(range(10, 20)), node=0)
    turn = drive(Strata(holdout_models="personal"), clients, 1, left, {5: range(10)})[-1]
    assert turn.state.clusters[0].multi_round is None and "multi_round_given_up" in turn.events


def test_clients_that_are_away_meanwhile_are_not_waited_for() -> None:
    away = {round: [0, 19] for round in range(4, 9)}
    turns = drive(Strata(holdout_models="personal"), Folded(TWO, apart=0.5, seed=1), 8, absent=away)
    assert len(groups_of(turns[7].state)) == 2


def test_groups_whose_models_serve_others_better_are_not_split_and_comparisons_get_rare() -> None:
    clients = Folded(TWO, apart=0.5, seed=1)
    clients.points["B"] = clients.points["B"].roll(10, dims=0)
    turns = drive(Strata(holdout_models="personal", alpha=0.5), clients, 30)
    assert len(groups_of(turns[-1].state)) == 1
    begun = [turn.state.round for turn in turns if "trial 0" in turn.plan.tasks]
    # After rounds 3 and 10. After round 29 it is too early: 29 < 3 * 10.
    assert begun == [*range(4, 8), *range(11, 15)]


def test_groups_that_differ_clearly_need_one_round() -> None:
    turns = drive(Strata(holdout_models="personal"), Folded(TWO, apart=2.0), 6)
    assert len(groups_of(turns[2].state)) == 2
    assert not any("trial 0" in turn.plan.tasks for turn in turns)


def test_without_a_personal_stage_comparisons_take_one_round() -> None:
    turns = drive(Strata(), Folded(TWO, apart=0.5, seed=1), 10)
    assert not any("trial 0" in turn.plan.tasks for turn in turns)


def test_a_checkpoint_holds_a_comparison_with_groups_beyond_mixes(tmp_path: Path) -> None:
    state = drive(Strata(holdout_models="personal"), Folded(TWO, apart=0.5, seed=1), 4)[-1].state
    held = replace(state, clusters=(replace(state.clusters[0], multi_round=with_groups_beyond_mixes(2)),))
    save(tmp_path, Checkpoint(held, {}, {}))
    restored = find_checkpoint(tmp_path, StrataState)
    assert restored is not None and same(restored.state, held)


def test_a_run_goes_on_from_a_checkpoint_in_a_comparison_with_the_same_bits(tmp_path: Path) -> None:
    algorithm, clients = Strata(holdout_models="personal"), Folded(TWO, apart=0.5, seed=1)
    turns = drive(algorithm, clients, 8)
    save(tmp_path, Checkpoint(turns[4].state, {}, {}))
    restored = find_checkpoint(tmp_path, StrataState)
    assert restored is not None and restored.state.clusters[0].multi_round is not None
    again = drive(algorithm, clients, 3, restored.state)
    assert same(again[-1].state, turns[-1].state)
