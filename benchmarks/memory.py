"""Memory of one round of a large network: anonymous, which no system can drop, beside what the updates take.

    python benchmarks/memory.py                                           # 100 clients of VGG16: 6 GB of updates
    python benchmarks/memory.py --model cifar_cnn --in-memory 0.001       # a small one, in a file all the same

Noise of CIFAR-10's shape, one batch for each client, one round: plan, work, validation, decision and checkpoint. Rows
that do not fit lie in the folder for temporary files (TMPDIR), which should not itself be in memory.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import perf_counter

import torch
from images import noise
from peak import Peak

from fedstrata.algorithms import ALGORITHMS
from fedstrata.core import LocalTraining, Problem, RuleAggregation, rows
from fedstrata.engine import ClientData, Loop
from fedstrata.models import layout_of, make, row_of
from fedstrata.partition import partition_samples, scheme_from
from fedstrata.records.checkpoint import Checkpoint, save
from fedstrata.uploads.validation import validate


def main() -> None:
    """Run one round, and print the most memory that each of its steps took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=10, help="of each client")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--in-memory", type=float, default=rows.IN_MEMORY / 1e9, help="GB of rows held in memory")
    given = parser.parse_args()
    rows.IN_MEMORY = int(1e9 * given.in_memory)
    torch.set_num_threads(1)

    dataset = noise(given.clients * (given.samples + 5))
    partition = partition_samples(
        scheme_from({"scheme": "iid"}),
        dataset.labels.numpy(),
        clients=given.clients,
        samples=given.samples,
        test=0.2,
        seed=0,
        classes=dataset.classes,
    )
    module = make(given.model, dataset.shape, dataset.classes, seed=0)
    layout = layout_of(module)
    start = row_of(module, layout)
    training = LocalTraining(epochs=1, batch=given.samples, lr=0.01)
    problem = Problem(layout, lambda _: start, given.clients, RuleAggregation(), training=training)
    algorithm, engine = ALGORITHMS[given.algorithm](), Loop(module, layout, ClientData(dataset, partition, seed=0))
    state = algorithm.init(problem)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, files in {gettempdir()}")
    print(
        f"{given.clients} clients of {given.model}, {layout.p:,} numbers each: {4e-9 * given.clients * layout.p:.2f} GB"
    )

    with Peak() as whole, TemporaryDirectory() as folder:
        with step("plan"):
            plan = algorithm.plan(problem, state, torch.arange(given.clients))
        with step("work"):
            report = engine.run(plan)
        with step("validation"):
            report = replace(validate(layout, plan, report), cohort=plan.cohort)
        with step("decision"):
            state, _ = algorithm.update(problem, state, report)
        with step("checkpoint"):
            save(Path(folder) / "checkpoint", Checkpoint(state, engine.store.tensors(), {}))
    print(f"most anonymous memory of the round: {whole.anonymous / 1e9:.2f} GB")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print how long a step took and what it held at most."""
    began = perf_counter()
    with Peak() as peak:
        yield
    print(f"{name:>12}: {perf_counter() - began:7.2f} s, {peak.anonymous / 1e9:6.2f} GB")


if __name__ == "__main__":
    main()
