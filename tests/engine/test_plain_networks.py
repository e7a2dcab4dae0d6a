"""What is computed without autograd is what autograd computes, and everything else is left to it."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from small import RECIPES, fit_of, loop_of, updates_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.core import Layout, LocalTraining
from fedstrata.engine import Loop, loop
from fedstrata.engine.plain_networks import PlainNetwork, plain_network
from fedstrata.models import make
from fedstrata.objective import Objective

SHAPES = {"grey": (1, 6, 6), "colour": (3, 4, 4), "row": (30,)}


def mlp(inputs: int, *hidden: int, classes: int = 3, bias: bool = True) -> nn.Sequential:
    """A perceptron that begins with flattening."""
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(inputs, units, bias), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, classes, bias))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "one linear layer": lambda inputs: mlp(inputs),
    "one hidden layer": lambda inputs: mlp(inputs, 64),
    "two hidden layers": lambda inputs: mlp(inputs, 200, 200, classes=10),
    "without biases": lambda inputs: mlp(inputs, 16, 5, bias=False),
    "one class": lambda inputs: mlp(inputs, 7, classes=1),
    "sequences in a sequence": lambda inputs: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(inputs, 8), nn.ReLU()), nn.Sequential(nn.Sequential(nn.Linear(8, 3)))
    ),
    "a ReLU in place, and another one": lambda inputs: nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(inplace=True), nn.ReLU(), nn.Linear(8, 4)
    ),
    "no ReLU between": lambda inputs: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Linear(8, 3)),
    "a ReLU at the end": lambda inputs: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 3), nn.ReLU()),
    "the library's": lambda inputs: make("mlp", (inputs,), classes=3, seed=0),
}


def batch_of(module: nn.Module, shape: tuple[int, ...], samples: int) -> tuple[Tensor, Tensor]:
    """Random inputs, images with their channels last in memory as the engine has them, and classes."""
    inputs = torch.randn(samples, *shape)
    if len(shape) == 3:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    classes = module(inputs).shape[1]
    return inputs, torch.arange(samples) % classes


def by_autograd(module: nn.Module, moving: list[Tensor], inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """The gradients as autograd computes them."""
    return torch.autograd.grad(cross_entropy(module(inputs), targets), moving)


def plain_of(module: nn.Module, moving: list[Tensor]) -> PlainNetwork:
    """The network without autograd."""
    plain = plain_network(module, moving)
    assert plain is not None
    return plain


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Compare bits, and how they lie in memory: an optimiser may read them in that order."""
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("samples", [1, 3, 10, 50])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_have_the_bits_of_autograd(name: str, shape: tuple[int, ...], samples: int) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name](torch.Size(shape).numel())
    moving: list[Tensor] = list(module.parameters())
    inputs, targets = batch_of(module, shape, samples)
    plain = plain_of(module, moving)
    assert plain.reads(inputs, targets)
    assert_same(plain.gradients(inputs, targets), by_autograd(module, moving, inputs, targets))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("samples", [1, 10])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_sgd_is_the_one_along_the_gradients(name: str, samples: int, decay: float) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name](36)
    moving: list[Tensor] = list(module.parameters())
    inputs, targets = batch_of(module, SHAPES["grey"], samples)
    gradients = by_autograd(module, moving, inputs, targets)
    expected = [
        (one - 0.5 * (gradient + decay * one)).detach() for one, gradient in zip(moving, gradients, strict=True)
    ]
    plain_of(module, moving).descend(inputs, targets, 0.5, decay)
    torch.testing.assert_close([one.detach() for one in moving], expected, rtol=1e-5, atol=1e-7)


def test_a_step_of_sgd_by_hand() -> None:
    # Two classes of the logits 0 and 0 have the probabilities 1/2; the gradient for the logits is (-1/2, 1/2).
    module = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    plain_of(module, list(module.parameters())).descend(torch.tensor([[2.0, 4.0]]), torch.tensor([0]), 0.1, 0.0)
    weight, bias = module.parameters()
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.1, 0.2], [-0.1, -0.2]]))
    torch.testing.assert_close(bias.detach(), torch.tensor([0.05, -0.05]))


def test_where_some_tensors_stay_autograd_finds_the_gradients_of_the_others() -> None:
    module = mlp(36, 12, 7)
    assert plain_network(module, list(module.parameters())[2:]) is None


def test_a_plain_network_has_the_values_that_its_module_has_by_then() -> None:
    module = mlp(30, 8)
    moving: list[Tensor] = list(module.parameters())
    plain = plain_of(module, moving)
    inputs, targets = batch_of(module, (30,), 4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    assert_same(plain.gradients(inputs, targets), by_autograd(module, moving, inputs, targets))


def test_numbers_that_are_not_finite_pass_as_they_do_in_autograd() -> None:
    module = mlp(30, 8)
    moving: list[Tensor] = list(module.parameters())
    inputs, targets = batch_of(module, (30,), 4)
    inputs[1, 3] = torch.inf
    inputs[2, 4] = torch.nan
    found = plain_of(module, moving).gradients(inputs, targets)
    for one, other in zip(found, by_autograd(module, moving, inputs, targets), strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


class Doubled(nn.Sequential):
    """A sequence that does more than its layers."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Twice the outputs."""
        for layer in self:
            inputs = layer(inputs)
        return 2 * inputs


def changed(change: Callable[[nn.Sequential], object], *units: int) -> Callable[[], nn.Module]:
    """A perceptron of 36 inputs, or of other units, in which something was changed."""

    def make() -> nn.Module:
        module = mlp(*(units or (36, 8)))
        change(module)
        return module

    return make


SHARED = nn.Linear(8, 8)

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)),
    "BatchNorm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "a ReLU first": lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(36, 3)),
    "flattening later": lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten(), nn.Linear(12, 3)),
    "other flattening": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(36, 3)),
    "a hidden layer of one unit": lambda: mlp(36, 1),
    "layers that do not fit": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(7, 3)),
    "a layer twice": lambda: nn.Sequential(SHARED, nn.ReLU(), SHARED),
    "tied weights": changed(lambda module: setattr(module[3], "weight", module[1].weight), 8, 8, 8),
    "columns first": changed(lambda module: setattr(module[1], "weight", nn.Parameter(torch.randn(36, 8).t()))),
    "double precision": lambda: mlp(36, 8).double(),
    "a module of the user's own": lambda: Doubled(nn.Flatten(), nn.Linear(36, 3)),
    "a method of its own": changed(lambda module: setattr(module[1], "forward", lambda inputs: 2 * inputs)),
    "weights from others": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(36, 3))),
    "no sequence": lambda: nn.LSTM(4, 3),
    "a hook forward": changed(lambda module: module[2].register_forward_hook(print)),
    "a hook before": changed(lambda module: module[2].register_forward_pre_hook(print)),
    "a hook backward": changed(lambda module: module[2].register_full_backward_hook(print)),
    "a hook at a tensor": changed(lambda module: module.get_parameter("1.weight").register_hook(print)),
    "a tensor outside the layers": changed(
        lambda module: module.register_parameter("scale", nn.Parameter(torch.ones(1)))
    ),
    "no layers": lambda: nn.Sequential(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_left_to_autograd(name: str) -> None:
    module = OTHERS[name]()
    assert plain_network(module, list(module.parameters())) is None


def engine_of(**options: object) -> tuple[Loop, Layout, Tensor]:
    """An engine with clients of 12 and 9 samples, its layout, and the row from which they start."""
    torch.manual_seed(2)
    module = nn.Sequential(OrderedDict(flat=nn.Flatten(), fc1=nn.Linear(36, 10), relu=nn.ReLU(), fc2=nn.Linear(10, 3)))
    return loop_of([12, 9], module=module, **options)  # type: ignore[arg-type]  # the options are mixed


@pytest.mark.parametrize("prox", [0.0, 0.5])
@pytest.mark.parametrize(
    "trainable", [(True, True, True, True), (False, False, True, True), (True, False, False, True)]
)
@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
def test_the_loop_trains_what_autograd_leads_to(
    training: LocalTraining, trainable: tuple[bool, ...], prox: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    for find in (plain_network, lambda module, moving: None):
        monkeypatch.setattr(loop, "plain_network", find)
        engine, layout, start = engine_of()
        task = fit_of(layout, [[0], [0]], training=training, trainable=trainable, prox_weight=prox)
        moved.append(updates_of(engine, start, task))
    if training.plain_sgd and not prox:
        # A product that is written straight into the weights is rounded once less.
        torch.testing.assert_close(*moved, rtol=1e-5, atol=1e-7)
    else:
        assert torch.equal(*moved)
    assert moved[0].abs().max() > 0


class Used(Exception):
    """Gradients were computed without autograd."""


def refuse(*given: object) -> None:
    """Say that this was called."""
    raise Used


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of the user's own."""
    return (outputs.flatten(0, -2)[torch.arange(len(targets)), targets] - 1).square().mean()


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({}, True),
        ({"objective": Objective(transform="noise")}, True),
        ({"objective": Objective(loss=f"{__name__}:squared")}, False),
        ({"precision": "bfloat16"}, False),
    ],
    ids=["cross-entropy", "a transform", "another loss", "bfloat16"],
)
def test_the_loop_computes_without_autograd_what_is_plain(
    options: dict[str, object], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("gradients", "descend"):
        monkeypatch.setattr(PlainNetwork, way, refuse)
    for recipe in ("sgd", "momentum"):
        engine, layout, start = engine_of(**options)
        with pytest.raises(Used) if used else nullcontext():
            assert updates_of(engine, start, fit_of(layout, [[0], [0]], training=RECIPES[recipe])).any()
