"""Strata from outside: when it splits, what it spends, and what becomes of clients that are away, late or liars."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from folded import Folded, Turn, drive, groups_of, problem_of
from test_trial import FOUR, four_groups, trial_of

import turns as played
from builders import DIGITS, federation, keys
from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import make_pending
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save

TWO = [0] * 10 + [1] * 10
ONE = [0] * 20
BOTH = [list(range(10)), list(range(10, 20))]


def split_by(turns: list[Turn]) -> list[int]:
    """The rounds in which a cluster was split."""
    return [turn.state.round for turn in turns if "split" in turn.events]


def spent(turn: Turn) -> list[int]:
    """The number of trials that each cluster has paid for."""
    return [cluster.trials_begun for cluster in turn.state.clusters]


def extra_tasks(turns: list[Turn]) -> dict[int, list[str]]:
    """What is asked beside the usual training, by round."""
    return {turn.plan.round: list(turn.plan.tasks)[1:] for turn in turns if len(turn.plan.tasks) > 1}


def test_two_groups_are_made_in_round_2_judged_in_round_3_and_then_have_a_model_each() -> None:
    turns = drive(Strata(), Folded(TWO), 7)
    asked = {round: ["groups"] for round in (2, 4, 6)} | {round: ["trial losses"] for round in (3, 5, 7)}
    assert extra_tasks(turns) == asked
    assert split_by(turns) == [3] and groups_of(turns[2].state) == groups_of(turns[-1].state) == BOTH
    root = turns[2].decision()
    assert (root.kind, root.layer) == ("groups_differ", "conv")
    assert root.values["p"] < 1e-9 and root.values["gain"] > 0
    assert [root.values[name] for name in ("level", "groups", "round")] == [0.025, 2, 3]
    assert {matrix.layer for matrix in turns[1].diagnostics.matrices} == {"conv", "fc", "all"}


def test_four_groups_are_found_in_one_trial_where_the_first_split_is_two_and_two() -> None:
    turns = drive(Strata(), Folded([client // 10 for client in range(40)], apart=3.0, seed=2), 3)
    assert split_by(turns) == [3]
    assert groups_of(turns[-1].state) == [list(range(start, start + 10)) for start in range(0, 40, 10)]


def test_alike_clients_stay_together_and_every_trial_has_a_lower_level() -> None:
    turns = drive(Strata(), Folded(ONE), 10)
    assert not split_by(turns) and [spent(turn) for turn in turns] == [[n] for n in (0, 1, 1, 2, 2, 3, 3, 3, 4, 4)]
    levels = [turns[round - 1].decision().values["level"] for round in (3, 5, 7, 10)]
    assert levels == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12, 0.05 / 20])
    assert turns[-1].decision().kind == "p_above_level"


def test_new_clusters_go_on_with_the_number_of_trials_of_the_one_that_was_split() -> None:
    turns = drive(Strata(), Folded(TWO), 5)
    assert [spent(turn) for turn in turns[1:]] == [[1], [1, 1], [2, 2], [2, 2]]
    assert turns[-1].decision(1).values["level"] == turns[-1].decision(2).values["level"] == pytest.approx(0.05 / 6)


def test_a_trial_that_is_running_in_a_split_half_round_goes_on_and_no_other_begins() -> None:
    """A trial begins in round 2 and in round 4, not in round 3, which is a split-half round too."""
    turns = drive(Strata(), Folded(TWO), 4, absent={3: range(10)})
    assert [spent(turn) for turn in turns] == [[0], [1], [1], [1, 1]]
    assert extra_tasks(turns) == {2: ["groups"], 3: ["trial losses"], 4: ["trial losses"]} and split_by(turns) == [4]


def test_a_split_that_does_not_lower_the_loss_is_not_made_and_tried_again_later() -> None:
    """The groups differ. But in round 3 half B is so noisy for everyone that one model for all is better."""
    clients = Folded(TWO)
    turns = drive(Strata(), clients, 2)
    honest = clients.points["B"]
    trial = turns[-1].state.clusters[0].trial
    middle = trial.models[0]
    # Half B shows the model for all, moved a little towards that of the own group.
    clients.points["B"] = middle + 0.1 * (trial.models[torch.tensor(TWO) + 1] - middle) + 0.001 * honest
    turns += drive(Strata(), clients, 1, turns[-1].state)
    decision = turns[-1].decision()
    assert decision.kind == "groups_differ_without_gain" and decision.values["gain"] < 0
    assert decision.values["p"] < decision.values["level"] and decision.values["groups"] == 1
    assert not split_by(turns) and turns[-1].state.clusters[0].trial is None
    clients.points["B"] = honest
    assert split_by(drive(Strata(), clients, 2, turns[-1].state)) == [5]


def test_groups_inside_a_side_that_is_not_confirmed_become_clusters_and_the_others_are_pending() -> None:
    """Everyone has answered already: the sides do not differ, but the two groups inside the first one do."""
    turns = drive(Strata(), Folded([0] * 8), 2)
    trial = replace(trial_of(four_groups(False, True), FOUR), models=torch.zeros(7, 80), start=torch.zeros(1, 80))
    state = turns[-1].state
    state = replace(state, clusters=(replace(state.clusters[0], trial=trial),))
    turn = drive(Strata(), Folded([0] * 8), 1, state)[-1]
    assert groups_of(turn.state) == [[0, 1], [2, 3]]
    assert turn.state.labels[4:].tolist() == [-1] * 4 and turn.state.waiting[4:].tolist() == [0] * 4
    assert turn.decision().kind == "groups_differ"
    later = drive(Strata(), Folded([0] * 8), 1, turn.state)[-1].state
    assert bool((later.labels >= 0).all()) and len(groups_of(later)) == 2


def test_fewer_than_four_clients_are_not_tested_and_spend_nothing() -> None:
    turns = drive(Strata(), Folded([0, 1, 2], apart=5.0), 6)
    assert spent(turns[-1]) == [0] and turns[-1].decision().kind == "too_few_for_trial"
    turns = drive(Strata(), Folded(TWO), 4, absent={2: range(17)})
    assert [spent(turn) for turn in turns] == [[0], [0], [1], [1, 1]] and split_by(turns) == [4]


def test_clients_with_halves_of_fewer_than_eight_samples_take_no_part_and_follow_later() -> None:
    sizes = [15, 14, *[16] * 17, 15]
    turns = drive(Strata(), Folded(TWO, sizes=sizes), 4)
    assert turns[1].state.clusters[0].trial.clients.tolist() == list(range(2, 19))
    assert groups_of(turns[2].state) == [list(range(2, 10)), list(range(10, 19))]
    assert turns[2].state.labels[[0, 1, 19]].tolist() == [-1] * 3 and groups_of(turns[3].state) == BOTH


def test_who_was_absent_when_groups_were_made_takes_a_side_and_judges_like_the_others() -> None:
    turns = drive(Strata(), Folded(TWO), 3, absent={2: [0, 1, 15]})
    assert extra_tasks(turns)[3] == ["trial sides", "trial losses"]
    assert groups_of(turns[-1].state) == BOTH  # nobody is pending


def test_who_is_absent_in_both_rounds_waits_and_takes_the_cluster_of_lowest_loss() -> None:
    away = {2: [0, 1, 15], 3: [0, 1, 15]}
    turns = drive(Strata(), Folded(TWO), 4, absent=away)
    assert turns[2].state.labels[[0, 1, 15]].tolist() == [-1] * 3
    assert groups_of(turns[3].state) == BOTH


def test_who_made_groups_and_was_absent_afterwards_is_in_its_group() -> None:
    turns = drive(Strata(), Folded(TWO), 3, absent={3: [0, 1, 15]})
    assert split_by(turns) == [3] and groups_of(turns[-1].state) == BOTH


def test_a_trial_in_which_too_few_answer_is_given_up_after_ten_rounds() -> None:
    turns = drive(Strata(), Folded(TWO), 14, absent={round: range(10) for round in range(3, 13)})
    running = [turn.state.clusters[0].trial is not None for turn in turns[:12]]
    assert running == [False] + [True] * 10 + [False]
    assert split_by(turns) == [14] and spent(turns[12]) == [2]


@pytest.mark.parametrize(("round", "tests"), [(2, [0, 1, 1]), (3, [1, 1, 1])])
def test_a_round_in_which_nobody_answers_spends_nothing_and_moves_nothing(round: int, tests: list[int]) -> None:
    turns = drive(Strata(), Folded(TWO), 4, absent={round: range(20)})
    assert [spent(turn)[0] for turn in turns[1:]] == tests and split_by(turns) == [4]
    assert torch.equal(turns[round - 1].state.models, turns[round - 2].state.models)


def test_a_trial_goes_on_with_those_who_stay_and_whose_data_did_not_change() -> None:
    tested = drive(Strata(), Folded(TWO), 2)[-1].state
    turn = drive(Strata(), Folded(TWO), 1, make_pending(tested, [0, 1], node=0), cohorts={3: range(2, 20)})[-1]
    assert groups_of(turn.state) == [list(range(2, 10)), list(range(10, 20))]
    changed = drive(Strata(), Folded(TWO), 1, make_pending(tested, [5], node=0))[-1]
    assert split_by([changed]) == [3]


def test_groups_are_found_and_nobody_is_lost_when_a_round_asks_three_in_ten() -> None:
    draw = torch.Generator().manual_seed(1)
    cohorts = {round: torch.randperm(20, generator=draw)[:6].tolist() for round in range(1, 41)}
    turns = drive(Strata(), Folded(TWO, apart=3.0), 40, cohorts=cohorts)
    assert split_by(turns) and groups_of(turns[-1].state) == BOTH
    assert bool((turns[-1].state.labels >= 0).all())


NAN = torch.nan


@pytest.mark.parametrize(
    ("each", "lies"),
    [
        pytest.param(10, {3: [NAN] * 5}, id="diverged"),
        pytest.param(10, {3: [1e30] * 5}, id="all losses are huge"),
        # A claim against its own group counts as that of several others, of more clients than ten.
        pytest.param(30, {3: [0.0, 1e30, 0.0, 0.0, 0.0]}, id="that of its own group is huge"),
    ],
)
def test_a_client_that_has_diverged_or_lies_does_not_stop_a_clear_split(
    each: int, lies: dict[int, list[float]]
) -> None:
    clients = Folded([0] * each + [1] * each)
    clients.lies = dict(lies)
    turns = drive(Strata(), clients, 3)
    assert split_by(turns) == [3]
    assert groups_of(turns[-1].state) == [list(range(each)), list(range(each, 2 * each))]


# Personal models.


def test_with_personal_models_a_confirmed_split_has_a_second_trial() -> None:
    turns = drive(Strata(compares="personal"), Folded(TWO, apart=3.0), 4)
    assert extra_tasks(turns) == {2: ["groups"], 3: ["trial losses"], 4: ["trial own", "trial losses"]}
    assert split_by(turns) == [4] and groups_of(turns[-1].state) == BOTH
    first, second = turns[2].decision(), turns[3].decision()
    assert (first.kind, second.kind) == ("groups_on_trial", "groups_differ") and "p_gain" not in first.values
    assert second.values["p_gain"] < second.values["level_gain"] == 0.025
    assert [second.values[name] for name in ("p", "level", "round")] == [first.values["p"], 0.025, 3]


def test_after_a_personal_trial_that_splits_nothing_the_next_trial_is_three_times_as_late() -> None:
    state = drive(Strata(compares="personal"), Folded(TWO, apart=3.0), 3)[-1].state
    gave_up = replace(state, clusters=(replace(state.clusters[0], trial=None),))
    turns = drive(Strata(compares="personal"), Folded(TWO, apart=3.0), 6, gave_up)
    assert [round for round, tasks in extra_tasks(turns).items() if "groups" in tasks] == [9]


def test_a_personal_trial_is_no_further_test_and_new_clusters_wait_for_nothing() -> None:
    turns = drive(Strata(compares="personal"), Folded(TWO, apart=3.0), 6)
    assert spent(turns[3]) == [1, 1]
    assert [round for round, tasks in extra_tasks(turns).items() if "groups" in tasks] == [2, 6]


def test_without_a_confirmed_split_there_is_no_personal_trial() -> None:
    turns = drive(Strata(compares="personal"), Folded(ONE), 5)
    assert extra_tasks(turns) == {2: ["groups"], 3: ["trial losses"], 4: ["groups"], 5: ["trial losses"]}


def test_a_run_with_a_personal_stage_compares_personal_models_unless_a_key_says_otherwise() -> None:
    tables = keys(DIGITS, data={"clients": 12, "samples": 60}, algorithm={"name": "strata", "alpha": 0.9})
    best = {"method": "best", "epochs": 2}
    for changes, compares in (({}, "auto"), ({"personal": best}, "personal")):
        algorithm: Any = federation(tables, **changes).server.algorithm
        assert algorithm.compares == compares
    plain: Any = federation(tables, personal=best, algorithm={"name": "strata", "compares": "group"}).server.algorithm
    assert plain.compares == "group"
    turns = played.play(federation(tables, personal=best), 4)
    assert "trial own" in turns[3].plan.tasks and "trial own" not in turns[2].plan.tasks


# One run is like another.


def test_the_same_run_has_the_same_bits_twice() -> None:
    away = {2: [0, 15], 3: [1]}
    one, other = (drive(Strata(), Folded(TWO), 7, absent=away) for _ in range(2))
    assert all(played.same(a.state, b.state) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("compares", ["group", "personal"])
@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_a_run_that_is_resumed_in_the_middle_of_a_trial_is_like_an_unbroken_one(
    compares: Any, rounds: int, tmp_path: Path
) -> None:
    algorithm = Strata(compares=compares)
    whole = drive(algorithm, Folded(TWO, apart=3.0), 9, absent={2: [0]})
    save(tmp_path, Checkpoint(whole[rounds - 1].state, {}, {}))
    found = find_checkpoint(tmp_path, StrataState)
    assert found is not None and played.same(found.state, whole[rounds - 1].state)
    later = drive(algorithm, Folded(TWO, apart=3.0), 9 - rounds, found.state)
    assert played.same(later[-1].state, whole[-1].state)


@pytest.mark.slow
def test_until_the_first_split_the_models_are_those_of_fedavg_bit_for_bit() -> None:
    ours = played.play(federation(DIGITS, algorithm={"name": "strata", "alpha": 1e-12}), 5)
    plain = played.play(federation(DIGITS), 5)
    assert {name for turn in ours for name in turn.plan.tasks} == {"train", "groups", "trial losses"}
    assert all(torch.equal(a.after.models, b.after.models) for a, b in zip(ours, plain, strict=True))


def test_everyone_uses_the_model_of_its_cluster() -> None:
    state = drive(Strata(), Folded(TWO), 3)[-1].state
    use = Strata().evaluations(problem_of(20), state, torch.tensor([1, 12]))["client"]
    assert use.candidates.tolist() == [[0], [1]]
