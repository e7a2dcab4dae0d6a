"""A script with an algorithm and a network of its own, run as a program: every engine takes them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from dataclasses import dataclass
import numpy as np
from torch import nn
import fedstrata as fs
from fedstrata.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    source = "a script"
    k: int = 2

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

if __name__ == "__main__":
    engine = sys.argv[1]
    keys = {
        "rounds": 2,
        "data": {"clients": 6, "samples": 20},
        "local": {"lr": 0.1, "batch": 10},
        "engine": {"name": engine, "workers": 2},
    }
    for number, model in enumerate((Net, lambda: Net(), Net())):
        run = fs.run(keys, f"runs/{number}", algorithm=Mine(k=3), model=model, quiet=True)
        assert run.predict(0, np.zeros((4, 1, 8, 8), np.uint8)).shape == (4,)
        print(run.summary["algorithm"], run.experiment.model.name, run.experiment.algorithm.options)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "batched", "processes", "ray"])
def test_classes_of_a_script_work_with_every_engine(engine: str, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", engine]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    networks = ("__main__:Net", "object:lambda", "object:Net")
    assert done.stdout.splitlines() == [f"__main__:Mine {network} {{'k': 3}}" for network in networks]
