"""Strata from outside: what it asks, when it splits, and what becomes of clients that are away, late or misplaced."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import federation
from folded import SHARES, Folded, Turn, drive, groups_of, problem_of

from fedstrata.algorithms.evidence import split_half
from fedstrata.algorithms.strata import Strata, outliers
from fedstrata.algorithms.strata.outliers import OUTLIER_TASK
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import Decision, make_pending, reassign
from turns import play

TWO = [0] * 10 + [1] * 10
ONE = [0] * 20
BOTH = [list(range(10)), list(range(10, 20))]


def spent(turn: Turn) -> list[int]:
    return [cluster.tests for cluster in turn.state.clusters]


def split_by(turns: list[Turn]) -> list[int]:
    return [turn.state.round for turn in turns if "split" in turn.events]


def with_cluster(state: StrataState, **changes: Any) -> StrataState:
    """The state with changes of its only cluster."""
    return replace(state, clusters=(replace(state.clusters[0], **changes),))


def test_two_groups_are_tested_in_round_2_compared_in_round_3_and_then_have_a_model_each() -> None:
    turns = drive(Strata(), Folded(TWO), 6)
    assert [len(turn.plan.tasks) for turn in turns] == [1, 3, 3, 1, 1, 5]  # 4 folds for clusters of ten
    assert split_by(turns) == [3] and groups_of(turns[2].state) == groups_of(turns[-1].state) == BOTH
    root = turns[2].state.tree[0].decision
    assert root and (root.kind, root.layer) == ("groups_replicate", "conv")
    assert root.values["z"] == pytest.approx(13.0, abs=0.05) and root.values["gain"] > 0
    assert [root.values[name] for name in ("p", "level", "groups", "round")] == [0.001, 0.025, 2, 2]
    # Each side was tested in round 2 already, at 0.05 / (1 * 2), and now at 0.05 / (2 * 3).
    leaf = turns[-1].decision(1)
    assert leaf.kind == "p_above_level" and leaf.values["p"] > leaf.values["level"] == pytest.approx(0.05 / 6)
    assert leaf.values["round"] == 6
    assert {matrix.layer for matrix in turns[1].diagnostics.matrices} == {"conv", "fc", "all"}


def test_alike_clients_stay_together_and_every_test_costs_less() -> None:
    turns = drive(Strata(), Folded(ONE), 9)
    assert len(groups_of(turns[-1].state)) == 1 and spent(turns[-1]) == [5]
    decision = turns[-1].decision()
    assert decision.kind == "p_above_level" and decision.values["level"] == pytest.approx(0.05 / (5 * 6))


def test_folds_start_from_the_clusters_model_on_as_many_samples_as_the_smallest_participant_has() -> None:
    sizes = [100, 200, 130, 40] * 5
    plan = drive(Strata(), Folded(TWO, sizes=sizes), 2)[1].plan
    main, one, other = plan.tasks.values()
    assert (one.fold, other.fold, one.stream, other.stream) == ("A", "B", "A", "B")
    for fold in (one, other):
        assert replace(fold, candidates=main.candidates, fold="all", stream="train", max_samples=None) == main
        assert fold.candidates.flatten().tolist() == [-1 if size == 40 else 0 for size in sizes]
        assert fold.max_samples is not None and set(fold.max_samples[fold.candidates[:, 0] >= 0].tolist()) == {50}


def test_clusters_with_two_and_with_four_folds_are_tested_in_the_same_round() -> None:
    clients = Folded([0] * 26 + [1] * 5 + [2] * 5)
    turns = drive(Strata(), clients, 7)
    assert [task.fold for task in turns[5].plan.tasks.values()] == ["all", "A", "B", "A1", "A2", "B1", "B2"]
    assert [int((task.candidates >= 0).sum()) for task in turns[5].plan.tasks.values()] == [36, 26, 26, 10, 10, 10, 10]
    epochs = turns[5].plan.tasks["train"].training.epochs
    assert [task.training.epochs // epochs for task in turns[5].plan.tasks.values()] == [1, 1, 1, 2, 2, 2, 2]
    assert groups_of(turns[-1].state) == [list(range(26)), list(range(26, 31)), list(range(31, 36))]


def test_a_split_that_does_not_lower_the_loss_yet_is_not_made_and_tried_again_in_the_next_split_half_round() -> None:
    """The two groups differ, but when the split of round 2 is tried, their B halves show the point of the other one."""
    clients = Folded(TWO)
    turns = drive(Strata(), clients, 2)
    honest = clients.points["B"]
    clients.points["B"] = honest.roll(10, dims=0)
    turns += drive(Strata(), clients, 1, turns[-1].state)
    assert turns[2].decision().kind == "groups_replicate_without_gain" and turns[2].decision().values["gain"] < 0
    assert not split_by(turns) and turns[2].state.clusters[0].idle
    clients.points["B"] = honest
    turns += drive(Strata(), clients, 2, turns[-1].state)
    assert split_by(turns) == [5] and groups_of(turns[-1].state) == BOTH


def test_without_the_hold_out_check_a_confirmed_split_is_made_at_once() -> None:
    turns = drive(Strata(holdout_check=False, reassignment_rounds=0), Folded(TWO), 3)
    assert split_by(turns) == [2] and groups_of(turns[1].state) == BOTH
    assert len(turns[2].plan.tasks) == 5 and not turns[1].state.clusters[0].reassignment_rounds


@pytest.mark.parametrize("round", [2, 3])
def test_a_round_in_which_nobody_answers_spends_nothing_and_forgets_nothing(round: int) -> None:
    turns = drive(Strata(), Folded(TWO), 5, absent={round: range(20)})
    assert split_by(turns) == [4] and groups_of(turns[-1].state) == BOTH
    assert spent(turns[round - 1]) == ([0] if round == 2 else [1])
    assert torch.equal(turns[round - 1].state.models, turns[round - 2].state.models)


def test_what_was_tested_is_not_tested_again_when_only_three_answer() -> None:
    turns = drive(Strata(), Folded(ONE), 4, absent={3: range(17)})
    assert [spent(turn) for turn in turns] == [[0], [1], [1], [2]]
    assert turns[2].decision() == turns[1].decision()


def test_who_was_away_when_its_cluster_was_tested_waits_and_takes_the_side_of_lowest_loss() -> None:
    turns = drive(Strata(), Folded(TWO), 4, absent={2: [0, 1, 15]})
    waiting = turns[2].state
    assert waiting.labels[[0, 1, 15]].tolist() == [-1, -1, -1] and waiting.waiting[[0, 1, 15]].tolist() == [0, 0, 0]
    assert groups_of(turns[3].state) == BOTH and not turns[3].state.newcomers.any()


def test_a_comparison_waits_until_half_of_its_members_have_answered() -> None:
    away = {3: range(11), 4: [*range(10, 20)]}
    turns = drive(Strata(), Folded(TWO), 5, absent=away)
    assert split_by(turns) == [4] and turns[2].state.clusters[0].comparison is not None
    assert int(turns[2].state.clusters[0].comparison.answered.sum()) == 9
    task = turns[3].plan.tasks["holdout loss"]
    assert (task.candidates[:, 0] >= 0).tolist() == [True] * 11 + [False] * 9  # the others have said it


def test_a_comparison_in_which_too_few_answer_is_given_up_after_ten_rounds() -> None:
    turns = drive(Strata(), Folded(TWO), 20, absent={round: range(10) for round in range(3, 13)})
    assert [turn.state.clusters[0].comparison is None for turn in turns[1:12]] == [False] * 10 + [True]
    assert split_by(turns) == [14] and spent(turns[12]) == [2]


def test_a_comparison_goes_on_with_those_who_stayed_and_ends_when_a_side_has_left() -> None:
    tested = drive(Strata(), Folded(TWO), 2)[-1].state
    fewer = make_pending(tested, [0, 1])
    later = drive(Strata(), Folded(TWO), 1, fewer, cohorts={3: range(2, 20)})[-1].state
    assert groups_of(later) == [list(range(2, 10)), list(range(10, 20))]
    gone = make_pending(tested, list(range(10)))
    turn = drive(Strata(), Folded(TWO), 1, gone, cohorts={3: range(10, 20)})[-1]
    # A split-half round for the ten who stayed.
    assert turn.state.clusters[0].comparison is None and len(turn.plan.tasks) == 5
    assert groups_of(turn.state) == [list(range(10, 20))]


def test_a_client_on_the_wrong_side_goes_over_for_two_rounds_and_an_event_says_so() -> None:
    state = drive(Strata(), Folded(TWO), 3)[-1].state
    turns = drive(Strata(), Folded(TWO), 1, reassign(state, {3: 1}))
    (event,) = turns[-1].diagnostics.events
    assert event == {"kind": "reassign", "client": 3, "from": 2, "to": 1}
    assert groups_of(turns[-1].state) == BOTH
    late = drive(Strata(reassignment_rounds=0), Folded(TWO), 3)[-1].state
    assert groups_of(drive(Strata(reassignment_rounds=0), Folded(TWO), 2, reassign(late, {3: 1}))[-1].state) != BOTH


def test_a_side_that_empties_takes_the_split_back() -> None:
    """All points are one, and the models of the sides differ: everyone goes where it is better."""
    state = drive(Strata(), Folded(TWO), 3)[-1].state
    turn = drive(Strata(), Folded(ONE), 1, state)[-1]
    assert turn.events == ["reassign"] * 10 + ["dissolve"]
    assert groups_of(turn.state) == [list(range(20))] and len(turn.state.models) == 1


def test_a_cluster_stays_when_both_sides_of_it_empty_at_once() -> None:
    state = make_pending(drive(Strata(), Folded(TWO), 3)[-1].state, list(range(20)), node=0)
    turn = drive(Strata(), Folded(TWO), 1, state, cohorts={4: []})[-1]
    assert len(turn.state.models) == 2
    assert groups_of(drive(Strata(), Folded(TWO), 1, turn.state)[-1].state) == BOTH


def test_groups_that_are_split_in_one_round_settle_among_themselves() -> None:
    turns = drive(Strata(), Folded([0] * 12 + [1] * 6 + [2] * 6), 6)
    assert split_by(turns) == [3] and len(groups_of(turns[2].state)) == 3
    offers = turns[3].plan.tasks["train"].candidates
    assert offers.tolist() == [[0, 1, 2]] * 12 + [[1, 0, 2]] * 6 + [[2, 0, 1]] * 6
    assert turns[5].plan.tasks["train"].candidates.shape[1] == 1


def test_what_a_client_showed_before_its_data_changed_is_forgotten() -> None:
    state = drive(Strata(), Folded(ONE), 2)[-1].state
    turns = drive(Strata(), Folded(ONE), 2, make_pending(state, [5], node=0))
    evidence = turns[-1].state.clusters[0].similarity
    assert turns[0].state.labels[5] == 0 and bool(turns[0].state.newcomers[5])
    seen = dict(zip(evidence.clients.tolist(), evidence.rounds.diagonal().tolist(), strict=True))
    assert seen[5] == 1 and seen[4] == 3


def test_only_a_sample_takes_part_where_there_are_many_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_half, "MAX_PARTICIPANTS", 12)
    turns = drive(Strata(), Folded(TWO), 4)
    assert int((turns[1].plan.tasks["test A of 2"].candidates >= 0).sum()) == 12
    assert int((turns[2].state.labels < 0).sum()) == 8
    assert groups_of(turns[-1].state) == BOTH


def test_folds_that_fall_short_take_no_part_and_the_next_ones_are_smaller() -> None:
    """Halves between independent units: client 4 has only 70 samples in one, so all get 70 next time."""
    clients = Folded(ONE)
    clients.short = {"B": {4: 70}}
    turns = drive(Strata(), clients, 3)
    assert 4 not in turns[1].state.clusters[0].similarity.clients and turns[1].state.sizes[4] == 140
    most = turns[2].plan.tasks["test A of 2"].max_samples
    assert most is not None and set(most.tolist()) == {70}
    assert 4 in turns[2].state.clusters[0].similarity.clients


def test_whoever_does_not_move_in_a_layer_takes_no_part() -> None:
    clients = Folded(ONE)
    clients.still = {"A": [2, 3]}
    assert 2 not in drive(Strata(), clients, 2)[-1].state.clusters[0].similarity.clients
    clients = Folded(ONE)
    clients.points["A"][7, :40] = 0.0  # and the model is 0 there in round 2 as well
    state = replace(drive(Strata(), clients, 1)[-1].state, models=torch.zeros(1, 80))
    assert 7 not in drive(Strata(), clients, 1, state)[-1].state.clusters[0].similarity.clients


def test_a_cluster_whose_clients_have_too_few_samples_is_told_why() -> None:
    turn = drive(Strata(), Folded(ONE, sizes=[12] * 17 + [48] * 3), 2)[-1]
    values = {"round": 2, "able": 3, "members": 20, "samples": 16, "folds": 2}
    assert turn.decision() == Decision(kind="not_tested_too_few_samples", values=values)
    assert len(turn.plan.tasks) == 1


def test_groups_of_small_clients_are_found() -> None:
    """Most have 20 samples, so folds have ten. The one with less takes no part in the test, and joins its group."""
    turns = drive(Strata(reassignment_rounds=0), Folded(TWO, apart=4.0, sizes=[20] * 18 + [8, 300]), 4)
    asked = [task for name, task in turns[1].plan.tasks.items() if task.fold == "A"]
    assert [task.max_samples is not None and int(task.max_samples.max()) for task in asked] == [10]
    assert split_by(turns) == [3] and groups_of(turns[-1].state) == BOTH


def test_lone_clients_are_found_by_their_samples() -> None:
    """Three that differ, of 400 samples each: too few for a test of folds, but their models suit nobody else."""
    turns = drive(Strata(reassignment_rounds=0), Folded([0, 1, 2], apart=4.0, sizes=[400] * 3), 4)
    folds = [[task.fold for task in turn.plan.tasks.values()] for turn in turns]
    assert folds == [["all"], ["all", "A"], ["all", "B", "B"], ["all"]]
    assert split_by(turns) == [3] and groups_of(turns[-1].state) == [[0], [1], [2]]
    decision = turns[-1].decision()
    assert decision.kind == "models_differ" and decision.layer is None and decision.values["gain"] > 0
    assert decision.values["round"] == decision.values["groups"] == 3 and decision.values["p"] <= 0.025


def test_three_alike_clients_stay_together_and_every_comparison_costs_level() -> None:
    turns = drive(Strata(), Folded([0] * 3), 5)
    assert not split_by(turns) and spent(turns[-1]) == [2]
    values = {"p": 1.0, "level": 0.05 / (2 * 3), "round": 5}
    assert turns[4].decision().kind == "p_above_level" and turns[4].decision().values == pytest.approx(values)
    assert [len(turn.plan.tasks) for turn in turns] == [1, 2, 3, 2, 3]


def test_groups_inside_share_one_chance_of_being_torn_over_all_comparisons() -> None:
    turns = drive(Strata(), Folded(TWO), 3)
    assert turns[1].state.clusters[0].comparison.level == 0.025  # 0.05 / (1 * 2)
    assert [cluster.holdout_tests for cluster in turns[2].state.clusters] == [1, 1] and spent(turns[2]) == [1, 1]


def test_what_the_same_folds_show_inside_the_sides_is_confirmed_with_the_split() -> None:
    """Two and two of four groups of ten are alike; the first test finds both pairs, those of the sides all four."""
    clients = Folded([group for group in range(4) for _ in range(10)], apart=3.0)
    turns = drive(Strata(), clients, 3)
    groups, apart = turns[1].state.clusters[0].comparison.groups, [list(range(i, i + 10)) for i in range(0, 40, 10)]
    assert groups.confirmed == 3 and sorted(groups_of(turns[2].state)) == apart
    inside = groups.inside[3:7]
    assert sorted(group.nonzero().flatten().tolist() for group in inside) == apart
    values = turns[2].decision().values
    assert (values["splits_inside"], values["p_inside"], values["level_inside"]) == (2, 0.001, 0.025)
    assert (values["p"], values["level"], values["groups"]) == (0.001, 0.025, 4)
    assert spent(turns[2]) == [1] * 4  # each has been tested as what it is now


def test_small_groups_say_why_they_are_not_tested_though_they_were_as_sides() -> None:
    clients = Folded([group for group in range(4) for _ in range(5)], apart=3.0, sizes=[24] * 20)
    state = drive(Strata(), clients, 6)[-1].state
    leaves = [state.tree[node].decision for node in state.nodes.tolist()]
    values = {"round": 6, "able": 5, "members": 5, "samples": 24, "folds": 2}
    assert leaves == [Decision(kind="not_tested_too_few_samples", values=values)] * 4
    assert all(cluster.tests for cluster in state.clusters)


def test_a_group_pays_for_the_tests_of_it_as_a_side_whatever_became_of_the_comparison() -> None:
    """The B halves that evaluate show the point of the other group at first, so the first comparison shows no gain."""
    clients = Folded(TWO)
    clients.points["B"] = clients.points["B"].roll(10, dims=0)
    turns = drive(Strata(), clients, 3)
    assert not split_by(turns) and turns[1].state.side_tests.tolist() == [1] * 20
    later = drive(Strata(), Folded(TWO), 3, turns[-1].state)
    # No side is tested now.
    assert later[0].state.clusters[0].sides_only and later[0].state.side_tests.tolist() == [1] * 20
    assert split_by(later) == [5] and spent(later[1]) == [1, 1]


def test_four_folds_tell_apart_what_two_could_not() -> None:
    assert split_by(drive(Strata(), Folded([0] * 3 + [1] * 3, apart=3.0), 4)) == [3]
    assert len(drive(Strata(folds=2), Folded([0] * 3 + [1] * 3, apart=3.0), 2)[-1].plan.tasks) == 1


def arrived(group: int, news: int = 1, **keys: Any) -> list[Turn]:
    """Twelve members of one group; late clients come in round 5, and vote in round 6."""
    algorithm, clients = Strata(**keys), Folded([0] * 12 + [group] * news)
    state = make_pending(algorithm.init(problem_of(12 + news)), list(range(12, 12 + news)), node=0)
    cohorts = dict.fromkeys(range(1, 5), range(12))
    return drive(algorithm, clients, 7, state, cohorts=cohorts)


def test_a_newcomer_that_differs_from_the_members_founds_a_cluster_of_its_own() -> None:
    """One client against twelve: no test of groups would find it."""
    turns = arrived(1, alpha=0.5)
    assert bool(turns[4].state.newcomers[12]) and turns[4].state.labels[12] == 0
    assert turns[5].decision().kind == "newcomers_differ"
    assert groups_of(turns[-1].state) == [list(range(12)), [12]] and not turns[5].state.newcomers[12]


def test_newcomers_that_are_like_the_members_stay_and_are_members_from_then_on() -> None:
    turns = arrived(0, news=2)
    assert turns[5].decision().kind == "p_above_level" and spent(turns[5]) == [4]
    assert groups_of(turns[-1].state) == [list(range(14))] and not turns[-1].state.newcomers.any()


def test_after_a_newcomers_split_that_does_not_lower_the_loss_groups_are_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outliers, "_RATE", 1e-12)  # so that nobody stands out, which would count as a test
    clients, algorithm = Folded([0] * 12 + [1]), Strata(alpha=0.5)
    state = make_pending(algorithm.init(problem_of(13)), [12], node=0)
    turns = drive(algorithm, clients, 6, state, cohorts=dict.fromkeys(range(1, 5), range(12)))
    clients.points["B"] = clients.points["B"].clone()
    clients.points["B"][12] = clients.points["B"][0]
    turns += drive(algorithm, clients, 3, turns[-1].state)
    assert turns[6].decision().kind == "newcomers_differ_without_gain"
    assert len(turns[8].plan.tasks) == 3 and spent(turns[8]) == [5]


def test_when_a_newcomer_cannot_be_tested_groups_are_sought() -> None:
    """At the level of the fifth test 13 clients may be told apart, but not one of them from twelve with two folds."""
    algorithm = Strata(folds=2)
    state = drive(algorithm, Folded([0] * 13), 2)[-1].state
    # 1 / comb(13, 6) < level 0.05 / 30 < 1 / comb(26, 2)
    late = with_cluster(replace(state, newcomers=torch.arange(13) == 12), tests=4)
    turn = drive(algorithm, Folded([0] * 13), 1, late)[-1]
    assert spent(turn) == [5] and not turn.state.newcomers.any()


def more(turns: list[Turn], clients: Folded) -> float:
    """What a run computes beside one training of every client in each round, in such rounds.

    A training is counted by its samples and epochs; evaluating a candidate model, a third of one epoch, once a round.
    """
    extra = 0.0
    for turn in turns:
        main = turn.plan.tasks["train"]
        normal = clients.sizes[turn.plan.cohort] * main.training.epochs
        evaluated = set[tuple[int, int, str]]()
        for task in turn.plan.tasks.values():
            offered = (task.candidates >= 0).sum(dim=1)
            trained = clients.sizes[turn.plan.cohort] // SHARES[task.fold]
            trained = trained if task.max_samples is None else trained.minimum(task.max_samples)
            trained = torch.tensor([task.training.samples_seen(int(samples)) for samples in trained])
            trained = trained * (offered > 0) * any(task.trainable)
            fresh = torch.zeros_like(offered)
            for row, offers in enumerate(task.candidates.tolist()):
                asked = {(row, offer, task.selection_fold) for offer in offers if offer >= 0 and offered[row] > 1}
                fresh[row], evaluated = len(asked - evaluated), evaluated | asked
            compared = clients.sizes[turn.plan.cohort] // SHARES[task.selection_fold] * fresh
            extra += float((trained + compared / 3).sum() / normal.sum())
        extra -= 1
    return extra


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "rounds"),
    [
        # Two folds of a half in nine split-half rounds; four folds of a quarter, twice.
        pytest.param(Folded([0] * 100), 9 * 1, id="100 alike"),
        pytest.param(Folded([0] * 8), 9 * 2, id="8 alike"),
        # A test; a comparison, in which a client evaluates six models on half of its data, or eight; two rounds in
        # which it may choose among all groups' models; then the tests of the groups.
        pytest.param(Folded([0] * 4 + [1] * 4, seed=1), 2 + 6 / 6 + 4 / 3 + 6 * 2, id="8 in 2 groups"),
        pytest.param(Folded([i // 5 for i in range(20)]), 1 + 7.8 / 6 + 2 * 4 / 3 + 6 * 2, id="20 in 4 groups"),
    ],
)
def test_all_extra_computing_is_at_most_40_percent_of_a_run_of_50_rounds(
    clients: Folded, rounds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outliers, "_RATE", 1e-12)  # so that nobody stands out
    assert more(drive(Strata(), clients, 50), clients) == pytest.approx(rounds)
    monkeypatch.undo()
    assert more(drive(Strata(), clients, 50), clients) / 50 <= 0.4


@pytest.mark.slow
def test_of_many_groups_a_client_may_choose_among_six() -> None:
    """430 models are evaluated on half of the data; then clusters of six have four folds, first in rounds 6 and 9."""
    clients = Folded([group for group in range(10) for _ in range(6)], apart=4.0)
    turns = drive(Strata(), clients, 9)
    assert turns[3].plan.tasks["train"].candidates.shape == (60, 6) and len(groups_of(turns[-1].state)) == 10
    extra = more(turns, clients)
    assert extra == pytest.approx(1 + 430 / 6 / 60 + 2 * 6 / 3 + 2 * 2)
    assert (extra + 4 * 2) / 50 <= 0.4  # the same again in rounds 13, 19, 28 and 42


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, 2, 3])
def test_small_groups_and_lone_clients_cost_no_more(each: int) -> None:
    clients = Folded([client // each for client in range(20)], apart=4.0)
    turns = drive(Strata(), clients, 50)
    assert len(groups_of(turns[-1].state)) >= 7 and more(turns, clients) / 50 <= 0.4


@pytest.mark.slow
def test_groups_that_never_pay_and_have_four_folds_cost_39_percent_of_50_rounds() -> None:
    """Compared after rounds 2, 4, 6, 9, 13, 19, 28 and 42; the B halves show the point of the other group."""
    clients = Folded([0] * 4 + [1] * 4, apart=4.0)
    clients.points["B"] = clients.points["B"].roll(4, dims=0)
    turns = drive(Strata(alpha=0.5), clients, 50)  # so that no level asks for many re-arrangements
    assert not split_by(turns) and spent(turns[-1]) == [8]
    # Groups inside the sides are evaluated in the first comparison alone, later ones are of two models.
    assert more(turns, clients) == pytest.approx(8 * 2 + 5.5 / 6 + 7 * 2 / 6)


def test_groups_are_found_and_nobody_is_lost_when_a_round_asks_three_in_ten() -> None:
    clients, draw = Folded(TWO, apart=3.0), torch.Generator().manual_seed(1)
    cohorts = {round: torch.randperm(20, generator=draw)[:6].tolist() for round in range(1, 41)}
    turns = drive(Strata(), clients, 40, cohorts=cohorts)
    folds = {task.fold for turn in turns for name, task in turn.plan.tasks.items() if name != OUTLIER_TASK}
    assert folds == {"all", "A1", "A2", "B1", "B2", "B"}
    assert split_by(turns) and groups_of(turns[-1].state) == BOTH
    assert bool((turns[-1].state.labels >= 0).all())


def test_evidence_of_several_rounds_is_put_together() -> None:
    """Each round of 15 has everyone seen with most others; after two, some pairs still were not."""
    cohorts = {2: range(15), 3: range(5, 20), 4: [*range(8), *range(12, 20)]}
    turns = drive(Strata(), Folded(ONE), 4, cohorts={1: range(20), **cohorts})
    evidence = turns[-1].state.clusters[0].similarity
    assert len(evidence.clients) == 20 and evidence.rounds[5, 6] == 3 and evidence.rounds[0, 19] == 1
    assert evidence.fresh.tolist() == [True] * 8 + [False] * 4 + [True] * 8


@pytest.mark.parametrize("absent", [8, 20])
def test_a_round_in_which_few_answer_does_not_make_a_large_cluster_a_small_one(absent: int) -> None:
    """A cluster of which few answer uses four folds, and what two have shown is of no use for them."""
    turns = drive(Strata(), Folded(ONE), 6, absent={5: range(absent)})
    assert [task.fold for task in turns[5].plan.tasks.values()] == ["all", "A", "B"]
    evidence = turns[5].state.clusters[0].similarity
    assert set(evidence.rounds.flatten().tolist()) == {4}


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, {"optimizer": "adam", "lr": 0.01}, {"momentum": 0.9}])
def test_until_the_first_split_the_models_are_those_of_fedavg_bit_for_bit(local: dict[str, Any]) -> None:
    ours = play(federation("strata", local, alpha=1e-12, folds=4), 5)
    assert [len(turn.plan.tasks.keys() - {OUTLIER_TASK}) for turn in ours] == [1, 5, 5, 5, 1]
    for one, other in zip(ours, play(federation("fedavg", local), 5), strict=True):
        assert torch.equal(one.after.models, other.after.models)


def test_pending_clients_find_their_place_and_everyone_uses_the_model_of_its_cluster() -> None:
    algorithm, problem = Strata(), problem_of(20)
    state = make_pending(drive(algorithm, Folded(TWO), 6)[-1].state, [0, 19], node=0)
    plan = algorithm.plan(problem, state, torch.arange(20))
    assert algorithm.assign(problem, state, Folded(TWO).run(plan)).tolist() == TWO
    use = algorithm.evaluations(problem, state, torch.tensor([1, 12]))["client"]
    assert use.candidates.tolist() == [[0], [1]]


def test_a_split_waits_until_both_sides_have_sent_something_in_the_same_round() -> None:
    """Everyone was compared in round 2; in round 3 only the second group answers, so nothing moves the first side."""
    tested = drive(Strata(), Folded(TWO), 2)[-1].state
    turn = drive(Strata(), Folded(TWO), 1, with_cluster(tested, comparison=None), absent={3: range(10)})[-1]
    assert spent(turn) == [2] and turn.state.clusters[0].comparison is None
    assert turn.decision().kind == "groups_replicate" and "gain" not in turn.decision().values


def test_a_model_that_leads_to_nothing_finite_is_a_great_loss_and_not_an_endless_comparison() -> None:
    state = drive(Strata(), Folded(TWO), 2)[-1].state
    comparison = state.clusters[0].comparison
    for broken, splits in ((0, [3]), (1, [])):
        models = comparison.models.clone()
        models[broken] = torch.nan
        known = with_cluster(state, comparison=replace(comparison, models=models))
        turn = drive(Strata(), Folded(TWO), 1, known)[-1]
        assert split_by([turn]) == splits and all(cluster.comparison is None for cluster in turn.state.clusters)


def test_with_personal_models_members_first_train_by_themselves_and_then_measure_models_between() -> None:
    turns = drive(Strata(holdout_models="personal"), Folded(TWO, apart=3.0), 3)
    tasks = turns[2].plan.tasks
    own, loss = tasks["holdout own"], tasks["holdout loss"]
    first = len(turns[2].plan.models) - 1
    assert torch.equal(turns[2].plan.models[first], turns[1].state.clusters[0].comparison.start[0])
    assert own.fold == "A" and own.candidates.unique().tolist() == [first] and any(own.trainable)
    assert loss.fold == "B" and loss.continues == "holdout own" and not any(loss.trainable)
    assert loss.shares is not None and loss.shares[0, :5].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(loss.candidates[0, :5].unique()) == 1


def test_a_personal_stage_makes_strata_compare_personal_models_unless_a_key_says_otherwise() -> None:
    assert Strata().with_personal_models().holdout_models == "personal"
    assert Strata(holdout_models="group").with_personal_models().holdout_models == "group"
    keys = {"data": {"name": "digits", "clients": 4, "samples": 40}, "algorithm": {"name": "strata"}}
    plain: Any = build_run(load_experiment(keys)).server.algorithm
    personal: Any = build_run(load_experiment({**keys, "personal": {"method": "best"}})).server.algorithm
    assert (plain.holdout_models, personal.holdout_models) == ("auto", "personal")


def test_a_round_without_anybody_who_is_to_answer_a_comparison_asks_nobody() -> None:
    tested = drive(Strata(holdout_models="personal"), Folded(TWO, apart=3.0), 2)[-1].state
    comparison = tested.clusters[0].comparison
    losses = comparison.losses_by_share.clone()
    losses[:5] = 1.0
    known = with_cluster(tested, comparison=replace(comparison, losses_by_share=losses))
    turn = drive(Strata(), Folded(TWO, apart=3.0), 1, known, cohorts={3: range(5)})[-1]
    assert turn.plan.tasks["holdout loss"].candidates.tolist() == [[-1]] * 5
    assert turn.state.clusters[0].comparison is not None
