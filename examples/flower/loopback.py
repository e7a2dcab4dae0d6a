"""A federation of real processes on one machine, with TLS and keys, beside the simulator: labels and models are equal.

python examples/flower/loopback.py                            # six SuperNodes with digits, three rotations, 8 rounds
python examples/flower/loopback.py --data mnist               # rotations of MNIST; FEDSTRATA_DATA says where it is
python examples/flower/loopback.py --data usc_had             # recordings of six subjects
python examples/flower/loopback.py --rounds 2
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machines import Machines, free_ports

import fedstrata as fs
from fedstrata.base.errors import FedstrataError
from fedstrata.flower import deploy

CLIENTS = 6
ROTATED = {"partition": {"scheme": "rotation", "groups": 3}, "local": {"lr": 0.1, "batch": 10}}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"data": {"samples": 100}, **ROTATED},
    "mnist": {"data": {"samples": 100}, **ROTATED},
    "usc_had": {
        "data": {"samples": 0},
        "partition": {"scheme": "natural", "column": "subject"},
        "local": {"lr": 0.05, "batch": 50},
    },
}
# Splits in the first rounds: what is to be shown is that both sides split alike.
LAYERCFL = {"name": "layercfl", "layers": "linear", "eps1": 10.0, "eps2": 0.0, "gamma": 0.3, "min_split": 3}


def main() -> int:
    """Run both and compare them; the exit status is 0 when labels and models are equal, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(KINDS), default="digits")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="a new folder; by default one for temporary files")
    given = parser.parse_args()
    # So that the processes are ended when this one is told to end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    kind = KINDS[given.data]
    experiment = {
        **kind,
        "rounds": given.rounds,
        "data": {"name": given.data, "clients": CLIENTS, "test": 0.2, **kind["data"]},
        "algorithm": LAYERCFL,
        "engine": {"name": "loop", "device": "cpu"},
    }
    folder = given.folder or Path(tempfile.mkdtemp(prefix="federation-"))
    try:
        real(experiment, folder / "federation", folder / "real")
        fs.run(experiment, folder / "simulated", quiet=True)
    except FedstrataError as error:
        print(error)
        return 1
    return compare(folder / "real", folder / "simulated")


def real(experiment: dict[str, Any], federation: Path, out: Path) -> None:
    """Make a federation, start all its processes, run the experiment, end them."""
    port = free_ports(2 + 2 * CLIENTS)
    print(deploy.init(federation, experiment, port=port))
    with Machines(federation, port) as machines:
        machines.server()
        machines.register()
        for client in range(CLIENTS):
            machines.node(f"site-{client}")
        deploy.run_on_federation(experiment, federation, out)


def compare(real: Path, simulated: Path) -> int:
    """Say how two runs differ, and what the network costs; 0 when labels and models are equal in every bit."""
    here, there, wire = rounds(real), rounds(simulated), rounds(real / "network")
    for one, other in zip(here, there, strict=True):
        verdict = "equal" if one["labels"] == other["labels"] else f"simulated {other['labels']}"
        print(f"round {one['round']}: tree node of each client {one['labels']}, {verdict}")
    files = sorted((simulated / "models").iterdir())
    pairs = [(path, real / "models" / path.name) for path in files]
    alike = [other.exists() and path.read_bytes() == other.read_bytes() for path, other in pairs]
    labels = [one["labels"] == other["labels"] for one, other in zip(here, there, strict=True)]
    slow, fast = mean(here, "seconds"), mean(there, "seconds")
    print(f"labels equal in {sum(labels)} of {len(labels)} rounds, {sum(alike)} of {len(alike)} files of models equal")
    print(f"seconds a round: {slow:.1f} on the network, {fast:.2f} simulated: {slow - fast:.1f} more")
    for way, sent in (("down", "to the clients"), ("up", "from the clients")):
        derived, found = mean(here, f"bytes_{way}"), mean(wire[: len(here)], f"bytes_{way}")
        print(f"bytes a round {sent}: {found:,.0f} on the wire, {derived:,.0f} derived from the plan")
    missed = {
        line["round"]: {**line["absent"], **line["rejected"]} for line in wire if line["absent"] or line["rejected"]
    }
    print(f"absent or rejected: {missed or 'nobody'}")
    print(f"run folders: {real} and {simulated}")
    return 0 if all(labels) and all(alike) else 1


def rounds(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, one for each round."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def mean(records: list[dict[str, Any]], name: str) -> float:
    """The mean of a figure over rounds."""
    return float(sum(record[name] for record in records)) / len(records)


if __name__ == "__main__":
    sys.exit(main())
