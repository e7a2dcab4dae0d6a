"""What deadlines and over-selection save when clients are slow, and what they cost.

    PYTHONPATH=tests:tests/flower nice -n 5 python -m experiments.trust.stragglers

A server and the devices of its 20 clients in one process exchange Flower's messages as bytes. A client trains for
some seconds of a clock that goes on only when the server waits: lognormal with a median of 10 s and a sigma of 0.5, ten
times as long for two clients of the 20. Every rule wants the updates of 10 clients in a round. Writes
``experiments/results/stragglers.json``; a few minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from math import log
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np
from flwr.app import Message
from in_process import Slow, Ticks, federation

from fedstrata.config import load_experiment
from fedstrata.flower.federation import Federation, RoundRules
from fedstrata.flower.server_app import drive

SEEDS = range(2)
WANTED = 10
"""The updates that a round shall have."""
DEADLINE = 30.0

KEYS: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits", "clients": 20, "samples": 60, "test": 0.25},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"lr": 0.1, "batch": 10},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop", "device": "cpu"},
}

RULES: dict[str, tuple[int, RoundRules]] = {
    "everybody": (10, RoundRules(deadline=600.0)),
    "deadline": (10, RoundRules(deadline=DEADLINE)),
    "over_selection": (13, RoundRules(deadline=600.0, min_reply_fraction=WANTED / 13)),
    "both": (13, RoundRules(deadline=DEADLINE, min_reply_fraction=WANTED / 13)),
}
"""How many clients are asked to train in a round, and when it is over, by the name of the rule."""


def main() -> None:
    """Run all rules and write the results."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = [measured(name, seed) for name in RULES for seed in SEEDS]
    path = Path(__file__).parents[1] / "results" / "stragglers.json"
    path.write_text("[\n" + ",\n".join(json.dumps(each) for each in found) + "\n]\n")


def measured(name: str, seed: int) -> dict[str, Any]:
    """The rounds of one run."""
    asked, rules = RULES[name]
    keys = {**KEYS, "seed": seed, "cohort": {"fraction": asked / KEYS["data"]["clients"]}}
    slow = Random(f"slow {seed}").sample(range(100, 100 + KEYS["data"]["clients"]), 2)

    def seconds(message: Message) -> float:
        node, round = message.metadata.dst_node_id, message.metadata.group_id
        if not any(part.startswith("task-") for part in message.content):
            return 1.0
        took = Random(f"{seed}/{node}/{round}").lognormvariate(log(10.0), 0.5)
        return took * (10.0 if node in slow else 1.0)

    with tempfile.TemporaryDirectory() as folder:
        made = federation(keys, Path(folder) / "devices")
        clients = tuple(device.key for device in made.devices.values())
        members = Federation(clients, made.config.samples, rounds=rules, max_samples=1000)
        ticks = Ticks()
        grid = Slow(made.devices, ticks, seconds)
        run = drive(grid, load_experiment(keys), members, Path(folder) / "run", clock=ticks.clock)
    lasted = np.diff(grid.began)[: KEYS["rounds"]]
    trained = [len(set(record["cohort"]) - set(record["absent"]) - set(record["rejected"])) for record in run.rounds]
    result = {
        "rule": name,
        "seed": seed,
        "seconds_p50": round(float(np.quantile(lasted, 0.5)), 1),
        "seconds_p99": round(float(np.quantile(lasted, 0.99)), 1),
        "updates": round(mean(trained), 2),
        "late_taken": sum(of != during for of, during in grid.fetched),
        "acc_client": round(float(run.summary["acc_client"]), 4),
    }
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
