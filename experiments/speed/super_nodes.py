"""Federations of many real SuperNodes on one machine beside fedstrata's simulator: labels, models, seconds and memory.

    FEDSTRATA_DATA=DATA PYTHONPATH=examples/flower python -m experiments.speed.super_nodes --nodes 6,30,100
    FEDSTRATA_DATA=DATA PYTHONPATH=examples/flower python -m experiments.speed.super_nodes --nodes 6 --start new

Adds to ``experiments/results/super_nodes.json`` the numbers of nodes that it does not hold yet with so many rounds. The
experiment is that of ``virtual_nodes.py``: 100 images of MNIST a node, in four rotations, and Strata. The federation is
as ``fedstrata deploy init`` makes it: a SuperLink and SuperNodes with TLS, keys and their proxies, which
talk over 127.0.0.1. By default the programs of the nodes are forked from one process; ``forked_programs.py`` says what
that means. With ``--start new`` each program starts as on a device. It needs Linux, which tells how processes share
memory. ``TMPDIR=/dev/shm`` keeps the SuperLink's database in memory, as the results have it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from machines import Machines, free_ports, within

from experiments.speed.forked_programs import ForkedPrograms
from experiments.speed.virtual_nodes import ROUNDS, beside_simulator, experiment
from fedstrata.flower import deploy
from fedstrata.flower.federation import FEDERATION_FILE, read_federation, write_federation

RESULTS = Path(__file__).parents[1] / "results" / "super_nodes.json"

CONNECT_SECONDS = 900.0
"""Seconds in which all SuperNodes have to be connected, and to say which client they are."""

DEADLINE = 3600.0
"""Seconds after which a client is absent from a round."""

POLL = 5.0
"""Seconds between two questions of a SuperExec whether its SuperNode has work; Flower's own is 1."""

MEMORY_INTERVAL = 30.0
"""Seconds between two looks at the processes."""


@dataclass
class Watch:
    """What was seen of the processes while a federation ran.

    Attributes:
        most: The largest memory so far, in bytes, with what processes share counted once (PSS).
        processes: How many processes there were then.
    """

    most: int = 0
    processes: int = 0

    def look(self) -> None:
        """Look at the memory of all processes."""
        sizes = memory()
        if sum(sizes) > self.most:
            self.most = sum(sizes)
            self.processes = len(sizes)


@contextlib.contextmanager
def repeated(look: Callable[[], None]) -> Iterator[None]:
    """Look every `MEMORY_INTERVAL` seconds, in a thread."""
    over = threading.Event()

    def look_until_over() -> None:
        while not over.wait(MEMORY_INTERVAL):
            look()

    thread = threading.Thread(target=look_until_over)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def memory() -> list[int]:
    """The memory of each process that this one and those have started, in bytes: its own, and its share of others'."""
    sizes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            sizes.append(process.memory_full_info().pss)
    return sizes


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="6,30,100")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--start", choices=("forked", "new"), default="forked")
    given = parser.parse_args()
    # So that the processes are ended when this one is told to end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for nodes in map(int, given.nodes.split(",")):
        if any(each["rounds"] >= given.rounds for each in kept(nodes, given.start, same=True)):
            continue
        found = compared(nodes, given.rounds, given.start)
        print(found, flush=True)
        # Another process may have added something meanwhile.
        others = kept(nodes, given.start, same=False)
        whole = sorted([*others, found], key=lambda each: (each["nodes"], each["start"]))
        RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


def kept(nodes: int, start: str, *, same: bool) -> list[dict[str, Any]]:
    """The results of a number of nodes with such a start of programs, or all others."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return [each for each in found if ((each["nodes"], each["start"]) == (nodes, start)) == same]


def compared(nodes: int, rounds: int, start: str) -> dict[str, Any]:
    """What both came to with a number of nodes, whose programs are forked or new."""
    keys = {**experiment(nodes), "rounds": rounds}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found = federated(keys, folder, nodes, start)
        return {"nodes": nodes, "start": start, **beside_simulator(keys, folder / "flower", folder / "own"), **found}


def federated(keys: dict[str, Any], folder: Path, nodes: int, start: str) -> dict[str, Any]:
    """Run an experiment on real SuperNodes, and say what memory and time that took."""
    federation, port = folder / "federation", free_ports(2 + 2 * nodes)
    deploy.init(federation, keys, port=port)
    path = federation / FEDERATION_FILE
    known = read_federation(path)
    # With many nodes it takes minutes until all have said who they are, and until all have answered in a round.
    write_federation(
        path, replace(known, wait_seconds=CONNECT_SECONDS, rounds=replace(known.rounds, deadline=DEADLINE))
    )
    clients = [f"site-{client}" for client in range(nodes)]
    with ExitStack() as stack:
        began = time.monotonic()
        machines = stack.enter_context(Machines(federation, port))
        machines.server()
        if start == "forked":
            programs = stack.enter_context(ForkedPrograms())
            # The SuperLink is up, and has started its programs as they are.
            machines.environment["PATH"] = f"{programs.folder}{os.pathsep}{machines.environment['PATH']}"
            machines.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(POLL)
        machines.register()
        for client in clients:
            machines.node(client)
        if not within(
            CONNECT_SECONDS, lambda: all("SuperNode ID" in machines.log(each).read_text() for each in clients)
        ):
            raise RuntimeError(f"expected {nodes} SuperNodes that are connected within {CONNECT_SECONDS} seconds")
        ready = time.monotonic() - began
        # The programs that a SuperNode starts need some time.
        time.sleep(MEMORY_INTERVAL)
        idle = memory()
        watch = Watch()
        with repeated(watch.look):
            deploy.run_on_federation(keys, federation, folder / "flower")
    return {
        "seconds_start": round(ready, 1),
        "memory_idle": sum(idle),
        "memory": watch.most,
        "processes_idle": len(idle),
        "processes": watch.processes,
    }


if __name__ == "__main__":
    main()
