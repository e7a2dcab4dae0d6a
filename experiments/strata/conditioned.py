"""One model that knows each client's statistics, on the federations of the championship: the challenger of groups.

    FEDSTRATA_DATA=DATA python -m experiments.strata.conditioned --seeds 5

Adds to ``experiments/results/conditioned.json`` what it does not hold yet, all federations with one seed before the
next seed. Every client sends statistics of its training samples once, in its first round: how common each class is, and
random projections of the mean sample of each class. The server averages one network (FedAvg), to which these numbers
are inputs besides the sample: they scale and shift what its first layer sees, and weigh eight heads. In its first round
a client's are 0. So clients whose statistics are alike have models that are alike, and nobody decides on groups. The
same network whose statistics are always 0 says what they are worth.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import fedstrata
from experiments.strata.championship import FEDERATIONS, digest, experiment_keys
from experiments.strata.federations import gather, read, runs_of
from experiments.strata.rankings import CLOSE, TITLES, played
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from fedstrata import core
from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.personal_layers import outside

PROJECTIONS = 8
"""The random projections of the mean sample of each class."""

HEADS = 8
UNITS = 16
"""What the statistics are summed up in."""

STATISTICS = "experiments.strata.conditioned:statistics"


def statistics(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The statistics of a client's samples, (classes * (1 + PROJECTIONS),) float32, all of the order of 1.

    First the square roots of the shares of the classes, which are 1 where all are as common, and then the projections.

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
    # Twice as large, they are about as large as what stands for the classes.
    projected = 2 * means @ directions / flat.shape[1] ** 0.5
    return torch.cat([(counts / len(labels) * classes).sqrt(), projected.flatten()])


class Statistics(nn.Module):
    """What a network knows of its client; a layer, so that it has columns of its own."""

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
        self.client = Statistics(classes * (1 + PROJECTIONS))
        self.summary = nn.Linear(len(self.client.values), UNITS)
        self.scales = nn.Linear(UNITS, channels)
        self.shifts = nn.Linear(UNITS, channels)
        self.weights = nn.Linear(UNITS, HEADS)
        self.heads = nn.Linear(features, HEADS * classes)

    def forward(self, samples: Tensor) -> Tensor:
        """Return the logits, (samples, classes)."""
        summary = self.summary(self.client.values).tanh()
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
    """FedAvg on a network that gets the statistics of its client; they are sent in the first round of a client.

    Attributes:
        told: Whether there are any statistics; else they are 0.
    """

    source: ClassVar[str] = "after arXiv 2603.11307"

    told: bool = True

    def init(self, problem: core.Problem) -> ConditionedState:
        """Nothing is known of anybody."""
        numbers = len(problem.layout.columns(_statistics(problem)))
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
        models[:, problem.layout.columns(_statistics(problem))] = own.nan_to_num()
        others = outside(_statistics(problem))
        task = replace(
            plan.tasks[core.TRAIN],
            candidates=torch.arange(len(cohort))[:, None],
            trainable=others,
            upload=others,
            save_local=_statistics(problem),
        )
        asked = {STATISTICS: own.isnan().any(dim=1)} if self.told else {}
        return replace(plan, models=models, tasks={core.TRAIN: task}, client_stats=asked)

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
        return {core.CLIENT: replace(shared, load_local=_statistics(problem))}


def _statistics(problem: core.Problem) -> core.Mask:
    """The tensor of the statistics."""
    return tuple(tensor.layer == "client" for tensor in problem.layout.tensors)


VARIANTS = {"conditioned": True, "the same without statistics": False}
"""Whether the network is told statistics."""


def one(name: str, seed: int) -> dict[str, Any]:
    """One run of a variant on a federation, ``"variant: federation"``."""
    variant, federation = name.split(": ")
    keys = experiment_keys(federation, "fedavg", seed) | {
        "model": {"name": "experiments.strata.conditioned:ConditionedNetwork"},
        "algorithm": {"name": "experiments.strata.conditioned:Conditioned", "told": VARIANTS[variant]},
    }
    with TemporaryDirectory() as folder:
        run = fedstrata.run(keys, Path(folder) / "run", quiet=True)
        return {"seed": seed, **{key: round(run.summary[key], 6) for key in ("acc_client", "acc_worst")}}


KINDS = {
    "rotation": "groups by rotation",
    "concept": "groups by concept",
    "majority": "groups by main class",
    "dirichlet": "Dirichlet mixes",
    "natural": "recordings of people",
    "iid": "samples that are alike",
}
"""The schemes of the federations, in the order of the table."""

BESIDE = ("local", "fedavg", "oracle", "strata", "strata_best")


def challenger() -> str:
    """The variants beside methods of the championship, by the kind of the federations, on the same seeds."""
    held = read(outcomes.RESULTS / "conditioned.json")
    rows = list[tuple[str, ...]]()
    for scheme, kind in KINDS.items():
        accuracies: dict[str, list[float]] = {method: [] for method in (*BESIDE, *VARIANTS)}
        behind = 0
        for each in played():
            runs: dict[str, Sequence[dict[str, Any]]] = {
                variant: runs_of(held, f"{variant}: {each.name}") for variant in VARIANTS
            }
            runs |= {method: each.runs[method] for method in BESIDE}
            of_seeds = {method: {run["seed"]: run["acc_client"] for run in own} for method, own in runs.items()}
            # The oracle refuses federations without groups.
            seeds = set.intersection(*(set(own) for method, own in of_seeds.items() if method != "oracle"))
            if FEDERATIONS[each.name]["partition"]["scheme"] == scheme and seeds:
                means = {method: fmean(own[seed] for seed in seeds) for method, own in of_seeds.items() if own}
                for method, accuracy in means.items():
                    accuracies[method].append(accuracy)
                behind += means["conditioned"] < means["strata_best"] - CLOSE
        count = len(accuracies["conditioned"])
        cells = [f"{fmean(values):.3f}" if values else "-" if count else MISSING for values in accuracies.values()]
        rows.append((kind, str(count), *cells, f"{behind} of {count}" if count else MISSING))
    titles = " | ".join([*(TITLES[method] for method in BESIDE), *VARIANTS])
    return table(
        f"clients have | federations | {titles} | conditioned more than {CLOSE} behind {TITLES['strata_best']}", rows
    )


def main() -> None:
    """Compute what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many of each federation")
    for last, variant, federation in product(range(parser.parse_args().seeds), VARIANTS, FEDERATIONS):
        conditions = {"keys": digest(federation, "fedavg", 0, ())}
        gather(
            outcomes.RESULTS / "conditioned.json", f"{variant}: {federation}", conditions, one, range(last + 1), jobs=1
        )


if __name__ == "__main__":
    main()
