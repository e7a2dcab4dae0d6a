from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import spectral_norm
from torch.nn.utils.parametrizations import weight_norm

from fedstrata.engine.convolutions import PooledConvolution, plain, pooled
from fedstrata.models import make


def network(conv: nn.Module, pool: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(conv, nn.MaxPool2d(2) if pool is None else pool, nn.Flatten())


def run(module: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Results, and the derivatives of a sum in which each has another weight."""
    images = images.clone().requires_grad_()
    found = module(images)
    weights = torch.linspace(1, 2, found.numel()).view_as(found)
    return found, *torch.autograd.grad((weights * found).sum(), [images, *module.parameters()])


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(6, 11), st.integers(6, 11)),
    st.booleans(),
)
def test_one_step_is_the_two(
    channels: int, units: int, kernel: tuple[int, int], padding: tuple[int, int], sides: tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    slow = network(nn.Conv2d(channels, units, kernel, padding=padding, bias=bias))
    fast = pooled(slow)
    assert isinstance(fast.get_submodule("0"), PooledConvolution)
    images = torch.randn(3, channels, *sides).contiguous(memory_format=torch.channels_last)
    for one, other in zip(run(fast, images), run(slow, images), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_by_hand() -> None:
    """Doubled: 2 8 | 6 6, below 4 2 | 6 6; of equals the first one counts."""
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(conv.weight, 2.0)
    images = torch.tensor([[1.0, 4.0, 3.0, 3.0], [2.0, 1.0, 3.0, 3.0]]).view(1, 1, 2, 4)
    found, of_images, of_weight = run(pooled(network(conv)), images)
    assert found.tolist() == [[8.0, 6.0]]
    # Weights are 1 and 2: 1 * 4 + 2 * 3 for the kernel, twice each for the pixels.
    assert of_weight.item() == 10 and of_images.view(2, 4).tolist() == [[0, 2, 4, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 1, 0), (3, 0, 3, 3), (2, 3, 3, 1), (1, 2, 0, 2)])
def test_equal_neighbours_are_preferred_as_by_max_pooling(order: tuple[int, ...]) -> None:
    conv = nn.Conv2d(1, 1, 1)
    images = torch.tensor(order, dtype=torch.float32).view(1, 1, 2, 2)
    assert all(map(torch.equal, run(pooled(network(conv)), images), run(network(conv), images)))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_results_lie_in_memory_as_those_of_two_steps(channels: int, order: torch.memory_format) -> None:
    """Networks may view them in another shape, and later layers compute by the order that they find."""
    slow = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2))
    images = torch.empty(2, channels, 8, 8, memory_format=order).normal_()
    assert pooled(slow)(images).stride() == slow(images).stride()


def test_only_the_tensors_that_move_have_gradients() -> None:
    conv = nn.Conv2d(1, 2, 3)
    conv.weight.requires_grad_(False)
    module = pooled(network(conv))
    module(torch.randn(2, 1, 8, 8)).sum().backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is not None] == ["0.bias"]


def test_in_other_precisions_the_two_steps_are_done() -> None:
    slow = network(nn.Conv2d(1, 2, 3))
    images = torch.randn(2, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pooled(slow)(images), slow(images))
    slow.double()
    assert torch.equal(pooled(slow)(images.double()), slow(images.double()))


STAY: dict[str, Any] = {
    "channels": (nn.Conv2d(1, 9, 3), None),
    "stride": (nn.Conv2d(1, 2, 3, stride=2), None),
    "groups": (nn.Conv2d(2, 2, 3, groups=2), None),
    "dilation": (nn.Conv2d(1, 2, 3, dilation=2), None),
    "reflected": (nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), None),
    "same": (nn.Conv2d(1, 2, 3, padding="same"), None),
    "parametrised": (weight_norm(nn.Conv2d(1, 2, 3)), None),
    "normalised": (spectral_norm(nn.Conv2d(1, 2, 3)), None),
    "kind": (type("Own", (nn.Conv2d,), {})(1, 2, 3), None),
    "three": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3)),
    "overlapping": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, stride=1)),
    "ceil": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)),
    "mean": (nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)),
    "places": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, return_indices=True)),
}


@pytest.mark.parametrize("kind", STAY)
def test_what_is_not_known_to_be_the_same_stays(kind: str) -> None:
    module = network(*STAY[kind])
    assert pooled(module) is module


def test_names_and_the_network_itself_stay() -> None:
    module = nn.Sequential(OrderedDict(body=make("cifar_cnn", (3, 32, 32), 10, seed=0)))
    fast = pooled(module)
    assert fast.state_dict().keys() == module.state_dict().keys()
    kinds = [type(each.get_submodule(f"body.conv{place}")) for each in (module, fast) for place in (1, 2)]
    assert kinds == [nn.Conv2d, nn.Conv2d, PooledConvolution, nn.Conv2d]  # sixteen channels fill a vector


def test_a_plain_convolution_has_a_weight_of_its_own() -> None:
    assert plain(nn.Conv2d(1, 2, 3, stride=2, padding=1))
    assert not plain(spectral_norm(nn.Conv2d(1, 2, 3)))
