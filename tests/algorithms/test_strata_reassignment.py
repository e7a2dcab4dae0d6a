"""Who may choose another cluster, whose updates are too long to count, and which new clusters are one again."""

from dataclasses import replace

import pytest
import torch
from folded import Folded, Turn, drive, groups_of, problem_of

from builders import answer, with_tree_events
from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.reassignment import choosing_among_all, merge_alike_clusters
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import TRAIN, Plan, Report, make_pending
from fedstrata.uploads.checks.update_checks import CheckHistory

THREE = [0] * 6 + [1] * 6 + [2] * 6
GROUPS = [list(range(6)), list(range(6, 12)), list(range(12, 18))]


def losses_of(state: StrataState, *rows: list[float]) -> Report:
    """A round in which the members of each of three open clusters have the same losses, by the models 0, 1 and 2."""
    m = len(state.labels)
    by_model = torch.tensor(rows)[state.labels]
    siblings = torch.tensor([[0, 1, 2], [1, 0, 2], [2, 0, 1]])[state.labels]  # the own model comes first
    return Report({TRAIN: answer(range(m), torch.zeros(m, 1), state.labels, losses=by_model.gather(1, siblings))})


ALIKE = ([0.5, 1.5, 1.5], [1.5, 0.5, 0.7], [1.5, 0.7, 0.5])
"""By the other of the last two models, their members lose 0.2 more; by the first one 1 more."""


def three_clusters() -> StrataState:
    """Three clusters of six, in the first of two rounds of reassignment."""
    state: StrataState = drive(Strata(), Folded(THREE), 3)[-1].state
    assert groups_of(state) == GROUPS and state.clusters[0].reassignment_rounds == 2
    return state


def test_new_clusters_whose_models_suit_each_others_members_are_one_again() -> None:
    """The first of two equally large ones stays."""
    state = three_clusters()
    report = losses_of(state, *ALIKE)
    assert merge_alike_clusters(state, report, state.labels).tolist() == [0] * 6 + [1] * 12


def test_the_two_groups_of_one_split_stay_apart_however_far_a_third_one_is() -> None:
    """A test has told the first two apart, inside one side of the first split. By the third model they lose 9 more."""
    state = three_clusters()
    assert [cluster.group_parent for cluster in state.clusters] == [1, 1, 0]
    report = losses_of(state, [0.5, 0.7, 9.5], [0.7, 0.5, 9.5], [9.5, 9.5, 0.5])
    assert merge_alike_clusters(state, report, state.labels).equal(state.labels)


@pytest.mark.parametrize(("answering", "merged"), [([0, 6, 12], False), ([0, 6, 7, 8, 12, 13, 14], True)])
def test_few_answers_merge_no_clusters(answering: list[int], merged: bool) -> None:
    """Of six selected members, three must answer."""
    state = three_clusters()
    report = losses_of(state, *ALIKE)
    few = torch.isin(torch.arange(18), torch.tensor(answering))
    report = replace(report, results={TRAIN: report.results[TRAIN].only(few)})
    assert (not merge_alike_clusters(state, report, state.labels).equal(state.labels)) == merged


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(([0.5, 1.5, 1.5], [1.5, 0.5, 0.8], [1.5, 0.8, 0.5]), id="0.3 of what they lose by a third one"),
        pytest.param(([0.5, 1.5, 1.5], [1.5, 0.5, 0.7], [1.5, 1.4, 0.5]), id="one of the two alone"),
    ],
)
def test_clusters_that_are_apart_stay_apart(rows: tuple[list[float], ...]) -> None:
    state = three_clusters()
    assert merge_alike_clusters(state, losses_of(state, *rows), state.labels).equal(state.labels)


def test_who_leaves_has_no_say_and_one_of_four_may_deny_that_clusters_are_alike() -> None:
    """Two of six in the last cluster deny it. Where one of them leaves, it is one of five."""
    state = three_clusters()
    report = losses_of(state, *ALIKE)
    result = report.results[TRAIN]
    result.losses[12:14, 2] = 9.0
    assert merge_alike_clusters(state, report, state.labels).equal(state.labels)
    moved = state.labels.index_fill(0, torch.tensor([12]), 0)
    assert merge_alike_clusters(state, report, moved).tolist() == [*[0] * 6, *[1] * 6, 0, *[1] * 5]


def test_a_cluster_that_is_merged_with_another_ends_and_events_say_so() -> None:
    state = three_clusters()
    plan = Strata().plan(problem_of(18), state, torch.arange(18))
    alike = losses_of(state, *ALIKE).results[TRAIN]
    report = Folded(THREE).run(plan)
    trained = report.results[TRAIN]
    report = replace(report, results={TRAIN: replace(trained, losses=alike.losses)})
    after, diagnostics = with_tree_events(state, *Strata().update(problem_of(18), state, report))
    assert groups_of(after) == [GROUPS[0], list(range(6, 18))]
    kinds = [event["kind"] for event in diagnostics.events]
    assert kinds == ["reassign"] * 6 + ["dissolve"]


def late(*, sizes: list[int] | None = None) -> tuple[Strata, Folded, StrataState]:
    """Three clusters, and two clients of a fourth group that have come in round 7 and chosen different ones."""
    clients = Folded([*THREE, 3, 3], sizes=sizes)
    algorithm = Strata()
    state = make_pending(algorithm.init(problem_of(20)), [18, 19], node=0)
    turns = drive(algorithm, clients, 7, state, cohorts=dict.fromkeys(range(1, 7), range(18)))
    apart = turns[-1].state.labels.clone()
    apart[18:] = torch.tensor([0, 1])
    return algorithm, clients, replace(turns[-1].state, labels=apart)


def test_newcomers_choose_among_all_clusters_until_they_are_tested() -> None:
    algorithm, clients, state = late()
    assert state.round == 7 and state.newcomers.nonzero().flatten().tolist() == [18, 19]
    plan = algorithm.plan(problem_of(20), state, torch.arange(20))
    assert plan.tasks[TRAIN].candidates[[0, 18, 19]].tolist() == [[0, -1, -1], [0, 1, 2], [0, 1, 2]]
    turns = drive(algorithm, clients, 1, state)
    assert turns[0].state.labels[18] == turns[0].state.labels[19]  # both have the nearest of the three
    # Round 9 is a split-half round.
    assert choosing_among_all(state).tolist() == [False] * 18 + [True] * 2
    assert not choosing_among_all(turns[0].state).any()


def test_newcomers_that_are_too_small_for_any_test_choose_once() -> None:
    _, _, state = late(sizes=[200] * 18 + [15, 16])
    assert choosing_among_all(state).tolist() == [False] * 19 + [True]


@pytest.mark.parametrize("size", [16, 40, 95])
def test_newcomers_that_are_too_small_for_the_test_of_their_cluster_are_none_after_it(size: int) -> None:
    """The clusters are tested in round 9, where the others train on four folds of 24 samples, or on two."""
    algorithm, clients, state = late(sizes=[200] * 18 + [size, size])
    turns = drive(algorithm, clients, 2, state)
    assert turns[0].state.newcomers.nonzero().flatten().tolist() == [18, 19]
    assert not turns[1].state.newcomers.any()


@pytest.mark.parametrize(
    ("members", "suspects", "offered"),
    [([6, 7], [6, 7], [0, 2]), ([6, 7], [], [0, 1, 2]), ([6, 7, 8], [6, 7, 8], [0, 1, 2])],
)
def test_one_or_two_suspect_clients_as_a_cluster_are_offered_to_nobody_else(
    members: list[int], suspects: list[int], offered: list[int]
) -> None:
    """The second of three clusters, during reassignment. Its own members may go on or leave.

    Client 16 is pending, as it was absent when its cluster was split, and client 17 is a newcomer.
    """
    state = three_clusters()
    before = state.history
    assert isinstance(before, CheckHistory) and before.directions is not None
    labels = torch.tensor([0] * 12 + [2] * 6)
    labels[members] = 1
    doubted = before.directions.doubted.clone()
    doubted[suspects] = True
    newcomers = state.newcomers.index_fill(0, torch.tensor([17]), True)
    history = replace(before, directions=replace(before.directions, doubted=doubted))
    state = make_pending(replace(state, labels=labels, history=history, newcomers=newcomers), [16], node=0)
    rows = Strata().plan(problem_of(18), state, torch.arange(18)).tasks[TRAIN].candidates.tolist()
    found = [sorted(model for model in rows[client] if model >= 0) for client in (0, 6, 16, 17)]
    assert found == [offered, [0, 1, 2], offered, offered]


class Drifting(Folded):
    """The first client has the data of the last group from some round on.

    Args:
        from_round: The first round with other data.
    """

    def __init__(self, from_round: int) -> None:
        """Draw the points."""
        super().__init__(THREE, apart=8.0)
        self.from_round = from_round

    def run(self, plan: Plan) -> Report:
        """Answer every task."""
        if plan.round == self.from_round:
            for points in self.points.values():
                points[0] = points[17]
        return super().run(plan)


def test_a_client_whose_data_change_is_found_by_its_norms_and_placed_in_three_rounds() -> None:
    turns = drive(Strata(), Drifting(10), 12)
    drifted = [event for turn in turns for event in turn.diagnostics.events if event["kind"] == "drifted"]
    assert drifted == [{"kind": "drifted", "clients": [0]}] and "drifted" in turns[10].events
    assert turns[11].plan.tasks[TRAIN].candidates[:2].tolist() == [[0, 1, 2], [0, -1, -1]]
    assert groups_of(turns[10].state) == GROUPS
    assert groups_of(turns[11].state) == [[0, *range(12, 18)], list(range(1, 6)), list(range(6, 12))]
    # In its new cluster it is a newcomer, which the next test asks about.
    assert turns[11].state.newcomers.nonzero().flatten().tolist() == [0]


def test_without_the_check_of_norms_it_stays_where_it_was() -> None:
    turns = drive(Strata(), Drifting(10), 14, checks=("directions", "signs", "copies"))
    assert turns[-1].state.history.drifted is None and groups_of(turns[-1].state) == GROUPS


class Scaling(Folded):
    """Client 17 sends ten times what it has trained, in every task."""

    def run(self, plan: Plan) -> Report:
        """Answer every task."""
        report = super().run(plan)
        for result in report.results.values():
            result.updates.values[result.updates.clients == 17] *= 10
        return report


def oversized(turns: list[Turn]) -> list[list[int]]:
    """Whose updates were left out in each round."""
    events = [[event for event in turn.diagnostics.events if event["kind"] == "oversized"] for turn in turns]
    return [event["clients"] for round in events for event in round]


def test_updates_that_are_always_ten_times_as_long_count_in_no_model_and_hide_no_group() -> None:
    turns = drive(Strata(), Scaling(THREE), 4)
    # A first round alone tells too little.
    assert oversized(turns) == [[17]] * 3
    assert groups_of(turns[-1].state) == GROUPS
    # The model of its cluster is that of the others: what they send moves it half of the way to their mean.
    sent = turns[3].report.results[TRAIN].updates.values[12:17].mean(dim=0)
    moved = turns[3].state.models[2] - turns[2].state.models[2]
    assert torch.allclose(moved, sent, atol=1e-6)


def test_without_the_check_of_norms_they_move_the_models() -> None:
    turns = drive(Strata(), Scaling(THREE), 1, checks=("directions", "signs", "copies"))
    assert not oversized(turns)
    sent = turns[0].report.results[TRAIN].updates.values.mean(dim=0)
    assert torch.allclose(turns[0].state.models[0] - problem_of(18).fresh(0), sent, atol=1e-6)


class Turning(Folded):
    """Two of five clients of one group send flipped signs from round 5 on, in every task."""

    def run(self, plan: Plan) -> Report:
        """Answer every task."""
        report = super().run(plan)
        if plan.round >= 5:
            for result in report.results.values():
                result.updates.values[result.updates.clients < 2] *= -1
        return report


@pytest.mark.slow
def test_two_of_five_that_turn_and_hide_each_other_are_split_off_and_do_not_count_when_they_come_back() -> None:
    """The model has converged when they turn, so no direction is that of most. The test of round 13 confirms them."""
    turns = drive(Strata(), Turning([0] * 5), 15)
    told = [event for turn in turns for event in turn.diagnostics.events if event["kind"] in ("doubted", "reversed")]
    assert told == [{"kind": "doubted", "clients": [0, 1]}, {"kind": "reversed", "clients": [0, 1]}]
    assert "doubted" in turns[13].events and groups_of(turns[13].state) == [[0, 1], [2, 3, 4]]
    assert groups_of(turns[14].state) == [[0, 1, 2, 3, 4]]
    sent = turns[14].report.results[TRAIN].updates.values[2:].mean(dim=0)
    (before,) = turns[13].state.models[turns[13].state.labels[2:].unique()]
    assert torch.allclose(turns[14].state.models[0] - before, sent, atol=1e-6)
    assert turns[13].state.history.suspect.tolist() == [True, True, False, False, False]


@pytest.mark.slow
def test_without_the_check_of_directions_they_prevent_the_split() -> None:
    turns = drive(Strata(), Turning([0] * 5), 15, checks=("norms", "signs", "copies"))
    assert groups_of(turns[-1].state) == [[0, 1, 2, 3, 4]]
