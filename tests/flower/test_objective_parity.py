"""The same bits from every engine that does the loop's arithmetic, whatever the networks learn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import federation
from torch import nn

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.engine import Parallel
from fedstrata.flower.client_data import no_client_data
from played_rounds import play
from turns import same

pytestmark = pytest.mark.usefixtures("forked_workers")


class Tagger(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embedding(tokens))
        return found


def halved(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).mean() / 2 - 9


def undefined(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float("nan") if targets[0] > 0 else 0.5


LOCALS: dict[str, dict[str, Any]] = {
    "number": {"loss": "mse"},
    "one": {"loss": f"{__name__}:halved", "metric": f"{__name__}:undefined"},
    "numbers": {"loss": "mse", "transform": "noise", "clip_norm": 0.5, "optimizer": "adamw", "weight_decay": 0.1},
    "labels": {"loss": "bce", "metric": "f1_macro", "steps": 3},
    "tokens": {"lr": 0.5, "momentum": 0.9},
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of every kind."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    tokens = rng.integers(0, 9, (80, 5))
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, :2] + 0.1)
    np.savez(tmp_path / "number.npz", x=x, y=x[:, 0] + 0.1)
    np.savez(tmp_path / "one.npz", x=x, y=x[:, :1] + 0.1)
    np.savez(tmp_path / "labels.npz", x=x, y=(x > 0).astype(int))
    np.savez(tmp_path / "tokens.npz", x=tokens, y=tokens // 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys_of(kind: str) -> dict[str, Any]:
    model = {"name": f"{__name__}:Tagger"} if kind == "tokens" else {"name": "mlp", "hidden": [4]}
    data = {"name": f"{kind}.npz", "clients": 4, "samples": 15, "tokens": kind == "tokens"}
    return {"data": data, "model": model, "local": {"batch": 4, "lr": 0.1, **LOCALS[kind]}}


@pytest.mark.parametrize("kind", LOCALS)
def test_processes_and_devices_are_the_loop_in_every_bit(kind: str, desk: Path) -> None:
    here = federation(keys_of(kind), desk / "devices")
    assert no_client_data(here.config).dataset.sample_format == here.setup.client_data.dataset.sample_format
    expected = play(here.setup, "ifca")
    assert same(play(replace(here.setup, clients=here.remote()[0]), "ifca"), expected)
    spread = build_run(load_experiment({**keys_of(kind), "engine": {"name": "processes", "workers": 2}}))
    assert isinstance(spread.clients, Parallel)
    assert same(play(spread, "ifca"), expected)
    spread.clients.close()
    score = expected[0][1].report.scores["client"]
    assert bool(score.correct.isfinite().all()) != (kind == "one") and torch.unique(score.correct).numel() > 1


def test_r2_of_a_single_test_sample_is_unknown_on_devices_too(desk: Path) -> None:
    keys = {**keys_of("number"), "local": {"loss": "mse", "metric": "r2", "lr": 0.1, "batch": 4}}
    keys["data"] |= {"samples": 4, "test": 0.2}
    here = federation(keys, desk / "devices")
    expected = play(here.setup, "ifca")
    assert same(play(replace(here.setup, clients=here.remote()[0]), "ifca"), expected)
    assert bool(expected[0][-1].report.scores["client"].correct.isnan().all())
