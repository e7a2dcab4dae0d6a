"""Flower's simulation of federations of many nodes beside fedstrata's simulator: labels, models, seconds and bytes.

    FEDSTRATA_DATA=DATA python -m experiments.speed.virtual_nodes --nodes 10,30,100

Adds to ``experiments/results/virtual_nodes.json`` the numbers of nodes that it does not hold yet. The nodes have 100
images of MNIST each, in four rotations, and Strata runs for 20 rounds. Both run one after the other, with two workers
of Ray and one process. Of each number of nodes it has the rounds with equal labels, the models with equal bits, and the
seconds and bytes of a round.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs
from fedstrata.flower import deploy
from fedstrata.flower.simulation import simulate_federation

RESULTS = Path(__file__).parents[1] / "results" / "virtual_nodes.json"
ROUNDS = 20
WORKERS = 2


def experiment(nodes: int) -> dict[str, Any]:
    """The keys of the runs with a number of nodes."""
    return {
        "rounds": ROUNDS,
        "data": {"name": "mnist", "clients": nodes, "samples": 100},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [64]},
        "local": {"lr": 0.1, "batch": 10},
        "algorithm": {"name": "strata"},
        "engine": {"name": "loop"},
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="10,30,100")
    given = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for nodes in map(int, given.nodes.split(",")):
        if any(each["nodes"] == nodes for each in known):
            continue
        known.append(compared(nodes))
        print(known[-1], flush=True)
        RESULTS.write_text(json.dumps(sorted(known, key=lambda each: each["nodes"]), indent=1) + "\n")


def compared(nodes: int) -> dict[str, Any]:
    """What both came to with a number of nodes."""
    keys = experiment(nodes)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        deploy.init(folder / "federation", keys)
        simulate_federation(keys, folder / "federation", folder / "flower", workers=WORKERS)
        return {"nodes": nodes, **beside_simulator(keys, folder / "flower", folder / "own")}


def beside_simulator(keys: dict[str, Any], flower: Path, own: Path) -> dict[str, Any]:
    """What a run of Flower came to beside the simulator's, which is made here.

    Args:
        keys: The experiment.
        flower: The folder of the run of Flower.
        own: The folder for the simulator's run.
    """
    there = fs.load(flower)
    here = fs.run(keys, own, quiet=True)
    files = sorted((own / "models").iterdir())
    equal = [path.read_bytes() == (flower / "models" / path.name).read_bytes() for path in files]
    network = [json.loads(line) for line in (flower / "network" / "rounds.jsonl").read_text().splitlines()]
    labels = [one["labels"] == other["labels"] for one, other in zip(there.rounds, here.rounds, strict=True)]
    return {
        "rounds": len(labels),
        "rounds_equal": sum(labels),
        "models": len(equal),
        "models_equal": sum(equal),
        "clusters": here.summary["clusters"],
        "absent": sum(len(each["absent"]) + len(each["rejected"]) for each in network),
        "seconds": round(median(each["seconds"] for each in there.rounds), 2),
        "seconds_own": round(median(each["seconds"] for each in here.rounds), 2),
        "bytes_down": round(median(each["bytes_down"] for each in network)),
        "bytes_up": round(median(each["bytes_up"] for each in network)),
    }


if __name__ == "__main__":
    main()
