"""A network whose head is not what the selector "head" stands for is named before the run."""

import pytest
import torch
from torch import nn

from fedstrata.models import layout_of
from fedstrata.models.rows import head_warning

SAMPLES = torch.zeros(2, 6)
TOKENS = torch.zeros(2, 6, dtype=torch.int64)


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


class LanguageModel(nn.Module):
    """Its output layer reads the weight of its embedding."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.output = nn.Linear(4, 5, bias=bias)
        self.output.weight = self.embed.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.body(self.embed(inputs)).mean(dim=1))
        return output


def twice() -> nn.Sequential:
    """A network with one layer in two places, and an output layer of its own."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("network", "inputs", "selected"),
    [
        (Crossed(), SAMPLES, "'body.weight', 'body.bias'"),
        (LanguageModel(bias=True), TOKENS, "'output.bias'"),
        (LanguageModel(bias=False), TOKENS, "'body.weight', 'body.bias'"),
    ],
    ids=["crossed", "tied with a bias", "tied"],
)
def test_a_layer_that_computes_last_and_is_not_the_head_is_named(
    network: nn.Module, inputs: torch.Tensor, selected: str
) -> None:
    found = head_warning(network, layout_of(network), inputs)
    assert found is not None and f"computes 'output' last, and the selector 'head' stands for {selected}." in found


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(6, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        nn.Linear(6, 3),
        nn.BatchNorm1d(6),
        Uncalled(),
        twice(),
    ],
    ids=["in order", "parametrized", "one layer", "norm", "not called", "twice"],
)
def test_other_networks_have_no_warning(network: nn.Module) -> None:
    assert head_warning(network, layout_of(network), SAMPLES) is None
