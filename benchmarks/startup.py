"""The commands that a new user types first, in processes of their own, beside the import of torch alone.

    python benchmarks/startup.py                  # fedstrata --help, and fedstrata run: the demo with its page
    python benchmarks/startup.py --times 5

A first run of each is not timed: Python compiles its modules then, and files come into memory.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

REFERENCE = "import torch"
COMMANDS = {
    REFERENCE: (sys.executable, "-c", "import torch"),
    "fedstrata --help": (sys.executable, "-m", "fedstrata", "--help"),
    "fedstrata run": (sys.executable, "-m", "fedstrata", "run"),
}


def main() -> None:
    """Print the seconds of each command, and its ratio to the import of torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="how often each command is timed, in turn")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    for command in COMMANDS.values():
        seconds(command)
    times = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(given.times)]
    for name in COMMANDS:
        ratios = [time[name] / time[REFERENCE] for time in times]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name}: {median(time[name] for time in times):.2f} s, {median(ratios):.2f} times {REFERENCE} ({each})")


def seconds(command: Sequence[str]) -> float:
    """The seconds of a command in an empty folder. Modules are compiled once, as where nothing forbids it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryDirectory() as folder:
        began = perf_counter()
        subprocess.run(command, cwd=Path(folder), env=environment, check=True, capture_output=True)
        return perf_counter() - began


if __name__ == "__main__":
    main()
