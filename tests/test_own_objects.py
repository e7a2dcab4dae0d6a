"""A script with an algorithm, a network and functions of its own, run as a program: every engine takes them."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from forked import run

pytestmark = pytest.mark.usefixtures("forked_workers")

SCRIPT = """
import sys
from dataclasses import dataclass, replace
import numpy as np
import torch
from torch import nn
import fedstrata as fs
from fedstrata.algorithms.fedavg import FedAvg

SHARES = f"{__name__}:shares"

def shares(inputs, labels, classes):
    return labels.bincount(minlength=classes) / len(labels)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

def metric(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()

def transform(inputs):
    return inputs.flip(3)

@dataclass(frozen=True)
class Mine(FedAvg):
    source = "a script"
    k: int = 2

    def plan(self, problem, state, cohort):
        plan = super().plan(problem, state, cohort)
        return replace(plan, client_stats={SHARES: torch.ones(len(cohort), dtype=torch.bool)})

    def update(self, problem, state, report):
        rows = report.client_stats[SHARES]
        assert len(rows.clients) == problem.clients and torch.allclose(rows.values.sum(dim=1), torch.ones(1))
        return super().update(problem, state, report)

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

if __name__ == "__main__":
    engine = sys.argv[1]
    data, local = {"clients": 6, "samples": 20}, {"lr": 0.1, "batch": 10}
    keys = {"rounds": 1, "data": data, "local": local, "engine": {"name": engine, "workers": 1}}
    # The batched engine takes no such functions.
    functions = {} if engine == "batched" else {"loss": loss, "metric": metric, "transform": transform}
    # Each run has worker processes of its own, which take long to start.
    models = (Net, Net()) if engine in ("processes", "ray") else (Net, lambda: Net(), Net())
    for number, model in enumerate(models):
        run = fs.run(keys, f"runs/{number}", algorithm=Mine(k=3), model=model, quiet=True, **functions)
        assert run.predict(0, np.zeros((4, 1, 8, 8), np.uint8)).shape == (4,)
        print(run.summary["algorithm"], run.experiment.model.name, run.experiment.algorithm.options)
"""

UNPICKLABLE = """
import threading
import fedstrata as fs

lock = threading.Lock()

def transform(inputs):
    with lock:
        return inputs

keys = {"rounds": 1, "data": {"clients": 2, "samples": 20}, "local": {"transform": "__main__:transform"}}
fs.run(keys | {"engine": {"name": "processes", "workers": 2}}, "run", quiet=True)
"""


def program(path: str, *arguments: str) -> None:
    """Be a program."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def assert_done(engine: str, status: int, out: str, err: str) -> None:
    assert status == 0, err
    networks = ["__main__:Net", "object:[0-9a-f]{12}:lambda", "object:[0-9a-f]{12}:Net"]
    if engine in ("processes", "ray"):
        del networks[1]
    for line, network in zip(out.splitlines(), networks, strict=True):
        assert re.fullmatch(rf"__main__:Mine {network} {{'k': 3}}", line)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_classes_and_functions_of_a_script_work_where_nothing_is_sent(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    done = run(program, "script.py", engine)
    assert_done(engine, done.status, done.out, done.err)


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.deploy)])
def test_classes_and_functions_of_a_script_work_in_other_processes(engine: str, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", engine]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_done(engine, done.returncode, done.stdout, done.stderr)


def test_a_function_that_cannot_be_sent_to_workers_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(UNPICKLABLE)
    err = run(program, "script.py").err
    assert "ExperimentError: __main__:transform: expected something that can be sent to worker processes" in err
    assert "set engine.name = 'loop'" in err.splitlines()[-1]
