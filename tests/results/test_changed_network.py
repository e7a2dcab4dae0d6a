"""A network whose source changes between the run and its use."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedstrata as fs
from builders import keys
from fedstrata.base.errors import RecordError

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, scale=1.0):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(64, 8), nn.Linear(8, classes), scale
        self.table = torch.arange(8.0)

    def forward(self, images):
        return self.second(torch.tanh(self.first(images.flatten(1)) * self.scale) + self.table)

class Frozen(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.first.weight.data.fill_(0.25)
        self.first.requires_grad_(False)
"""

CHANGES = {
    "another function": ("torch.tanh", "torch.relu"),
    "another default": ("scale=1.0", "scale=2.0"),
    "another fixed tensor": ("torch.arange(8.0)", "torch.ones(8)"),
    # Too little for the outputs to tell, which another machine rounds otherwise.
    (FROZEN := "another frozen tensor"): ("fill_(0.25)", "fill_(0.25000003)"),
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the module of the user's own, and forget the one that was read."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> None:
        (tmp_path / "our_changing.py").write_text(source)
        sys.modules.pop("our_changing", None)

    return write


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_computes_something_else_since_the_run_is_refused_wherever_it_is_used(
    change: str, write: Callable[[str], None], tmp_path: Path
) -> None:
    message = "expected the network that the run was made with, found one that computes something else"
    network = "Net"
    if change == FROZEN:
        message = "expected the frozen tensors that the run was made with, of digest [0-9a-f]{12}, found [0-9a-f]{12}"
        network = "Frozen"
    write(SOURCE)
    out = tmp_path / "run"
    images = np.random.default_rng(0).integers(0, 255, (5, 1, 8, 8), dtype=np.uint8)
    experiment = keys(rounds=1, algorithm={"name": "fedavg"}, model={"name": f"our_changing:{network}"})
    before = fs.run(experiment, out, quiet=True).predict_proba("0", images)
    write(SOURCE.replace(*CHANGES[change]))
    np.savez(tmp_path / "new.npz", x=images, y=np.arange(5))
    uses: list[Callable[[], object]] = [
        lambda: fs.load(out).predict("0", images),
        lambda: fs.load(out).cluster_model(0),
        lambda: fs.assign(out, [tmp_path / "new.npz"]),
        lambda: fs.export(fs.load(out), tmp_path / "exported"),
        lambda: fs.run(None, out, sets=["rounds=2"], resume=True, quiet=True),
    ]
    for use in uses:
        with pytest.raises(RecordError, match=message):
            use()
    write(SOURCE)
    assert np.array_equal(fs.load(out).predict_proba("0", images), before)


def test_other_first_weights_are_the_same_network(write: Callable[[str], None], tmp_path: Path) -> None:
    """Whoever gives a network need not make it with the weights of the run, which are in the run folder."""
    write(SOURCE)
    experiment = keys(rounds=1, algorithm={"name": "fedavg"}, model={"name": "our_changing:Net"})
    run = fs.run(experiment, tmp_path / "run", quiet=True)
    from our_changing import Net  # type: ignore[import-not-found]  # written above

    torch.manual_seed(5)
    loaded = fs.load(tmp_path / "run", network=Net((1, 8, 8), 10))
    images = np.zeros((2, 1, 8, 8), np.uint8)
    assert np.array_equal(loaded.predict_proba("0", images), run.predict_proba("0", images))
