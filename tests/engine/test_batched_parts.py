"""What the batched engine is made of: who steps together, dropout by salt, recordings, samples near a device."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedstrata.core import empty_rows, rows
from fedstrata.engine.vectorized.batches import (
    arrange,
    epoch_steps,
    full_batches_and_rest,
    undo_arrange,
)
from fedstrata.engine.vectorized.network import (
    Dropout,
    Im2colConv2d,
    Network,
    vmappable_copy,
)
from fedstrata.models import layout_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

few = settings(deadline=None, max_examples=50)
lengths = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@few
@given(lengths, st.integers(0, 7), st.integers(1, 2))
def test_every_client_takes_its_own_batches_in_order_and_none_of_others(
    sizes: list[int], batch: int, least: int
) -> None:
    sizes = sorted(sizes, key=lambda size: full_batches_and_rest(size, batch), reverse=True)
    orders = [100 * client + torch.arange(size) for client, size in enumerate(sizes)]
    table = arrange(orders, batch)
    taken: list[list[list[int]]] = [[] for _ in sizes]
    for step in epoch_steps(sizes, batch, least):
        assert step.whole == (list(step.clients) == list(range(len(step.clients))))
        for client in step.clients:
            taken[client].append(table[client, step.column : step.column + step.size].tolist())
    for order, found in zip(orders, taken, strict=True):
        batches = [part.tolist() for part in order.split(batch or len(order))]
        assert found == [part for part in batches if len(part) >= least]
    edge = full_batches_and_rest(sizes[0], batch)[0] * batch
    for order, row in zip(orders, table, strict=True):
        assert torch.equal(undo_arrange(row, len(order), batch, edge), order)


def test_clients_with_fewer_batches_drop_out() -> None:
    found = [(list(step.clients), step.size) for step in epoch_steps([12, 10, 9, 7, 4], 5)]
    assert found == [([0, 1, 2, 3], 5), ([0, 1], 5), ([2, 4], 4), ([0, 3], 2)]  # 5+5+2, 5+5, 5+4, 5+2, 4


def salted(layer: nn.Module) -> Dropout:
    """A dropout of torch with masks that depend on a salt."""
    found = vmappable_copy(layer, im2col=False)
    assert isinstance(found, Dropout)
    return found


def dropped(layer: Dropout, salt: int, *shape: int) -> torch.Tensor:
    """Where a layer keeps values."""
    layer.salt.fill_(salt)
    found: torch.Tensor = layer.train()(torch.ones(shape))
    return found > 0


def test_masks_of_other_salts_and_of_the_next_call_are_independent() -> None:
    layer = salted(nn.Dropout(0.5))
    one, other = dropped(layer, 1, 400, 100), dropped(layer, 2, 400, 100)
    again = dropped(layer, 1, 400, 100)
    following = layer(torch.ones(400, 100)) > 0
    assert torch.equal(one, again)
    for mask in (other, following, one.roll(1, 0), one.roll(1, 1)):
        assert float((one == mask).float().mean()) == pytest.approx(0.5, abs=0.01)  # 4 standard deviations


def test_channelwise_dropout_drops_whole_channels() -> None:
    kept = dropped(salted(nn.Dropout2d(0.5)), 3, 20, 8, 5, 5).flatten(2)
    assert torch.equal(kept.all(dim=2), kept.any(dim=2)) and 40 < int(kept[:, :, 0].sum()) < 120


def test_only_plain_convolutions_become_products() -> None:
    kinds: list[dict[str, Any]] = [
        {"padding": 1, "stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
    ]
    convs = [nn.Conv2d(2, 4, 3, **kind) for kind in kinds]
    parametrised = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3))
    network = nn.Sequential(*convs, parametrised)
    found = vmappable_copy(network, im2col=True)
    assert [isinstance(layer, Im2colConv2d) for layer in found.children()] == [True, *[False] * 5]
    assert found.state_dict().keys() == network.state_dict().keys() and isinstance(network[0], nn.Conv2d)
    images = torch.randn(3, 2, 7, 9)
    torch.testing.assert_close(found.get_submodule("0")(images), network[0](images))


class Scaled(nn.Module):
    """A network that reads attributes of its layers, one of which has a hook and one a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.conv.register_forward_hook(lambda layer, given, found: found * 2)
        self.own = nn.Conv2d(4, 4, 3)
        self.own.forward = lambda input: input + 1  # type: ignore[method-assign]
        self.drop = nn.Dropout(0.5)
        self.drop.register_forward_hook(lambda layer, given, found: found - 7)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.drop(self.own(self.conv(images)))
        return found * (self.conv.out_channels - self.drop.p)


def test_layers_keep_their_attributes_hooks_and_own_functions() -> None:
    network = Scaled().eval()
    found, images = vmappable_copy(network, im2col=True), torch.randn(3, 2, 7, 9)
    assert isinstance(found.conv, Im2colConv2d) and isinstance(found.drop, Dropout)
    torch.testing.assert_close(found(images), (network.conv(images) + 1 - 7) * (4 - 0.5))


class OwnNorm(nn.Module):
    """A batch norm of the user's own."""

    running_var: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_var", torch.ones(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(images, torch.zeros(3), self.running_var, training=True)


def test_a_copy_of_a_norm_computes_with_its_own_tensors() -> None:
    found, images = vmappable_copy(nn.BatchNorm2d(3), im2col=True), torch.randn(4, 3, 2, 2)
    copy = deepcopy(found)
    nn.init.constant_(copy.get_parameter("weight"), 5.0)
    torch.testing.assert_close(copy(images), 5 * found(images))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True), OwnNorm()])
def test_norms_of_several_clients_are_computed_without_cudnn(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[bool]()
    for name in ("batch_norm", "instance_norm"):
        monkeypatch.setattr(nn.functional, name, lambda *_, **__: used.append(torch.backends.cudnn.enabled))
    vmappable_copy(norm, im2col=True)(torch.randn(4, 3, 2, 2))
    assert used == [False] and torch.backends.cudnn.enabled


def test_padded_products_are_those_of_images_with_a_margin_bit_for_bit() -> None:
    conv, images = nn.Conv2d(3, 4, 3, padding=(1, 2)), torch.randn(2, 3, 7, 9)
    bare = nn.Conv2d(3, 4, 3)
    bare.load_state_dict(conv.state_dict())
    padded, product = (vmappable_copy(layer, im2col=True) for layer in (conv, bare))
    assert torch.equal(padded(images), product(nn.functional.pad(images, (2, 2, 1, 1))))


def test_a_dropout_that_is_used_twice_has_one_salt() -> None:
    drop = nn.Dropout(0.5)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), drop, nn.Linear(4, 3), drop)
    found = vmappable_copy(network, im2col=False)
    assert isinstance(found.get_submodule("2"), Dropout) and found.get_submodule("2") is found.get_submodule("4")
    made = Network(network, layout_of(network), CPU, "float32", 1 << 20, False)
    assert made.salts == ["2.salt"]


def test_updates_that_do_not_fit_into_memory_are_not_pinned_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    room = empty_rows(2, 3, "cuda")  # without the device, pinning would fail
    assert room.shape == (2, 3) and not room.is_pinned()
