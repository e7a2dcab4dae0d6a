"""Networks that keep more than a row has: what one client leaves in them is not there for the next."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from small import dataset, fit_of, partition_of, plan_of, scored
from torch import Tensor, nn

from fedstrata.base.errors import ExperimentError, UserCodeError
from fedstrata.base.randomness import draws_of_numpy_and_python, seed_numpy_and_python
from fedstrata.core import LocalTraining
from fedstrata.engine import Loop, SimulationSpec
from fedstrata.engine.outside_state import OutsideState
from fedstrata.engine.registry import require_repeatable
from fedstrata.engine.vectorized import why_not_vectorized
from fedstrata.models import layout_of, row_of
from fedstrata.objective import Objective


class Memory:
    """An object that a network holds."""

    def __init__(self) -> None:
        self.parts = [torch.ones(1)]


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
        self.table = {"scales": {"last": torch.ones(1)}}
        self.memory = Memory()

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


def in_dict(network: Any) -> Tensor:
    return network.table["scales"]["last"].add_(0.5)  # type: ignore[no-any-return]


def in_object(network: Any) -> Tensor:
    return network.memory.parts[0].add_(0.5)  # type: ignore[no-any-return]


def added_later(network: Any) -> Tensor:
    network.last = getattr(network, "last", torch.ones(1)) + 0.5
    return network.last  # type: ignore[no-any-return]


KINDS = {
    assigned: "found one that it assigns: scale",
    in_place: "found that it changes scale",
    attribute: "found that it changes steps",
    in_list: "found that it changes seen",
    in_dict: "found that it changes table",
    in_object: "found that it changes memory",
    added_later: "found that it changes last",
}
"""What a network does, and why it is not computed for several clients at once."""


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind()


def spec_of(kind: Callable[[], nn.Module], **names: Any) -> SimulationSpec:
    return SimulationSpec(partial(made, kind), dataset(60), partition_of([12, 12, 12]), 0, objective=Objective(**names))


def update_of_last(kind: Callable[[], nn.Module], cohort: list[int], **names: Any) -> Tensor:
    layout = layout_of(made(kind))
    task = fit_of(layout, [[0]] * len(cohort))
    plan = plan_of(row_of(made(kind), layout)[None], task, cohort=cohort)
    return Loop.at(spec_of(kind, **names)).run(plan).results["train"].updates.of(torch.tensor(cohort[-1:]))


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


class Hidden(nn.Module):
    """It keeps something in an attribute that is no layer."""

    def __init__(self, kept: Callable[[], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.kept = kept()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.linear(images.flatten(1))
        return found


@pytest.mark.parametrize(
    "kept",
    [
        lambda: [nn.Linear(36, 3)],
        lambda: {"first": nn.Parameter(torch.ones(2))},
        lambda: (torch.ones(2, requires_grad=True),),
    ],
)
def test_weights_that_torch_does_not_see_are_refused_as_nothing_would_train_them(kept: Callable[[], object]) -> None:
    with pytest.raises(ExperimentError, match="the attribute 'kept' of the network: expected no weights"):
        Loop.at(spec_of(partial(Hidden, kept)))
    frozen = partial(Hidden, lambda: [nn.Linear(36, 3).requires_grad_(False)])
    assert torch.equal(update_of_last(frozen, [2]), update_of_last(frozen, [0, 1, 2]))


def test_what_cannot_be_copied_for_every_client_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"'kept' of the network: expected something that copy\.deepcopy copies"):
        Loop.at(spec_of(partial(Hidden, lambda: [Lock()])))


FUNCTIONS = """
import random

import numpy as np
import torch
from torch.nn.functional import cross_entropy

class Prior:
    def __init__(self):
        self.parts = {"counts": torch.ones(3)}
    def __call__(self, outputs, targets):
        self.parts["counts"].mul_(0.9).add_(torch.bincount(targets, minlength=3))
        return cross_entropy(outputs + self.parts["counts"].log(), targets)
    def loss(self, outputs, targets):
        return self(outputs, targets)

in_object = Prior()
in_owner = Prior().loss
in_global = Prior()
own = np.random.default_rng(0)

def in_attribute(outputs, targets):
    in_attribute.calls = getattr(in_attribute, "calls", 0) + 1
    return cross_entropy(outputs, targets) * in_attribute.calls

def hidden(outputs, targets):
    return in_global(outputs, targets)

def of_numpy(inputs):
    return inputs + torch.from_numpy(np.random.normal(size=tuple(inputs.shape))).float()

def of_python(inputs):
    return inputs * random.random()

def of_its_own(inputs):
    return inputs + torch.from_numpy(own.normal(size=tuple(inputs.shape))).float()
"""


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own, `our_functions`."""
    (tmp_path / "our_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("our_functions", None)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("loss", "in_object"),
        ("loss", "in_owner"),
        ("loss", "in_attribute"),
        ("transform", "of_numpy"),
        ("transform", "of_python"),
    ],
)
def test_what_a_client_leaves_in_functions_and_generators_is_not_for_the_next(key: str, name: str) -> None:
    names = {key: f"our_functions:{name}"}
    seed_numpy_and_python(1)
    alone = update_of_last(plain, [2], **names)
    # The generators of the program around the engine are as they were.
    drawn = draws_of_numpy_and_python()
    seed_numpy_and_python(1)
    assert drawn == draws_of_numpy_and_python()
    assert torch.equal(alone, update_of_last(plain, [0, 1, 2], **names))
    require_repeatable(spec_of(plain, **names), LocalTraining(lr=0.1))


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(("key", "name"), [("loss", "hidden"), ("transform", "of_its_own")])
def test_what_no_client_can_begin_anew_with_is_refused_before_the_first_round(key: str, name: str) -> None:
    message = rf"local.{key} = 'our_functions:{name}' or the network Sequential: expected the same update"
    with pytest.raises(ExperimentError, match=message):
        require_repeatable(spec_of(plain, **{key: f"our_functions:{name}"}), LocalTraining(lr=0.1))


class Drawing(nn.Module):
    """It adds noise of numpy's in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.linear(images.flatten(1))
        return found + float(np.random.random()) * torch.rand(3)  # noqa: NPY002


def test_a_network_that_draws_in_evaluation_scores_a_client_alike_whoever_came_before() -> None:
    layout = layout_of(made(Drawing))
    plan = scored(plan_of(row_of(made(Drawing), layout)[None], fit_of(layout, [[0]] * 3)), layout, 3)
    last = plan.evaluations["client"].only(torch.tensor([False, False, True]))
    together = Loop.at(spec_of(Drawing)).run(plan).scores["client"]
    alone = Loop.at(spec_of(Drawing)).run(replace(plan, evaluations={"client": last})).scores["client"]
    assert together.loss[2:].tolist() == alone.loss.tolist()
    assert "draws from numpy" in why_not_vectorized(spec_of(Drawing))
