"""The loop on other devices. Where there is none, what does not need one."""

from dataclasses import replace

import pytest
import torch
from small import RECIPES, fit_of, loop_of, network, plan_of
from torch import nn

from fedstrata.core import LocalTraining, Report
from fedstrata.engine.device import has_device

HERE = [kind for kind in ("cuda", "mps") if has_device(kind)]
needs_device = pytest.mark.skipif(not HERE, reason="needs a device of CUDA or MPS")
CPU = torch.device("cpu")


class Recurrent(nn.Module):
    """A GRU over the rows of an image, with dropout: the vectorized engine cannot compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 4, batch_first=True)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.gru(images[:, 0])[1][-1]))
        return out


def run_on(device: str, module: nn.Module, training: LocalTraining) -> Report:
    engine, layout, start = loop_of([12, 9], module=module, device=device)
    return engine.run(plan_of(start[None], replace(fit_of(layout, [[0], [0]], training=training), prox_weight=0.1)))


@needs_device
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("recipe", ["epochs", "momentum with decay", "clipped", "adamw"])
@pytest.mark.parametrize("kind", ["convolution", "recurrent"])
def test_an_accelerator_equals_the_processor_but_for_rounding(device: str, recipe: str, kind: str) -> None:
    torch.manual_seed(0)
    first = network() if kind == "convolution" else Recurrent()
    second = network() if kind == "convolution" else Recurrent()
    second.load_state_dict(first.state_dict())
    expected = run_on("cpu", first, RECIPES[recipe]).results["train"].updates.values
    found = run_on(device, second, RECIPES[recipe]).results["train"].updates.values
    assert found.device == CPU
    assert bool(((found - expected).norm(dim=1) <= 1e-3 * expected.norm(dim=1)).all())
