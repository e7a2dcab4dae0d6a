"""The search of Strata for clients that differ from all others."""

from dataclasses import replace
from math import exp, inf

import pytest
import torch
from folded import Folded, drive, groups_of, problem_of

from builders import answer
from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of
from fedstrata.algorithms.strata.outliers import (
    OUTLIER_TASK,
    OutlierSearch,
    _outlier_groups,
    compare_outliers,
    outlier_decision,
    outlier_scores,
    start_search,
)
from fedstrata.core import Decision, Report, Rows
from turns import same

TEN = list(range(10))


def updates(*angles: float) -> Rows:
    """Updates of two tensors, in the first of which the directions differ by so many degrees."""
    turned = torch.tensor(angles).deg2rad()
    first = torch.stack([turned.cos(), turned.sin()], dim=1)
    values = torch.cat([first, torch.ones(len(angles), problem_of(1).layout.p - 2)], dim=1)
    return Rows(torch.arange(len(angles)), values)


def test_scores_are_distances_from_the_median_in_median_absolute_deviations() -> None:
    """Cosines with the sum of the others, of (1, 0) x 3, (0, 1): 3 of 2 / sqrt(5) of 1, one of 0."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    (score,) = outlier_scores(rows, {"all": torch.arange(2)})
    assert (score[:3].tolist() == [0.0] * 3 and score[3] == inf) or score[3] > 1e9
    rows = torch.tensor([[1.0, 0.0], [2.0, 1.0], [1.0, 1.0], [0.0, 1.0], [-3.0, 4.0]])
    cosines = [torch.nn.functional.cosine_similarity(row, rows.sum(dim=0) - row, dim=0).item() for row in rows.unbind()]
    distance = 1 - torch.tensor(cosines)
    deviation = distance - distance.median()
    expected = 0.6745 * deviation / deviation.abs().median()
    assert torch.allclose(outlier_scores(rows, {"all": torch.arange(2)})[0].float(), expected)


def test_who_stands_out_in_one_layer_is_sought() -> None:
    spread = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    found = start_search(problem_of(10).layout, updates(*spread, 90.0), 2)
    assert found is not None and found.ids.tolist() == [9] and found.clients.tolist() == TEN and found.round == 2
    assert start_search(problem_of(10).layout, updates(*spread, 4.5), 2) is None


def test_nobody_is_sought_among_few_clients_nor_where_a_third_stands_out() -> None:
    layout = problem_of(10).layout
    assert start_search(layout, updates(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 90.0), 2) is None
    nine = updates(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 90.0, 91.0, 92.0)
    assert start_search(layout, nine, 2) is None


def compared(own: float, away: float, *, losses: tuple[float, float], outliers: int = 1) -> HoldoutComparison:
    """Ten clients with 100 samples each. The last ones are outliers.

    Outliers err `away` by the cluster's model, which all others err by `own`, and conversely by that of the outliers.
    Their losses are by the cluster's model and by their own.
    """
    ids = torch.arange(10)
    last = ids >= 10 - outliers
    search = OutlierSearch(ids, last, round=2)
    sent = Rows(ids[last], torch.eye(10)[last])
    groups = _outlier_groups(search, sent)
    models = torch.zeros(len(groups), 2)
    decision = Decision("outliers_differ")
    empty = comparison_of(ids, groups, models, level=0.01, decision=decision, round=3, of_outliers=True)
    errors = torch.where(last[:, None], own, away).repeat(1, len(groups))
    errors[:, 0] = torch.where(last, away, own)
    loss = torch.where(last[:, None], losses[1], 9.0).repeat(1, len(groups))
    loss[:, 0] = losses[0]
    return replace(empty, errors=errors, losses_by_share=loss[..., None], samples=torch.full((10,), 100.0))


def test_an_outlier_whose_model_fits_it_better_and_the_others_worse_gets_a_cluster() -> None:
    """Advantage 0.6 + 0.6 = 1.2 with 100 samples of one client and of nine."""
    found = outlier_decision(compared(0.2, 0.8, losses=(2.0, 0.5)), round=4)
    assert found is not None and found.count == 2 and found.groups.tolist() == [0] * 9 + [1]
    assert found.decision.kind == "outliers_differ"
    p = exp(-2 * 1.2**2 / (4 / 100 + 4 / 100 / 9))
    expected = {"p": p, "level": 0.01, "round": 4.0, "gain": 0.15, "groups": 2.0}
    assert found.decision.values == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("own", "away", "losses"),
    [
        pytest.param(0.4, 0.5, (2.0, 0.5), id="the errors may differ by chance"),
        pytest.param(0.2, 0.8, (0.5, 2.0), id="the loss is not lower"),
    ],
)
def test_other_clients_stay_together_and_the_earlier_decision_stays(
    own: float, away: float, losses: tuple[float, float]
) -> None:
    assert outlier_decision(compared(own, away, losses=losses), round=4) is None


def test_two_outliers_whose_models_fit_each_other_share_a_cluster() -> None:
    """Three groups of outliers and one pair of sides: four tests."""
    found = outlier_decision(compared(0.2, 0.8, losses=(2.0, 0.5), outliers=2), round=4)
    assert found is not None and found.groups.tolist() == [0] * 8 + [1] * 2
    p = 4 * exp(-2 * 1.2**2 / (2 * 4 / 100 / 4 + 8 * 4 / 100 / 64))
    assert found.decision.values["p"] == pytest.approx(p)


def test_outliers_that_leave_or_do_not_answer_are_not_waited_for() -> None:
    three = compared(0.2, 0.8, losses=(2.0, 0.5), outliers=3)
    stays = torch.arange(10) != 7
    silent = replace(three, losses_by_share=torch.where(stays[:, None, None], three.losses_by_share, torch.nan))
    assert silent.complete
    found = outlier_decision(silent, round=4)
    assert found is not None and found.groups.tolist() == [0] * 7 + [1] * 3
    left = three.only(stays)
    assert left is not None and left.complete
    found = outlier_decision(left, round=4)
    assert found is not None and found.groups.tolist() == [0] * 7 + [1] * 2
    assert three.only(torch.arange(10) < 7) is None and three.only(torch.arange(10) >= 7) is None


@pytest.mark.parametrize("groups", [[0] * 19 + [1], [0] * 18 + [1] * 2, [0] * 18 + [1, 2]])
def test_one_or_two_clients_that_differ_from_the_others_get_clusters(groups: list[int]) -> None:
    clients = Folded(groups, apart=6.0)
    turns = drive(Strata(), clients, 14)
    ids = torch.tensor(groups)
    assert groups_of(turns[-1].state) == [(ids == group).nonzero().flatten().tolist() for group in ids.unique()]


def test_outliers_train_fifty_steps_on_half_a_and_half_b_decides() -> None:
    turns = drive(Strata(), Folded([0] * 19 + [1], apart=6.0), 4)
    task = turns[2].plan.tasks[OUTLIER_TASK]
    assert task.training.steps == 50 and task.fold == "A"
    assert task.candidates.flatten().tolist() == [-1] * 19 + [0]
    assert turns[3].plan.tasks["holdout errors"].fold == "B" and "split" in turns[3].events
    assert turns[3].decision().kind == "outliers_differ"


def test_an_absent_outlier_trains_when_it_is_back() -> None:
    turns = drive(Strata(), Folded([0] * 19 + [1], apart=6.0), 6, absent={3: [19], 4: [19]})
    assert [OUTLIER_TASK in turn.plan.tasks for turn in turns] == [False, False, True, True, True, False]
    assert groups_of(turns[-1].state) == [list(range(19)), [19]]


@pytest.mark.slow
def test_clients_that_are_alike_stay_together() -> None:
    for seed in range(10):
        assert len(groups_of(drive(Strata(), Folded([0] * 20, seed=seed), 10)[-1].state)) == 1


def test_answers_of_outliers_may_come_in_any_order() -> None:
    """Clients 6 to 9 train; 6 and 8 are alike, and 7 and 9. Their groups are made of ids, not of places."""
    ids = torch.arange(10)
    search = OutlierSearch(ids, ids >= 6, round=2)
    problem = problem_of(10)
    sent = torch.zeros(4, problem.layout.p)
    sent[[0, 2], 0] = torch.tensor([1.0, 1.1])
    sent[[1, 3], 1] = torch.tensor([1.0, 1.2])
    start = torch.zeros(problem.layout.p)
    found = list[HoldoutComparison]()
    for order in ([0, 1, 2, 3], [3, 0, 2, 1]):
        own = answer(ids[6:][order], sent[order])
        comparison = compare_outliers(problem, start, search, Report({OUTLIER_TASK: own}), level=0.01, round=3)
        assert comparison is not None
        found.append(comparison)
    assert same(found[0], found[1])
    assert found[0].groups.inside[2:4, 6:].tolist() == [[True, False, True, False], [False, True, False, True]]
