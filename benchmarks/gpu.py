"""The benchmark jobs of `gpu_budget.py` on a real GPU: seconds of a round, beside what the textbook loop needs.

    python benchmarks/gpu.py                   # writes experiments/results/gpu.json, under the name of the card
    python benchmarks/gpu.py --profiles FOLDER # and what the kernels of one round of each job were, in text files

Every job has two kinds of seconds. "Device" is from the plans to the reports, with all copies; "server" is what the
algorithms do between. "Kernels" is the sum over all kernels and copies of one round that is profiled. The first rounds
warm up: steps are recorded in them. Then:

- hundred and groups: in turn with the textbook loop on the same card, the ratio of each pair.
- users: all rounds of the job.
- vgg16: the exhibit's rounds on noise.

Before the jobs the limits of the card are measured: a copy inside its memory, and products of large matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from gpu_budget import JOBS, WARM_UP, Federation, Job, planned
from textbook import TextbookCNN, textbook_round
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

RESULTS = Path(__file__).parent.parent / "experiments" / "results" / "gpu.json"

MEASURED = {"hundred": 5, "groups": 3, "users": 1500, "vgg16": 5}
"""Rounds that are measured."""

OTHER_PRECISIONS = {"hundred": 5, "users": 100, "vgg16": 3}
"""Rounds that are measured in TF32 and in bfloat16."""


def main() -> None:
    """Measure, and print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--rounds", type=int, help="rounds at most, for a first look; the results are not written")
    parser.add_argument("--profiles", type=Path, help="folder for the kernels of one round of each job")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as the command does
    card = torch.cuda.get_device_name()
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    own = known.setdefault(card, {})
    own["torch"] = torch.__version__
    own["cores"] = os.cpu_count()
    own["limits"] = limits()
    print(card, json.dumps(own), flush=True)
    failed = list[str]()
    for name in given.jobs:
        try:
            rounds = min(MEASURED[name], given.rounds or MEASURED[name])
            own[name] = {"title": JOBS[name].title, "revision": revision(), **measured(name, rounds, given.profiles)}
            own[name]["precisions"] = in_precisions(name, rounds)
        except RuntimeError:
            # The time of a card is short: the other jobs go on, and what was measured is kept.
            traceback.print_exc()
            failed.append(name)
        print(name, json.dumps(own.get(name)), flush=True)
        if given.rounds is None:
            given.out.write_text(json.dumps(known, indent=1) + "\n")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def in_precisions(name: str, rounds: int) -> dict[str, dict[str, float]]:
    """The seconds of a round in other precisions, for the jobs that have them."""
    precisions = ("tf32", "bfloat16") if name in OTHER_PRECISIONS else ()
    return {each: in_precision(name, min(OTHER_PRECISIONS[name], rounds), each) for each in precisions}


def revision() -> str:
    """The commit of the program; empty where it is not in its repository."""
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def limits() -> dict[str, float]:
    """Bytes a second of a copy, read and written, and operations a second of products of large matrices."""
    return {
        "bytes": copied_per_second(2**29),
        "float32": products_per_second(torch.float32, "ieee"),
        "TF32": products_per_second(torch.float32, "tf32"),
        "bfloat16": products_per_second(torch.bfloat16, "ieee"),
    }


def copied_per_second(numbers: int) -> float:
    """Bytes a second that a copy of float32 numbers reads and writes."""
    source = torch.randn(numbers, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source))


def products_per_second(kind: torch.dtype, precision: str, side: int = 8192) -> float:
    """Operations a second of products of square matrices, in a precision of float32's."""
    products: Any = torch.backends.cuda.matmul  # its annotations are incomplete
    before = products.fp32_precision
    products.fp32_precision = precision
    try:
        left, right = (torch.randn(side, side, device="cuda", dtype=kind) for _ in range(2))
        return 2 * side**3 / seconds_of(lambda: left @ right)
    finally:
        products.fp32_precision = before


def seconds_of(work: Callable[[], object], times: int = 10) -> float:
    """Seconds of work on the device, the middle of several times."""
    taken = list[float]()
    for turn in range(times + 3):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        if turn >= 3:
            taken.append(began.elapsed_time(ended) / 1000)
    return median(taken)


class Play:
    """A federation that is trained round by round.

    Args:
        job: The job.
        federation: Its federation.
    """

    def __init__(self, job: Job, federation: Federation) -> None:
        """Start."""
        self._job = job
        self._federation = federation
        self._state = federation.algorithm.init(federation.problem)
        self._round = 0

    def one(self) -> tuple[float, float]:
        """The seconds of the device and of the server in the next round."""
        self._round += 1
        began = perf_counter()
        plan = planned(self._job, self._federation, self._state, self._round)
        ready = perf_counter()
        report = self._federation.engine.run(plan)
        torch.cuda.synchronize()
        trained = perf_counter()
        self._state, _ = self._federation.algorithm.update(self._federation.problem, self._state, report)
        return trained - ready, ready - began + perf_counter() - trained


def measured(name: str, rounds: int, profiles: Path | None) -> dict[str, Any]:
    """What one job takes, and what its rival takes in turn with it."""
    job = JOBS[name]
    federation = job.federation("float32")
    play = Play(job, federation)
    warm = [sum(play.one()) for _ in range(WARM_UP)]
    rival = textbook(federation) if name in ("hundred", "groups") else None
    if rival is not None:
        rival()
    torch.cuda.reset_peak_memory_stats()
    device, server, other = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        trained, decided = play.one()
        device.append(trained)
        server.append(decided)
        if rival is not None:
            other.append(rival())
    seconds, kernels = kernels_of(play)
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
        (profiles / f"{name}.txt").write_text(kernels)
    whole = [trained + decided for trained, decided in zip(device, server, strict=True)]
    found: dict[str, Any] = {
        "rounds": rounds,
        "first rounds": warm,
        "device": median(device),
        "kernels": seconds,
        "server": median(server),
        "all rounds": sum(whole),
        "peak bytes": torch.cuda.max_memory_allocated(),
    }
    if other:
        found["rival"] = median(other)
        # The textbook loop averages too: whole rounds are compared.
        found["rival / this"] = [theirs / ours for theirs, ours in zip(other, whole, strict=True)]
    return found


def in_precision(name: str, rounds: int, precision: str) -> dict[str, float]:
    """The seconds of a round in another precision."""
    play = Play(JOBS[name], JOBS[name].federation(precision))
    for _ in range(WARM_UP):
        play.one()
    found = [play.one() for _ in range(rounds)]
    return {"device": median(device for device, _ in found), "server": median(server for _, server in found)}


def textbook(federation: Federation) -> Callable[[], float]:
    """A round of the textbook loop with the clients of a federation, their data on the card."""
    model = TextbookCNN().to("cuda")
    training = federation.problem.training
    clients = list(clients_of(federation))

    def one() -> float:
        began = perf_counter()
        textbook_round(model, clients, training.epochs, training.batch, training.lr)
        torch.cuda.synchronize()
        return perf_counter() - began

    return one


def clients_of(federation: Federation) -> Iterator[TensorDataset]:
    """The training samples of every client, normalised, on the card."""
    client_data = federation.engine.client_data
    for client in range(federation.problem.clients):
        inputs, labels = client_data.samples(client_data.train(client))
        yield TensorDataset(inputs.contiguous().to("cuda"), labels.to("cuda"))


def kernels_of(play: Play) -> tuple[float, str]:
    """The sum of the seconds of all kernels of one round, and the kernels, the longest first."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        play.one()
    averages = found.key_averages()
    device = averages.table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=120)
    host = averages.table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=80)
    kernels = (each for each in averages if str(each.device_type) == "DeviceType.CUDA")
    return sum(each.self_device_time_total for each in kernels) / 1e6, f"{device}\n{host}\n"


if __name__ == "__main__":
    main()
