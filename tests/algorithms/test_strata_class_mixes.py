"""Two groups that differ in more than their class mixes: found where mixes hide them."""

import torch

from fedstrata.algorithms.strata.class_mixes import sides_beyond_class_mixes
from fedstrata.core import Layout, Rows, TensorSpec

CLASSES = 4
INPUTS = 30
LAYOUT = Layout(
    (
        TensorSpec("hidden.weight", "hidden", "linear", (1, INPUTS)),
        TensorSpec("head.weight", "head", "linear", (CLASSES, 1)),
        TensorSpec("head.bias", "head", "linear", (CLASSES,)),
    )
)
GROUP = torch.tensor([0, 1] * 8).bool()
CLIENTS = torch.arange(16)


def folds(seed: int = 0) -> list[Rows]:
    """Eight mixes, each of one client of both groups. The bias moves by the mix, and the first layer mostly by it too.

    Both folds have the same mixes and their own noise.
    """
    draw = torch.Generator().manual_seed(seed)
    mixes = torch.randn(8, CLASSES, generator=draw).repeat_interleave(2, dim=0)
    mixes -= mixes.mean(dim=1, keepdim=True)  # the shares of all classes have a constant sum
    by_mix = torch.randn(CLASSES, INPUTS, generator=draw)
    by_group = torch.randn(INPUTS, generator=draw)
    sign = GROUP[:, None].float() * 2 - 1
    sent = []
    for _ in range(2):
        first = 5 * mixes @ by_mix + sign * by_group + 0.1 * torch.randn(16, INPUTS, generator=draw)
        bias = mixes + 0.001 * torch.randn(16, CLASSES, generator=draw)
        sent.append(Rows(CLIENTS, torch.cat([first, torch.randn(16, CLASSES, generator=draw), bias], dim=1)))
    return sent


def test_groups_are_found_that_class_mixes_hide() -> None:
    sides = sides_beyond_class_mixes(LAYOUT, folds(), CLIENTS)
    assert sides is not None and torch.equal(sides, GROUP)
    first = folds()[0].values[:, :INPUTS]
    axis = torch.pca_lowrank(first, q=1, niter=50)[0][:, 0] > 0
    assert not torch.equal(axis != axis[0], GROUP)


def test_the_first_client_is_on_the_first_side_whatever_the_order() -> None:
    order = CLIENTS.flip(0)
    sent = [Rows(CLIENTS, fold.values[order]) for fold in folds()]
    sides = sides_beyond_class_mixes(LAYOUT, sent, CLIENTS)
    assert sides is not None and torch.equal(sides, ~GROUP[order])


def test_three_components_need_twelve_clients() -> None:
    assert sides_beyond_class_mixes(LAYOUT, folds(), CLIENTS[:12]) is not None
    assert sides_beyond_class_mixes(LAYOUT, folds(), CLIENTS[:11]) is None


def test_whoever_has_not_sent_every_fold_leaves_no_sides() -> None:
    first, second = folds()
    assert sides_beyond_class_mixes(LAYOUT, [first, second.at(CLIENTS[:15])], CLIENTS) is None


def test_without_a_bias_in_the_last_layer_nothing_shows_the_mix() -> None:
    without = Layout(LAYOUT.tensors[:2])
    sent = [Rows(CLIENTS, fold.values[:, : without.p]) for fold in folds()]
    assert sides_beyond_class_mixes(without, sent, CLIENTS) is None
