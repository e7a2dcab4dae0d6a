"""Networks that keep more than a row has: what one client leaves in them is not there for the next."""

import torch
from small import dataset, fit_of, partition_of, plan_of
from torch import Tensor, nn

from fedstrata.engine import Loop, SimulationSpec
from fedstrata.engine.vectorized import why_not_vectorized
from fedstrata.models import layout_of, row_of


class Remembering(nn.Module):
    """It scales by a number that grows with every batch that it is trained on, and that no row has."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale + 0.5
        found: Tensor = self.linear(images.flatten(1)) * self.scale
        return found


def remembering() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Remembering()


SPEC = SimulationSpec(remembering, dataset(60), partition_of([12, 12, 12]), 0)


def update_of_last(cohort: list[int]) -> Tensor:
    layout = layout_of(remembering())
    task = fit_of(layout, [[0]] * len(cohort))
    plan = plan_of(row_of(remembering(), layout)[None], task, cohort=cohort)
    return Loop.at(SPEC).run(plan).results["train"].updates.of(torch.tensor(cohort[-1:]))


def test_what_a_client_leaves_in_the_network_is_not_for_the_next() -> None:
    assert torch.equal(update_of_last([2]), update_of_last([0, 1, 2]))


def test_buffers_that_are_assigned_are_not_computed_for_several_clients_at_once() -> None:
    assert "buffers that the network changes in place, found one that it assigns: scale" in why_not_vectorized(SPEC)
