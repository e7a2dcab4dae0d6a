"""Time and memory of a round against the number of registered clients, of whom 500 take part in each round.

    FEDSTRATA_DATA=DATA python benchmarks/many_clients.py
    FEDSTRATA_DATA=DATA python benchmarks/many_clients.py --clients 1000 10000 --rounds 5

Every number of clients is a run of ``experiments/many_clients.toml`` in a process of its own: MNIST in four groups, a
perceptron, Strata. MNIST is repeated so often that each client has 25 images. The slopes are those of least squares of
the logarithms: 1 is in proportion to the number of clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "many_clients.toml"
IMAGES = 60_000
IMAGES_OF_A_CLIENT = 25
COHORT = 500


@dataclass(frozen=True)
class Measured:
    """What a run took.

    Attributes:
        clients: The number of registered clients.
        other: The median seconds of a round outside training.
        training: The median seconds of training of a round.
        around: The seconds before the first round and after the last one.
        memory: The most resident bytes of the process.
        record: The bytes of the record of the last round.
    """

    clients: int
    other: float
    training: float
    around: float
    memory: int
    record: int


def main() -> None:
    """Run all numbers of clients, and print a row for each and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=8, help="the first is left out, as it makes what later ones keep")
    given = parser.parse_args()
    print("| clients | s a round outside training | s of training | s before and after | GB | KB of a record |")
    print("|---|---|---|---|---|---|", flush=True)
    found = list[Measured]()
    for clients in given.clients:
        one = measure(clients, given.rounds)
        found.append(one)
        cells = (f"{one.clients:,}", f"{one.other:.2f}", f"{one.training:.2f}", f"{one.around:.0f}")
        print("| " + " | ".join((*cells, f"{one.memory / 1e9:.2f}", f"{one.record / 1e3:,.0f}")) + " |", flush=True)
    if len(found) > 1:
        sizes = np.log([one.clients for one in found])
        for what, values in (("time", [one.other for one in found]), ("memory", [one.memory for one in found])):
            print(f"slope of {what}: {np.polyfit(sizes, np.log(values), 1)[0]:.2f}")


def measure(clients: int, rounds: int) -> Measured:
    """Run one number of clients."""
    keys = {
        "rounds": rounds,
        "data.clients": clients,
        "data.copies": ceil(clients * IMAGES_OF_A_CLIENT / IMAGES),
        "cohort.fraction": COHORT / clients,
        "cohort.scored": COHORT,
    }
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "fedstrata", "run", str(EXPERIMENT), *sets, "--out", str(folder), "--quiet"]
        start = perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        # Of this process alone, which the resources of all children are not.
        _, status, used = os.wait4(process.pid, 0)
        seconds = perf_counter() - start
        if status:
            raise SystemExit(f"the run of {clients:,} clients failed")
        lines = (folder / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return Measured(
        clients=clients,
        other=median(each["seconds"] - each["seconds_training"] for each in records[1:]),
        training=median(each["seconds_training"] for each in records[1:]),
        around=seconds - sum(each["seconds"] for each in records),
        memory=1024 * used.ru_maxrss,
        record=len(lines[-1]),
    )


if __name__ == "__main__":
    main()
