"""Two groups that differ in more than their class mixes: found where mixes hide them."""

import torch

from builders import layout_with
from fedstrata.algorithms.strata.class_mixes import sides_beyond_class_mixes
from fedstrata.core import Layout, Rows

CLASSES = 4
INPUTS = 30
LAYOUT = layout_with({"hidden.weight": (1, INPUTS), "head.weight": (CLASSES, 1), "head.bias": CLASSES})
GROUP = torch.tensor([0, 1] * 8).bool()
CLIENTS = torch.arange(16)


def updates(seed: int = 0) -> Rows:
    """Eight mixes, each of one client of both groups. The mix moves the bias, and the first layer most."""
    draw = torch.Generator().manual_seed(seed)
    mixes = torch.randn(8, CLASSES, generator=draw).repeat_interleave(2, dim=0)
    mixes -= mixes.mean(dim=1, keepdim=True)  # the shares of all classes have a constant sum
    by_mix = torch.randn(CLASSES, INPUTS, generator=draw)
    by_group = torch.randn(INPUTS, generator=draw)
    sign = GROUP[:, None].float() * 2 - 1
    first = 5 * mixes @ by_mix + sign * by_group + 0.1 * torch.randn(16, INPUTS, generator=draw)
    bias = mixes + 0.001 * torch.randn(16, CLASSES, generator=draw)
    return Rows(CLIENTS, torch.cat([first, torch.randn(16, CLASSES, generator=draw), bias], dim=1))


def test_groups_are_found_that_class_mixes_hide() -> None:
    sides = sides_beyond_class_mixes(LAYOUT, updates())
    assert sides is not None and torch.equal(sides, GROUP)
    first = updates().values[:, :INPUTS]
    axis = torch.linalg.svd(first - first.mean(dim=0)).U[:, 0] > 0
    assert not torch.equal(axis != axis[0], GROUP)


def test_the_first_client_is_on_the_first_side_whatever_the_order() -> None:
    order = CLIENTS.flip(0)
    sides = sides_beyond_class_mixes(LAYOUT, Rows(CLIENTS, updates().values[order]))
    assert sides is not None and torch.equal(sides, ~GROUP[order])


def test_three_components_need_twelve_clients() -> None:
    assert sides_beyond_class_mixes(LAYOUT, updates().at(CLIENTS[:12])) is not None
    assert sides_beyond_class_mixes(LAYOUT, updates().at(CLIENTS[:11])) is None


def test_a_bias_that_does_not_move_shows_no_mix_and_takes_nothing_out() -> None:
    values = updates().values.clone()
    values[:, -CLASSES:] = 0.0
    values[:, :INPUTS] = torch.where(GROUP[:, None], 1.0, -1.0)
    sides = sides_beyond_class_mixes(LAYOUT, Rows(CLIENTS, values))
    assert sides is not None and torch.equal(sides, GROUP)


def test_clients_whose_first_layer_moves_alike_have_no_sides() -> None:
    values = updates().values.clone()
    values[:, :INPUTS] = 1.0
    assert sides_beyond_class_mixes(LAYOUT, Rows(CLIENTS, values)) is None


def test_without_a_bias_in_the_last_layer_nothing_shows_the_mix() -> None:
    without = Layout(LAYOUT.tensors[:2])
    assert sides_beyond_class_mixes(without, Rows(CLIENTS, updates().values[:, : without.p])) is None
