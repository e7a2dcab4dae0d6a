"""One model that knows each client's statistics, on the federations of the championship: the challenger of groups.

    FEDSTRATA_DATA=DATA python -m experiments.strata.conditioned --seeds 0,1,2,3,4 --jobs 2

Adds to ``experiments/results/conditioned.json`` what it does not hold yet, all federations with one seed before the
next seed. Every client sends statistics of its training samples once: the share of each class, and random projections
of the mean sample of each class. The server averages one network (FedAvg), to which these numbers are inputs besides
the sample: they scale and shift what its first layer sees, and weigh eight heads. So clients whose statistics are
alike have models that are alike, and nobody decides on groups.
"""

from __future__ import annotations

import argparse
import dataclasses
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from math import prod
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import fedstrata
from experiments.strata.championship import FEDERATIONS, experiment_keys
from experiments.strata.federations import read, write
from experiments.tools.outcomes import RESULTS
from fedstrata import core
from fedstrata.algorithms.keys import STRICT

FILE = RESULTS / "conditioned.json"

PROJECTIONS = 8
"""The random projections of the mean sample of each class."""

HEADS = 8
UNITS = 16
"""What the statistics are summed up in."""

STATISTICS = "experiments.strata.conditioned:statistics"


def statistics(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The statistics of a client's samples, (classes * (1 + PROJECTIONS),) float32, all of the order of 1.

    Args:
        inputs: The samples as the network reads them, (s, ...).
        labels: Their classes, (s,).
        classes: The number of classes.
    """
    flat = inputs.flatten(1)
    directions = torch.randn(flat.shape[1], PROJECTIONS, generator=torch.Generator().manual_seed(0))
    of_class = nn.functional.one_hot(labels, classes).float()
    counts = of_class.sum(dim=0)
    # A class without samples has zeros.
    means = of_class.T @ flat / counts.clamp(min=1)[:, None]
    projected = 2 * means @ directions / flat.shape[1] ** 0.5
    return torch.cat([(counts / len(labels) * classes).sqrt(), projected.flatten()])


class Known(nn.Module):
    """What a network knows of its client."""

    values: Tensor

    def __init__(self, numbers: int) -> None:
        """Know nothing."""
        super().__init__()
        self.register_buffer("values", torch.zeros(numbers))


class ConditionedNetwork(nn.Module):
    """The championship's network, one convolution or hidden layer and a linear one, with statistics as inputs.

    Args:
        shape: The shape of a sample.
        classes: The number of classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        """Make the layers."""
        super().__init__()
        if len(shape) == 3:
            height, width = (((pixels - 5) // 2 + 1) // 2 for pixels in shape[1:])
            channels, features = 8, 8 * height * width
            self.first: nn.Module = nn.Conv2d(shape[0], channels, 5, stride=2)
        else:
            channels = features = 64
            self.first = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), channels))
        self.known = Known(classes * (1 + PROJECTIONS))
        self.summary = nn.Linear(len(self.known.values), UNITS)
        self.scales = nn.Linear(UNITS, channels)
        self.shifts = nn.Linear(UNITS, channels)
        self.weights = nn.Linear(UNITS, HEADS)
        self.heads = nn.Linear(features, HEADS * classes)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the logits, (samples, classes)."""
        summary = self.summary(self.known.values).tanh()
        seen = self.first(samples)
        # One factor and one term for each channel.
        each = (-1,) + (1,) * (seen.ndim - 2)
        seen = (seen * (1 + self.scales(summary).view(each)) + self.shifts(summary).view(each)).relu()
        if seen.ndim == 4:
            seen = nn.functional.max_pool2d(seen, 2)
        heads = self.heads(seen.flatten(1)).unflatten(1, (HEADS, -1))
        # Of length 1, so that a step moves the logits of a client as far as with one head.
        weights = nn.functional.normalize(self.weights(summary), dim=0)
        logits: Tensor = (heads * weights[:, None]).sum(dim=1)
        return logits


@dataclasses.dataclass(frozen=True)
class ConditionedState(core.State):
    """Adds what is known of the clients.

    Attributes:
        statistics: The statistics of each client, (n, q) float32; nan before it has sent them.
    """

    statistics: Tensor


@dataclass(frozen=True, config=STRICT)
class Conditioned(core.Algorithm[ConditionedState]):
    """FedAvg on a network that gets the statistics of its client; they are sent in the first round of a client."""

    source: ClassVar[str] = "after arXiv 2603.11307"

    def init(self, problem: core.Problem) -> ConditionedState:
        """Nothing is known of anybody."""
        numbers = len(problem.layout.columns(_known(problem)))
        return core.extend_state(
            core.initial_state(problem),
            ConditionedState,
            statistics=torch.full((problem.clients, numbers), torch.nan),
        )

    def plan(self, problem: core.Problem, state: ConditionedState, cohort: Tensor) -> core.Plan:
        """Everyone trains the shared network with its own statistics in it, and keeps these."""
        plan = core.fedavg_plan(problem, state, cohort)
        own = state.statistics[cohort]
        models = state.models.repeat(len(cohort), 1)
        models[:, problem.layout.columns(_known(problem))] = own.nan_to_num()
        others = tuple(not known for known in _known(problem))
        task = replace(
            plan.tasks[core.TRAIN],
            candidates=torch.arange(len(cohort))[:, None],
            trainable=others,
            upload=others,
            save_local=_known(problem),
        )
        return replace(plan, models=models, tasks={core.TRAIN: task}, client_stats={STATISTICS: own.isnan().any(dim=1)})

    def update(
        self, problem: core.Problem, state: ConditionedState, report: core.Report
    ) -> tuple[ConditionedState, core.Diagnostics]:
        """Average all updates, and note the statistics that came."""
        result = report.results[core.TRAIN]
        # Each client had a copy of the one model.
        result = replace(result, chosen=torch.zeros_like(result.chosen))
        known = state.statistics.clone()
        if sent := report.client_stats.get(STATISTICS):
            known[sent.clients] = sent.values
        report = replace(report, results={core.TRAIN: result})
        after, diagnostics = core.aggregate(problem, state, report, torch.zeros_like(state.labels))
        return replace(after, statistics=known), diagnostics

    def evaluations(
        self, problem: core.Problem, state: ConditionedState, clients: Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone has its own statistics in the shared network."""
        shared = core.cluster_evaluation(problem, state, clients)[core.CLIENT]
        return {core.CLIENT: replace(shared, load_local=_known(problem))}


def _known(problem: core.Problem) -> core.Mask:
    """The tensor of the statistics."""
    return tuple(tensor.layer == "known" for tensor in problem.layout.tensors)


def one(federation: str, seed: int) -> dict[str, Any]:
    """One run."""
    keys = experiment_keys(federation, "fedavg", seed)
    keys |= {
        "model": {"name": "experiments.strata.conditioned:ConditionedNetwork"},
        "algorithm": {"name": "experiments.strata.conditioned:Conditioned"},
    }
    with TemporaryDirectory() as folder:
        run = fedstrata.run(keys, Path(folder) / "run", quiet=True)
        return {"seed": seed, **{key: round(run.summary[key], 6) for key in ("acc_client", "acc_worst")}}


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default=",".join(FEDERATIONS), help="some of them, divided by commas")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="some numbers, divided by commas")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    given = parser.parse_args()
    federations = given.federations.split(",")
    known = {federation: read(FILE).get(federation, {"runs": []}) for federation in federations}
    missing = [
        (federation, seed)
        for seed in map(int, given.seeds.split(","))
        for federation in federations
        if seed not in (run["seed"] for run in known[federation]["runs"])
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        tasks = {pool.submit(one, *each): each[0] for each in missing}
        for count, task in enumerate(as_completed(tasks), start=1):
            federation = tasks[task]
            known[federation]["runs"] = sorted([*known[federation]["runs"], task.result()], key=itemgetter("seed"))
            write(FILE, federation, known[federation])
            print(f"{federation}: {task.result()}; {count} of {len(missing)}", flush=True)


if __name__ == "__main__":
    main()
