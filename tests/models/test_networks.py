from math import prod

import pytest
import torch
from torch import nn

from fedstrata.models import layout_of, make

MNIST, CIFAR, WINDOW, DIGITS = (1, 28, 28), (3, 32, 32), (6, 128), (1, 8, 8)


def parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def weights(module: nn.Module) -> dict[str, int]:
    """Weights without biases of each conv and linear layer, as the papers' tables count them."""
    slots = layout_of(module).tensors
    return {slot.layer: prod(slot.shape) for slot in slots if slot.name.endswith(".weight") and slot.kind != "norm"}


@pytest.mark.parametrize(
    ("name", "shape", "expected", "total"),
    [
        ("mnist_cnn", MNIST, {"conv1": 500, "conv2": 25000, "linear": 8000}, 33580),
        ("fmnist_cnn", MNIST, {"conv1": 400, "conv2": 12800, "linear": 5120}, 18378),
        ("cifar_cnn", CIFAR, {"conv1": 450, "conv2": 2400, "linear": 4000}, 6882),
    ],
)
def test_small_cnns_have_the_weights_of_the_papers_tables(
    name: str, shape: tuple[int, ...], expected: dict[str, int], total: int
) -> None:
    module = make(name, shape, 10, seed=0)
    assert weights(module) == expected
    assert parameters(module) == total


@pytest.mark.parametrize(
    ("name", "shape", "units"),
    [("mnist_cnn", MNIST, 50 * 4 * 4), ("fmnist_cnn", MNIST, 32 * 4 * 4), ("cifar_cnn", CIFAR, 16 * 5 * 5)],
)
def test_a_hidden_layer_of_100_makes_the_two_linear_layers_of_adacfls_table_5(
    name: str, shape: tuple[int, ...], units: int
) -> None:
    """Units times 100, and 100 times 10 classes; the table's 8,000 and 4,000 for the second fit no one width."""
    module = make(name, shape, 10, seed=0, hidden=100)
    found = weights(module)
    assert list(found) == ["conv1", "conv2", "linear1", "linear2"]
    assert (found["linear1"], found["linear2"]) == (units * 100, 1000)
    plain = make(name, shape, 10, seed=0)
    assert torch.equal(module.get_parameter("conv2.weight"), plain.get_parameter("conv2.weight"))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "total", "layers"),
    [
        ("tsdp_cnn", CIFAR, 10, {}, 6447562, "conv1 conv2 linear1 linear2"),
        ("tsdp_cnn", CIFAR, 10, {"pool": "each"}, 1204682, "conv1 conv2 linear1 linear2"),
        ("har_cnn", WINDOW, 12, {}, 131820, "conv1 conv2 conv3 linear1 linear2"),
        ("mlp", DIGITS, 10, {}, 64 * 64 + 64 + 64 * 10 + 10, "linear1 linear2"),
        ("mlp", DIGITS, 10, {"hidden": [32, 16]}, 65 * 32 + 33 * 16 + 17 * 10, "linear1 linear2 linear3"),
        ("logistic", (7,), 2, {}, 16, "linear1"),
    ],
)
def test_networks_have_these_parameters_and_layers(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, object], total: int, layers: str
) -> None:
    module = make(name, shape, classes, seed=0, **options)
    assert parameters(module) == total
    assert layout_of(module).layers == tuple(layers.split())


def test_tsdp_cnn_has_eight_tensors_and_the_papers_dropouts() -> None:
    module = make("tsdp_cnn", CIFAR, 10, seed=0, pool="each")
    assert len(layout_of(module).tensors) == 8
    assert [part.p for part in module.modules() if isinstance(part, nn.Dropout)] == [0.25, 0.5]


def test_vgg16_is_layercfls() -> None:
    module = make("vgg16", CIFAR, 10, seed=0)
    layout = layout_of(module)
    assert parameters(module) == layout.p == 15245130
    assert layout.layers == tuple([f"conv{i}" for i in range(1, 14)] + [f"linear{i}" for i in (1, 2, 3)])
    assert len(layout.columns(layout.select("conv4"))) == 147584
    assert layout.layers.index("linear1") + 1 == 14


def test_batch_norm_of_vgg_follows_each_convolution_and_replaces_its_bias() -> None:
    layout = layout_of(make("vgg11", CIFAR, 10, seed=0, width=1 / 64, batch_norm=True))
    names = "conv1.weight norm1.weight norm1.bias norm1.running_mean norm1.running_var conv2.weight"
    assert [slot.name for slot in layout.tensors[:6]] == names.split()


def test_resnet18_is_the_usual_one_for_small_images() -> None:
    module = make("resnet18", CIFAR, 10, seed=0)
    layout = layout_of(module)
    assert parameters(module) == 11173962
    assert layout.layers[:5] == ("conv1", "block1.conv1", "block1.conv2", "block2.conv1", "block2.conv2")
    assert layout.layers[5:8] == ("block3.conv1", "block3.conv2", "block3.shortcut.conv")
    assert len(layout.layers) == 1 + 16 + 3 + 1
    assert sum(layout.select("block3.*")) == 3


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("cifar_cnn", CIFAR, {}), ("vgg11", CIFAR, {"width": 1 / 64}), ("resnet18", CIFAR, {"width": 1 / 64})],
)
def test_forward_order_is_registration_order(name: str, shape: tuple[int, ...], options: dict[str, float]) -> None:
    module = make(name, shape, 10, seed=0, **options).eval()
    layers, ran = layout_of(module).layers, []
    for layer in layers:
        module.get_submodule(layer).register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    module(torch.zeros(1, *shape))
    assert tuple(ran) == layers
