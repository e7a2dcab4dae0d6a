"""The batched engine against the textbook loop and the loop engine: rounds in turn, the ratio of each pair.

    python benchmarks/batched.py --root DATA

First 20 clients of 500 CIFAR-10 images (or of noise of the same shapes, without --root), the paper's CNN, SGD, batch
50; for the batched engine with several memory budgets, and with convolutions in groups and as matrix products. The same
with 100 clients of 12 digits, a network of one hidden layer, batch 4. Then, on CUDA or with --users, 1000 users of 50
images, 50 per round, batch 10, a CNN of 1.6 million parameters.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
import torch
from images import noise
from textbook import TextbookCNN, textbook_round
from torch import nn
from torch.utils.data import TensorDataset

from fedstrata import data
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import LocalTraining, Problem, RuleAggregation
from fedstrata.engine import ClientData, Loop
from fedstrata.engine.vectorized import Vectorized
from fedstrata.models import layout_of, make, row_of
from fedstrata.partition import Partition

IMAGES = 50
"""Of each user."""

Round = Callable[[], None]


def main() -> None:
    """Print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that holds cifar10/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="*", default=[1 << 26, 1 << 28, 1 << 30], help="budgets in bytes")
    parser.add_argument("--users", type=int, default=0, help="of the last job; by default 1000 on CUDA, else none")
    parser.add_argument("--rounds", type=int, default=1500, help="of the last job")
    given = parser.parse_args()
    given.users = given.users or (1000 if given.device == "cuda" else 0)
    torch.set_num_threads(1)

    most = max(given.clients * (given.samples + 1), given.users * (IMAGES + 1))
    dataset = cifar10(given.root) if given.root else noise(most)
    where = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor() or platform.machine()
    print(f"{where}, torch {torch.__version__}, one thread; {'CIFAR-10' if given.root else 'noise'}")
    paper = make("cifar_cnn", dataset.shape, dataset.classes, seed=0)
    textbook = TextbookCNN()
    textbook.load_state_dict(paper.state_dict())
    images = Federation(dataset, given.clients, given.samples, 50)
    pairs("the paper's CNN", images, paper, textbook, {"in groups": False, "as products": True}, given)
    digits = data.load_dataset("digits")
    small = make("mlp", digits.shape, digits.classes, seed=0, hidden=[32])
    pairs(
        "one hidden layer of 32", Federation(digits, 100, 12, 4), small, small, {"without convolutions": False}, given
    )
    if given.users:
        users(dataset, given)


@dataclass(frozen=True)
class Federation:
    """Clients of equal size.

    Attributes:
        dataset: whose samples they have.
        count: of clients.
        samples: of each.
        batch: of a local step.
    """

    dataset: data.Dataset
    count: int
    samples: int
    batch: int


def pairs(
    title: str,
    clients: Federation,
    module: nn.Module,
    textbook: nn.Module,
    ways: Mapping[str, bool],
    given: argparse.Namespace,
) -> None:
    """A round of FedAvg by each contender in turn.

    Args:
        title: of the network.
        clients: whom it is trained by.
        module: the network.
        textbook: as the textbook has it.
        ways: of the batched engine; whether convolutions are products.
        given: of the command line.
    """
    dataset, recipe = clients.dataset, LocalTraining(epochs=1, batch=clients.batch, lr=0.05)
    partition = random_partition(dataset, clients.count, clients.samples)
    layout, client_data = layout_of(module), ClientData(dataset, partition, seed=0)
    original = deepcopy(textbook).to(given.device)
    tensors = [
        TensorDataset(*(part.to(given.device) for part in (dataset.prepare(index).contiguous(), dataset.labels[index])))
        for index in map(torch.from_numpy, partition.train)
    ]
    rounds: dict[str, Round] = {
        "textbook": lambda: void(textbook_round(original, tensors, 1, recipe.batch, recipe.lr)),
        "loop on cpu": rounds_of(Loop(module, layout, client_data), module, clients.count, recipe),
    }
    for memory in given.memory:
        for way, im2col in ways.items():
            engine = Vectorized(module, layout, client_data, device=given.device, memory=memory, im2col=im2col)
            rounds[f"batched {way}, {memory / 2**20:.0f} MiB"] = rounds_of(engine, module, clients.count, recipe)
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for pair in range(given.pairs + 2):
        for name, run in rounds.items():
            taken = timed(run, given.device)
            if pair > 1:  # the first two warm up: a recording is made at the fourth step
                times[name].append(taken)
    print(f"{clients.count} clients of {clients.samples} samples, {title}, batch {clients.batch}, a round of FedAvg:")
    for name, found in times.items():
        ratios = [slow / taken for slow, taken in zip(times["textbook"], found, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name}: {median(found):.3f} s, textbook / this: {spread}")


def users(dataset: data.Dataset, given: argparse.Namespace) -> None:
    """Many users with little data, a few in each round; nothing is evaluated."""
    module, share = large(), min(50, given.users)
    problem = problem_of(module, given.users, LocalTraining(epochs=1, batch=10, lr=0.1))
    engine = Vectorized(
        module,
        problem.layout,
        ClientData(dataset, random_partition(dataset, given.users, IMAGES), seed=0),
        device=given.device,
    )
    algorithm, training, server = FedAvg(), 0.0, 0.0
    state = algorithm.init(problem)
    for round in range(1, given.rounds + 1):
        cohort = torch.randperm(given.users, generator=problem.generator("cohort", round))[:share].sort().values
        began = perf_counter()
        plan = algorithm.plan(problem, state, cohort)
        planned = perf_counter()
        report = engine.run(plan)
        trained = perf_counter()
        state, _ = algorithm.update(problem, state, report)
        training, server = training + trained - planned, server + planned - began + perf_counter() - trained
    print(
        f"{given.users} users of {IMAGES} images, {share} per round, {given.rounds} rounds, batch 10, "
        f"{problem.layout.p:,} parameters: {training + server:.1f} s, of which {training:.1f} training "
        f"and {server:.1f} planning and averaging"
    )


def rounds_of(engine: Loop | Vectorized, module: nn.Module, clients: int, recipe: LocalTraining) -> Round:
    """Rounds of FedAvg, each from where the last one ended."""
    problem, algorithm = problem_of(module, clients, recipe), FedAvg()
    state = algorithm.init(problem)

    def round() -> None:
        nonlocal state
        report = engine.run(algorithm.plan(problem, state, torch.arange(clients)))
        state, _ = algorithm.update(problem, state, report)

    return round


def problem_of(module: nn.Module, clients: int, recipe: LocalTraining) -> Problem:
    """What the algorithms know."""
    layout = layout_of(module)
    row = row_of(module, layout)
    return Problem(layout, lambda start: row * (1 + 0.01 * start), clients, RuleAggregation(), training=recipe)


def large() -> nn.Sequential:
    """A CNN of 1,626,442 parameters for CIFAR-10, as pfl-research's benchmark has it."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def random_partition(dataset: data.Dataset, clients: int, samples: int) -> Partition:
    """So many samples for each client, drawn without a look at their classes, and one that is held out."""
    order = np.random.default_rng(0).permutation(len(dataset))[: clients * (samples + 1)].reshape(clients, -1)
    train, test = np.sort(order[:, 1:]), order[:, :1]
    relabel = np.tile(np.arange(dataset.classes), (clients, 1))
    turns = np.zeros(clients, dtype=np.int64)
    return Partition(tuple(train), tuple(test), None, turns, relabel)


def cifar10(root: str) -> data.Dataset:
    """All 60,000 images."""
    train, test = (data.load_dataset("cifar10", root, file) for file in ("train", "test"))
    inputs, labels = torch.cat([train.inputs, test.inputs]), torch.cat([train.labels, test.labels])
    return replace(train, inputs=inputs, labels=labels, columns={}, unit=None)


def timed(run: Round, device: str) -> float:
    """Seconds until everything is done."""
    began = perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - began


def void(_: object) -> None:
    """Forget a result."""


if __name__ == "__main__":
    main()
