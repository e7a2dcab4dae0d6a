"""Memory of a comparison of large networks: anonymous, which no system can drop, beside what the updates take.

    python benchmarks/compare_memory.py                               # 100 clients of VGG16: 6 GB of updates a round
    python benchmarks/compare_memory.py --model cifar_cnn --rounds 3

Noise of CIFAR-10's shape, one batch for each client, and the loop engine, so that one process holds all there is.
Rows that do not fit into memory lie in the folder for temporary files (TMPDIR), which should not itself be in memory.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import perf_counter

import torch
from images import noise
from peak import Peak

import fedstrata as fs


def main() -> None:
    """Compare algorithms, and print the most memory of the whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10, help="of each client")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--algorithms", default="fedavg,cfl,layercfl,hicfl,strata")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = noise(given.clients * (given.samples + 5))
    images, labels = dataset.inputs.numpy(), dataset.labels.numpy()
    parts = [slice(start, start + given.samples + 5) for start in range(0, len(labels), given.samples + 5)]
    clients = [
        ((images[part][: given.samples], labels[part][: given.samples]), (images[part][-5:], labels[part][-5:]))
        for part in parts
    ]
    tables = {
        "rounds": given.rounds,
        "model": given.model,
        "local": {"epochs": 1, "batch": given.samples, "lr": 0.01},
        "engine": {"name": "loop"},
    }
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, files in {gettempdir()}")
    began = perf_counter()
    with TemporaryDirectory() as folder, Peak() as peak:
        compared = fs.compare(tables, given.algorithms.split(","), None, Path(folder, "all"), clients=clients)
    failed = [run.error for run in compared.runs if run.error]
    print(
        f"{given.algorithms} with {given.clients} clients of {given.model}, {given.rounds} rounds: "
        f"{peak.anonymous / 1e9:.2f} GB, {perf_counter() - began:.0f} s" + "".join(f"; {error}" for error in failed)
    )


if __name__ == "__main__":
    main()
