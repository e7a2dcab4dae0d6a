"""Groups inside a cluster: which are formed, who evaluates which models, and which are split."""

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch

from builders import answer, layout_with
from fedstrata.algorithms.strata.groups import (
    GroupTree,
    candidate_groups,
    first_half_updates,
    group_updates,
    single_group,
    with_confirmed_split,
)
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of, start_comparison
from fedstrata.algorithms.strata.holdout_tasks import _ERRORS_TASK, _LOSS_TASK, _SIDE_TASK, with_answers
from fedstrata.algorithms.strata.split_decision import ClusterSplit, split_decision
from fedstrata.core import Decision, Problem, Report, Rows, RuleAggregation
from fedstrata.testing import toy_problem
from fedstrata.uploads.noise import CentralNoise


def rows(*values: list[float], ids: list[int] | None = None) -> Rows:
    return Rows(torch.tensor(ids or range(len(values))), torch.tensor(values))


def members(tree: GroupTree | None) -> list[list[int]]:
    assert tree is not None
    return [group.nonzero().flatten().tolist() for group in tree.inside]


def sides(*second: bool) -> GroupTree:
    """A confirmed split into two."""
    return with_confirmed_split(single_group(len(second)), 0, ~torch.tensor(second), torch.tensor(second))


PAIRS = rows([3.0, 0.1], [3.0, -0.1], [-3.0, 1.0], [-3.0, -1.2])


def test_average_linkage_parts_clients_from_the_top() -> None:
    tree = candidate_groups(single_group(4), torch.arange(4), PAIRS)
    assert tree is not None and not tree.confirmed
    assert members(tree) == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [0], [1]]  # the higher merge of two first
    assert tree.parents.tolist() == [-1, 0, 0, 2, 2, 1, 1]
    assert tree.children(0) == [1, 2] and tree.children(5) == []


def test_a_confirmed_split_comes_first_and_each_side_is_parted_by_itself() -> None:
    second = sides(False, True, False, True)
    tree = candidate_groups(second, torch.arange(4), PAIRS)
    assert members(tree)[:3] == [[0, 1, 2, 3], [0, 2], [1, 3]] and len(members(tree)) == 7
    assert members(candidate_groups(second, torch.arange(4), PAIRS, finer=False)) == [[0, 1, 2, 3], [0, 2], [1, 3]]


def test_confirmed_splits_inside_a_side_come_before_all_others() -> None:
    """Clients 0 and 1, 2 and 3 are far apart from 4 and 5, and from each other."""
    six = rows([3.0, 0.1], [3.0, -0.1], [-3.0, 1.0], [-3.0, -1.2], [0.0, 9.0], [0.5, 9.0])
    pairs = torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1)
    confirmed = with_confirmed_split(sides(False, False, False, False, True, True), 1, pairs[0], pairs[1])
    assert members(confirmed)[3:] == [[0, 1], [2, 3]] and confirmed.parents.tolist() == [-1, 0, 0, 1, 1]
    tree = candidate_groups(confirmed, torch.arange(6), six)
    assert tree is not None and (tree.confirmed, tree.unconfirmed) == (2, 3)
    assert members(tree)[:5] == members(confirmed)
    assert sorted(members(tree)[5:]) == [[0], [1], [2], [3], [4], [5]]
    assert tree.models_for(0) == [0, 1, 3, *sorted(members(tree).index([client]) for client in (0, 1))]
    assert [tree.is_confirmed(node) for node in (1, 4, 5)] == [True, True, False]
    some = candidate_groups(confirmed, torch.arange(6), six.at(torch.tensor([0, 2, 4])), finer=False)
    assert members(some) == members(confirmed)
    assert candidate_groups(confirmed, torch.arange(6), six.at(torch.tensor([0, 1, 4])), finer=False) is None


def test_a_client_evaluates_the_models_of_its_groups_and_those_beside_where_no_test_confirmed_the_split() -> None:
    tree = candidate_groups(sides(False, False, True, True), torch.arange(4), PAIRS)
    assert tree is not None and tree.models_for(0) == [0, 1, 3, 4]  # not that of the other side: the split is confirmed
    assert replace(tree, confirmed=0).models_for(0) == [0, 1, 2, 3, 4]


def test_who_sent_nothing_is_on_a_side_and_in_no_group_inside_it() -> None:
    second = sides(False, False, False, True, True)
    some = rows([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0], ids=[4, 6, 8, 9])
    tree = candidate_groups(second, torch.tensor([4, 5, 6, 8, 9]), some)
    assert members(tree)[1:3] == [[0, 1, 2], [3, 4]]
    assert sorted(members(tree)[3:]) == [[0], [2], [3], [4]]


def test_nobody_is_parted_where_a_side_has_sent_nothing_or_one_client_is_alone() -> None:
    assert candidate_groups(sides(False, False, True), torch.arange(3), rows([1.0], [2.0])) is None
    assert candidate_groups(single_group(1), torch.tensor([7]), rows([1.0], ids=[7])) is None


def test_the_clearest_twenty_splits_of_many_clients_are_tried() -> None:
    many = Rows(torch.arange(60), torch.randn(60, 5, generator=torch.Generator().manual_seed(0)))
    tree = candidate_groups(single_group(60), torch.arange(60), many)
    assert tree is not None and len(tree) == 1 + 2 * 20
    assert all(int(tree.parents[node]) < node for node in range(len(tree)))


def started(problem: Problem, start: torch.Tensor, updates: Rows, personal: bool = False) -> HoldoutComparison:
    """A comparison of four clients, of whom a test has told the last two from the others."""
    found = start_comparison(
        problem,
        start,
        updates,
        torch.arange(4),
        sides(False, False, True, True),
        level=0.05,
        decision=Decision("groups_replicate"),
        node=0,
        round=3,
        finer=False,
        personal=personal,
    )
    assert found is not None
    return found


def decide(one: HoldoutComparison, **keys: Any) -> ClusterSplit:
    return split_decision(one, 5, **{"holdout_check": True, **keys})


def comparison(
    own: float, beside: float, *, confirmed: bool, losses: tuple[float, float, float], samples: float = 100
) -> HoldoutComparison:
    """Two pairs; all err `own` by the model of their group, `beside` by another; loss of the root, a pair, a client."""
    tree = candidate_groups(sides(False, False, True, True) if confirmed else single_group(4), torch.arange(4), PAIRS)
    assert tree is not None
    errors = torch.where(tree.inside.T, own, beside).float()
    loss = torch.tensor([losses[0], *[losses[1]] * 2, *[losses[2]] * 4]).expand(4, 7).clone()
    each, decision = torch.full((4,), samples), Decision(kind="groups_replicate" if confirmed else "models_differ")
    models = torch.zeros(7, 2)
    return HoldoutComparison(torch.arange(4), tree, models, None, loss[..., None], errors, each, 0.05, decision, 4)


@pytest.mark.parametrize(
    ("confirmed", "errors", "losses", "groups", "kind", "values"),
    [
        # Groups differ and their models do better. Lone clients are the less sure ones: advantage 1, and
        # exp(-2 / (4 / 100 + 4 / 100)) of three splits. Of two pairs, it is exp(-2 / (2 / 100 + 2 / 100)).
        (False, (0.0, 0.5), (3, 2, 1), [0, 1, 2, 3], "models_differ", {"gain": 2, "p": 3 * exp(-25)}),
        (False, (0.0, 0.5), (3, 1, 2), [0, 0, 1, 1], "models_differ", {"gain": 2, "p": 3 * exp(-50)}),
        (False, (0.0, 0.5), (1, 2, 3), [0, 0, 0, 0], "models_differ_without_gain", {"gain": -1}),
        # No test confirms it, however much it would lower the loss.
        (False, (0.2, 0.25), (3, 2, 1), [0, 0, 0, 0], "p_above_level", {"p": 1, "level": 0.05, "round": 5}),
        # A confirmed split must lower the loss, and the groups inside it need an error-rate test.
        (True, (0.2, 0.25), (3, 2, 1), [0, 0, 1, 1], "groups_replicate", {"gain": 1, "groups": 2}),
        (True, (0.0, 0.5), (3, 3.5, 4), [0, 0, 0, 0], "groups_replicate_without_gain", {"gain": -0.5}),
    ],
)
def test_a_split_must_be_confirmed_and_pay(
    confirmed: bool,
    errors: tuple[float, float],
    losses: tuple[float, float, float],
    groups: list[int],
    kind: str,
    values: dict[str, float],
) -> None:
    found = decide(comparison(*errors, confirmed=confirmed, losses=losses))
    assert found.groups.tolist() == groups and found.decision.kind == kind
    assert {name: found.decision.values[name] for name in values} == pytest.approx(values)


def test_all_splits_share_the_level() -> None:
    """The least samples that prove one of three splits of pairs at 0.05 with an advantage of 1."""
    least = log(3 / 0.05) * 2
    for share, count in ((1.01, 2), (0.99, 1)):
        one = comparison(0.0, 0.5, confirmed=False, losses=(3.0, 1.0, 2.0), samples=least * share)
        assert decide(one).count == count


def test_without_the_hold_out_check_a_split_need_not_pay() -> None:
    assert decide(comparison(0.0, 0.5, confirmed=False, losses=(1.0, 2.0, 3.0)), holdout_check=False).count == 4


def test_what_is_confirmed_inside_a_side_needs_no_error_rate_test() -> None:
    one = torch.eye(4, dtype=torch.bool)
    tree = with_confirmed_split(sides(False, False, True, True), 1, one[0], one[1])
    found = comparison(0.2, 0.25, confirmed=True, losses=(3.0, 2.0, 1.0))
    losses_by_share = torch.tensor([3.0, 2.0, 2.0, 1.0, 1.0]).expand(4, 5)[..., None]
    made = decide(replace(found, groups=tree, losses_by_share=losses_by_share, errors=found.errors[:, :5]))
    assert made.groups.tolist() == [0, 1, 2, 2]
    assert made.decision == Decision(kind="groups_replicate", values={"gain": 1.5, "groups": 3})


def test_who_was_not_compared_inside_a_side_is_in_no_group_there() -> None:
    """Client 1 sent something, but moved in no layer: it takes no part."""
    one = torch.eye(5, dtype=torch.bool)
    confirmed = with_confirmed_split(sides(False, False, False, True, True), 1, one[0], one[2])
    five = rows([1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [2.0, 2.0])
    assert members(candidate_groups(confirmed, torch.arange(5), five))[3:] == [[0], [2], [3], [4]]


def test_a_proof_inside_a_group_does_not_part_the_group() -> None:
    """The models of the pairs suit all, though inside them each model suits its client alone."""
    one = comparison(0.0, 0.9, confirmed=False, losses=(3.0, 2.0, 1.0))
    errors = one.errors.clone()
    errors[:, 1:3] = 0.0
    assert decide(replace(one, errors=errors)).count == 1


def test_who_sent_nothing_lends_its_loss_to_no_split() -> None:
    """All losses are equal; client 1 is in no group inside its side, which counts one more than its parts."""
    one = comparison(0.0, 0.9, confirmed=True, losses=(1.0, 1.0, 1.0))
    tree = candidate_groups(sides(False, False, False, True), torch.arange(4), PAIRS.at(torch.tensor([0, 2, 3])))
    assert tree is not None
    errors = torch.where(tree.inside.T, 0.0, 0.9)
    fewer = replace(one, groups=tree, losses_by_share=one.losses_by_share[:, :5], errors=errors)
    found = decide(fewer)
    assert found.count == 1 and found.decision.values["gain"] == 0


def test_a_comparison_is_complete_when_half_have_answered_and_someone_on_each_side() -> None:
    one = comparison(0.0, 0.5, confirmed=True, losses=(3.0, 2.0, 1.0))
    for silent, complete in (([3], True), ([0, 2], True), ([2, 3], False), ([0, 1, 2], False)):
        losses_by_share = one.losses_by_share.clone()
        losses_by_share[silent] = torch.nan
        assert replace(one, losses_by_share=losses_by_share).complete is complete


def test_a_comparison_goes_on_without_clients_that_have_left_until_a_side_is_empty() -> None:
    one = comparison(0.0, 0.5, confirmed=False, losses=(3.0, 2.0, 1.0))
    fewer = one.only(torch.tensor([True, False, True, True]))
    assert fewer is not None and members(fewer.groups)[:3] == [[0, 1, 2], [0], [1, 2]]
    assert fewer.clients.tolist() == [0, 2, 3] and len(fewer.errors) == len(fewer.losses) == 3
    assert one.only(torch.tensor([False, False, True, True])) is None


@pytest.mark.parametrize(("errors", "units"), [([float("nan")] * 3, 100.0), ([0.9, 0.0, 0.9], 0.0)])
def test_no_answer_of_one_client_spoils_an_error_rate_test(errors: list[float], units: float) -> None:
    """Nineteen clients in two unconfirmed groups err 0 by their own model and 0.5 by the other; the last one lies."""
    second = torch.arange(20) >= 10
    tree = replace(sides(*second.tolist()), confirmed=0)
    clients = torch.arange(20)
    decision = Decision("models_differ")
    begun = comparison_of(clients, tree, torch.zeros(3, 2), level=0.05, decision=decision, round=3)
    told = torch.where(tree.inside.T, 0.0, 0.5)
    told[19] = torch.tensor(errors)
    losses = torch.tensor([3.0, 1.0, 1.0]).expand(20, 3)
    measured = {
        name: answer(clients, torch.zeros(20, 2), losses=by)
        for name, by in ((_LOSS_TASK, losses), (_ERRORS_TASK, told))
    }
    samples = torch.full((20, 1), 100.0)
    samples[19] = units
    report = Report(measured, client_stats={"units": Rows(clients, samples)})
    answered = with_answers(begun, report, 4, torch.tensor([], dtype=torch.int64))
    assert answered is not None and decide(answered).count == 2


@pytest.mark.parametrize(
    ("between_personal_models", "expected"),
    [
        # The mean updates of all and of the two sides, added to the model of the cluster.
        (False, [[1.5, 0.0], [4.0, 0.0], [-1.0, 0.0]]),
        # The sides' models lie twice as far from that of all, on the same lines.
        (True, [[1.5, 0.0], [6.5, 0.0], [-3.5, 0.0]]),
    ],
)
def test_models_of_groups_are_extrapolated_where_personal_models_are_compared(
    between_personal_models: bool, expected: list[list[float]]
) -> None:
    problem = toy_problem(clients=4)
    copies = problem.layout.p // 2
    start = torch.tensor([1.0, 0.0]).repeat(copies)
    updates = torch.tensor([[2.0, 1.0], [4.0, -1.0], [-1.0, 0.5], [-3.0, -0.5]]).repeat(1, copies)
    clients = torch.arange(4)
    halves = [Rows(clients, updates), Rows(clients, updates + 100.0)]  # half B enters no model
    found = started(problem, start, first_half_updates(halves, clients), between_personal_models)
    assert found.models.tolist() == [row * copies for row in expected]
    assert found.of_personal_models == between_personal_models


def test_running_statistics_of_groups_are_not_extrapolated() -> None:
    """A variance would become negative: with updates of -0.8 and 0.2, 1 becomes 0.7 by all and 0.2 by one side."""
    problem = toy_problem(4, layout_with({"head.weight": 1, "norm.running_var": 1}))
    updates = rows([1.0, -0.8], [1.0, -0.8], [2.0, 0.2], [2.0, 0.2])
    found = started(problem, torch.tensor([0.0, 1.0]), updates, personal=True)
    assert found.models.flatten().tolist() == pytest.approx([1.5, 0.7, 0.5, 0.2, 2.5, 1.2])


def test_a_split_with_too_few_clients_on_a_side_has_one_model() -> None:
    """Seven clients, of which 0 to 3 and 4 to 6 differ, and among the first four 0 and 1 from 2 and 3."""
    inside = torch.tensor(
        [[1] * 7, [1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1] + [0] * 3]
    )
    groups = GroupTree(inside.bool(), torch.tensor([-1, 0, 0, 1, 1]), confirmed=1)
    updates = Rows(torch.arange(7), torch.tensor([1.0, 3.0, 5.0, 7.0, 10.0, 11.0, 12.0])[:, None].expand(7, 6))

    def means(least: int) -> list[float]:
        problem = replace(toy_problem(clients=7), aggregation=RuleAggregation(least_clients=least))
        return group_updates(problem, updates, torch.arange(7), groups, node=0, round=2)[:, 0].tolist()

    assert means(1) == means(2) == [7.0, 4.0, 11.0, 2.0, 6.0]
    assert means(3) == [7.0, 4.0, 11.0, 4.0, 4.0]
    assert means(4) == means(7) == [7.0] * 5  # the sides below are held back too, or they would show the rest
    assert means(8) == [0.0] * 5


def test_models_of_groups_are_means_of_those_who_were_compared_whatever_share_of_the_clients_that_is() -> None:
    """Twenty clients, of whom half are drawn: ten were compared, and each of them has sent ones."""
    groups = sides(*[False] * 4, *[True] * 6)
    updates = rows(*[[1.0, 1.0]] * 10)
    layout = layout_with({"w.weight": 2})
    noisy = CentralNoise(layout, (True,), clip_norm=5.0, noise_multiplier=0.0, answers=lambda round: 10.0)
    problem = replace(toy_problem(clients=20), layout=layout, aggregation=noisy)
    means = group_updates(problem, updates, torch.arange(10), groups, node=0, round=2)
    assert torch.allclose(means, torch.ones(3, 2))


def personal(gains: list[float], share: int = 2) -> HoldoutComparison:
    """Clients in two halves with a loss of 2 by all models, but of 1 by personal models of the root of one share.

    By personal models of the sides, of the same share, a client's loss is so much lower than 1 as it gains.
    """
    m = len(gains)
    groups = sides(*(client >= m // 2 for client in range(m)))
    losses_by_share = torch.full((m, 3, 5), 2.0)
    losses_by_share[:, 0, share] = 1.0
    losses_by_share[:, 1:, share] = 1.0 - torch.tensor(gains)[:, None]
    losses_by_share = torch.where(groups.inside.T[..., None], losses_by_share, torch.nan)
    decision = Decision(kind="groups_replicate")
    errors = torch.zeros(m, 3)
    samples = torch.full((m,), 100.0)
    models, start = torch.zeros(3, 2), torch.zeros(1, 2)
    return HoldoutComparison(
        torch.arange(m), groups, models, start, losses_by_share, errors, samples, 0.05, decision, 4
    )


def of_groups(gains: list[float], large: int | None = None) -> HoldoutComparison:
    """Clients on two sides whose loss is 1 by the model of all, and lower by their gain with that of their side.

    Args:
        gains: The gains.
        large: The number of clients on the first side; by default half of them.
    """
    one = personal(gains, share=0)
    groups = one.groups if large is None else sides(*(client >= large for client in range(len(gains))))
    losses = torch.cat([torch.ones(len(gains), 1), (1.0 - torch.tensor(gains))[:, None].expand(-1, 2)], dim=1)
    losses_by_share = torch.where(groups.inside.T, losses, torch.nan)[..., None]
    return replace(one, start=None, groups=groups, losses_by_share=losses_by_share)


@pytest.mark.parametrize(
    ("gains", "count"),
    [
        ([0.1, 0.2, 0.3, 0.2], 2),  # t = .2 / (.0816 / 2) = 4.9 > 3.18, the quantile of t with 3 degrees of freedom
        ([0.1, 0.3, 0.5, -0.1], 1),  # t = .2 / (.258 / 2) = 1.55
        ([-0.1, -0.2, -0.3, -0.2], 1),
        ([0.2, 0.4], 1),  # t = .3 / .1 = 3 < 12.7: two clients are few
        ([0.5, 0.5], 2),  # there is no chance in equal gains
    ],
)
def test_personal_models_must_gain_beyond_chance(gains: list[float], count: int) -> None:
    found = decide(personal(gains))
    assert found.count == count
    assert found.decision.values["gain"] == pytest.approx(sum(gains) / len(gains))
    assert (found.decision.values["p_gain"] <= found.decision.values["level_gain"]) is (count == 2)
    assert decide(personal(gains), holdout_check=False).count == 2


SMALL = [0.01 * (-1) ** client for client in range(19)]


@pytest.mark.parametrize(
    ("gains", "count"),
    [
        # Without a bound, the gains' mean is 50 and their standard deviation 224: t = 1 finds nothing.
        pytest.param([*(0.05 + each for each in SMALL), 1000.0], 2, id="one liar prevents no split"),
        pytest.param([1000.0, *(-0.05 + each for each in SMALL[1:]), 1000.0], 1, id="two liars force none"),
    ],
)
def test_members_that_claim_huge_gains_of_their_personal_models_decide_nothing(gains: list[float], count: int) -> None:
    assert decide(personal(gains)).count == count


def test_a_member_chooses_no_share_for_all_by_what_it_claims() -> None:
    """A share of a quarter serves nineteen clients best; the last claims that all others than 1 cost it 1000 nats."""
    one = personal([0.0] * 20, share=1)
    losses = one.losses_by_share.clone()
    losses[19, 0] = torch.tensor([1000.0, 1000.0, 1000.0, 1000.0, 0.0])
    assert replace(one, losses_by_share=losses).losses[:19, 0].tolist() == [1.0] * 19


LAST = [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("gains", "large", "left_out", "count", "gain"),
    [
        # In each half, the median of what five members gain or lose is 1/4, so no loss counts more than 3/4.
        pytest.param(([0.25] * 4 + [-1000.0]) * 2, 5, None, 2, (8 * 0.25 - 2 * 0.75) / 10, id="huge losses"),
        pytest.param([0.25] * 7 + [-0.5], 4, None, 2, (7 * 0.25 - 0.5) / 8, id="below three times the median"),
        # They agree, so what they lose counts in full.
        pytest.param([0.25] * 3 + [-2.0] * 3, 3, None, 1, (3 * 0.25 - 3 * 2) / 6, id="a half loses more"),
        # Two of eight lose 0.2 each, which counts as twice the 0.025 of the others. Of three of nine it counts in full.
        pytest.param([0.025] * 6 + [-0.2] * 2, 6, None, 2, (6 * 0.025 - 2 * 0.05) / 8, id="a quarter loses"),
        pytest.param([0.025] * 6 + [-0.2] * 3, 6, None, 1, (6 * 0.025 - 3 * 0.2) / 9, id="a third loses"),
        # Three of four are not four in five.
        pytest.param([0.25] * 3 + [-0.25, -2.0], 4, None, 1, (3 * 0.25 - 0.25 - 2.0) / 5, id="few others gain"),
        pytest.param([0.25] * 3 + [-2.0] * 3, 3, LAST, 2, 3 * 0.25 / 6, id="losses that are left out do not count"),
        pytest.param([-0.25] * 3 + [2.0] * 3, 3, LAST, 1, (3 * 2 - 3 * 0.25) / 6, id="gains that are left out do"),
        # The others must gain beyond chance: t = .25 / (.05 / sqrt(3)) = 8.7 with 2 degrees of freedom, and
        # .067 / (.38 / sqrt(3)) = 0.3.
        pytest.param([0.2, 0.3, 0.25] + [-2.0] * 3, 3, LAST, 2, 0.75 / 6, id="the others gain beyond chance"),
        pytest.param([0.5, -0.2, -0.1] + [-2.0] * 3, 3, LAST, 1, 0.2 / 6, id="the others gain by chance"),
    ],
)
def test_what_each_member_gains_or_loses_counts_within_bounds(
    gains: list[float], large: int, left_out: list[bool] | None, count: int, gain: float
) -> None:
    found = decide(of_groups(gains, large), left_out=None if left_out is None else torch.tensor(left_out))
    assert found.count == count and found.decision.values["gain"] == pytest.approx(gain)


HARMFUL = [0.05, 0.05, 0.05, -0.25, -0.25]
"""What five clients gain whose loss is 1 with one model for all: two of them have a loss of 1.25 by their own."""


@pytest.mark.parametrize(
    ("gains", "large", "doubted"),
    [
        (HARMFUL, 3, [3, 4]),
        # One liar does not hide that the others gain: each counts up to the median of 0.05. With the loss,
        # (9 x 0.05 - 0.05) / 10 = 0.04, t = 0.04 / 0.01 = 4. With three times 0.05 for the loss, t would be
        # 0.03 / 0.02 = 1.5 < 1.83. With the gain in full, t would be 1.
        ([0.05] * 9 + [-1000.0] + [-0.25] * 3, 10, [10, 11, 12]),
        ([0.05] * 9 + [1000.0] + [-0.25] * 3, 10, [10, 11, 12]),
        ([0.05, 0.05, 0.05, -0.25, -0.24], 3, []),  # the loss of one of them grows by less than a quarter
        ([0.05, -0.04, 0.03, -0.25, -0.25], 3, []),  # the others do not gain beyond chance
        ([0.05, 0.05, 0.05, -0.25, -0.25, -0.25], 3, []),  # half of them are no smaller side
        ([0.05, 0.05, -0.25], 2, []),  # two others are few
    ],
)
def test_a_smaller_side_that_does_harm_to_itself_is_split_off_and_doubted(
    gains: list[float], large: int, doubted: list[int]
) -> None:
    found = decide(of_groups(gains, large), harm_check=True)
    assert found.doubted.tolist() == doubted and found.count == (2 if doubted else 1)
    if gains == HARMFUL:
        assert found.decision.values["gain"] == pytest.approx(3 * 0.05 / 5)
        assert not len(decide(of_groups(gains, large)).doubted), "nobody is doubted without the check"


def test_a_few_times_of_hardly_any_loss_is_no_harm() -> None:
    """Losses of 0.1 and 0.125; two of five would else be split off."""
    one = of_groups(HARMFUL, large=3)
    small = replace(one, losses_by_share=one.losses_by_share / 10)
    assert decide(small, harm_check=True).count == 1


def test_who_of_a_harmful_side_has_not_answered_is_doubted_as_well() -> None:
    one = of_groups(HARMFUL, large=3)
    one.losses_by_share[4] = torch.nan
    found = decide(one, harm_check=True)
    assert found.count == 2 and found.doubted.tolist() == [3, 4]


def test_a_side_of_more_members_is_not_the_smaller_one_because_few_of_them_answered() -> None:
    """Three of eight have answered on one side, and one of nine on the other."""
    one = of_groups([0.05, 0.05, 0.05, *[0.0] * 5, -0.25, *[0.0] * 8], large=8)
    one.losses_by_share[3:8] = torch.nan
    one.losses_by_share[9:] = torch.nan
    assert not len(decide(one, harm_check=True).doubted)


def nested(parents: list[int], *groups: range, losses: list[float]) -> HoldoutComparison:
    """Nine clients in a confirmed tree of groups below everyone, who have the same loss by the model of each group."""
    inside = torch.stack([torch.isin(torch.arange(9), torch.tensor(list(group))) for group in (range(9), *groups)])
    tree = GroupTree(inside, torch.tensor([-1, *parents]), len(groups) // 2)
    by_group = torch.where(inside.T, torch.tensor(losses), torch.nan)
    one = of_groups([0.0] * 9)
    return replace(one, groups=tree, losses_by_share=by_group[..., None], errors=torch.zeros(9, len(losses)))


def test_a_side_of_two_pairs_that_both_gain_by_models_of_their_own_does_no_harm() -> None:
    """Together the four have a loss of 1.3 by their model, and apart one of 0.5; all others have 1, and 0.95."""
    groups = range(5), range(5, 9), range(5, 7), range(7, 9)
    one = nested([0, 0, 2, 2], *groups, losses=[1.0, 0.95, 1.3, 0.5, 0.5])
    found = decide(one, harm_check=True)
    assert found.count == 3 and not len(found.doubted)


def test_a_harmful_side_inside_a_side_prevents_no_split_of_the_others() -> None:
    """Of five clients on one side, two have losses of 1.5 by the model of their own; all others gain 0.05 or 0.1."""
    groups = range(5), range(5, 9), range(3), range(3, 5)
    one = nested([0, 0, 1, 1], *groups, losses=[1.0, 1.0, 0.95, 0.9, 1.5])
    found = decide(one, harm_check=True)
    assert found.count == 3 and found.doubted.tolist() == [3, 4]
    assert found.decision.values["gain"] == pytest.approx((3 * 0.1 + 4 * 0.05) / 9)


@pytest.mark.parametrize("personal_models", [True, False])
def test_neither_personal_models_nor_stand_ins_tell_of_harm(personal_models: bool) -> None:
    one = of_groups(HARMFUL, large=3)
    changed = replace(one, start=one.models[:1]) if personal_models else replace(one, has_stand_ins=True)
    found = decide(changed, harm_check=True)
    assert found.count == 1 and not len(found.doubted)


def test_a_side_that_no_permutation_test_has_confirmed_is_not_doubted() -> None:
    """The error-rate test confirms it: each model is wrong where the other is right."""
    one = of_groups(HARMFUL, large=3)
    groups = replace(one.groups, confirmed=0)
    first = torch.tensor([True] * 3 + [False] * 2)
    errors = torch.stack([torch.zeros(5), (~first).float(), first.float()], dim=1)
    losses = torch.where(one.losses_by_share.isnan(), 2.0, one.losses_by_share)
    unconfirmed = replace(one, groups=groups, errors=errors, losses_by_share=losses)
    found = decide(unconfirmed, harm_check=True)
    assert found.count == 1 and not len(found.doubted)
    assert found.decision.values["p"] < 0.05


def test_a_long_update_counts_as_one_of_twice_the_median_in_the_model_of_its_group() -> None:
    """Of updates of 1, 1, 1 and 9, the model of the last two has (1 + 2) / 2."""
    updates = rows([1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [9.0, 0.0])
    found = started(toy_problem(clients=4), torch.zeros(2), updates)
    assert found.models[:, 0].tolist() == [1.25, 1.0, 1.5]


def test_a_member_that_diverged_by_itself_does_not_choose_the_share_for_all() -> None:
    """Its loss of 1000 counts as one more than with the model of the group: 3, and the share gains 1 for the others."""
    one = personal([0.1, 0.2, 0.3, 0.2])
    losses_by_share = one.losses_by_share.clone()
    losses_by_share[3, 2, 2] = 1000.0
    assert replace(one, losses_by_share=losses_by_share).losses[:, 2].tolist()[2:] == pytest.approx([0.7, 3.0])
    losses_by_share[2, 2, 2] = 1000.0
    assert replace(one, losses_by_share=losses_by_share).losses[:, 2].tolist()[2:] == [2.0, 2.0]


@pytest.mark.parametrize("values", [torch.eye(4), torch.eye(7), torch.ones(3, 2)])
def test_groups_of_equal_distances_are_parted_in_order(values: torch.Tensor) -> None:
    clients = torch.arange(len(values))
    tree = candidate_groups(single_group(len(values)), clients, Rows(clients, values))
    assert tree is not None and len(tree) == 2 * len(values) - 1
    assert all(bool((tree.inside[node] <= tree.inside[tree.parents[node]]).all()) for node in range(1, len(tree)))


def test_who_is_in_no_group_inside_a_side_that_is_parted_waits() -> None:
    one = comparison(0.0, 0.9, confirmed=True, losses=(3.0, 2.0, 1.0))
    tree = candidate_groups(sides(False, False, False, True), torch.arange(4), PAIRS.at(torch.tensor([0, 2, 3])))
    assert tree is not None and members(tree) == [[0, 1, 2, 3], [0, 1, 2], [3], [0], [2]]
    errors = torch.where(tree.inside.T, 0.0, 0.9)
    fewer = replace(one, groups=tree, losses_by_share=one.losses_by_share[:, :5], errors=errors)
    found = decide(fewer)
    assert found.count == 3 and found.groups.tolist() == [0, -1, 1, 2]


def answers_of_all_models(ids: list[int], losses: list[list[float]]) -> Report:
    """Stand-ins evaluate the models of all groups; losses and error rates are the same numbers here."""
    measured = answer(ids, torch.zeros(len(ids), 0), losses=torch.tensor(losses))
    units = Rows(torch.tensor(ids), torch.full((len(ids), 1), 50.0))
    return Report(dict.fromkeys((_SIDE_TASK, _LOSS_TASK, _ERRORS_TASK), measured), client_stats={"units": units})


def test_a_stand_in_has_the_losses_of_its_own_side() -> None:
    """Client 7 is suited by the model of the first side, and client 8 by that of the second."""
    decision = Decision("groups_replicate")
    tree, models = sides(False, True), torch.zeros(3, 1)
    one = comparison_of(torch.tensor([0, 1]), tree, models, level=0.02, decision=decision, round=1)
    report = answers_of_all_models([7, 8], [[1.0, 0.5, 2.0], [1.0, 2.0, 0.5]])
    found = with_answers(replace(one, has_stand_ins=True), report, 2, torch.tensor([7, 8]))
    assert found is not None and found.clients.tolist() == [0, 1, 7, 8]
    assert found.groups.inside[:, 2:].tolist() == [[True, True], [True, False], [False, True]]
    nan = float("nan")
    expected = torch.tensor([[1.0, 0.5, nan], [1.0, nan, 0.5]])
    assert torch.allclose(found.losses_by_share[2:, :, 0], expected, equal_nan=True)
    assert torch.allclose(found.errors[2:], expected.clamp(max=1.0), equal_nan=True)


def test_stand_ins_of_another_cluster_take_no_part() -> None:
    """The tree of this cluster is finer than that of the other, whose stand-ins have evaluated three models."""
    one = comparison(0.1, 0.2, confirmed=True, losses=(1.0, 0.5, 0.5))
    report = answers_of_all_models([7, 8], [[1.0, 0.5, 2.0], [1.0, 2.0, 0.5]])
    found = with_answers(one, report, 5, torch.tensor([], dtype=torch.int64))
    assert found is not None and found.clients.tolist() == [0, 1, 2, 3]
