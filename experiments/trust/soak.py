"""Whether memory, open files and threads grow over many rounds, simulated and deployed.

    PYTHONPATH=tests:tests/flower nice -n 5 python -m experiments.trust.soak
    PYTHONPATH=tests:tests/flower nice -n 5 python -m experiments.trust.soak processes    # one part anew

Every part is a process of its own with 200 rounds of digits: the engine `loop`, the engine `processes` with two
workers, one of which is killed every 20 rounds, and a server whose clients' devices are in the same process and get
every message as bytes. It is measured after each round. Writes ``experiments/results/soak.json``; some 25 minutes
on a core that other work shares.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import State
from fedstrata.engine import Parallel, Processes
from fedstrata.engine.device import one_thread
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.steps import run_steps

ROUNDS = 200
WARM_UP = 50
"""The first rounds, in which allocators and caches fill; they are not fitted."""
KILLED_EVERY = 20
"""The rounds after which a worker of the engine `processes` is killed."""

KEYS: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"name": "digits", "clients": 8, "samples": 40, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.1, "batch": 10},
    "algorithm": {"name": "strata"},
    "engine": {"device": "cpu"},
}


class Samples:
    """What this process takes, and its workers.

    Attributes:
        rows: The samples, one for each round.
    """

    def __init__(self) -> None:
        """Measure nothing yet."""
        self.rows = list[dict[str, float]]()
        self._process = psutil.Process()

    def take(self, *_: object) -> None:
        """Measure now. What is unreachable does not count: the collector frees it at some time."""
        gc.collect()
        workers = self._process.children(recursive=True)
        self.rows.append(
            {
                "mib": self._process.memory_info().rss / 2**20,
                "workers_mib": sum(worker.memory_info().rss for worker in workers) / 2**20,
                "files": self._process.num_fds(),
                "threads": self._process.num_threads(),
                "workers": len(workers),
            }
        )


def loop(folder: Path, samples: Samples) -> None:
    """A simulation with the engine `loop`."""
    _simulated(folder, samples, {"name": "loop"})


def processes(folder: Path, samples: Samples) -> None:
    """A simulation with the engine `processes`, whose workers are killed now and then."""
    _simulated(folder, samples, {"name": "processes", "workers": 2})


def _simulated(folder: Path, samples: Samples, engine: Mapping[str, Any]) -> None:
    experiment = load_experiment({**KEYS, "engine": {**KEYS["engine"], **engine}})
    setup = build_run(experiment)
    transport = setup.clients._transport if isinstance(setup.clients, Parallel) else None

    def on_round(record: Mapping[str, Any], state: State) -> None:
        samples.take()
        if isinstance(transport, Processes) and record["round"] % KILLED_EVERY == 0:
            os.kill(transport.pids[0], signal.SIGKILL)

    try:
        with one_thread():
            steps = run_steps(experiment, setup, folder / "run", on_round=on_round)
            answer_plans(steps, partial(timed_reply, setup.clients))
    finally:
        if isinstance(setup.clients, Parallel):
            setup.clients.close()


def deployed(folder: Path, samples: Samples) -> None:
    """A server and its devices in one process, which exchange Flower's messages as bytes."""
    from flwr.app import Message
    from in_process import Loopback, Ticks, federation

    from fedstrata.flower.federation import Federation
    from fedstrata.flower.server_app import drive

    class Watched(Loopback):
        """Samples are taken whenever a round begins; what was asked before is forgotten, as a SuperLink does."""

        round = ""

        def push_messages(self, messages: list[Message]) -> list[str | None]:
            rounds = [each.metadata.group_id for each in messages]
            # Each client is sent a message of its own.
            if rounds and rounds[0] != self.round:
                self.round = rounds[0]
                self.asked.clear()
                samples.take()
            return super().push_messages(messages)

    keys = {**KEYS, "engine": {**KEYS["engine"], "name": "loop"}}
    made = federation(keys, folder / "devices")
    clients = tuple(device.key for device in made.devices.values())
    members = Federation(clients, made.config.samples, max_samples=1000)
    drive(Watched(made.devices), load_experiment(keys), members, folder / "run", clock=Ticks().clock)


PARTS: dict[str, Callable[[Path, Samples], None]] = {part.__name__: part for part in (loop, processes, deployed)}


def fitted(rows: list[dict[str, float]], key: str) -> dict[str, float]:
    """The straight line through what was measured after the warm-up: its growth, and the noise around it."""
    values = np.array([row[key] for row in rows[WARM_UP:]])
    rounds = np.arange(len(values))
    slope, intercept = np.polyfit(rounds, values, 1)
    return {
        "mean": round(float(values.mean()), 2),
        "least": round(float(values.min()), 2),
        "most": round(float(values.max()), 2),
        "per_100_rounds": round(float(slope) * 100, 4),
        "growth": round(float(slope) * len(values) / float(intercept), 5) if intercept else 0.0,
    }


def figures(name: str, rows: list[dict[str, float]], seconds: float) -> dict[str, Any]:
    """What is kept of a part: the lines, and what was measured every 20 rounds."""
    measured = {key: fitted(rows, key) for key in rows[0]}
    curve = [round(mean(row["mib"] for row in rows[place : place + 20]), 1) for place in range(0, len(rows), 20)]
    return {
        "part": name,
        "rounds": len(rows),
        "warm_up": WARM_UP,
        "seconds": round(seconds, 1),
        **measured,
        "mib_by_20_rounds": curve,
    }


def main() -> None:
    """Run all parts, or those that are named, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="by default all")
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)  # of the process of one part
    given = parser.parse_args()
    if given.samples is not None:
        samples = Samples()
        with tempfile.TemporaryDirectory() as folder:
            PARTS[given.parts[0]](Path(folder), samples)
        given.samples.write_text(json.dumps(samples.rows))
        return
    path = Path(__file__).parents[1] / "results" / "soak.json"
    known = {each["part"]: each for each in json.loads(path.read_text())} if path.exists() else {}
    for name in given.parts or PARTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder) / "samples.json"
            with (Path(folder) / "log").open("w") as log:
                subprocess.run(
                    [sys.executable, "-m", "experiments.trust.soak", name, "--samples", str(rows)],
                    stderr=log,
                    check=True,
                )
            known[name] = figures(name, json.loads(rows.read_text()), time.monotonic() - began)
        print(json.dumps(known[name]), flush=True)
        path.write_text("[\n" + ",\n".join(json.dumps(known[each]) for each in PARTS if each in known) + "\n]\n")


if __name__ == "__main__":
    main()
