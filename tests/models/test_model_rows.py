from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from fedstrata.base.errors import LayoutError, ModelError
from fedstrata.models import layout_of, light_copy, load_row, make, row_of


def small(name: str, seed: int) -> nn.Module:
    options = {"resnet18": {"width": 1 / 32}, "vgg11": {"width": 1 / 32, "batch_norm": True}}.get(name, {})
    return make(name, (3, 32, 32), 10, seed, **options)


def test_a_row_is_weight_before_bias_in_c_order() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Linear(2, 1))
    load_row(module, layout_of(module), torch.arange(8.0))
    found = [tensor.tolist() for tensor in module.parameters()]
    assert found == [[[[[0.0, 1.0], [2.0, 3.0]]]], [4.0], [[5.0, 6.0]], [7.0]]
    assert row_of(module, layout_of(module)).tolist() == list(range(8))


@pytest.mark.parametrize("name", ["cifar_cnn", "tsdp_cnn", "vgg11", "resnet18", "mlp"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_flatten_and_load_row_are_inverse_bit_for_bit(name: str, memory: torch.memory_format) -> None:
    source, target = small(name, 0), small(name, 1)
    target.to(memory_format=memory)  # type: ignore[call-overload]  # torch types only constants
    layout = layout_of(source)
    source(torch.randn(4, 3, 32, 32))  # moves the running statistics
    row = row_of(source, layout)
    load_row(target, layout, row)
    assert row.shape == (layout.p,)
    assert row.dtype == torch.float32
    assert torch.equal(row_of(target, layout), row)
    assert layout_of(target) == layout
    for (name, one), (_, other) in zip(source.named_parameters(), target.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    inputs = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(source.eval()(inputs), target.eval()(inputs))


def test_a_row_shares_no_memory_and_load_row_keeps_the_parameters() -> None:
    module = small("cifar_cnn", 0)
    layout, before = layout_of(module), list(module.parameters())
    row = row_of(module, layout)
    load_row(module, layout, torch.zeros(layout.p))
    assert row.abs().sum() > 0
    assert all(one is other for one, other in zip(before, module.parameters(), strict=True))
    assert not any(tensor.any() for tensor in before)
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in before)


def test_statistics_of_batch_norm_are_averaged_and_never_selected() -> None:
    layout = layout_of(small("resnet18", 0))
    statistics = [slot for slot in layout.tensors if slot.kind == "buffer"]
    assert len(statistics) == 2 * 20  # a mean and a variance for each of 20 normalisations
    assert {slot.name.rpartition(".")[2] for slot in statistics} == {"running_mean", "running_var"}
    for selector in ("conv", "linear", "head", "first_linear", "smallest_linear", "all", "*", "*.weight"):
        chosen = [slot for slot, one in zip(layout.tensors, layout.select(selector), strict=True) if one]
        assert {slot.kind for slot in chosen} <= {"conv", "linear"}
    for selector in ("norm1", "norm1.running_mean", "*running*"):
        with pytest.raises(LayoutError, match="matches no layer"):
            layout.select(selector)


def test_kinds_of_the_layers_of_pytorch() -> None:
    norms = (nn.GroupNorm(1, 2), nn.InstanceNorm1d(2, affine=True), nn.LayerNorm((2, 2)), nn.RMSNorm(2), nn.PReLU())
    modules: dict[str, tuple[nn.Module, ...]] = {
        "conv": (nn.ConvTranspose2d(1, 1, 2), nn.Conv3d(1, 1, 1)),
        "norm": norms,
        "linear": (nn.Embedding(3, 2), nn.LSTM(2, 2), nn.Bilinear(1, 1, 1)),
    }
    for kind, members in modules.items():
        for module in members:
            assert {slot.kind for slot in layout_of(module).tensors} == {kind}, module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 2))
        self.inner = nn.Linear(2, 2)
        self.outer = nn.Linear(2, 2)
        self.outer.weight = self.inner.weight
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("order", torch.tensor([1, 0]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def test_tied_parameters_appear_once_and_integer_or_passing_buffers_not_at_all() -> None:
    module = Tied()
    layout = layout_of(module)
    assert [(slot.name, slot.layer, slot.kind) for slot in layout.tensors] == [
        ("token", "token", "linear"),
        ("mean", "mean", "buffer"),
        ("inner.weight", "inner", "linear"),
        ("inner.bias", "inner", "linear"),
        ("outer.bias", "outer", "linear"),
    ]
    load_row(module, layout, torch.arange(12.0))
    assert module.outer.weight is module.inner.weight
    assert module.outer.weight.tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert module.mean.tolist() == [2.0, 3.0]


def test_a_buffer_that_is_not_finite_is_in_no_row_and_stays_as_it_is() -> None:
    """-inf - (-inf) is no number: the updates of all clients would be rejected for the mask of causal attention."""
    module = nn.Linear(2, 2)
    mask = torch.full((2, 2), -torch.inf).triu(1)
    module.register_buffer("mask", mask.clone())
    module.register_buffer("scale", torch.ones(1))
    layout = layout_of(module)
    assert [slot.name for slot in layout.tensors] == ["weight", "bias", "scale"]
    load_row(module, layout, torch.zeros(layout.p))
    assert torch.equal(module.get_buffer("mask"), mask) and not row_of(module, layout).any()


def test_frozen_tensors_are_in_no_row_and_known_by_their_digest() -> None:
    frozen = nn.Linear(3, 2).requires_grad_(False)
    frozen.register_buffer("table", torch.ones(2))
    norm = nn.BatchNorm1d(2).requires_grad_(False)
    module = nn.Sequential(frozen, norm, nn.Linear(2, 1))
    layout = layout_of(module)
    # Running statistics move whatever is frozen.
    assert [slot.name for slot in layout.tensors] == ["1.running_mean", "1.running_var", "2.weight", "2.bias"]
    assert layout.p == 2 + 2 + 2 + 1 and layout.layers == ("2",)
    load_row(module, layout, torch.arange(7.0))
    assert layout_of(module) == layout
    for tensor in (frozen.weight, frozen.get_buffer("table"), norm.bias):
        tensor.data.view(-1)[1] += 1
        changed = layout_of(module)
        assert changed.tensors == layout.tensors and changed.frozen != layout.frozen
        layout = changed


def test_a_light_copy_shares_the_memory_of_frozen_parameters_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    twin = light_copy(module)
    pairs = list(zip(module.parameters(), twin.parameters(), strict=True))
    assert [one.data_ptr() == other.data_ptr() for one, other in pairs] == [True, True, False, False]
    assert layout_of(twin) == layout_of(module)
    assert all(one is not other for one, other in pairs)  # one may come to another device


@pytest.mark.parametrize("normalised", [weight_norm, spectral_norm, orthogonal])
def test_a_layer_with_normalised_weights_has_its_kind(normalised: Callable[[nn.Module], nn.Module]) -> None:
    module = nn.Sequential(normalised(nn.Conv2d(1, 4, 1)), nn.BatchNorm1d(3), normalised(nn.Linear(3, 2)))
    layout = layout_of(module)
    assert layout.layers == ("0", "2")
    assert {slot.kind for slot in layout.tensors if slot.layer == "0"} - {"buffer"} == {"conv"}
    load_row(module, layout, 2 * row_of(module, layout))
    head = {slot.layer for slot, chosen in zip(layout.tensors, layout.select("head"), strict=True) if chosen}
    assert head == {"2"}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(), "Flatten has no parameters"),
        (nn.BatchNorm1d(2, affine=False), "BatchNorm1d has no parameters"),
        (nn.Sequential(nn.BatchNorm1d(2, momentum=None)), "momentum=None"),
        (nn.Linear(1, 1, dtype=torch.complex64), "parameter weight is torch.complex64"),
        (nn.Linear(1, 1).requires_grad_(False), "Linear has no parameter that is trained"),
    ],
)
def test_networks_that_have_no_row_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        layout_of(module)
