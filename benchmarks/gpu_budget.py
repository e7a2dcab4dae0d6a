"""What the benchmark jobs would ask of a GPU: kernels, bytes and operations, counted on a CPU, and the least time.

    python benchmarks/gpu_budget.py            # writes experiments/results/gpu_budget.json

Nothing runs on a GPU. The engine's program for CUDA runs on a simulated device (`simulated_gpu.py`) without values, and
every operation of torch counts as one kernel. So the times are bounds that follow from data sheets, no measurements.
One round of each job is counted, after the rounds in which its steps are recorded.

Three times bound a round, all in seconds:

- host: the time that Python needs to start kernels. With recordings, a step is two starts.
- kernels: the sum over all kernels of the longest of: its bytes over the bandwidth, its operations over the peak, and
  the least time of a kernel. Once as if no byte were found in the cache, once as if the whole cache always helped.
- bus: the bytes that are copied from and to the computer, over the bandwidth of the bus.

What the algorithms do between rounds comes on top; `gpu.py` measures it on a card.

The engine puts kernels and copies into one stream, so their times add up. The host works ahead of them. The least time
of a round is the longer one of host and kernels plus bus.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from batched import IMAGES, large, problem_of, random_partition
from images import noise
from simulated_gpu import Note, SimulatedGPU
from torch import nn

from fedstrata import data
from fedstrata.algorithms import ALGORITHMS
from fedstrata.core import Algorithm, LocalTraining, Plan, Problem
from fedstrata.engine import ClientData
from fedstrata.engine.vectorized import Vectorized
from fedstrata.models import make

RESULTS = Path(__file__).parent.parent / "experiments" / "results" / "gpu_budget.json"

START = 5e-6
"""Seconds of the host to start one operation of torch from Python, or one recording. An assumption: traces of torch
show 4 to 10 microseconds."""
KERNEL = 5e-7
"""Least seconds of the device for a kernel of a recording: NVIDIA's "Getting started with CUDA graphs" finds 0.5
microseconds beside the kernel's own work."""
BUS = 64e9
"""Bytes a second in one direction: PCI Express 5.0 with 16 lanes, as on both cards' data sheets (128 GB/s for both)."""
CACHE = 50 << 20
"""Bytes of the second-level cache of both cards: NVIDIA, "H100 Tensor Core GPU architecture"."""
WARM_UP = 4
"""Rounds before the one that is counted; a step is recorded when it is met for the fourth time. Models stay as they
are: without values there is nothing to learn."""
PEAKS = {"float32": 66.9e12, "TF32": 494.7e12, "bfloat16": 989.4e12}
"""Dense operations a second of matrix products, from NVIDIA's data sheets of the H100 SXM and the H200 SXM.

float32 is what the engine asks for (`exact`): it does without tensor cores.
"""
BANDWIDTHS = {"H100 SXM": 3.35e12, "H200 SXM": 4.8e12}
"""Bytes a second of the cards' memory, from the same data sheets."""


@dataclass(frozen=True)
class Federation:
    """The federation of a job.

    Attributes:
        engine: The engine.
        algorithm: The algorithm.
        problem: What the algorithm knows.
    """

    engine: Vectorized
    algorithm: Algorithm[Any]
    problem: Problem


@dataclass(frozen=True)
class Job:
    """A benchmark job.

    Attributes:
        title: What it does.
        rounds: The number of its rounds.
        cohort: The number of clients in each round.
        federation: The function that makes the federation in a precision, on whatever device is there by then.
    """

    title: str
    rounds: int
    cohort: int
    federation: Callable[[str], Federation]


@dataclass(frozen=True)
class Counts:
    """What one round of a job asks of the device.

    Attributes:
        steps: The local steps, each of many clients.
        step_kernels: The kernels of a local step.
        step_starts: What the host starts in a local step with recordings, the recording included.
        kernels: The kernels.
        starts: What the host starts with recordings.
        waits: How often the host waits for a value or a copy.
        bytes: The bytes that kernels read and write.
        flops: The operations of matrix products and convolutions.
        to_device: The bytes copied to the device.
        to_host: The bytes copied from it.
    """

    steps: int
    step_kernels: float
    step_starts: float
    kernels: int
    starts: int
    waits: int
    bytes: int
    flops: int
    to_device: int
    to_host: int


def main() -> None:
    """Count all jobs, and print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.jobs:
        known[name] = budget(JOBS[name])
        given.out.write_text(json.dumps({key: known[key] for key in JOBS if key in known}, indent=1) + "\n")
        print(name, json.dumps(known[name], indent=1))


def budget(job: Job) -> dict[str, Any]:
    """The counts of a job and the bounds in seconds, for one round."""
    notes = one_round(job)
    counts = counted(notes)
    kernels = [note for note in notes if note.kind == "kernel"]
    return {
        "title": job.title,
        "rounds": job.rounds,
        "counts": asdict(counts),
        "host without recordings": (counts.kernels + copies(notes)) * START,
        "host": counts.starts * START,
        "bus": (counts.to_device + counts.to_host) / BUS,
        "products": {precision: counts.flops / peak for precision, peak in PEAKS.items()},
        "bytes": {card: counts.bytes / bandwidth for card, bandwidth in BANDWIDTHS.items()},
        "kernels": {
            card: {
                precision: [kernel_time(kernels, bandwidth, peak, cache) for cache in (CACHE, 0)]
                for precision, peak in PEAKS.items()
            }
            for card, bandwidth in BANDWIDTHS.items()
        },
    }


def one_round(job: Job) -> list[Note]:
    """What the device does in one round, the mean of its updates included."""
    with SimulatedGPU(values=False) as gpu:
        federation = job.federation("float32")
        state = federation.algorithm.init(federation.problem)
        for round in range(1, WARM_UP + 2):
            before = len(gpu.notes)
            report = federation.engine.run(planned(job, federation, state, round))
        federation.algorithm.update(federation.problem, state, report)
    return gpu.notes[before:]


def planned(job: Job, federation: Federation, state: Any, round: int) -> Plan:
    """The plan of a round."""
    problem = federation.problem
    order = torch.randperm(problem.clients, generator=problem.generator("cohort", round))
    cohort = order[: job.cohort].sort().values
    return replace(federation.algorithm.plan(problem, state, cohort), round=round)


def counted(notes: Sequence[Note]) -> Counts:
    """The counts of a round."""
    kernels = [note for note in notes if note.kind == "kernel"]
    places = [place for place, note in enumerate(notes) if note.kind == "replay"]
    launched = [note.kind in ("kernel", "replay") and not note.recorded for note in notes]
    done = [note.kind == "kernel" for note in notes]
    # From one replay to the next is a step: what comes before a replay belongs to it.
    steps = list(pairwise(places))
    # Between two tasks or chunks there is more, so the middle one of all is taken.
    middle = sorted(steps, key=lambda step: sum(launched[step[0] : step[1]]))[len(steps) // 2]
    return Counts(
        steps=len(places),
        step_kernels=sum(done[slice(*middle)]),
        step_starts=sum(launched[slice(*middle)]),
        kernels=len(kernels),
        starts=sum(launched) + copies(notes),
        waits=sum(note.blocking for note in notes),
        bytes=sum(note.bytes for note in kernels),
        flops=sum(note.flops for note in kernels),
        to_device=sum(note.bytes for note in notes if note.kind == "to device"),
        to_host=sum(note.bytes for note in notes if note.kind == "to host"),
    )


def copies(notes: Sequence[Note]) -> int:
    """The number of copies from and to the computer."""
    return sum(note.kind in ("to device", "to host") for note in notes)


def kernel_time(kernels: Sequence[Note], bandwidth: float, peak: float, cache: int = 0) -> float:
    """Seconds of kernels, one after the other.

    Args:
        kernels: The kernels.
        bandwidth: Bytes a second.
        peak: Operations a second.
        cache: Bytes of each kernel that need not come from memory.
    """
    return sum(max(max(0, each.bytes - cache) / bandwidth, each.flops / peak, KERNEL) for each in kernels)


def fedavg(
    module: nn.Module,
    dataset: data.Dataset,
    clients: int,
    samples: int,
    training: LocalTraining,
    precision: str,
    im2col: bool | None = None,
) -> Federation:
    """A federation of clients of equal size that does FedAvg, on the simulated device."""
    problem = problem_of(module, clients, training)
    client_data = ClientData(dataset, random_partition(dataset, clients, samples), seed=0)
    engine = Vectorized(module, problem.layout, client_data, precision=precision, device="cuda", im2col=im2col)
    return Federation(engine, ALGORITHMS["fedavg"](), problem)


def hundred(precision: str, im2col: bool | None = None) -> Federation:
    """One hundred clients of the papers' CNN, whose convolutions are products or not."""
    dataset = noise(100 * 501)
    module = make("cifar_cnn", dataset.shape, dataset.classes, seed=0)
    return fedavg(module, dataset, 100, 500, LocalTraining(epochs=1, batch=50, lr=0.05), precision, im2col)


def users(precision: str) -> Federation:
    """Many users with little data."""
    training = LocalTraining(epochs=1, batch=10, lr=0.1)
    return fedavg(large(), noise(1000 * (IMAGES + 1)), 1000, IMAGES, training, precision)


def vgg16(precision: str) -> Federation:
    """The exhibit of LayerCFL with the paper's width: experiments/papers/layercfl_rotation.toml with width 1."""
    dataset = noise(20 * 271)
    module = make("vgg16", dataset.shape, dataset.classes, seed=0)
    training = LocalTraining(epochs=2, batch=50, lr=0.001, optimizer="adam")
    return fedavg(module, dataset, 20, 270, training, precision)


JOBS = {
    "hundred": Job("100 clients of 500 images, the papers' CNN, batch 50", 1, 100, hundred),
    "groups": Job("the same with convolutions in groups", 1, 100, partial(hundred, im2col=False)),
    "users": Job("1000 users of 50 images, 50 in a round, 1.6 million weights, batch 10", 1500, 50, users),
    "vgg16": Job("LayerCFL's exhibit: 20 clients of 270 images, VGG16, Adam, batch 50", 50, 20, vgg16),
}
"""All with images of CIFAR-10's shape. Nothing is scored but what an algorithm asks for."""


if __name__ == "__main__":
    main()
