"""Strata from outside: what it asks, when it splits, and what becomes of clients that are away, late or misplaced."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import federation, train
from folded import SHARES, Folded, Turn, drive, groups_of, problem_of

from fedstrata.algorithms.parts.proof import hearings
from fedstrata.algorithms.strata import Strata
from fedstrata.clustering import ari
from fedstrata.config import load
from fedstrata.core import make_pending, reassign
from fedstrata.runner.build import prepare

TWO = [0] * 10 + [1] * 10
BOTH = [list(range(10)), list(range(10, 20))]


def spent(turn: Turn) -> list[int]:
    return [memory.tests for memory in turn.state.memories]


def split_by(turns: list[Turn]) -> list[int]:
    return [turn.state.round for turn in turns if "split" in turn.events]


def test_two_groups_are_tested_in_round_2_tried_in_round_3_and_then_have_a_model_each() -> None:
    turns = drive(Strata(), Folded(TWO), 6)
    assert [len(turn.plan.tasks) for turn in turns] == [1, 3, 3, 1, 1, 5]  # 4 folds for clusters of ten
    assert split_by(turns) == [3] and groups_of(turns[2].state) == groups_of(turns[-1].state) == BOTH
    root = turns[2].state.tree[0].decision
    assert root and root.layer == "conv" and set(root.values) == {"z", "contrast", "p", "level", "floor", "gain"}
    said = (
        "round 2, conv: the groups found in one part of the data hold in the other (Z = 13.0, p = 0.001, level 0.025)"
    )
    assert root.why.startswith(f"{said}; a model for each side lowers the loss of their members: by ")
    # Each side was tested in round 2 already, at 0.05 / (1 * 2), and now at 0.05 / (2 * 3).
    assert turns[-1].why(1).startswith("not split: p = ") and turns[-1].why(1).endswith(", level 0.0083 in round 6")
    assert {matrix.layer for matrix in turns[1].diagnostics.matrices} == {"conv", "fc", "all"}


def test_alike_clients_stay_together_and_every_test_costs_less() -> None:
    turns = drive(Strata(), Folded([0] * 20), 9)
    assert len(groups_of(turns[-1].state)) == 1 and spent(turns[-1]) == [5]
    assert turns[-1].why().endswith("level 0.0017 in round 9")  # 0.05 / (5 * 6)


def test_twins_start_from_the_clusters_model_on_as_many_samples_as_the_least_voter_has() -> None:
    sizes = [100, 200, 130, 40] * 5
    plan = drive(Strata(), Folded(TWO, sizes=sizes), 2)[1].plan
    main, one, other = plan.tasks
    assert (one.fold, other.fold, one.stream, other.stream) == ("A", "B", "A", "B")
    for fold in (one, other):
        assert replace(fold, candidates=main.candidates, fold="all", stream="train", max_samples=None) == main
        assert fold.candidates.flatten().tolist() == [-1 if size == 40 else 0 for size in sizes]
        assert fold.max_samples is not None and set(fold.max_samples[fold.candidates[:, 0] >= 0].tolist()) == {50}


def test_clusters_with_two_and_with_four_folds_are_tested_in_the_same_round() -> None:
    clients = Folded([0] * 26 + [1] * 5 + [2] * 5)
    turns = drive(Strata(), clients, 7)
    assert [fit.fold for fit in turns[5].plan.tasks] == ["all", "A", "B", "A1", "A2", "B1", "B2"]
    assert [int((fit.candidates >= 0).sum()) for fit in turns[5].plan.tasks] == [36, 26, 26, 10, 10, 10, 10]
    epochs = turns[5].plan.tasks[0].training.epochs
    assert [fit.training.epochs // epochs for fit in turns[5].plan.tasks] == [1, 1, 1, 2, 2, 2, 2]
    assert groups_of(turns[-1].state) == [list(range(26)), list(range(26, 31)), list(range(31, 36))]


def test_a_split_that_does_not_pay_yet_is_not_made_and_tried_again_in_the_next_twin_round() -> None:
    """The two groups differ, but when the split of round 2 is tried, their B halves show the point of the other one."""
    clients = Folded(TWO)
    turns = drive(Strata(), clients, 2)
    honest = clients.points["B"]
    clients.points["B"] = honest.roll(10, dims=0)
    turns += drive(Strata(), clients, 1, turns[-1].state)
    assert "but a model for each side does not lower the loss of their members: by -" in turns[2].why()
    assert not split_by(turns) and turns[2].state.memories[0].idle
    clients.points["B"] = honest
    turns += drive(Strata(), clients, 2, turns[-1].state)
    assert split_by(turns) == [5] and groups_of(turns[-1].state) == BOTH


def test_without_the_benefit_check_a_confirmed_split_is_made_at_once() -> None:
    turns = drive(Strata(benefit=False, settle=0), Folded(TWO), 3)
    assert split_by(turns) == [2] and groups_of(turns[1].state) == BOTH
    assert len(turns[2].plan.tasks) == 5 and not turns[1].state.memories[0].settling


@pytest.mark.parametrize("round", [2, 3])
def test_a_round_in_which_nobody_answers_spends_nothing_and_forgets_nothing(round: int) -> None:
    turns = drive(Strata(), Folded(TWO), 5, absent={round: range(20)})
    assert split_by(turns) == [4] and groups_of(turns[-1].state) == BOTH
    assert spent(turns[round - 1]) == ([0] if round == 2 else [1])
    assert torch.equal(turns[round - 1].state.models, turns[round - 2].state.models)


def test_what_was_tested_is_not_tested_again_when_only_three_answer() -> None:
    turns = drive(Strata(), Folded([0] * 20), 4, absent={3: range(17)})
    assert [spent(turn) for turn in turns] == [[0], [1], [1], [2]]
    assert turns[2].why() == turns[1].why()


def test_who_was_away_when_its_cluster_was_tested_waits_and_takes_the_side_of_lowest_loss() -> None:
    turns = drive(Strata(), Folded(TWO), 4, absent={2: [0, 1, 15]})
    waiting = turns[2].state
    assert waiting.labels[[0, 1, 15]].tolist() == [-1, -1, -1] and waiting.waiting[[0, 1, 15]].tolist() == [0, 0, 0]
    assert groups_of(turns[3].state) == BOTH and not turns[3].state.newcomers.any()


def test_a_trial_waits_until_half_of_its_members_have_answered() -> None:
    away = {3: range(11), 4: [*range(10, 20)]}
    turns = drive(Strata(), Folded(TWO), 5, absent=away)
    assert split_by(turns) == [4] and turns[2].state.memories[0].trial is not None
    assert int(turns[2].state.memories[0].trial.answered.sum()) == 9
    fit = turns[3].plan.tasks[1]
    assert (fit.candidates[:, 0] >= 0).tolist() == [True] * 11 + [False] * 9  # the others have said it


def test_a_trial_in_which_too_few_answer_is_given_up_after_ten_rounds() -> None:
    turns = drive(Strata(), Folded(TWO), 20, absent={round: range(10) for round in range(3, 13)})
    assert [turn.state.memories[0].trial is None for turn in turns[1:12]] == [False] * 10 + [True]
    assert split_by(turns) == [14] and spent(turns[12]) == [2]


def test_a_trial_goes_on_with_those_who_stayed_and_ends_when_a_side_has_left() -> None:
    tested = drive(Strata(), Folded(TWO), 2)[-1].state
    fewer = make_pending(tested, [0, 1])
    later = drive(Strata(), Folded(TWO), 1, fewer, cohorts={3: range(2, 20)})[-1].state
    assert groups_of(later) == [list(range(2, 10)), list(range(10, 20))]
    gone = make_pending(tested, list(range(10)))
    turn = drive(Strata(), Folded(TWO), 1, gone, cohorts={3: range(10, 20)})[-1]
    assert turn.state.memories[0].trial is None and len(turn.plan.tasks) == 5  # a twin round for the ten who stayed
    assert groups_of(turn.state) == [list(range(10, 20))]


def test_a_client_on_the_wrong_side_goes_over_for_two_rounds_and_an_event_says_so() -> None:
    state = drive(Strata(), Folded(TWO), 3)[-1].state
    turns = drive(Strata(), Folded(TWO), 1, reassign(state, {3: 1}))
    (event,) = turns[-1].diagnostics.events
    assert event == {"kind": "move", "client": 3, "from": 2, "to": 1}
    assert groups_of(turns[-1].state) == BOTH
    late = drive(Strata(settle=0), Folded(TWO), 3)[-1].state
    assert groups_of(drive(Strata(settle=0), Folded(TWO), 2, reassign(late, {3: 1}))[-1].state) != BOTH


def test_a_side_that_empties_takes_the_split_back() -> None:
    """All points are one, and the models of the sides differ: everyone goes where it is better."""
    state = drive(Strata(), Folded(TWO), 3)[-1].state
    turn = drive(Strata(), Folded([0] * 20), 1, state)[-1]
    assert turn.events == ["move"] * 10 + ["dissolve"]
    assert groups_of(turn.state) == [list(range(20))] and len(turn.state.models) == 1


def test_a_cluster_stays_when_both_sides_of_it_empty_at_once() -> None:
    state = make_pending(drive(Strata(), Folded(TWO), 3)[-1].state, list(range(20)), node=0)
    turn = drive(Strata(), Folded(TWO), 1, state, cohorts={4: []})[-1]
    assert len(turn.state.models) == 2
    assert groups_of(drive(Strata(), Folded(TWO), 1, turn.state)[-1].state) == BOTH


def test_groups_that_are_split_in_one_round_settle_among_themselves() -> None:
    turns = drive(Strata(), Folded([0] * 12 + [1] * 6 + [2] * 6), 6)
    assert split_by(turns) == [3] and len(groups_of(turns[2].state)) == 3
    offers = turns[3].plan.tasks[0].candidates
    assert {tuple(row) for row in offers[:12].tolist()} == {(0, 1, 2)}
    assert {tuple(row) for row in offers[12:18].tolist()} == {(1, 0, 2)}
    assert {tuple(row) for row in offers[18:].tolist()} == {(2, 0, 1)}
    assert turns[5].plan.tasks[0].candidates.shape[1] == 1


def test_what_a_client_showed_before_its_data_changed_is_forgotten() -> None:
    state = drive(Strata(), Folded([0] * 20), 2)[-1].state
    turns = drive(Strata(), Folded([0] * 20), 2, make_pending(state, [5], node=0))
    evidence = turns[-1].state.memories[0].evidence
    assert turns[0].state.labels[5] == 0 and bool(turns[0].state.newcomers[5])
    seen = dict(zip(evidence.clients.tolist(), evidence.seen.diagonal().tolist(), strict=True))
    assert seen[5] == 1 and seen[4] == 3


def test_only_a_sample_votes_where_there_are_many_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearings, "MOST", 12)
    turns = drive(Strata(), Folded(TWO), 4)
    assert int((turns[1].plan.tasks[1].candidates >= 0).sum()) == 12
    assert int((turns[2].state.labels < 0).sum()) == 8
    assert groups_of(turns[-1].state) == BOTH


def test_folds_that_fall_short_have_no_vote_and_the_next_ones_are_smaller() -> None:
    """Halves between independent units: client 4 has only 70 samples in one, so all get 70 next time."""
    clients = Folded([0] * 20)
    clients.short = {"B": {4: 70}}
    turns = drive(Strata(), clients, 3)
    assert 4 not in turns[1].state.memories[0].evidence.clients and turns[1].state.sizes[4] == 140
    most = turns[2].plan.tasks[1].max_samples
    assert most is not None and set(most.tolist()) == {70}
    assert 4 in turns[2].state.memories[0].evidence.clients


def test_whoever_does_not_move_in_a_layer_has_no_vote() -> None:
    clients = Folded([0] * 20)
    clients.still = {"A": [2, 3]}
    assert 2 not in drive(Strata(), clients, 2)[-1].state.memories[0].evidence.clients
    clients = Folded([0] * 20)
    clients.points["A"][7, :40] = 0.0  # and the model is 0 there in round 2 as well
    state = replace(drive(Strata(), clients, 1)[-1].state, models=torch.zeros(1, 80))
    assert 7 not in drive(Strata(), clients, 1, state)[-1].state.memories[0].evidence.clients


def test_a_cluster_whose_clients_have_too_few_samples_is_told_why() -> None:
    turn = drive(Strata(), Folded([0] * 20, sizes=[40] * 17 + [48] * 3), 2)[-1]
    has = "3 of 20 members are known to have 48 samples, enough for 2 folds; these are too few clients to tell apart"
    assert turn.why() == f"not tested in round 2: {has}" and len(turn.plan.tasks) == 1


def test_lone_clients_are_found_by_their_samples() -> None:
    """Three that differ, of 400 samples each: too few for a test of folds, but their models suit nobody else."""
    turns = drive(Strata(settle=0), Folded([0, 1, 2], apart=4.0, sizes=[400] * 3), 4)
    assert [[fit.fold for fit in turn.plan.tasks] for turn in turns] == [
        ["all"],
        ["all", "A"],
        ["all", "B", "B"],
        ["all"],
    ]
    assert split_by(turns) == [3] and groups_of(turns[-1].state) == [[0], [1], [2]]
    assert turns[-1].why().startswith("round 3: the models of others suit them less (p = ")
    assert "a model for each of 3 groups lowers the loss of their members: by " in turns[-1].why()


def test_three_alike_clients_stay_together_and_every_trial_costs_level() -> None:
    turns = drive(Strata(), Folded([0] * 3), 5)
    assert not split_by(turns) and spent(turns[-1]) == [2]
    assert turns[4].why() == "not split: p = 1, level 0.0083 in round 5"  # 0.05 / (2 * 3)
    assert [len(turn.plan.tasks) for turn in turns] == [1, 2, 3, 2, 3]


def test_groups_inside_share_one_chance_of_being_torn_over_all_trials() -> None:
    turns = drive(Strata(), Folded(TWO), 3)
    assert turns[1].state.memories[0].trial.level == 0.025  # 0.05 / (1 * 2)
    assert [memory.trials for memory in turns[2].state.memories] == [1, 1] and spent(turns[2]) == [1, 1]


def test_what_the_same_folds_show_inside_the_sides_is_proven_with_the_split() -> None:
    """Two and two of four groups of ten are alike; the first test finds both pairs, those of the sides all four."""
    clients = Folded([group for group in range(4) for _ in range(10)], apart=3.0)
    turns = drive(Strata(), clients, 3)
    trial, apart = turns[1].state.memories[0].trial, [list(range(start, start + 10)) for start in range(0, 40, 10)]
    assert trial.groups.proven == 3 and sorted(groups_of(turns[2].state)) == apart
    inside = trial.groups.inside[3:7]
    assert sorted(group.nonzero().flatten().tolist() for group in inside) == apart
    why = turns[2].why()
    assert why.count("p = 0.001, level 0.025") == 3 and "; so do groups inside them (" in why
    assert spent(turns[2]) == [1] * 4  # each has been tested as what it is now


def test_small_groups_say_why_they_are_not_tested_though_they_were_as_sides() -> None:
    clients = Folded([group for group in range(4) for _ in range(5)], apart=3.0, sizes=[48] * 20)
    state = drive(Strata(), clients, 6)[-1].state
    leaves = [state.tree[node].decision for node in state.nodes.tolist()]
    has = "5 of 5 members are known to have 48 samples, enough for 2 folds; these are too few clients to tell apart"
    assert [leaf and leaf.why for leaf in leaves] == [f"not tested in round 6: {has}"] * 4
    assert all(memory.tests for memory in state.memories)


def test_a_group_pays_for_the_tests_of_it_as_a_side_whatever_became_of_the_trial() -> None:
    """The B halves that judge show the point of the other group at first, so the first trial does not pay."""
    clients = Folded(TWO)
    clients.points["B"] = clients.points["B"].roll(10, dims=0)
    turns = drive(Strata(), clients, 3)
    assert not split_by(turns) and turns[1].state.tests.tolist() == [1] * 20
    later = drive(Strata(), Folded(TWO), 3, turns[-1].state)
    assert later[0].state.memories[0].refused and later[0].state.tests.tolist() == [1] * 20  # no side is tested now
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
    assert "newcomers differ from the members" in turns[5].why()
    assert groups_of(turns[-1].state) == [list(range(12)), [12]] and not turns[5].state.newcomers[12]


def test_newcomers_that_are_like_the_members_stay_and_are_members_from_then_on() -> None:
    turns = arrived(0, news=2)
    assert turns[5].why().startswith("not split: ") and spent(turns[5]) == [4]
    assert groups_of(turns[-1].state) == [list(range(14))] and not turns[-1].state.newcomers.any()


def test_a_newcomers_split_that_does_not_pay_does_not_keep_groups_from_being_sought() -> None:
    clients, algorithm = Folded([0] * 12 + [1]), Strata(alpha=0.5)
    state = make_pending(algorithm.init(problem_of(13)), [12], node=0)
    turns = drive(algorithm, clients, 6, state, cohorts=dict.fromkeys(range(1, 5), range(12)))
    clients.points["B"] = clients.points["B"].clone()
    clients.points["B"][12] = clients.points["B"][0]
    turns += drive(algorithm, clients, 3, turns[-1].state)
    assert "newcomers differ" in turns[6].why() and "does not lower" in turns[6].why()
    assert len(turns[8].plan.tasks) == 3 and spent(turns[8]) == [5]


def test_when_a_newcomer_cannot_be_tested_groups_are_sought() -> None:
    """At the level of the fifth test 13 clients may be told apart, but not one of them from twelve with two folds."""
    algorithm = Strata(folds=2)
    state = drive(algorithm, Folded([0] * 13), 2)[-1].state
    memory = replace(state.memories[0], tests=4)  # 1 / comb(13, 6) < level 0.05 / 30 < 1 / comb(26, 2)
    late = replace(state, memories=(memory,), newcomers=torch.arange(13) == 12)
    turn = drive(algorithm, Folded([0] * 13), 1, late)[-1]
    assert spent(turn) == [5] and not turn.state.newcomers.any()


def test_with_stability_twin_rounds_follow_rounds_in_which_a_layer_was_stable() -> None:
    """The scripted updates never turn, so every window that is full is stable: the third upload fills the first."""
    turns = drive(Strata(when="stability"), Folded([0] * 20), 8)
    assert [turn.state.round for turn in turns if len(turn.plan.tasks) > 1] == [5, 8]
    assert [turn.state.calm.steady for turn in turns] == [(), (), (), *[(0,)] * 5]
    assert "stability conv" in turns[-1].diagnostics.metrics
    found = drive(Strata(when="stability"), Folded(TWO), 8)
    assert split_by(found) == [7] and groups_of(found[-1].state) == BOTH


def test_with_stability_children_are_tested_no_more_often_than_the_cluster_that_they_come_from() -> None:
    """They are stable from round 22 on, but half as late again as the test of round 18 is round 27."""
    algorithm = Strata(when="stability")
    turns = drive(algorithm, Folded([0] * 20), 17)
    turns += drive(algorithm, Folded(TWO, apart=6.0), 12, turns[-1].state)
    assert split_by(turns) == [19] and turns[22].state.calm.steady == (1, 2)
    assert [turn.state.round for turn in turns if any(fit.max_samples is not None for fit in turn.plan.tasks)] == [
        5,
        8,
        12,
        18,
        27,
    ]


def more(turns: list[Turn], clients: Folded) -> float:
    """What a run computes beside one training of every client in each round, in such rounds.

    A training is counted by its samples and epochs; judging an offered model, a third of one epoch, once a round.
    """
    extra = 0.0
    for turn in turns:
        main = turn.plan.tasks[0]
        normal = clients.sizes[turn.plan.cohort] * main.training.epochs
        judged = set[tuple[int, int, str]]()
        for fit in turn.plan.tasks:
            offered = (fit.candidates >= 0).sum(dim=1)
            trained = clients.sizes[turn.plan.cohort] // SHARES[fit.fold]
            trained = trained if fit.max_samples is None else trained.minimum(fit.max_samples)
            trained = trained * fit.training.epochs * (offered > 0) * any(fit.trainable)
            fresh = torch.zeros_like(offered)
            for row, offers in enumerate(fit.candidates.tolist()):
                asked = {(row, offer, fit.selection_fold) for offer in offers if offer >= 0 and offered[row] > 1}
                fresh[row], judged = len(asked - judged), judged | asked
            compared = clients.sizes[turn.plan.cohort] // SHARES[fit.selection_fold] * fresh
            extra += float((trained + compared / 3).sum() / normal.sum())
        extra -= 1
    return extra


@pytest.mark.parametrize(
    ("clients", "rounds"),
    [
        # Two folds of a half in nine twin rounds; four folds of a quarter, twice.
        pytest.param(Folded([0] * 100), 9 * 1, id="100 alike"),
        pytest.param(Folded([0] * 8), 9 * 2, id="8 alike"),
        # A test; a trial, in which a client judges six models on half of its data, or eight; two rounds that offer all
        # groups' models; then the tests of the groups.
        pytest.param(Folded([0] * 4 + [1] * 4, seed=1), 2 + 6 / 6 + 4 / 3 + 6 * 2, id="8 in 2 groups"),
        # Of thirty groups a settling client is offered six; then clusters of six have four folds.
        pytest.param(
            Folded([group for group in range(30) for _ in range(6)], apart=4.0),
            1 + 209 / 180 + 2 * 6 / 3 + 6 * 2,
            id="180 in 30",
        ),
        pytest.param(
            Folded([0] * 5 + [1] * 5 + [2] * 5 + [3] * 5), 1 + 7.8 / 6 + 2 * 4 / 3 + 6 * 2, id="20 in 4 groups"
        ),
    ],
)
def test_all_extra_computing_is_at_most_40_percent_of_a_run_of_50_rounds(clients: Folded, rounds: float) -> None:
    assert more(drive(Strata(), clients, 50), clients) == pytest.approx(rounds)
    assert rounds / 50 <= 0.4


@pytest.mark.parametrize("each", [1, 2, 3])
def test_small_groups_and_lone_clients_cost_no_more(each: int) -> None:
    clients = Folded([client // each for client in range(20)], apart=4.0)
    turns = drive(Strata(), clients, 50)
    assert len(groups_of(turns[-1].state)) >= 7 and more(turns, clients) / 50 <= 0.4


def test_groups_that_never_pay_and_have_four_folds_cost_39_percent_of_50_rounds() -> None:
    """Tried after rounds 2, 4, 6, 9, 13, 19, 28 and 42; the B halves that judge show the point of the other group."""
    clients = Folded([0] * 4 + [1] * 4, apart=4.0)
    clients.points["B"] = clients.points["B"].roll(4, dims=0)
    turns = drive(Strata(alpha=0.5), clients, 50)  # so that no level asks for many re-arrangements
    assert not split_by(turns) and spent(turns[-1]) == [8]
    # Groups inside the sides are judged in the first trial alone, later ones are of two models.
    assert more(turns, clients) == pytest.approx(8 * 2 + 5.5 / 6 + 7 * 2 / 6)


def test_groups_are_found_and_nobody_is_lost_when_a_round_asks_three_in_ten() -> None:
    clients, draw = Folded(TWO, apart=3.0), torch.Generator().manual_seed(1)
    cohorts = {round: torch.randperm(20, generator=draw)[:6].tolist() for round in range(1, 41)}
    turns = drive(Strata(), clients, 40, cohorts=cohorts)
    assert {fit.fold for turn in turns[1:] for fit in turn.plan.tasks} == {"all", "A1", "A2", "B1", "B2", "B"}
    assert split_by(turns) and groups_of(turns[-1].state) == BOTH
    assert bool((turns[-1].state.labels >= 0).all())


def test_evidence_of_several_rounds_is_put_together() -> None:
    """Each round of 15 has everyone seen with most others; after two, some pairs still were not."""
    cohorts = {2: range(15), 3: range(5, 20), 4: [*range(8), *range(12, 20)]}
    turns = drive(Strata(), Folded([0] * 20), 4, cohorts={1: range(20), **cohorts})
    evidence = turns[-1].state.memories[0].evidence
    assert len(evidence.clients) == 20 and evidence.seen[5, 6] == 3 and evidence.seen[0, 19] == 1
    assert evidence.fresh.tolist() == [True] * 8 + [False] * 4 + [True] * 8


@pytest.mark.parametrize("absent", [8, 20])
def test_a_round_in_which_few_answer_does_not_make_a_large_cluster_a_small_one(absent: int) -> None:
    """A cluster of which few answer uses four folds, and what two have shown is of no use for them."""
    turns = drive(Strata(), Folded([0] * 20), 6, absent={5: range(absent)})
    assert [fit.fold for fit in turns[5].plan.tasks] == ["all", "A", "B"]
    evidence = turns[5].state.memories[0].evidence
    assert set(evidence.seen.flatten().tolist()) == {4}


@pytest.mark.parametrize("local", [{}, {"optimizer": "adam", "lr": 0.01}, {"momentum": 0.9}])
def test_until_the_first_split_the_models_are_those_of_fedavg_bit_for_bit(
    local: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearings, "LEAST", 8)
    ours = federation("strata", local, alpha=1e-12, folds=4)
    theirs = federation("fedavg", local)
    one, two = ours.algorithm.init(ours.problem), theirs.algorithm.init(theirs.problem)
    for round in range(1, 6):
        plan = ours.algorithm.plan(ours.problem, one, ours.everyone)
        assert len(plan.tasks) == (1 if round in (1, 5) else 5)
        one, _ = ours.algorithm.update(ours.problem, one, ours.clients.run(plan))
        answer = theirs.clients.run(theirs.algorithm.plan(theirs.problem, two, theirs.everyone))
        two, _ = theirs.algorithm.update(theirs.problem, two, answer)
        assert torch.equal(one.models, two.models)


def test_rotated_digits_are_told_apart_through_the_engine() -> None:
    data = {"name": "digits", "clients": 12, "samples": 100, "test": 0.2}
    keys = {"partition": {"scheme": "rotation", "groups": 2}, "local": {"lr": 0.3, "batch": 20}}
    setting = prepare(load({"data": data, **keys, "algorithm": {"name": "strata"}}))
    state, _, _ = train(setting, 7)
    assert setting.problem.truth is not None and ari(state.labels, setting.problem.truth) == 1.0


def test_pending_clients_find_their_place_and_everyone_uses_the_model_of_its_cluster() -> None:
    algorithm, problem = Strata(), problem_of(20)
    state = make_pending(drive(algorithm, Folded(TWO), 6)[-1].state, [0, 19], node=0)
    plan = algorithm.plan(problem, state, torch.arange(20))
    assert algorithm.place(problem, state, Folded(TWO).run(plan)).tolist() == TWO
    (use,) = algorithm.evaluations(problem, state, torch.tensor([1, 12]))
    assert use.candidates.tolist() == [[0], [1]]


def test_a_split_waits_until_both_sides_have_sent_something_in_the_same_round() -> None:
    """Everyone was compared in round 2; in round 3 only the second group answers, so nothing moves the first side."""
    tested = drive(Strata(), Folded(TWO), 2)[-1].state
    untried = replace(tested.memories[0], trial=None)
    turn = drive(Strata(), Folded(TWO), 1, replace(tested, memories=(untried,)), absent={3: range(10)})[-1]
    assert spent(turn) == [2] and turn.state.memories[0].trial is None
    assert "the groups found in one part of the data hold in the other" in turn.why()


def test_a_model_that_leads_to_nothing_finite_is_a_great_loss_and_not_an_endless_trial() -> None:
    state = drive(Strata(), Folded(TWO), 2)[-1].state
    trial = state.memories[0].trial
    for broken, splits in ((0, [3]), (1, [])):
        models = trial.models.clone()
        models[broken] = torch.nan
        memory = replace(state.memories[0], trial=replace(trial, models=models))
        turn = drive(Strata(), Folded(TWO), 1, replace(state, memories=(memory,)))[-1]
        assert split_by([turn]) == splits and all(memory.trial is None for memory in turn.state.memories)
