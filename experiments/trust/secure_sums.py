"""Secure aggregation: every pattern of drop-outs, what it costs on a network, and what rounding costs in accuracy.

    PYTHONPATH=tests:tests/flower python -m experiments.trust.secure_sums

Writes ``experiments/results/secure_sums.json``; ``--parts`` takes some of its parts:

- ``patterns``: each of up to eight clients is lost in one of the four steps, or in none, in every combination. The sum
  is exact, or is not opened because fewer than two thirds of the clients are left.
- ``network``: rounds of FedAvg on the digits, over messages of Flower in one process, in clear and with secure
  aggregation: seconds, bytes of all messages, and how far the models are apart afterwards.
- ``bits``: the accuracy of FedAvg on the digits in a simulation, by the bits to which updates are rounded, over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from drop_outs import counted, needed, without_curves
from in_process import Loopback, Ticks, federation

from fedstrata.config import load_experiment
from fedstrata.flower.federation import Federation
from fedstrata.flower.server import drive
from fedstrata.play.run import run_experiment
from fedstrata.results.run import Run

RESULT = Path(__file__).parents[1] / "results" / "secure_sums.json"

CLIENTS = (2, 3, 4, 5, 6, 7, 8)
"""The numbers of clients whose patterns are played."""

ROUNDS = 5
"""The rounds over messages."""

SEEDS = (0, 1, 2)
BITS = (4, 6, 8, 12, 16, 24)


def keys(clients: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """An experiment on the digits."""
    return {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": "digits", "clients": clients, "samples": 60},
        "partition": {"scheme": "iid"},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"lr": 0.1, "batch": 10},
        "algorithm": {"name": "fedavg"},
        "engine": {"name": "loop", "device": "cpu"},
    }


def patterns() -> dict[str, Any]:
    """What came of every pattern, by the number of clients."""
    found = {}
    for n in CLIENTS:
        with pytest.MonkeyPatch.context() as patch:
            without_curves(patch, shamir=True)
            found[str(n)] = {**asdict(counted(n)), "needed": needed(n)}
    return found


def network() -> list[dict[str, Any]]:
    """Seconds and bytes of a round in the middle, in clear and with secure aggregation."""
    found = []
    for clients in (5, 10, 20):
        models: dict[str, torch.Tensor] = {}
        costs: dict[str, Any] = {}
        with TemporaryDirectory() as folder:
            for name, secure in (("clear", False), ("secure", True)):
                wanted = {**keys(clients, ROUNDS), "privacy": {"secure_aggregation": secure}}
                place = Path(folder) / name
                place.mkdir()
                models[name] = _driven(wanted, place).state.models
                lines = (place / "run/network/rounds.jsonl").read_text().splitlines()
                # The first round has no scores, and the last plan no training.
                rounds = [json.loads(line) for line in lines[1:ROUNDS]]
                costs[name] = {
                    key: median(each[key] for each in rounds) for key in ("seconds", "bytes_up", "bytes_down")
                }
        apart = (models["secure"] - models["clear"]).abs().max()
        parameters = models["clear"].shape[1]
        found.append({"clients": clients, "parameters": parameters, **costs, "apart": float(apart)})
    return found


def _driven(wanted: Mapping[str, Any], folder: Path) -> Run:
    """A run over messages."""
    made = federation(dict(wanted), folder)
    members = Federation(tuple(each.key for each in made.devices.values()), made.config.samples, wait_seconds=5.0)
    with redirect_stdout(StringIO()):
        return drive(Loopback(made.devices), load_experiment(wanted), members, folder / "run", clock=Ticks().clock)


def bits() -> list[dict[str, Any]]:
    """The accuracy by the bits of a number of an update; None are updates that are not rounded."""
    found = []
    for wanted in (None, *BITS):
        privacy = {} if wanted is None else {"secure_aggregation": True, "sum_bits": wanted}
        accuracies = []
        for seed in SEEDS:
            with TemporaryDirectory() as folder:
                experiment = load_experiment({**keys(20, 30, seed), "privacy": privacy})
                accuracies.append(run_experiment(experiment, Path(folder) / "run", quiet=True).summary["acc_client"])
        found.append({"bits": wanted, "seeds": len(SEEDS), "accuracy": mean(accuracies), "accuracies": accuracies})
    return found


PARTS: Mapping[str, Callable[[], Any]] = {"patterns": patterns, "network": network, "bits": bits}


def main() -> None:
    """Measure the wanted parts; the others stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    torch.set_num_threads(1)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in parser.parse_args().parts:
        result[part] = PARTS[part]()
        ordered = {name: result[name] for name in PARTS if name in result}
        RESULT.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
