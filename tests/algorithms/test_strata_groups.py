"""Groups inside a cluster: which are formed, who judges which models, and which are parted."""

from dataclasses import replace
from math import exp, log

import pytest
import torch

from fedstrata.algorithms.parts.strata.branches import Branches, forked, grown, rooted
from fedstrata.algorithms.parts.strata.parting import halved, parting
from fedstrata.algorithms.parts.strata.trial import Trial
from fedstrata.core import Decision, Rows


def rows(*values: list[float], ids: list[int] | None = None) -> Rows:
    return Rows(torch.tensor(ids or range(len(values))), torch.tensor(values))


def members(tree: Branches | None) -> list[list[int]]:
    assert tree is not None
    return [group.nonzero().flatten().tolist() for group in tree.inside]


def sides(*second: bool) -> Branches:
    """A proven split into two."""
    return forked(rooted(len(second)), 0, ~torch.tensor(second), torch.tensor(second))


PAIRS = rows([3.0, 0.1], [3.0, -0.1], [-3.0, 1.0], [-3.0, -1.2])


def test_average_linkage_parts_clients_from_the_top() -> None:
    tree = grown(torch.arange(4), None, PAIRS)
    assert tree is not None and not tree.proven
    assert members(tree) == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [0], [1]]  # the higher merge of two first
    assert tree.parents.tolist() == [-1, 0, 0, 2, 2, 1, 1]
    assert tree.children(0) == [1, 2] and tree.children(5) == []


def test_a_proven_split_comes_first_and_each_side_is_parted_by_itself() -> None:
    second = sides(False, True, False, True)
    tree = grown(torch.arange(4), second, PAIRS)
    assert members(tree)[:3] == [[0, 1, 2, 3], [0, 2], [1, 3]] and len(members(tree)) == 7
    assert members(grown(torch.arange(4), second, PAIRS, inside=False)) == [[0, 1, 2, 3], [0, 2], [1, 3]]


def test_proven_splits_inside_a_side_come_before_all_that_are_to_be_proven() -> None:
    """Clients 0 and 1, 2 and 3 are told apart from 4 and 5, and from each other."""
    six = rows([3.0, 0.1], [3.0, -0.1], [-3.0, 1.0], [-3.0, -1.2], [0.0, 9.0], [0.5, 9.0])
    pairs = torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1)
    proven = forked(sides(False, False, False, False, True, True), 1, pairs[0], pairs[1])
    assert members(proven)[3:] == [[0, 1], [2, 3]] and proven.parents.tolist() == [-1, 0, 0, 1, 1]
    tree = grown(torch.arange(6), proven, six)
    assert tree is not None and tree.proven == 2 and tree.unproven == 3 and members(tree)[:5] == members(proven)
    assert sorted(members(tree)[5:]) == [[0], [1], [2], [3], [4], [5]]
    assert tree.path(0) == [0, 1, 3, *sorted(members(tree).index([client]) for client in (0, 1))]
    assert [tree.known(node) for node in (1, 4, 5)] == [True, True, False]
    assert members(grown(torch.arange(6), proven, six.at(torch.tensor([0, 2, 4])), inside=False)) == members(proven)
    assert grown(torch.arange(6), proven, six.at(torch.tensor([0, 1, 4])), inside=False) is None


def test_a_client_judges_the_models_of_its_groups_and_what_is_to_be_proven_those_beside() -> None:
    tree = grown(torch.arange(4), sides(False, False, True, True), PAIRS)
    assert tree is not None and tree.path(0) == [0, 1, 3, 4]  # not the other side, of which it is proven
    assert replace(tree, proven=0).path(0) == [0, 1, 2, 3, 4]


def test_who_sent_nothing_is_on_a_side_and_in_no_group_inside_it() -> None:
    second = sides(False, False, False, True, True)
    some = rows([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0], ids=[4, 6, 8, 9])
    tree = grown(torch.tensor([4, 5, 6, 8, 9]), second, some)
    assert members(tree)[1:3] == [[0, 1, 2], [3, 4]]
    assert sorted(members(tree)[3:]) == [[0], [2], [3], [4]]


def test_nobody_is_parted_where_a_side_has_sent_nothing_or_one_client_is_alone() -> None:
    assert grown(torch.arange(3), sides(False, False, True), rows([1.0], [2.0])) is None
    assert grown(torch.tensor([7]), None, rows([1.0], ids=[7])) is None


def test_the_clearest_twenty_splits_of_many_clients_are_tried() -> None:
    many = Rows(torch.arange(60), torch.randn(60, 5, generator=torch.Generator().manual_seed(0)))
    tree = grown(torch.arange(60), None, many)
    assert tree is not None and len(tree) == 1 + 2 * 20
    assert all(int(tree.parents[node]) < node for node in range(len(tree)))


def test_a_tree_goes_on_without_clients_that_have_left_until_a_side_is_empty() -> None:
    tree = grown(torch.arange(4), None, PAIRS)
    assert tree is not None
    assert members(tree.only(torch.tensor([True, False, True, True])))[:3] == [[0, 1, 2], [0], [1, 2]]
    assert tree.only(torch.tensor([False, False, True, True])) is None


def trial(
    own: float, beside: float, *, proven: bool, losses: tuple[float, float, float], samples: float = 100
) -> Trial:
    """Two pairs; all err `own` by the model of their group, `beside` by another; loss of the root, a pair, a client."""
    tree = grown(torch.arange(4), sides(False, False, True, True) if proven else None, PAIRS)
    assert tree is not None
    errors = torch.where(tree.inside.T, own, beside).float()
    loss = torch.tensor([losses[0], *[losses[1]] * 2, *[losses[2]] * 4]).expand(4, 7).clone()
    each, decision = torch.full((4,), samples), Decision("proven" if proven else "")
    return Trial(torch.arange(4), tree, torch.zeros(7, 2), loss, errors, each, 0.05, decision, 4)


def test_groups_that_differ_and_whose_models_do_better_are_parted() -> None:
    """Lone clients: advantage 1, exp(-2 / (4 / 100 + 4 / 100)) of three splits."""
    found = parting(trial(0.0, 0.5, proven=False, losses=(3.0, 2.0, 1.0)), 5, benefit=True)
    assert found.count == 4 and sorted(found.groups.tolist()) == [0, 1, 2, 3]
    p = 3 * exp(-2 / (4 / 100 + 4 / 100))  # of the lone clients, the less sure ones
    assert found.decision.values == {"gain": pytest.approx(2.0), "p": pytest.approx(p), "level": 0.05}
    assert found.decision.why.startswith("round 5: the models of others suit them less (p = ")
    assert found.decision.why.endswith("; a model for each of 4 groups lowers the loss of their members: by 2 nats")


def test_groups_are_as_fine_as_pays() -> None:
    found = parting(trial(0.0, 0.5, proven=False, losses=(3.0, 1.0, 2.0)), 5, benefit=True)
    assert found.count == 2 and found.groups.tolist() == [0, 0, 1, 1]
    assert parting(trial(0.0, 0.5, proven=False, losses=(1.0, 2.0, 3.0)), 5, benefit=True).count == 1
    assert parting(trial(0.0, 0.5, proven=False, losses=(1.0, 2.0, 3.0)), 5, benefit=False).count == 4


def test_what_is_not_proven_stays_together_however_much_it_would_pay() -> None:
    found = parting(trial(0.2, 0.25, proven=False, losses=(3.0, 2.0, 1.0)), 5, benefit=True)
    assert found.count == 1 and found.decision.why == "not split: p = 1, level 0.05 in round 5"


def test_a_proven_split_needs_to_pay_and_the_groups_inside_it_a_proof() -> None:
    found = parting(trial(0.2, 0.25, proven=True, losses=(3.0, 2.0, 1.0)), 5, benefit=True)
    assert found.count == 2 and found.decision.why == (
        "proven; a model for each side lowers the loss of their members: by 1 nats"
    )
    found = parting(trial(0.0, 0.5, proven=True, losses=(3.0, 3.5, 4.0)), 5, benefit=True)
    assert found.count == 1 and "but a model for each side does not lower the loss" in found.decision.why


def test_what_is_proven_inside_a_side_needs_no_duel() -> None:
    one = torch.eye(4, dtype=torch.bool)
    tree = forked(sides(False, False, True, True), 1, one[0], one[1])
    found = trial(0.2, 0.25, proven=True, losses=(3.0, 2.0, 1.0))
    losses = torch.tensor([3.0, 2.0, 2.0, 1.0, 1.0]).expand(4, 5)
    made = parting(replace(found, groups=tree, losses=losses, errors=found.errors[:, :5]), 5, benefit=True)
    assert made.groups.tolist() == [0, 1, 2, 2]
    assert made.decision.why == "proven; a model for each of 3 groups lowers the loss of their members: by 1.5 nats"


def test_who_was_not_compared_inside_a_side_is_in_no_group_there() -> None:
    """Client 1 sent something, but moved in no layer: it has no vote."""
    one = torch.eye(5, dtype=torch.bool)
    proven = forked(sides(False, False, False, True, True), 1, one[0], one[2])
    five = rows([1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [2.0, 2.0])
    assert members(grown(torch.arange(5), proven, five))[3:] == [[0], [2], [3], [4]]


def test_a_proof_inside_a_group_does_not_part_the_group() -> None:
    """The models of the pairs suit all, though inside them each model suits its client alone."""
    one = trial(0.0, 0.9, proven=False, losses=(3.0, 2.0, 1.0))
    errors = one.errors.clone()
    errors[:, 1:3] = 0.0
    assert parting(replace(one, errors=errors), 5, benefit=True).count == 1


def test_who_sent_nothing_lends_its_loss_to_no_split() -> None:
    """All losses are equal; client 1 is in no group inside its side, which counts one more than its parts."""
    one = trial(0.0, 0.9, proven=True, losses=(1.0, 1.0, 1.0))
    tree = grown(torch.arange(4), sides(False, False, False, True), PAIRS.at(torch.tensor([0, 2, 3])))
    assert tree is not None
    errors = torch.where(tree.inside.T, 0.0, 0.9)
    found = parting(replace(one, groups=tree, losses=one.losses[:, :5], errors=errors), 5, benefit=True)
    assert found.count == 1 and found.decision.values["gain"] == 0


def test_a_trial_is_over_when_half_have_answered_and_someone_on_each_side() -> None:
    one = trial(0.0, 0.5, proven=True, losses=(3.0, 2.0, 1.0))
    for silent, over in (([3], True), ([0, 2], True), ([2, 3], False), ([0, 1, 2], False)):
        losses = one.losses.clone()
        losses[silent] = torch.nan
        assert replace(one, losses=losses).over is over


@pytest.mark.parametrize("values", [torch.eye(4), torch.eye(7), torch.ones(3, 2)])
def test_groups_of_equal_distances_are_parted_in_order(values: torch.Tensor) -> None:
    tree = grown(torch.arange(len(values)), None, Rows(torch.arange(len(values)), values))
    assert tree is not None and len(tree) == 2 * len(values) - 1
    assert all(bool((tree.inside[node] <= tree.inside[tree.parents[node]]).all()) for node in range(1, len(tree)))


def test_all_splits_share_the_level() -> None:
    """The least samples that prove one of three splits of pairs at 0.05 with an advantage of 1."""
    least = log(3 / 0.05) * 2
    assert (
        parting(trial(0.0, 0.5, proven=False, losses=(3.0, 1.0, 2.0), samples=least * 1.01), 5, benefit=True).count == 2
    )
    assert (
        parting(trial(0.0, 0.5, proven=False, losses=(3.0, 1.0, 2.0), samples=least * 0.99), 5, benefit=True).count == 1
    )


def test_who_is_in_no_group_inside_a_side_that_is_parted_waits() -> None:
    one = trial(0.0, 0.9, proven=True, losses=(3.0, 2.0, 1.0))
    tree = grown(torch.arange(4), sides(False, False, False, True), PAIRS.at(torch.tensor([0, 2, 3])))
    assert tree is not None and members(tree) == [[0, 1, 2, 3], [0, 1, 2], [3], [0], [2]]
    errors = torch.where(tree.inside.T, 0.0, 0.9)
    found = parting(replace(one, groups=tree, losses=one.losses[:, :5], errors=errors), 5, benefit=True)
    assert found.count == 3 and found.groups.tolist() == [0, -1, 1, 2]


def test_without_a_trial_there_are_the_two_sides_of_the_test() -> None:
    split = halved(torch.tensor([3, 5]), torch.tensor([False, True]), Decision("proven"))
    assert split.groups.tolist() == [0, 1] and split.count == 2 and split.decision.why == "proven"
