"""The loop on other devices. Where there is none, what does not need one."""

from dataclasses import replace

import pytest
import torch
from small import dataset, fit_of, network, partition_of, plan_of
from torch import nn

from fedstrata.core import LocalTraining, Report
from fedstrata.engine import ClientData, Loop
from fedstrata.engine.device import has_device
from fedstrata.models import layout_of, row_of

HERE = [kind for kind in ("cuda", "mps") if has_device(kind)]
needs_device = pytest.mark.skipif(not HERE, reason="needs a device of CUDA or MPS")
CPU = torch.device("cpu")

RECIPES = {
    "sgd": LocalTraining(epochs=2, batch=5, lr=0.1),
    "momentum": LocalTraining(batch=5, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": LocalTraining(batch=5, lr=0.01, optimizer="adamw", weight_decay=0.1, clip_norm=1.0),
}


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
    layout = layout_of(module)
    start = row_of(module, layout).cpu()
    engine = Loop(module, layout, ClientData(dataset(29), partition_of([12, 9]), seed=0), device=device)
    return engine.run(plan_of(start[None], replace(fit_of(layout, [[0], [0]], training=training), prox_weight=0.1)))


@needs_device
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", ["convolution", "recurrent"])
def test_an_accelerator_equals_the_processor_but_for_rounding(device: str, training: LocalTraining, kind: str) -> None:
    torch.manual_seed(0)
    first = network() if kind == "convolution" else Recurrent()
    second = network() if kind == "convolution" else Recurrent()
    second.load_state_dict(first.state_dict())
    expected = run_on("cpu", first, training).results["train"].updates.values
    found = run_on(device, second, training).results["train"].updates.values
    assert found.device == CPU
    assert bool(((found - expected).norm(dim=1) <= 1e-3 * expected.norm(dim=1)).all())
