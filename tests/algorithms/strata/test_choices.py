"""Who may choose another cluster than its own, for how long, and what becomes of a cluster that all leave."""

from dataclasses import replace

import torch
from folded import Folded, Turn, drive, groups_of, problem_of

from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import TRAIN, fedavg_plan, make_pending, reassign

TWO = [0] * 10 + [1] * 10
BOTH = [list(range(10)), list(range(10, 20))]


def offers(turn: Turn) -> list[list[int]]:
    """The models that each client was offered."""
    return [[model for model in row if model >= 0] for row in turn.plan.tasks[TRAIN].candidates.tolist()]


def split_state() -> StrataState:
    """The state after the split of round 3."""
    state: StrataState = drive(Strata(), Folded(TWO), 3)[-1].state
    assert groups_of(state) == BOTH
    return state


def test_for_two_rounds_after_a_split_members_may_choose_among_its_clusters() -> None:
    turns = drive(Strata(), Folded(TWO), 3, split_state())
    assert [offers(turn) for turn in turns[:2]] == [[[0, 1]] * 10 + [[1, 0]] * 10] * 2
    assert offers(turns[2]) == [[0]] * 10 + [[1]] * 10
    assert [int(turn.state.choices.max()) for turn in turns] == [1, 0, 0]


def test_only_rounds_in_which_a_client_answers_are_counted() -> None:
    turns = drive(Strata(), Folded(TWO), 3, split_state(), absent={4: [0], 5: [0]})
    assert turns[1].state.choices.tolist() == [2] + [0] * 19 and offers(turns[2])[0] == [0, 1]


def test_a_client_on_the_wrong_side_goes_over_and_an_event_says_so() -> None:
    turn = drive(Strata(), Folded(TWO), 1, reassign(split_state(), {3: 1}))[-1]
    assert turn.diagnostics.events == ({"kind": "reassign", "client": 3, "from": 2, "to": 1},)
    assert groups_of(turn.state) == BOTH


def test_without_rounds_of_reassignment_it_stays() -> None:
    algorithm = Strata(reassignment_rounds=0)
    state = drive(algorithm, Folded(TWO), 3)[-1].state
    later = drive(algorithm, Folded(TWO), 1, reassign(state, {3: 1}))[-1]
    assert "reassign" not in later.events and later.state.labels[3] == 1


def test_a_newcomer_takes_the_cluster_of_lowest_loss_and_may_choose_for_two_rounds_after_it() -> None:
    settled = replace(split_state(), choices=torch.zeros(20, dtype=torch.int64))
    turns = drive(Strata(), Folded(TWO), 4, make_pending(settled, [19], node=0))
    assert sorted(offers(turns[0])[19]) == [0, 1] and offers(turns[0])[:19] == [[0]] * 10 + [[1]] * 9
    assert [turn.state.choices[19].item() for turn in turns] == [2, 1, 0, 0]
    assert [offers(turn)[19] for turn in turns[1:]] == [[1, 0], [1, 0], [1]]
    assert turns[0].events == [] and groups_of(turns[-1].state) == BOTH


def test_the_clusters_beside_a_client_are_those_below_the_node_from_which_its_own_was_split() -> None:
    """Of three groups one is found apart in round 3; the two of the other side choose among themselves as well."""
    turns = drive(Strata(), Folded([0] * 10 + [1] * 10 + [2] * 10, apart=3.0), 4)
    assert len(groups_of(turns[2].state)) == 3
    assert {tuple(sorted(row)) for row in offers(turns[3])} == {(0, 1, 2)}


def test_a_cluster_that_all_members_leave_ends() -> None:
    """All points are one now, and the models of the clusters differ: everyone goes where it is better."""
    turn = drive(Strata(), Folded([0] * 20), 1, split_state())[-1]
    assert turn.events == ["reassign"] * 10 + ["dissolve"]
    assert groups_of(turn.state) == [list(range(20))]
    assert len(turn.state.models) == len(turn.state.clusters) == 1


def test_clusters_whose_members_are_all_away_stay() -> None:
    state = make_pending(split_state(), list(range(20)), node=0)
    turn = drive(Strata(), Folded(TWO), 1, state, cohorts={4: []})[-1]
    assert len(turn.state.models) == 2
    assert groups_of(drive(Strata(), Folded(TWO), 1, turn.state)[-1].state) == BOTH


def test_until_a_split_the_plan_is_that_of_fedavg() -> None:
    algorithm, problem = Strata(), problem_of(20)
    state = algorithm.init(problem)
    cohort = torch.arange(20)
    ours, plain = algorithm.plan(problem, state, cohort), fedavg_plan(problem, state, cohort)
    assert torch.equal(ours.tasks[TRAIN].candidates, plain.tasks[TRAIN].candidates) and list(ours.tasks) == [TRAIN]
