"""Local training of plain networks by SGD without autograd beside the same training with it.

    python benchmarks/plain_networks.py

A client trains for one epoch on 400 images of MNIST's shape by the loop engine, in turn as it does and with every step
left to autograd. The images are noise: what it learns does not matter here. Times are processor time of one thread,
which other programs lengthen less than time on the clock.
"""

from __future__ import annotations

import argparse
import platform
from statistics import median
from time import thread_time
from unittest.mock import patch

import numpy as np
import torch
from images import noise

from fedstrata.core import LocalTask, LocalTraining, Plan
from fedstrata.engine import ClientData, Loop
from fedstrata.models import layout_of, make, row_of
from fedstrata.partition import Partition

SAMPLES, TEST = 400, 1
SHAPE = (1, 28, 28)
NETWORKS: dict[str, tuple[int, ...]] = {
    "no hidden layer": (),
    "one hidden layer of 64 units": (64,),
    "two hidden layers of 200 units": (200, 200),
}


def main() -> None:
    """Print a row for each network and size of a batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 50])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, one thread, torch {torch.__version__}, {given.pairs} pairs")
    print("| network | batch | us a step with autograd | without | times faster |")
    print("|---|---|---|---|---|")
    for name, hidden in NETWORKS.items():
        for batch in given.batches:
            pairs = measure(hidden, batch, given.pairs)
            slow, fast = (median(times) for times in zip(*pairs, strict=True))
            quarters = sorted(one / other for one, other in pairs)
            lower, upper = quarters[len(pairs) // 4], quarters[-1 - len(pairs) // 4]
            times = f"{median(quarters):.2f} ({lower:.2f} to {upper:.2f})"
            print(f"| {name} | {batch} | {1e6 * slow:.0f} | {1e6 * fast:.0f} | {times} |", flush=True)


def measure(hidden: tuple[int, ...], batch: int, count: int) -> list[tuple[float, float]]:
    """Seconds of a step with autograd and without it, so many times.

    Args:
        hidden: The units of each hidden layer.
        batch: The samples of a step.
        count: The number of pairs.
    """
    module = make("mlp", SHAPE, 10, seed=0, hidden=hidden)
    layout = layout_of(module)
    split = (np.arange(SAMPLES),), (np.arange(SAMPLES, SAMPLES + TEST),)
    partition = Partition(*split, None, np.zeros(1, dtype=np.int64), np.arange(10)[None])
    engine = Loop(module, layout, ClientData(noise(SAMPLES + TEST, SHAPE), partition, seed=0))
    training = LocalTraining(epochs=1, batch=batch, lr=0.05)
    task = LocalTask(
        candidates=torch.zeros(1, 1, dtype=torch.int64),
        training=training,
        trainable=layout.everything,
        upload=layout.everything,
        load_local=layout.nothing,
        save_local=layout.nothing,
    )
    plan = Plan(1, 0, torch.zeros(1, dtype=torch.int64), row_of(module, layout)[None], {"train": task})

    def turn() -> tuple[float, torch.Tensor]:
        began = thread_time()
        updates = engine.run(plan).results["train"].updates.values
        return (thread_time() - began) / training.steps_of(SAMPLES), updates

    pairs = []
    for _ in range(count + 1):
        with patch("fedstrata.engine.loop.plain_network", return_value=None):
            slow, expected = turn()
        fast, found = turn()
        # A step writes each product straight into the weights, which is rounded once less.
        torch.testing.assert_close(found, expected)
        pairs.append((slow, fast))
    return pairs[1:]  # the first one warms up


if __name__ == "__main__":
    main()
