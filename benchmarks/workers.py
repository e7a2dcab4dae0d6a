"""The loop engine, processes and Ray against the textbook loop: rounds in turn, the ratio of each pair.

    python benchmarks/workers.py --root DATA

The papers' CNNs on MNIST, Fashion-MNIST and CIFAR-10 (or on noise of the same shapes, without --root): 100 clients of
400 images and 100 to test on; a round of FedAvg, one epoch of SGD in batches of 50, and everyone's accuracy. The
textbook loop may use all threads; all others have one for each worker. It normalises images when they are asked for,
as torchvision does; it is also timed on tensors that were normalised beforehand. The bare program computes what the
loop engine does, without the engine: what a round takes longer than that is overhead.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from textbook import Client, Images, TextbookCNN, textbook_round, textbook_scores
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from fedstrata import data
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.models import make

SETS: dict[str, tuple[str, tuple[int, int, int], int]] = {
    "mnist": ("mnist_cnn", (1, 20, 50), 28),
    "fashion_mnist": ("fmnist_cnn", (1, 16, 32), 28),
    "cifar10": ("cifar_cnn", (3, 6, 16), 32),
}
"""Data set -> its CNN, the channels of an image and of the two convolutions, and the side of an image."""

BATCH, LR = 50, 0.05
CORES = os.cpu_count() or 1


@dataclass
class Contender:
    """Who does rounds.

    Attributes:
        name: what it is called.
        turn: does one.
        threads: of this process meanwhile.
        times: of its rounds so far, in seconds.
    """

    name: str
    turn: Callable[[], object]
    threads: int
    times: list[float]

    def take(self, counts: bool) -> None:
        """Do a round, and maybe note how long it took."""
        torch.set_num_threads(self.threads)
        began = perf_counter()
        self.turn()
        if counts:
            self.times.append(perf_counter() - began)

    def beside(self, other: Contender) -> str:
        """How many times faster than another one: the median of all pairs, and each pair in the order of the rounds."""
        ratios = [slow / fast for slow, fast in zip(other.times, self.times, strict=True)]
        return f"{median(ratios):5.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


def main() -> None:
    """Print the time of every contender, and its ratios to the textbook loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that holds mnist/, fashion_mnist/ and cifar10/")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--workers", type=int, nargs="+", default=list(range(1, CORES + 1)))
    parser.add_argument("--threads", type=int, default=CORES, help="of the textbook loop")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=find_spec("ray") is not None)
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {CORES} cores, torch {torch.__version__}")
    print(f"{given.clients} clients of {given.samples} images{'' if given.root else ' of noise'}, batch {BATCH}")
    for name in given.sets:
        with source(name, given) as found:
            race(name, contenders(name, found, given), given.pairs)


@contextmanager
def source(name: str, given: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Where a data set is; noise, which is as fast, where none is given."""
    if given.root:
        yield {"name": name, "root": given.root}
        return
    _, (channels, _, _), side = SETS[name]
    rng, samples = np.random.default_rng(0), 2 * given.clients * given.samples
    with TemporaryDirectory() as folder:
        images = rng.integers(0, 256, (samples, channels, side, side), dtype=np.uint8)
        np.savez(Path(folder, "noise.npz"), x=images, y=rng.permutation(np.arange(samples) % 10))
        yield {"name": str(Path(folder, "noise.npz"))}


def contenders(name: str, found: dict[str, str], given: argparse.Namespace) -> list[Contender]:
    """Everyone who takes part on a data set, the textbook loop first."""
    model, channels, side = SETS[name]

    def prepared(**engine: Any) -> RunSetup:
        tables = {
            "data": {**found, "clients": given.clients, "samples": given.samples, "test": 0.2},
            "model": {"name": model},
            "local": {"epochs": 1, "batch": BATCH, "lr": LR},
            "algorithm": {"name": "fedavg"},
            "engine": engine,
        }
        return build_run(load_experiment(tables))

    plain = prepared(name="loop")
    dataset = data.load_dataset(found["name"], found.get("root"))
    invited = [
        Contender(f"textbook on {what}", turn, given.threads, [])
        for what, turn in textbook_turns(TextbookCNN(channels, side), dataset, plain).items()
    ]
    module = make(model, dataset.shape, dataset.classes, seed=0)
    invited.append(Contender("bare program", bare_turns(module, plain), 1, []))
    most = max(given.workers)
    for precision in ("float32", "bfloat16"):
        engines: dict[str, dict[str, Any]] = {"loop": {"name": "loop"}}
        engines |= {f"{count} processes": {"name": "processes", "workers": count} for count in given.workers}
        engines |= {f"Ray, {most} workers": {"name": "ray", "workers": most}} if given.ray else {}
        invited += [
            Contender(f"{title}, {precision}", turns(prepared(**engine, precision=precision)), 1, [])
            for title, engine in engines.items()
        ]
    return invited


def race(name: str, invited: list[Contender], pairs: int) -> None:
    """Rounds by all in turn, so that whatever else the machine does disturbs them alike; then the result."""
    for pair in range(pairs + 1):
        for contender in invited:
            contender.take(counts=pair > 0)  # the first one warms up
    print(f"\n{name}: seconds per round; times faster than {invited[0].name}; than {invited[1].name}")
    for contender in invited:
        ratios = "   ".join(contender.beside(textbook) for textbook in invited[:2])
        print(f"{contender.name:28} {median(contender.times):8.3f}   {ratios}")
    bare, loop = (next(each for each in invited if each.name.startswith(start)) for start in ("bare", "loop"))
    spent = [1 - program / whole for program, whole in zip(bare.times, loop.times, strict=True)]
    print(f"overhead of the loop engine: {median(spent):.1%} of a round ({min(spent):.1%} to {max(spent):.1%})")


def textbook_turns(model: TextbookCNN, dataset: data.Dataset, setup: RunSetup) -> dict[str, Callable[[], object]]:
    """Rounds of the textbook loop on images and on tensors."""

    def images(index: torch.Tensor) -> Client:
        return Images(dataset.inputs[index].contiguous(), dataset.labels[index], dataset.mean, dataset.std)

    def tensors(index: torch.Tensor) -> Client:
        return TensorDataset(dataset.prepare(index).contiguous(), dataset.labels[index])

    def turn(kind: Callable[[torch.Tensor], Client]) -> Callable[[], object]:
        held = setup.client_data
        train, test = ([kind(part(client)) for client in range(len(held))] for part in (held.train, held.test))

        def one() -> None:
            model.load_state_dict(textbook_round(model, train, epochs=1, batch=BATCH, lr=LR))
            textbook_scores(model, test)

        return one

    return {"images": turn(images), "tensors": turn(tensors)}


def bare_turns(module: torch.nn.Module, setup: RunSetup) -> Callable[[], object]:
    """Rounds of the loop engine's own tensor program, and nothing else."""
    held, parameters = setup.client_data, list[torch.Tensor](module.parameters())
    start = [parameter.detach().clone() for parameter in parameters]

    def turn() -> None:
        for client in range(len(held)):
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            module.train()
            index = held.train(client)
            order = torch.randperm(len(index), generator=torch.Generator().manual_seed(client))
            for inputs, labels in held.batches(index[order], BATCH):
                gradients = torch.autograd.grad(cross_entropy(module(inputs), labels), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-LR)
        module.eval()
        with torch.inference_mode():
            for client in range(len(held)):
                for inputs, labels in held.batches(held.test(client), 1024):
                    logits = module(inputs)
                    _ = int((logits.argmax(1) == labels).sum()), float(cross_entropy(logits, labels))

    return turn


def turns(setup: RunSetup) -> Callable[[], object]:
    """Rounds of FedAvg, each from where the last one ended; everyone is scored first."""
    problem, algorithm = setup.server.problem, setup.server.algorithm
    state = algorithm.init(problem)

    def turn() -> None:
        nonlocal state
        plan = algorithm.plan(problem, state, setup.everyone)
        asked = replace(plan, evaluations=algorithm.evaluations(problem, state, setup.everyone))
        state, _ = algorithm.update(problem, state, setup.clients.run(asked))

    return turn


if __name__ == "__main__":
    main()
