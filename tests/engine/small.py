"""Small data and networks for tests of engines."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstrata.core import Evaluation, Layout, LocalTask, LocalTraining, Plan
from fedstrata.data import Dataset
from fedstrata.engine import ClientData, Engine, Loop
from fedstrata.models import layout_of, row_of
from fedstrata.partition import Partition

RECIPES = {
    "sgd": LocalTraining(epochs=1, batch=5, lr=0.1),
    "epochs": LocalTraining(epochs=3, batch=4, lr=0.1),
    "momentum": LocalTraining(epochs=2, batch=5, lr=0.1, momentum=0.9),
    "adam": LocalTraining(epochs=2, batch=5, lr=0.01, optimizer="adam"),
    "whole": LocalTraining(epochs=2, batch=0, lr=0.1),
    "decay": LocalTraining(epochs=2, batch=5, lr=0.1, weight_decay=0.1),
    "momentum with decay": LocalTraining(batch=5, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam with decay": LocalTraining(batch=5, lr=0.01, optimizer="adam", weight_decay=0.1),
    "adamw": LocalTraining(epochs=2, batch=5, lr=0.01, optimizer="adamw", weight_decay=0.1),
    "clipped": LocalTraining(epochs=2, batch=5, lr=0.1, clip_norm=0.5),
    "steps": LocalTraining(steps=7, batch=5, lr=0.1),
    "whole batches": LocalTraining(epochs=2, batch=5, lr=0.1, drop_last=True),
    "steps of everything": LocalTraining(steps=3, batch=0, lr=0.1),
    "clipped adam": LocalTraining(epochs=2, batch=5, lr=0.01, optimizer="adam", clip_norm=0.5),
}
"""Ways of local training that engines are compared by."""


def dataset(samples: int = 60, seed: int = 0) -> Dataset:
    """Grey 6 x 6 images in 3 classes that a network can learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    images = rng.integers(0, 80, (samples, 1, 6, 6)) + labels[:, None, None, None] * 60
    inputs = torch.from_numpy(images.astype(np.uint8))
    return Dataset("small", inputs, torch.from_numpy(labels), 3, mean=(0.4,), std=(0.3,))


def partition_of(sizes: list[int], tests: int = 4, turns: list[int] | None = None) -> Partition:
    """Consecutive samples: each client's training samples, then its test samples."""
    train, test, start = [], [], 0
    for size in sizes:
        train.append(np.arange(start, start + size))
        test.append(np.arange(start + size, start + size + tests))
        start += size + tests
    relabel = np.tile(np.arange(3), (len(sizes), 1))
    return Partition(tuple(train), tuple(test), None, np.array(turns or [0] * len(sizes)), relabel)


def network(norm: bool = False, seed: int = 0) -> nn.Sequential:
    """A convolution, maybe a BatchNorm, and a linear layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        middle = OrderedDict[str, nn.Module](norm=nn.BatchNorm2d(2)) if norm else OrderedDict[str, nn.Module]()
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                conv=nn.Conv2d(1, 2, 3), **middle, relu=nn.ReLU(), flat=nn.Flatten(), fc=nn.Linear(32, 3)
            )
        )


def data_of(sizes: list[int], turns: list[int] | None = None, seed: int = 0) -> ClientData:
    """Clients with so many training samples, and four to be tested on."""
    return ClientData(dataset(sum(sizes) + 4 * len(sizes)), partition_of(sizes, turns=turns), seed=seed)


def loop_of(
    sizes: list[int],
    norm: bool = False,
    turns: list[int] | None = None,
    module: nn.Module | None = None,
    **options: Any,
) -> tuple[Loop, Layout, torch.Tensor]:
    """An engine over small data, its layout, and an initial row (p,)."""
    module = module or network(norm)
    layout = layout_of(module)
    return Loop(module, layout, data_of(sizes, turns), **options), layout, row_of(module, layout).cpu()


NAMES = ("train", "second", "third", "fourth", "fifth", "sixth")
"""Names of the tasks of a plan, in their order."""


def fit_of(layout: Layout, offers: list[list[int]], **changes: object) -> LocalTask:
    """Train everything, keep nothing, unless told otherwise."""
    keys: dict[str, object] = {
        "candidates": torch.tensor(offers),
        "training": LocalTraining(epochs=2, batch=5, lr=0.1),
        "trainable": layout.everything,
        "upload": layout.everything,
        "load_local": layout.nothing,
        "save_local": layout.nothing,
    }
    return LocalTask(**(keys | changes))  # type: ignore[arg-type]  # the keys are mixed


def plan_of(models: torch.Tensor, *tasks: LocalTask, round: int = 1, cohort: list[int] | None = None) -> Plan:
    """A plan of one round for the given cohort, by default clients 0..m-1."""
    ids = torch.arange(len(tasks[0].candidates)) if cohort is None else torch.tensor(cohort)
    return Plan(round=round, seed=7, cohort=ids, models=models, tasks=dict(zip(NAMES, tasks, strict=False)))


def updates_of(engine: Engine, start: torch.Tensor, *tasks: LocalTask, round: int = 1) -> torch.Tensor:
    """The updates (m, p) of the first task, from one model (p,)."""
    return engine.run(plan_of(start[None], *tasks, round=round)).results["train"].updates.values


def scored(plan: Plan, layout: Layout, clients: int) -> Plan:
    """A plan that also scores its first model."""
    evaluation = Evaluation(torch.arange(clients), torch.zeros(clients, 1, dtype=torch.int64), layout.nothing)
    return replace(plan, evaluations={"client": evaluation})
