"""Networks that keep more than a row has: what one client leaves in them is not there for the next."""

from collections.abc import Callable
from functools import partial

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
    """It scales by a number that grows with every batch that it is trained on, and that no row has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def grow(self) -> float | Tensor:
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.linear(images.flatten(1)) * self.grow()
        return found


class Assigned(Remembering):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def grow(self) -> Tensor:
        if self.training:
            self.scale = self.scale + 0.5
        return self.scale


class InPlace(Assigned):
    def grow(self) -> Tensor:
        if self.training:
            self.scale.add_(0.5)
        return self.scale


class Attribute(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def grow(self) -> float:
        self.steps += self.training
        return 1 + self.steps / 2


class InList(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.seen = list[int]()

    def grow(self) -> float:
        if self.training:
            self.seen.append(1)
        return 1 + len(self.seen) / 2


class AddedLater(Remembering):
    def grow(self) -> Tensor:
        last = getattr(self, "last", torch.ones(1))
        self.last = last + 0.5 * self.training
        return last


KINDS = [Assigned, InPlace, Attribute, InList, AddedLater]


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_leaves_in_the_network_is_not_for_the_next(kind: type[nn.Module]) -> None:
    assert torch.equal(update_of_last(kind, [2]), update_of_last(kind, [0, 1, 2]))


@pytest.mark.parametrize(
    ("kind", "name"), [(InPlace, "scale"), (Attribute, "steps"), (InList, "seen"), (AddedLater, "last")]
)
def test_networks_that_change_more_than_rows_are_not_computed_for_several_clients_at_once(
    kind: type[nn.Module], name: str
) -> None:
    assert f"found that it changes {name}" in why_not_vectorized(spec_of(kind))
    assert "found one that it assigns: scale" in why_not_vectorized(spec_of(Assigned))


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
