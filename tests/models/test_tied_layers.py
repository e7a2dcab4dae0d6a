import pytest
import torch
from torch import nn

from fedstrata.models import layout_of
from fedstrata.models.rows import tied_warning


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
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("bias", "selected"), [(True, "'output.bias'"), (False, "'body.weight', 'body.bias'")], ids=["bias", "no bias"]
)
def test_an_output_layer_with_the_weight_of_another_layer_is_named_with_what_head_selects(
    bias: bool, selected: str
) -> None:
    network = LanguageModel(bias)
    found = tied_warning(network, layout_of(network))
    assert found is not None
    assert "has 'output.weight' from 'embed.weight'" in found
    assert f"'head' stands for {selected} only" in found


@pytest.mark.parametrize("network", [twice(), nn.Linear(4, 3), nn.BatchNorm1d(3)], ids=["twice", "one", "norm"])
def test_other_networks_have_no_warning(network: nn.Module) -> None:
    assert tied_warning(network, layout_of(network)) is None
