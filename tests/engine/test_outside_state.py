"""Networks that keep more than a row has: what one client leaves in them is not there for the next."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from small import dataset, fit_of, partition_of, plan_of
from torch import Tensor, nn

from fedstrata.base.errors import UserCodeError
from fedstrata.engine import Loop, SimulationSpec
from fedstrata.engine.outside_state import OutsideState
from fedstrata.engine.vectorized import why_not_vectorized
from fedstrata.models import layout_of, row_of


class Remembering(nn.Module):
    """It scales by a number that grows with every batch that it is trained on, and that no row has.

    Args:
        grow: Where the number is kept, and how it grows.
    """

    scale: Tensor

    def __init__(self, grow: Callable[[Any], float | Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.steps, self.seen, self.grow = 0, list[int](), grow

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.linear(images.flatten(1)) * (self.grow(self) if self.training else 1.0)
        return found


def assigned(network: Any) -> Tensor:
    network.scale = network.scale + 0.5
    return network.scale  # type: ignore[no-any-return]


def in_place(network: Any) -> Tensor:
    return network.scale.add_(0.5)  # type: ignore[no-any-return]


def attribute(network: Any) -> float:
    network.steps += 1
    return 1 + float(network.steps) / 2


def in_list(network: Any) -> float:
    network.seen.append(1)
    return 1 + len(network.seen) / 2


def added_later(network: Any) -> Tensor:
    network.last = getattr(network, "last", torch.ones(1)) + 0.5
    return network.last  # type: ignore[no-any-return]


KINDS = {
    assigned: "found one that it assigns: scale",
    in_place: "found that it changes scale",
    attribute: "found that it changes steps",
    in_list: "found that it changes seen",
    added_later: "found that it changes last",
}
"""What a network does, and why it is not computed for several clients at once."""


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind()


def spec_of(kind: Callable[[], nn.Module]) -> SimulationSpec:
    return SimulationSpec(partial(made, kind), dataset(60), partition_of([12, 12, 12]), 0)


def update_of_last(kind: Callable[[], nn.Module], cohort: list[int]) -> Tensor:
    layout = layout_of(made(kind))
    task = fit_of(layout, [[0]] * len(cohort))
    plan = plan_of(row_of(made(kind), layout)[None], task, cohort=cohort)
    return Loop.at(spec_of(kind)).run(plan).results["train"].updates.of(torch.tensor(cohort[-1:]))


@pytest.mark.parametrize(("grow", "reason"), KINDS.items())
def test_what_a_client_leaves_in_the_network_is_not_for_the_next(
    grow: Callable[[Any], float | Tensor], reason: str
) -> None:
    kind = partial(Remembering, grow)
    assert torch.equal(update_of_last(kind, [2]), update_of_last(kind, [0, 1, 2]))
    assert reason in why_not_vectorized(spec_of(kind))


class Settings(nn.Module):
    """It keeps layers in a list, a view of its weights, and a fixed table, none of which training assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.layers = [self.linear]
        self.turned = self.linear.weight.T
        self.table = torch.arange(3.0)

    def forward(self, images: Tensor) -> Tensor:
        (linear,) = self.layers
        found: Tensor = linear(images.flatten(1)) + self.table
        return found


def test_layers_in_a_list_views_of_weights_and_tables_stay_what_they_are() -> None:
    module = made(Settings)
    assert isinstance(module, Settings)
    outside = OutsideState.of(module, layout_of(module))
    with torch.no_grad():
        module.linear.weight.add_(1)
    assert outside.changed() == ""
    outside.restore()
    assert module.layers[0] is module.linear and torch.equal(module.turned, module.linear.weight.T)
    assert why_not_vectorized(spec_of(Settings)) == ""


class OtherInTraining(nn.Module):
    """It returns two things in training, as networks with an auxiliary output do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        found: Tensor = self.linear(images.flatten(1))
        return (found, found) if self.training else found


def test_what_a_network_returns_in_training_is_what_it_returns_in_evaluation() -> None:
    message = r"expected outputs \(5, 3\) in training as in evaluation, found tuple; return the logits alone"
    with pytest.raises(UserCodeError, match=message):
        update_of_last(OtherInTraining, [0])
    with pytest.raises(UserCodeError, match="found tuple"):
        why_not_vectorized(spec_of(OtherInTraining))
