from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import deal_of, fit_of, plan_of
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from fedstrata.core import Evaluation, Report
from fedstrata.data import Dataset
from fedstrata.engine import Holdings, Loop
from fedstrata.engine.pooling import PooledConvolution, plain, pooled
from fedstrata.models import flatten, layout_of, load_row, make


def network(conv: nn.Module, pool: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(conv, nn.MaxPool2d(2) if pool is None else pool, nn.Flatten())


def one_step(module: nn.Module) -> bool:
    """Whether a network or its scorer has a convolution that is pooled as it is computed."""
    return any(isinstance(layer, PooledConvolution) for layer in module.modules())


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
    slow = network(nn.Conv2d(channels, units, kernel, padding=padding, bias=bias), nn.MaxPool2d((2, 2)))
    fast, images = pooled(slow), torch.randn(3, channels, *sides)
    assert one_step(fast) and not one_step(slow)
    for some in (images, images.double(), images[:0], images.mT):
        torch.testing.assert_close(fast.to(some.dtype)(some), slow.to(some.dtype)(some), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("channels", "units"), [(4, 8), (1, 1)])
def test_images_may_come_one_by_one(channels: int, units: int) -> None:
    slow = nn.Sequential(nn.Conv2d(channels, units, 3), nn.MaxPool2d(2))
    assert one_step(pooled(slow))
    torch.testing.assert_close(pooled(slow)(image := torch.randn(channels, 8, 8)), slow(image))


def test_by_hand() -> None:
    """Doubled: 2 8 | 6 6 above, 4 2 | 6 14 below."""
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(conv.weight, 2.0)
    images = torch.tensor([[1.0, 4.0, 3.0, 3.0], [2.0, 1.0, 3.0, 7.0]]).view(1, 1, 2, 4)
    assert pooled(network(conv))(images).tolist() == [[8.0, 14.0]]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("turned", [False, True])
def test_results_lie_in_memory_as_those_of_two_steps(channels: int, order: torch.memory_format, turned: bool) -> None:
    """Networks may view them in another shape, and later layers compute by the order that they find."""
    slow = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.MaxPool2d(2))
    images = torch.empty(2, channels, 8, 8, memory_format=order).normal_()
    images = images.mT if turned else images
    assert one_step(pooled(slow)) and pooled(slow)(images).stride() == slow(images).stride()


def test_so_they_do_where_the_kernel_lies_otherwise() -> None:
    conv = nn.Conv2d(3, 4, 3)
    conv.weight = nn.Parameter(conv.weight.contiguous(memory_format=torch.channels_last))
    slow, images = nn.Sequential(conv, nn.MaxPool2d(2)), torch.randn(2, 3, 8, 8)
    assert one_step(pooled(slow)) and pooled(slow)(images).stride() == slow(images).stride()


def hooked(layer: nn.Module, before: bool = False) -> nn.Module:
    (layer.register_forward_pre_hook if before else layer.register_forward_hook)(lambda *_: None)
    return layer


def replaced(layer: nn.Module, name: str = "forward") -> nn.Module:
    setattr(layer, name, getattr(layer, name))
    return layer


def conv(channels: int = 1, units: int = 2, **changes: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, units, 3, **changes)


class Own(nn.Conv2d):
    """It may compute what it likes."""


class OwnPool(nn.MaxPool2d):
    """So may this."""


class Piecewise(nn.Sequential):
    """Who else reads what its layers compute is not known."""


SHARED = nn.GELU()

STAY: dict[str, nn.Module] = {
    "more channels": network(conv(units=9)),
    "of more": network(conv(5)),
    "stride": network(conv(stride=2)),
    "groups": network(conv(2, groups=2)),
    "dilation": network(conv(dilation=2)),
    "reflected": network(conv(padding=1, padding_mode="reflect")),
    "same": network(conv(padding="same")),
    "parametrised": network(parametrizations.weight_norm(conv())),
    "normalised": network(spectral_norm(conv())),
    "pruned": network(prune.random_unstructured(conv(), "bias", 0.5)),
    "of its own kind": network(Own(1, 2, 3)),
    "pooled in a way of its own": network(conv(), OwnPool(2)),
    "three": network(conv(), nn.MaxPool2d(3, stride=2)),
    "overlapping": network(conv(), nn.MaxPool2d(2, stride=1)),
    "around": network(conv(), nn.MaxPool2d(2, padding=1)),
    "apart": network(conv(), nn.MaxPool2d(2, dilation=2)),
    "rounded up": network(conv(), nn.MaxPool2d(2, ceil_mode=True)),
    "with places": network(conv(), nn.MaxPool2d(2, return_indices=True)),
    "mean": network(conv(), nn.AvgPool2d(2)),
    "heard": network(hooked(conv())),
    "heard before": network(hooked(conv(), before=True)),
    "another forward": network(replaced(conv())),
    "another convolution": network(replaced(conv(), "_conv_forward")),
    "heard later": network(conv(), hooked(nn.MaxPool2d(2))),
    "heard outside": hooked(network(conv())),
    "piecewise": Piecewise(conv(), nn.MaxPool2d(2)),
    "inside": nn.Sequential(Piecewise(conv(), nn.MaxPool2d(2))),
    "a layer that is used twice between": nn.Sequential(conv(), SHARED, conv(2), SHARED, nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("kind", STAY)
def test_what_is_not_known_to_be_the_same_stays(kind: str) -> None:
    assert not one_step(pooled(STAY[kind]))


def test_sizes_may_be_lists() -> None:
    """Torch takes them, though they are not in its types."""
    sizes: Any = [2, 2]
    assert not one_step(pooled(network(conv(), nn.MaxPool2d(sizes))))


def test_a_scorer_has_the_layers_of_its_network() -> None:
    module = nn.Sequential(make("cifar_cnn", (3, 32, 32), 10, seed=0))
    scorer = pooled(module)
    kinds = [type(layer) for layer in scorer.get_submodule("0").children()]
    assert kinds[:3] == [PooledConvolution, nn.ReLU, nn.Conv2d]  # sixteen channels fill a vector
    images = torch.randn(2, 3, 32, 32)
    layout = layout_of(module)
    load_row(module, layout, 2 * flatten(module, layout))
    torch.testing.assert_close(scorer(images), module(images))


def test_a_convolution_with_a_tensor_that_is_computed_is_not_plain() -> None:
    assert plain(conv(stride=2, padding=1)) and plain(conv(bias=False))
    assert not plain(spectral_norm(conv())) and not plain(prune.random_unstructured(conv(), "bias", 0.5))


def test_clients_are_scored_as_by_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside layers that one step must not disturb, with weights so large that it would show."""
    steps = list[torch.Size]()
    step = PooledConvolution.forward

    def counted(self: PooledConvolution, images: torch.Tensor) -> torch.Tensor:
        steps.append(images.shape)
        return step(self, images)

    monkeypatch.setattr(PooledConvolution, "forward", counted)

    def answers() -> tuple[Report, torch.Tensor]:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.GELU(), nn.Dropout(0.5))
        module = nn.Sequential(body, nn.Flatten(), nn.Linear(36, 3))
        layout = layout_of(module)
        images = torch.randint(0, 256, (48, 3, 8, 8), dtype=torch.uint8)
        noise = Dataset("noise", images, torch.arange(48) % 3, 3, mean=(0.4,) * 3, std=(0.3,) * 3)
        engine = Loop(module, layout, Holdings(noise, deal_of([20, 20]), seed=0))
        row = 3 * flatten(module, layout)
        models = torch.stack([row, 0.5 * row])
        evaluation = Evaluation("own", torch.arange(2), torch.tensor([[0], [1]]), layout.nothing)
        report = engine.run(replace(plan_of(models, fit_of(layout, [[0, 1], [0, 1]])), evaluations=(evaluation,)))
        return report, engine.predict(models, torch.randn(2, 3, 8, 8))

    one, predicted = answers()
    # One model on each client's test data, both on its training data; then predictions by both.
    assert [shape[0] for shape in steps] == [4, 4, 20, 20, 20, 20, 2, 2]
    monkeypatch.setattr("fedstrata.engine.loop.pooled", lambda module: module)
    other, expected = answers()
    for found in ("given", "sizes"):
        assert torch.equal(getattr(one.results[0], found), getattr(other.results[0], found))
    assert torch.equal(one.results[0].updates.values, other.results[0].updates.values)
    torch.testing.assert_close(one.results[0].losses, other.results[0].losses)
    torch.testing.assert_close(one.scores[0].loss, other.scores[0].loss)
    assert torch.equal(one.scores[0].correct, other.scores[0].correct)
    torch.testing.assert_close(predicted, expected)
