import pytest
import torch
from torch import nn

from fedstrata.models import layout_of
from fedstrata.models.rows import order_warning

SAMPLES = torch.zeros(2, 6)


class Crossed(nn.Module):
    """It defines the layer first that computes last."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 3)
        self.body = nn.Linear(6, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.body(inputs).relu())
        return output


class Uncalled(Crossed):
    """It reads the weights of a layer that it does not call."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.linear(inputs, self.body.weight, self.body.bias)
        output: torch.Tensor = self.output(hidden)
        return output


def test_a_layer_that_is_defined_before_those_below_it_is_named() -> None:
    network = Crossed().train()
    found = order_warning(network, layout_of(network), SAMPLES)
    assert found is not None and "defines 'body' as its last linear layer, and computes 'output' last" in found
    assert network.training and not network.body._forward_hooks


@pytest.mark.parametrize(
    "network",
    [nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), nn.Linear(6, 3), Uncalled()],
    ids=["in order", "one layer", "not called"],
)
def test_other_networks_have_no_warning(network: nn.Module) -> None:
    assert order_warning(network, layout_of(network), SAMPLES) is None
