"""The same federated averaging by fedstrata and by other libraries: seconds of a round, memory and accuracy.

    python benchmarks/peers.py --data DATA --folder /tmp/peers
    python benchmarks/peers.py --data DATA --folder /tmp/peers --jobs mlp --peers fluke pfl --runs 1

100 clients have 400 training and 100 test images of MNIST each, drawn without skew. In a round every client trains for
one epoch of SGD, the models are averaged, and the mean is tested on all 10,000 test images. Every library gets the same
arrays and the same first weights, and does the job in a process of its own (``peer_jobs/``). Runs of all libraries
alternate. The first round of a run, which warms up, is not counted.

Each library lives in its own environment in the folder, which pip makes where it is missing; the versions are pinned
below. Memory is the largest sum, over all processes of a run, of the memory that each holds, with shared pages
in equal parts (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any
from uuid import uuid4

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peer_jobs"))

from job import NETWORKS, Job  # noqa: E402  # the jobs are scripts, whose folder is no package

from fedstrata import data  # noqa: E402

CLIENTS, TRAINING, TEST = 100, 400, 100
TORCH = "torch==2.13.0"
CORES = os.cpu_count() or 1
POLL = 0.5
"""The seconds after which memory is looked at again."""

JOBS: dict[str, dict[str, Any]] = {
    "small": {"network": "small", "rounds": 6, "batch": 10, "lr": 0.05},
    "mlp": {"network": "mlp", "rounds": 5, "batch": 10, "lr": 0.05},
    "cnn": {"network": "cnn", "rounds": 4, "batch": 50, "lr": 0.05},
}

PACKAGES = {
    "fluke": ["fluke-fl==0.8.1"],
    "pfl": ["pfl[pytorch]==0.6.0"],
    "flower": ["flwr[simulation]==1.41.0"],
}


@dataclass
class Contender:
    """A library with its settings.

    Attributes:
        title: How the table calls it.
        library: The name of its script and its environment.
        arguments: What follows the job's file: threads, and the engine of fedstrata.
        command: The start of the command, with "{python}" for the interpreter of its environment.
        found: What its runs reported.
    """

    title: str
    library: str
    arguments: tuple[str, ...]
    command: tuple[str, ...] = ("{python}",)
    found: list[Outcome] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median seconds of a round, over all runs."""
        return median(one for outcome in self.found for one in outcome.seconds)


@dataclass(frozen=True)
class Outcome:
    """What a run reported.

    Attributes:
        version: The version of the library.
        seconds: Of each round but the first.
        accuracies: After each round.
        memory: The most bytes.
    """

    version: str
    seconds: list[float]
    accuracies: list[float]
    memory: int


VECTORIZED = Contender("fedstrata, vectorized", "fedstrata", (str(CORES), "batched"))

CONTENDERS = (
    Contender(f"fedstrata, {CORES} processes", "fedstrata", ("1", "processes")),
    VECTORIZED,
    Contender("fluke, one thread", "fluke", ("1",)),
    Contender(f"fluke, {CORES} threads", "fluke", (str(CORES),)),
    Contender("pfl, one thread", "pfl", ("1",)),
    Contender(
        f"pfl, {CORES} processes",
        "pfl",
        ("1",),
        ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(CORES)),
    ),
    Contender(f"Flower's simulation, {CORES} workers", "flower", ("1",)),
)


def main() -> None:
    """Run all jobs and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder that holds mnist/")
    parser.add_argument("--folder", required=True, type=Path, help="where the environments are")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--peers", nargs="*", choices=list(PACKAGES), default=list(PACKAGES))
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    folder = given.folder.resolve()
    for peer in given.peers:
        install(peer, folder)
    print(f"{platform.processor() or platform.machine()}, {CORES} cores, {TORCH}", flush=True)
    for name in given.jobs:
        job = Job(**JOBS[name], folder=str(folder / name))
        prepare(job, given.data)
        file = folder / name / "job.json"
        file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        invited = [each for each in CONTENDERS if each.library in ("fedstrata", *given.peers)]
        if name == "cnn":  # where the vectorized engine is slower than the loop on a CPU, see benchmarks/batched.py
            invited.remove(VECTORIZED)
        for contender in invited:
            contender.found.clear()
        for _ in range(given.runs):
            for contender in invited:
                contender.found.append(outcome(contender, file, folder))
        show(job, invited)


def install(peer: str, folder: Path) -> None:
    """Make the environment of a library, unless it is there."""
    place = folder / peer
    if (place / "bin" / "python").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", TORCH, *PACKAGES[peer]], check=True)


def prepare(job: Job, root: str) -> None:
    """Write the arrays of all clients and the first weights."""
    place = Path(job.folder)
    place.mkdir(parents=True, exist_ok=True)
    held = data.load_dataset("mnist", root)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(held.labels)))
    train, test = order[: CLIENTS * TRAINING], order[CLIENTS * TRAINING :][: CLIENTS * TEST]
    np.savez(
        place / "data.npz",
        x=held.prepare(train).reshape(CLIENTS, TRAINING, 1, 28, 28).numpy(),
        y=held.labels[train].long().reshape(CLIENTS, TRAINING).numpy(),
        test_x=held.prepare(test).numpy(),
        test_y=held.labels[test].long().numpy(),
    )
    torch.manual_seed(0)
    torch.save(list(NETWORKS[job.network]().state_dict().values()), place / "first.pt")


def outcome(contender: Contender, file: Path, folder: Path) -> Outcome:
    """Do the job once."""
    own = contender.library == "fedstrata"
    python = sys.executable if own else str(folder / contender.library / "bin" / "python")
    script = str(HERE / "peer_jobs" / f"with_{contender.library}.py")
    start = [part.format(python=python) for part in contender.command]
    mark = f"FEDSTRATA_PEER={uuid4().hex}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, "OMP_NUM_THREADS": contender.arguments[0], name: value}
    if not own:
        environment.pop("PYTHONPATH", None)
    log = file.with_suffix(f".{contender.library}.log")
    memory = 0
    with log.open("w+", encoding="utf-8") as lines:
        command = [*start, script, str(file), *contender.arguments]
        process = subprocess.Popen(command, stdout=lines, stderr=subprocess.STDOUT, env=environment, cwd=file.parent)
        while True:
            try:
                process.wait(POLL)
                break
            except subprocess.TimeoutExpired:
                memory = max(memory, memory_of(mark.encode()))
        lines.seek(0)
        text = lines.read()
    found = [line for line in text.splitlines() if line.startswith('{"version"')]
    if process.returncode or not found:
        raise SystemExit(f"{contender.title} failed; its output is in {log}")
    return Outcome(**json.loads(found[-1]), memory=memory)


def memory_of(mark: bytes) -> int:
    """The bytes of all processes whose environment has a mark."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                found += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, ValueError):  # it has ended
            continue
    return found


def show(job: Job, invited: list[Contender]) -> None:
    """Print the table of a job: fedstrata's faster engine is compared with everyone."""
    ours = min((each for each in invited if each.library == "fedstrata"), key=lambda each: each.seconds)
    print(f"\n{job.network}, batches of {job.batch}, learning rate {job.lr}, accuracy after round {job.rounds}")
    print("| library | version | seconds a round | as a multiple of fedstrata | GB | accuracy |")
    print("|---|---|---|---|---|---|")
    for contender in invited:
        ratios = [mean(one.seconds) / mean(own.seconds) for one, own in zip(contender.found, ours.found, strict=True)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        memory = max(one.memory for one in contender.found) / 1e9
        accuracy = mean(one.accuracies[-1] for one in contender.found)
        cells = (contender.title, contender.found[0].version, f"{contender.seconds:.2f}", ratio)
        print("| " + " | ".join((*cells, f"{memory:.1f}", f"{accuracy:.3f}")) + " |", flush=True)


if __name__ == "__main__":
    main()
