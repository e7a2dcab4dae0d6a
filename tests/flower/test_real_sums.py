"""Secure aggregation with real processes: a device's part of a sum survives between processes of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import Machines, free_ports

from fedstrata.config import load_experiment
from fedstrata.flower import deploy
from fedstrata.play.run import run_experiment
from fedstrata.results.run import load

pytestmark = pytest.mark.deploy

EXPERIMENT: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 3, "samples": 24, "test": 0.2},
    "partition": {"scheme": "iid"},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop", "device": "cpu"},
    "privacy": {"secure_aggregation": True},
}


def test_real_devices_have_the_sums_of_the_simulator(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    port = free_ports(9)
    deploy.init(folder, EXPERIMENT, port=port)
    with Machines(folder, port) as machines:
        machines.server()
        machines.register()
        for client in ("site-0", "site-1", "site-2"):
            machines.node(client)
        deploy.run_on_federation(folder / "experiment.toml", folder, tmp_path / "real")
    real = load(tmp_path / "real")
    simulated = run_experiment(load_experiment(EXPERIMENT), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)
    assert not any(record["events"] or record["absent"] for record in real.rounds)
    kept = [json.loads(file.read_text()) for file in folder.glob("nodes/*/state/*.sum.json")]
    assert kept == [{"closed": 2}] * 3
