"""Trials: the test of preferences, what is left of a tree of groups, and who has to answer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from scipy.stats import t, ttest_1samp, ttest_ind

from builders import problem
from fedstrata.algorithms.strata.candidates import GroupTree
from fedstrata.algorithms.strata.trial import (
    Trial,
    begin_trial,
    bounded_claims,
    gain_p_value,
    personal_trial,
    preference_p_value,
    verdict_of,
)
from fedstrata.core import Decision, Rows
from fedstrata.testing import toy_layout

NAN = torch.nan
SIDES = [[0, 1, 2, 3], [4, 5, 6, 7]]
FOUR = [*SIDES, [0, 1], [2, 3], [4, 5], [6, 7]]


def tree_of(groups: Sequence[Sequence[int]], clients: int = 8) -> GroupTree:
    """Everyone, two sides, and where they are given two groups in each."""
    inside = torch.zeros(len(groups) + 1, clients, dtype=torch.bool)
    inside[0] = True
    for place, group in enumerate(groups, 1):
        inside[place, list(group)] = True
    return GroupTree(inside, torch.tensor([-1, 0, 0, 1, 1, 2, 2])[: len(groups) + 1])


def trial_of(
    losses: Sequence[Sequence[float]] | torch.Tensor,
    groups: Sequence[Sequence[int]] = SIDES,
    level: float = 0.05,
    confirmed: tuple[int, ...] = (),
) -> Trial:
    """A trial in which clients have these losses by each model, (m, q), or also by each share, (m, q, s)."""
    values = torch.as_tensor(losses)
    return Trial(
        clients=torch.arange(len(values)),
        groups=tree_of(groups, len(values)),
        models=torch.zeros(len(groups) + 1, 3),
        start=torch.zeros(1, 3),
        losses=values if values.ndim == 3 else values[:, :, None],
        samples=torch.ones(len(values)),
        level=level,
        decision=Decision("groups_differ", layer="conv"),
        round=2,
        confirmed=confirmed,
    )


def losses_by(one: Sequence[float], other: Sequence[float], root: float = 1.0) -> list[list[float]]:
    """The losses of clients by the model for all and by those of two sides."""
    return [[root, *pair] for pair in zip(one, other, strict=True)]


# The test.


def test_preferences_are_compared_by_a_t_test_of_two_samples() -> None:
    one = [0.5, 0.6, 0.4, 0.5, 0.9, 0.8, 0.7, 0.9]
    other = [0.7, 0.9, 0.5, 0.8, 0.8, 0.5, 0.6, 0.8]
    preferences = [b - a for a, b in zip(one, other, strict=True)]  # 0.2, 0.3, 0.1, 0.3 and -0.1, -0.3, -0.1, -0.1
    expected = ttest_ind(preferences[:4], preferences[4:], alternative="greater").pvalue
    found = preference_p_value(trial_of(losses_by(one, other)), 1, 2)
    assert found == pytest.approx(expected, rel=1e-4) and found < 0.001
    # By the other model alike, the groups prefer each other's: no evidence at all.
    assert preference_p_value(trial_of(losses_by(other, one)), 1, 2) == pytest.approx(1 - expected, rel=1e-4)


def test_a_shared_preference_for_one_model_is_no_difference() -> None:
    losses = losses_by([0.5] * 8, [0.9] * 8)
    assert preference_p_value(trial_of(losses), 1, 2) == 0.5


def test_two_clients_show_nothing_and_three_do() -> None:
    groups = [[0], [1]]
    assert preference_p_value(trial_of(losses_by([0.0, 9.0], [9.0, 0.0]), groups), 1, 2) == 1.0
    groups = [[0, 1], [2]]
    one, other = [0.0, 0.0, 1.0], [1.0, 2.0, 0.0]
    expected = ttest_ind([1.0, 2.0], [-1.0], alternative="greater").pvalue
    assert preference_p_value(trial_of(losses_by(one, other), groups), 1, 2) == pytest.approx(expected, rel=1e-4)


def test_a_preference_counts_by_the_samples_behind_it() -> None:
    """The means are (1 * 1 + 2 * 4) / 3 = 3 and -1, and the variance of one sample is (1 * 4 + 2 * 1) / 2 = 3."""
    trial = trial_of(losses_by([0.0, 0.0, 1.0, 1.0], [1.0, 4.0, 0.0, 0.0]), [[0, 1], [2, 3]])
    trial = replace(trial, samples=torch.tensor([1.0, 2.0, 1.0, 1.0]))
    expected = t.sf(4 / (3 * (1 / 3 + 1 / 2)) ** 0.5, 2)
    assert preference_p_value(trial, 1, 2) == pytest.approx(expected, rel=1e-4)


def test_only_those_who_have_answered_count() -> None:
    losses = torch.tensor(
        losses_by([0.5, 0.6, 0.4, 9.0, 0.9, 0.8, 0.7, 9.0], [0.7, 0.9, 0.5, 0.0, 0.8, 0.5, 0.6, 20.0])
    )
    losses[[3, 7]] = NAN
    expected = ttest_ind([0.2, 0.3, 0.1], [-0.1, -0.3, -0.1], alternative="greater").pvalue
    assert preference_p_value(trial_of(losses), 1, 2) == pytest.approx(expected, rel=1e-4)


def test_gains_are_compared_with_0_by_a_t_test_of_one_sample() -> None:
    gains = [0.1, 0.3, -0.1, 0.2]
    expected = ttest_1samp(gains, 0.0, alternative="greater").pvalue
    assert gain_p_value(torch.tensor(gains)) == pytest.approx(expected, rel=1e-5)
    assert gain_p_value(torch.tensor([1.0])) == gain_p_value(torch.tensor([])) == 1.0
    assert gain_p_value(torch.tensor([0.5, 0.5])) == 0.0  # no variance: infinitely sure


def test_a_claim_counts_up_to_six_standard_deviations_from_the_median() -> None:
    claims = torch.tensor([0.0, 1.0, 2.0, 3.0, 1000.0])  # the median is 2, and the median deviation 1
    assert bounded_claims(claims).tolist() == pytest.approx([0, 1, 2, 3, 2 + 6 * 1.4826])
    assert bounded_claims(-claims).tolist() == pytest.approx([0, -1, -2, -3, -2 - 6 * 1.4826])
    assert bounded_claims(torch.zeros(0)).tolist() == []


def test_alike_clients_are_told_apart_about_as_often_as_the_level_says() -> None:
    """The updates of half A make groups of pure noise, and the losses on half B come from other noise."""
    found = []
    for seed in range(250):
        points = torch.randn(2, 10, 80, generator=torch.Generator().manual_seed(seed)) / 80**0.5
        updates = Rows(torch.arange(10), points[0] / 2)
        begun = begin_trial(problem(10, toy_layout(40, 40)), torch.zeros(80), updates, level=0.05, node=0, round=2)
        assert begun is not None
        losses = (begun[0].models - points[1][:, None]).square().sum(dim=2) / 2
        answered = replace(begun[0], losses=losses[:, :, None], samples=torch.ones(10))
        found.append(preference_p_value(answered, 1, 2))
    for level in (0.05, 0.2, 0.5):
        # Four standard deviations of a binomial share.
        rejected = sum(p <= level for p in found) / len(found)
        assert rejected == pytest.approx(level, abs=4 * (level * (1 - level) / len(found)) ** 0.5)


def test_a_small_client_counts_as_little_as_its_mean_loss_is_worth() -> None:
    """Nine alike clients of 200 samples prefer a model by 0 +- 0.01; a tenth, of 20 samples, by sqrt(10) as much."""
    preferences = [-0.01, 0.01, -0.01, 0.01, 0.0, 0.01, -0.01, 0.01, -0.01, 0.0316]
    known = trial_of([[1.0, 1.0, 1.0 - each] for each in preferences], [[0, 1, 2, 3, 4, 5, 6, 7, 8], [9]])
    unweighted = preference_p_value(known, 2, 1)
    weighted = preference_p_value(replace(known, samples=torch.tensor([200.0] * 9 + [20.0])), 2, 1)
    assert unweighted < 0.01 < 0.15 < weighted


# What a trial says.

ONE, OTHER = [0.1, 0.2, 0.1, 0.2, 0.9, 0.8, 0.9, 0.8], [0.9, 0.8, 0.9, 0.8, 0.1, 0.2, 0.1, 0.2]
APART = losses_by(ONE, OTHER)


def test_a_confirmed_split_that_lowers_the_loss_is_made() -> None:
    verdict = verdict_of(trial_of(APART), 3)
    assert verdict.leaves == verdict.confirmed == (1, 2)
    values = dict(verdict.decision.values)
    assert (verdict.decision.kind, verdict.decision.layer) == ("groups_differ", "conv")
    assert values.pop("p") < 1e-5
    assert values == {"level": 0.05, "round": 3, "gain": pytest.approx(1 - 0.15), "groups": 2}


def test_a_confirmed_split_that_does_not_lower_the_loss_is_not_made() -> None:
    """The groups differ as clearly, but one model for all is better than either of theirs."""
    verdict = verdict_of(trial_of(losses_by(ONE, OTHER, root=0.05)), 3)
    assert verdict.leaves == (0,) and not verdict.confirmed
    assert (verdict.decision.kind, verdict.decision.layer) == ("groups_differ_without_gain", "conv")
    assert verdict.decision.values["gain"] == pytest.approx(0.05 - 0.15) and verdict.decision.values["groups"] == 1
    assert verdict.decision.values["p"] < 1e-5


def test_groups_that_chance_may_have_made_are_not_split() -> None:
    verdict = verdict_of(trial_of(losses_by([0.5, 0.4] * 4, [0.4, 0.5] * 4)), 3)
    assert verdict.leaves == (0,) and not verdict.confirmed
    assert verdict.decision == Decision("p_above_level", layer="conv", values={"p": 0.5, "level": 0.05, "round": 3.0})


def test_all_splits_of_a_trial_share_its_level() -> None:
    """With seven groups there are three tests, each at a third of the level; what is told is three times the least."""
    one = [0.5, 0.6, 0.4, 0.5, 0.9, 0.8, 0.7, 0.9]
    other = [0.7, 0.9, 0.5, 0.8, 0.8, 0.5, 0.6, 0.8]
    wide = [[1.0, a, b, 0.5, 0.5, 0.5, 0.5] for a, b in zip(one, other, strict=True)]
    p = preference_p_value(trial_of(wide, FOUR), 1, 2)
    assert verdict_of(trial_of(wide, FOUR, level=3.01 * p), 3).decision.values["p"] == pytest.approx(3 * p)
    assert verdict_of(trial_of(wide, FOUR, level=3.01 * p), 3).leaves == (1, 2)
    assert verdict_of(trial_of(wide, FOUR, level=2.99 * p), 3).decision.kind == "p_above_level"


def four_groups(root: bool, first: bool, second: bool = False) -> list[list[float]]:
    """The losses of eight clients, where the members of the sides, and the groups in these, differ or do not."""
    rows = []
    for client in range(8):
        noise = 0.01 * (client % 2)
        side, inside = client // 4, client // 2 % 2
        differs = (first, second)[side]
        row = [1.0, 0.8, 0.8, 0.7, 0.7, 0.7, 0.7]
        if root:
            row[1 + side], row[2 - side] = 0.5 + noise, 0.9
        else:
            row[1] += noise
        if differs:
            row[3 + 2 * side + inside], row[4 + 2 * side - inside] = 0.1 + noise, 1.5
        else:
            row[3 + 2 * side] += noise
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("differ", "leaves", "confirmed"),
    [
        pytest.param((True, True, True), (3, 4, 5, 6), (1, 2, 3, 4, 5, 6), id="all"),
        pytest.param((True, True, False), (3, 4, 2), (1, 2, 3, 4), id="inside the first side"),
        pytest.param((True, False, True), (1, 5, 6), (1, 2, 5, 6), id="inside the second side"),
        pytest.param((False, False, False), (0,), (), id="none"),
    ],
)
def test_the_leaves_are_what_is_below_confirmed_splits(
    differ: tuple[bool, bool, bool], leaves: tuple[int, ...], confirmed: tuple[int, ...]
) -> None:
    verdict = verdict_of(trial_of(four_groups(*differ), FOUR), 3)
    assert (verdict.leaves, verdict.confirmed) == (leaves, confirmed)


def test_of_a_split_inside_a_side_that_is_not_confirmed_itself_the_groups_alone_are_leaves() -> None:
    verdict = verdict_of(trial_of(four_groups(False, True), FOUR), 3)
    assert (verdict.leaves, verdict.confirmed) == ((3, 4), (3, 4))
    assert (verdict.decision.kind, verdict.decision.values["groups"]) == ("groups_differ", 2)
    # By the models of the two groups, their members gain so much on that of their side; the others do not count.
    assert verdict.decision.values["gain"] == pytest.approx(0.7, abs=0.01)


def test_a_side_without_an_answer_is_not_split() -> None:
    losses = torch.tensor(four_groups(True, True, True))
    losses[[2, 3]] = NAN
    assert verdict_of(trial_of(losses, FOUR), 3).leaves == (1, 5, 6)


# Who takes part, and when enough have answered.


def test_a_model_of_a_group_is_that_of_the_cluster_and_the_mean_update_of_the_group() -> None:
    updates = torch.tensor([[1.0, 0, 0, 0, 0, 0], [3.0, 0, 0, 0, 0, 0], [-2.0, 0, 0, 0, 0, 0], [-4.0, 0, 0, 0, 0, 0]])
    begun = begin_trial(
        problem(4), torch.full((6,), 10.0), Rows(torch.arange(4), updates), level=0.025, node=0, round=2
    )
    assert begun is not None
    trial, matrices = begun
    assert trial.models[:3, 0].tolist() == [9.5, 12.0, 7.0] and trial.start.tolist() == [[10.0] * 6]
    assert bool((trial.models[:, 1:] == 10).all()) and not trial.answered.any()
    assert (trial.level, trial.round, trial.decision) == (0.025, 2, Decision("groups_differ", layer="conv"))
    assert [(each.node, each.layer, each.clients.tolist()) for each in matrices] == [
        (0, layer, [0, 1, 2, 3]) for layer in ("conv", "fc", "all")
    ]


def test_fewer_than_four_clients_are_not_tested() -> None:
    updates = torch.eye(6)
    for moving, begins in ((4, True), (3, False)):
        still = updates.clone()
        still[moving:] = 0.0  # whoever sends zeros has nothing to say
        begun = begin_trial(problem(6), torch.zeros(6), Rows(torch.arange(6), still), level=0.1, node=0, round=2)
        assert (begun is not None) == begins


@pytest.mark.parametrize(
    ("answered", "members", "complete"),
    [
        ([0, 1, 4, 5], 8, True),
        ([0, 1, 4], 8, False),
        ([0, 1, 2, 3], 8, False),  # nobody of the second side
        ([0, 1, 4], 6, False),  # half of the six that are members still, but a test needs four
        ([0, 1, 4, 5], 6, True),
        ([0, 1, 4, 5], 100, True),  # half of those who made the groups
    ],
)
def test_a_trial_waits_for_half_of_its_clients_and_some_on_each_side(
    answered: list[int], members: int, complete: bool
) -> None:
    losses = torch.full((8, 3), NAN)
    losses[answered] = 1.0
    assert trial_of(losses).is_complete(members) == complete


def test_a_trial_is_given_up_after_ten_rounds() -> None:
    trial = trial_of(APART)
    assert [trial.is_given_up(round) for round in (3, 11, 12)] == [False, False, True]


def test_members_judge_the_groups_above_them_and_those_beside_these() -> None:
    trial = trial_of(four_groups(True, True), FOUR)
    assert trial.judged(0) == trial.judged(3) == [0, 1, 2, 3, 4] and trial.judged(7) == [0, 1, 2, 5, 6]
    assert trial_of(APART).judged(0) == [0, 1, 2]


def test_who_joins_a_trial_goes_down_its_tree_and_has_not_answered() -> None:
    trial = trial_of(APART).joined_by(torch.tensor([20, 21]), torch.tensor([[0.0, 0.2, 0.4], [0.0, 0.4, 0.2]]))
    assert trial.clients.tolist() == [*range(8), 20, 21]
    assert trial.groups.inside[:, 8:].tolist() == [[True, True], [True, False], [False, True]]
    assert trial.answered.tolist() == [True] * 8 + [False] * 2
    left = trial.only(torch.tensor([False] * 7 + [True] * 3))
    assert left.clients.tolist() == [7, 20, 21] and left.groups.inside[2].tolist() == [True, False, True]


# Personal models.


def test_a_personal_trial_asks_everyone_anew_about_the_confirmed_groups() -> None:
    trial = trial_of(APART)
    verdict = verdict_of(trial, 3)
    personal = personal_trial(trial, verdict, 3)
    assert torch.equal(personal.models, trial.models)
    assert personal.of_personal_models and (personal.confirmed, personal.round) == ((1, 2), 3)
    assert personal.losses.shape == (8, 3, 5) and not personal.answered.any()
    assert personal.decision == verdict.decision


def personal_losses(gain: Sequence[float]) -> torch.Tensor:
    """Losses by five shares: all are best at the half, where each model for a group is better by so much than one."""
    shares = torch.tensor([0.4, 0.3, 0.2, 0.3, 5.0])
    own = torch.tensor(gain)[:, None]
    inside = tree_of(SIDES).inside
    return torch.stack(
        [shares.expand(8, 5), *(torch.where(side[:, None], shares - own, 3.0) for side in inside[1:])], 1
    )


def test_with_personal_models_a_split_is_made_if_they_gain_beyond_chance() -> None:
    trial = trial_of(personal_losses([0.1, 0.11] * 4), confirmed=(1, 2))
    assert trial.group_losses[:, 0].tolist() == pytest.approx([0.2] * 8)  # at the share that suits all best
    verdict = verdict_of(trial, 4)
    assert verdict.leaves == (1, 2)
    gains = [0.1, 0.11] * 4
    assert verdict.decision.values["p_gain"] == pytest.approx(
        ttest_1samp(gains, 0, alternative="greater").pvalue, abs=1e-6
    )
    assert verdict.decision.values["gain"] == pytest.approx(0.105) and verdict.decision.values["level_gain"] == 0.05
    unsure = verdict_of(trial_of(personal_losses([0.3, -0.25] * 4), confirmed=(1, 2)), 4)
    assert unsure.leaves == (0,) and unsure.decision.kind == "groups_differ_without_gain"
    assert unsure.decision.values["p_gain"] > 0.05 and unsure.decision.values["gain"] == pytest.approx(0.025)


def test_a_member_whose_own_model_diverged_does_not_choose_the_share_for_all() -> None:
    losses = personal_losses([0.1, 0.11] * 4)
    losses[0, :, 1:] = 1000.0
    assert trial_of(losses, confirmed=(1, 2)).group_losses[1:, 0].tolist() == pytest.approx([0.2] * 7)


def test_a_personal_trial_asks_for_the_models_of_confirmed_splits_alone() -> None:
    whole = four_groups(True, True)
    assert trial_of(whole, FOUR, confirmed=(1, 2)).judged(0) == [0, 1]
    assert trial_of(whole, FOUR, confirmed=(1, 2, 3, 4)).judged(0) == [0, 1, 3]
    assert trial_of(whole, FOUR, confirmed=(1, 2, 3, 4)).judged(7) == [0, 2]
    assert trial_of(whole, FOUR, confirmed=(3, 4)).judged(7) == [0]
