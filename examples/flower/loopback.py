"""A federation of real processes on one machine, with TLS and keys, beside the simulator: labels and models are equal.

python examples/flower/loopback.py --rounds 8                 # six SuperNodes, three rotations of MNIST
python examples/flower/loopback.py --rounds 2 --clients 3 --groups 3 --data digits
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from machines import Machines

import fedstrata as fs
from fedstrata.flower import deploy


def main() -> int:
    """Run both and compare them; the exit status is 0 when all is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--data", default="mnist", help="digits, mnist or another data set of images")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--folder", type=Path, help="a new folder; by default one for temporary files")
    given = parser.parse_args()
    experiment = {
        "rounds": given.rounds,
        "data": {"name": given.data, "clients": given.clients, "samples": given.samples, "test": 0.2},
        "partition": {"scheme": "rotation", "groups": given.groups},
        "local": {"lr": 0.1, "batch": 10},
        "algorithm": {"name": "layercfl", "layers": "linear", "eps1": 10.0, "eps2": 0.0, "gamma": 0.3},
        "engine": {"name": "loop", "device": "cpu"},
    }
    folder = given.folder or Path(tempfile.mkdtemp(prefix="federation-"))
    print(deploy.init(folder / "federation", experiment, port=given.port))
    with Machines(folder / "federation", given.port) as machines:
        machines.server()
        machines.register()
        for client in range(given.clients):
            machines.node(f"site-{client}")
        deploy.run(experiment, folder / "federation", folder / "real")
    fs.run(experiment, folder / "simulated", quiet=True)
    return compared(folder / "real", folder / "simulated")


def compared(real: Path, simulated: Path) -> int:
    """Say how two runs differ; 0 when labels and models are equal in every bit."""
    here, there = rounds(real), rounds(simulated)
    labels = [one["labels"] == other["labels"] for one, other in zip(here, there, strict=True)]
    models = [
        path.read_bytes() == (real / "models" / path.name).read_bytes() for path in (simulated / "models").iterdir()
    ]
    seconds = [sum(record["seconds"] for record in records) / len(records) for records in (here, there)]
    absent = [line["absent"] for line in rounds(real / "network")]
    print(f"labels equal in {sum(labels)} of {len(labels)} rounds, {sum(models)} of {len(models)} models equal")
    print(f"seconds a round: {seconds[0]:.2f} on the network, {seconds[1]:.2f} simulated; absent: {absent}")
    print(f"run folders: {real} and {simulated}")
    return 0 if all(labels) and all(models) else 1


def rounds(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, one for each round."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
