"""Candidate groups: the clearest split of everyone, and the clearest inside each side."""

from dataclasses import replace

import pytest
import torch

from fedstrata.algorithms.strata.candidates import GroupTree, candidate_groups, clearest_layer, similarities
from fedstrata.core import Rows
from fedstrata.testing import toy_layout

LAYOUT = toy_layout(conv=2, linear=1)
# Two and two of four pairs are alike: by the first column, and inside these by the second.
FOUR_PAIRS = [[5.0, 1.0, 0.1], [5.0, 1.0, -0.1], [5.0, -1.0, 0.1], [5.0, -1.0, -0.1]]
UPDATES = torch.tensor([*FOUR_PAIRS, *([-x, y, z] for x, y, z in FOUR_PAIRS)])


def sent(updates: torch.Tensor) -> Rows:
    return Rows(torch.arange(len(updates)), updates)


def members(tree: GroupTree) -> list[list[int]]:
    return [inside.nonzero().flatten().tolist() for inside in tree.inside]


def test_similarities_are_cosines_of_the_updates_without_their_mean_in_each_layer() -> None:
    updates = torch.tensor([[10.0, 1.0, 2.0], [10.0, -1.0, 2.0], [10.0, 1.0, -1.0], [10.0, -1.0, -3.0]])
    by_layer = similarities(LAYOUT, updates)
    assert list(by_layer) == ["conv", "fc", "all"]
    assert by_layer["conv"][0].tolist() == pytest.approx([1, -1, 1, -1])
    assert by_layer["fc"][0].tolist() == pytest.approx([1, 1, -1, -1])
    # Without their mean, (10, 0, 0), the first is (0, 1, 2) and the second (0, -1, 2): (-1 + 4) / 5.
    assert float(by_layer["all"][0, 1]) == pytest.approx(0.6)
    only = replace(LAYOUT, tensors=LAYOUT.tensors[:1])
    assert list(similarities(only, updates[:, :2])) == ["conv"]


def test_everyone_is_split_by_what_differs_most_and_each_side_by_what_differs_inside_it() -> None:
    tree = candidate_groups(LAYOUT, sent(UPDATES))
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert members(tree) == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [2, 3], [4, 5], [6, 7]]
    assert [tree.children(node) for node in range(4)] == [[1, 2], [3, 4], [5, 6], []]


def test_the_sides_alone_may_be_asked_for() -> None:
    tree = candidate_groups(LAYOUT, sent(UPDATES), inside_sides=False)
    assert members(tree) == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_side_of_fewer_than_four_clients_is_not_split() -> None:
    updates = torch.tensor([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0], [1.1, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    assert members(candidate_groups(LAYOUT, sent(updates))) == [[0, 1, 2, 3], [0, 1, 2], [3]]
    more = torch.cat([updates, torch.tensor([[0.9, 0.2, 0.0]])])
    tree = candidate_groups(LAYOUT, sent(more))
    assert members(tree)[:3] == [[0, 1, 2, 3, 4], [0, 1, 2, 4], [3]] and len(tree.children(1)) == 2


@pytest.mark.parametrize("seed", range(10))
def test_which_id_a_client_has_does_not_matter(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    updates = torch.randn(9, LAYOUT.p, generator=draw)
    order = torch.randperm(9, generator=draw)
    moved = [sorted(order[inside].tolist()) for inside in candidate_groups(LAYOUT, sent(updates[order])).inside]
    assert sorted(moved) == sorted(members(candidate_groups(LAYOUT, sent(updates))))


def test_others_go_down_the_tree_to_the_model_of_lower_loss() -> None:
    tree = candidate_groups(LAYOUT, sent(UPDATES))
    losses = torch.tensor(
        [
            [0.0, 1.0, 2.0, 5.0, 4.0, 0.0, 0.0],  # on the first side, and there in the second group
            [0.0, 2.0, 1.0, 0.0, 0.0, 4.0, 5.0],  # on the second side, and there in the first group
            [0.0, 1.0, 1.0, 2.0, 2.0, 0.0, 0.0],  # the first of two equal ones
        ]
    )
    placed = tree.placed(losses)
    assert [placed[:, client].nonzero().flatten().tolist() for client in range(3)] == [[0, 1, 4], [0, 2, 5], [0, 1, 3]]


def test_the_layer_that_a_decision_names_is_where_the_sides_differ_most_and_never_all_of_them() -> None:
    second = torch.tensor([False, False, True, True])
    apart = torch.tensor(
        [[1.0, 1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [-1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]]
    )
    assert clearest_layer({"conv": apart * 0.1, "fc": apart * 0.5, "all": apart}, second) == "fc"
    assert clearest_layer({"conv": apart}, second) == "conv"


@pytest.mark.filterwarnings("error")
def test_a_frozen_layer_is_not_named() -> None:
    frozen = UPDATES.clone()
    frozen[:, 2] = 0.0
    by_layer = similarities(LAYOUT, frozen)
    assert clearest_layer(by_layer, candidate_groups(LAYOUT, sent(frozen)).inside[2]) == "conv"
    frozen = UPDATES.clone()
    frozen[:, :2] = 0.0
    by_layer = similarities(LAYOUT, frozen)
    assert clearest_layer(by_layer, candidate_groups(LAYOUT, sent(frozen)).inside[2]) == "fc"
