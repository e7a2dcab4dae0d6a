"""The same bits from every engine that does the loop's arithmetic, whatever the networks learn."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import federation

from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Clients, Report
from fedstrata.engine import Parallel
from fedstrata.flower.client_data import no_client_data
from turns import same

pytestmark = pytest.mark.usefixtures("forked_workers")

NETWORK = """
from torch import nn

class Tagger(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))
"""

OWN_LOSS = """
def halved(outputs, targets):
    return ((outputs - targets) ** 2).mean() / 2 - 9

def undefined(outputs, targets):
    return float("nan") if targets[0] > 0 else 0.5
"""

LOCALS: dict[str, dict[str, Any]] = {
    "number": {"loss": "mse"},
    "one": {"loss": "halving:halved", "metric": "halving:undefined"},
    "numbers": {"loss": "mse", "transform": "noise", "clip_norm": 0.5, "optimizer": "adamw", "weight_decay": 0.1},
    "labels": {"loss": "bce", "metric": "f1_macro", "steps": 3},
    "tokens": {"lr": 0.5, "momentum": 0.9},
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of every kind, and a network for tokens."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    tokens = rng.integers(0, 9, (80, 5))
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, :2] + 0.1)
    np.savez(tmp_path / "number.npz", x=x, y=x[:, 0] + 0.1)
    np.savez(tmp_path / "one.npz", x=x, y=x[:, :1] + 0.1)
    np.savez(tmp_path / "labels.npz", x=x, y=(x > 0).astype(int))
    np.savez(tmp_path / "tokens.npz", x=tokens, y=tokens // 3)
    (tmp_path / "tagger.py").write_text(NETWORK)
    (tmp_path / "halving.py").write_text(OWN_LOSS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def keys_of(kind: str) -> dict[str, Any]:
    model = {"name": "tagger:Tagger"} if kind == "tokens" else {"name": "mlp", "hidden": [4]}
    data = {"name": f"{kind}.npz", "clients": 4, "samples": 15, "tokens": kind == "tokens"}
    return {"data": data, "model": model, "local": {"batch": 4, "lr": 0.1, **LOCALS[kind]}}


def play(setup: RunSetup, clients: Clients) -> Iterator[Report]:
    """Two rounds of IFCA, in which clients choose among models by their losses."""
    algorithm = load_experiment({"algorithm": {"name": "ifca", "k": 2}}).algorithm_of()
    state = algorithm.init(setup.server.problem)
    for _ in range(2):
        evaluations = algorithm.evaluations(setup.server.problem, state, setup.everyone) if state.round else {}
        plan = replace(algorithm.plan(setup.server.problem, state, setup.everyone), evaluations=evaluations)
        report = clients.run(plan)
        state, _ = algorithm.update(setup.server.problem, state, replace(report, cohort=plan.cohort))
        yield report


@pytest.mark.parametrize("kind", LOCALS)
def test_processes_and_devices_are_the_loop_in_every_bit(kind: str, desk: Path) -> None:
    here = federation(keys_of(kind), desk / "devices")
    assert no_client_data(here.config).dataset.sample_format == here.setup.client_data.dataset.sample_format
    expected = tuple(play(here.setup, here.setup.clients))
    assert same(tuple(play(here.setup, here.remote()[0])), expected)
    spread = build_run(load_experiment({**keys_of(kind), "engine": {"name": "processes", "workers": 2}}))
    assert isinstance(spread.clients, Parallel)
    assert same(tuple(play(spread, spread.clients)), expected)
    spread.clients.close()
    score = expected[1].scores["client"]
    assert bool(score.correct.isfinite().all()) != (kind == "one") and torch.unique(score.correct).numel() > 1


def test_r2_of_a_single_test_sample_is_unknown_on_devices_too(desk: Path) -> None:
    keys = {**keys_of("number"), "local": {"loss": "mse", "metric": "r2", "lr": 0.1, "batch": 4}}
    keys["data"] |= {"samples": 4, "test": 0.2}
    here = federation(keys, desk / "devices")
    expected = tuple(play(here.setup, here.setup.clients))
    assert same(tuple(play(here.setup, here.remote()[0])), expected)
    assert bool(expected[1].scores["client"].correct.isnan().all())
