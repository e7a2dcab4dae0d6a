"""Time and memory of a round against the number of registered clients, of whom 500 take part in each round.

    FEDSTRATA_DATA=DATA python benchmarks/many_clients.py
    FEDSTRATA_DATA=DATA python benchmarks/many_clients.py --clients 1000 10000 --rounds 5
    FEDSTRATA_DATA=DATA python benchmarks/many_clients.py --records --clients 1000 10000 100000

With ``--records`` it measures what a round writes, and the time until the first round begins, of a new run and of one
that is resumed. It kills each run once it has seen that, and writes
``experiments/results/many_clients_records.json``, from which ``experiments/tools/tables.py`` makes the table. It needs
the folder ``/proc`` of Linux.

Every number of clients is a run of ``experiments/speed/many_clients.toml`` in a process of its own: MNIST in four
groups, a perceptron, Strata. MNIST is repeated so often that each client has 25 images. The slopes are those of least
squares of the logarithms: 1 is in proportion to the number of clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import numpy as np

EXPERIMENT = Path(__file__).parent.parent / "experiments" / "speed" / "many_clients.toml"
RESULTS = EXPERIMENT.parent / "results" / "many_clients_records.json"
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
    """

    clients: int
    other: float
    training: float
    around: float
    memory: int


def main() -> None:
    """Run all numbers of clients, and print a row for each and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=8, help="the first is left out, as it makes what later ones keep")
    parser.add_argument("--records", action="store_true", help="measure what is written, and starts")
    given = parser.parse_args()
    if given.records:
        found_records = [measure_records(clients, given.rounds) for clients in given.clients]
        RESULTS.write_text(json.dumps(found_records, indent=1) + "\n")
        return
    print("| clients | s a round outside training | s of training | s before and after | GB |")
    print("|---|---|---|---|---|", flush=True)
    found = list[Measured]()
    for clients in given.clients:
        one = measure(clients, given.rounds)
        found.append(one)
        cells = (f"{one.clients:,}", f"{one.other:.2f}", f"{one.training:.2f}", f"{one.around:.0f}")
        print("| " + " | ".join((*cells, f"{one.memory / 1e9:.2f}")) + " |", flush=True)
    if len(found) > 1:
        sizes = np.log([one.clients for one in found])
        for what, values in (("time", [one.other for one in found]), ("memory", [one.memory for one in found])):
            print(f"slope of {what}: {np.polyfit(sizes, np.log(values), 1)[0]:.2f}")


def command_of(clients: int, rounds: int, folder: Path) -> list[str]:
    """Return the command that runs a number of clients."""
    keys = {
        "rounds": rounds,
        "data.clients": clients,
        "data.copies": ceil(clients * IMAGES_OF_A_CLIENT / IMAGES),
        "cohort.fraction": COHORT / clients,
        "cohort.scored": COHORT,
    }
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "fedstrata", "run", str(EXPERIMENT), *sets, "--out", str(folder), "--quiet"]


def measure(clients: int, rounds: int) -> Measured:
    """Run one number of clients."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        start = perf_counter()
        process = subprocess.Popen(command_of(clients, rounds, folder), stdout=subprocess.DEVNULL)
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
    )


def measure_records(clients: int, rounds: int) -> dict[str, float]:
    """Return what the rounds of one number of clients write, and how long a run takes until its first round.

    The line of the first round is told apart. The last round of a run, which scores every client, is left out: no run
    gets so far.
    """
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = command_of(clients, rounds + 2, folder)
        last = folder / "checkpoint" / f"{rounds:05d}.safetensors"
        fresh = time_until_first_round(command, folder, last)
        lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        tables = [
            path.stat().st_size
            for name in ("clients", "gaps", "matrices")
            for path in (folder / name).glob("[0-9]*")
            if 1 < int(path.stem) <= len(lines)
        ]
        replaced = max((folder / "checkpoint").glob("*.safetensors")).stat().st_size
        replaced += (folder / "tree.json").stat().st_size
        resumed = time_until_first_round([*command, "--resume"], folder)
    one = {
        "clients": clients,
        "rounds": len(lines) - 1,
        "first_line": len(lines[0]),
        "line": mean(map(len, lines[1:])),
        "files": sum(tables) / (len(lines) - 1),
        "replaced": replaced,
        "seconds_fresh": fresh[0],
        "cpu_fresh": fresh[1],
        "seconds_resumed": resumed[0],
        "cpu_resumed": resumed[1],
    }
    print(json.dumps(one), flush=True)
    return one


def time_until_first_round(command: list[str], folder: Path, last: Path | None = None) -> tuple[float, float]:
    """Run a command until its first round begins, or until a file is there, and kill it.

    Returns:
        The seconds until the first round begins, and those of them in which a processor worked for it.
    """
    # A run writes this file when it begins and when it is resumed, after everything else but its rounds.
    ready = folder / "metric.json"
    before = written_at(ready)
    start = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(there: Callable[[], bool]) -> None:
        while not there():
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended too early")
            sleep(0.005)

    try:
        wait(lambda: written_at(ready) != before)
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        found = perf_counter() - start, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        if last is not None:
            wait(last.exists)
    finally:
        process.kill()
        process.wait()
    return found


def written_at(path: Path) -> int:
    """Return when a file was written, in nanoseconds; 0 while it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
