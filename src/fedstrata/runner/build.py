"""From an experiment to everything that a run needs; what can be checked without data is checked first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedstrata import data
from fedstrata.config import Experiment
from fedstrata.config.tables import Engine as EngineTable
from fedstrata.core import Algorithm, Layout, LocalTraining, Problem
from fedstrata.engine import ENGINES, Engine, Holdings, Site, Work, candidates, choose, settle
from fedstrata.errors import ExperimentError, LayoutError, PartitionError
from fedstrata.models import flatten, layout_of, make, side
from fedstrata.partition import Deal, deal
from fedstrata.randomness import generator, seed_of
from fedstrata.records import require
from fedstrata.runner.membership import Membership, membership
from fedstrata.runner.sampling import draw


@dataclass(frozen=True)
class Setting:
    """What a run needs.

    Attributes:
        problem: what the algorithm knows.
        algorithm: with its hyper-parameters.
        clients: who holds the data.
        members: who is in the federation, and when.
        holdings: the data of all clients.
        engine: the experiment's, with what "auto" turned out to be.
        why: it turned out so, in one line; empty where it was given.
    """

    problem: Problem
    algorithm: Algorithm[Any]
    clients: Engine
    members: Membership
    holdings: Holdings
    engine: EngineTable
    why: str = ""

    @property
    def everyone(self) -> torch.Tensor:
        """All client ids, (n,)."""
        return torch.arange(self.problem.clients)

    def truth(self, round: int) -> torch.Tensor | None:
        """Which clients truly belong together in a round, (n,); a client whose data changed belongs elsewhere."""
        if self.problem.truth is None:
            return None
        truth = self.problem.truth.clone()
        for client, (since, other) in self.members.handovers.items():
            truth[client] = truth[other if round >= since else client]
        return truth


def prepare(experiment: Experiment) -> Setting:
    """Make the network, rehearse the algorithm, then read and deal the data.

    Raises:
        InputError: when something that the experiment names does not exist or does not fit.
    """
    algorithm, members = experiment.algorithm_of(), membership(experiment)
    settle(experiment.engine.name, experiment.engine.device)
    require(experiment.records.track)
    source = data.find(experiment.data.name, experiment.data.root).source
    if source is not None:
        rehearse(algorithm, problem_of(experiment, source.shape, source.classes))
    dataset = data.load(experiment.data.name, experiment.data.root)
    if experiment.data.unit is not None:
        dataset = replace(dataset, unit=experiment.data.unit)
    wanted = side(experiment.model.name)
    if wanted is not None and dataset.shape[1:] != (wanted, wanted):
        dataset = dataset.resized(wanted)
    problem = problem_of(experiment, dataset.shape, dataset.classes)
    rehearse(algorithm, problem)
    dealt = _deal(experiment, dataset)
    truth = None if dealt.truth is None else torch.from_numpy(dealt.truth)
    site = _site(experiment, dataset, dealt, members)
    engine, why = _engine(experiment, site, members, problem.training)
    clients = ENGINES[engine.name](site, engine.device, engine.workers, engine.timeout)
    problem = replace(problem, truth=truth, public=_public(experiment, dataset, dealt), predict=clients.predict)
    return Setting(problem, algorithm, clients, members, site.holdings, engine, why)


def _engine(
    experiment: Experiment, site: Site, members: Membership, training: LocalTraining
) -> tuple[EngineTable, str]:
    """The engine with nothing left open, and why it is this one."""
    wanted, rates, why = experiment.engine, experiment.cohort, ""
    name, device = settle(wanted.name, wanted.device)
    if name == "auto":
        cohort, _ = draw(experiment.seed, 1, members.active(1), rates.fraction, rates.dropout)
        work = Work(training, cohort, experiment.rounds)
        choice = choose(site, work, candidates(site, wanted.workers, device, wanted.timeout))
        name, device, why = choice.name, choice.device, choice.why
    return wanted.model_copy(update={"name": name, "device": device}), why


def _site(experiment: Experiment, dataset: data.Dataset, dealt: Deal, members: Membership) -> Site:
    """What the engine is made of; of the columns, only what tells which samples belong together is still needed."""
    columns = {} if dataset.unit is None else {dataset.unit: dataset.columns[dataset.unit]}
    return Site(
        _network(experiment, dataset.shape, dataset.classes),
        replace(dataset, columns=columns).channels_last(),
        dealt,
        experiment.seed,
        members.handovers,
        experiment.engine.precision,
    )


def _deal(experiment: Experiment, dataset: data.Dataset) -> Deal:
    wanted = experiment.data
    try:
        dealt = deal(
            experiment.scheme,
            dataset.labels.numpy(),
            clients=wanted.clients,
            samples=wanted.samples,
            test=wanted.test,
            seed=experiment.seed,
            classes=dataset.classes,
            columns=dataset.columns,
            unit=None if dataset.unit is None else dataset.columns[dataset.unit],
        )
    except PartitionError as error:
        if str(error).startswith("partition."):
            raise
        raise PartitionError(f"data.clients = {wanted.clients}, data.samples = {wanted.samples}: {error}") from None
    if experiment.probe.gap and dealt.truth is None:
        raise ExperimentError(
            f"probe.gap = {list(experiment.probe.gap)}: needs a partition with true groups, but "
            f"partition.scheme = {experiment.partition['scheme']!r} has none; use another, or leave probe.gap out"
        )
    return dealt


def _public(experiment: Experiment, dataset: data.Dataset, dealt: Deal) -> torch.Tensor | None:
    """Samples without labels for the server: of the test file, or where there is none, of those nobody was dealt."""
    count, name, root = experiment.data.public, experiment.data.name, experiment.data.root
    if not count:
        return None
    if data.find(name, root).test:
        dataset = data.load(name, root, "test")
        wanted = side(experiment.model.name)
        dataset = dataset if wanted is None or dataset.shape[1:] == (wanted, wanted) else dataset.resized(wanted)
        free = torch.arange(len(dataset))
    else:
        dealt_out = torch.from_numpy(np.concatenate([*dealt.train, *dealt.test]))
        free = torch.arange(len(dataset))[~torch.isin(torch.arange(len(dataset)), dealt_out)]
    if count > len(free):
        raise ExperimentError(f"data.public = {count}: expected at most the {len(free)} samples that no client holds")
    order = torch.randperm(len(free), generator=generator(experiment.seed, "public"))
    return dataset.prepare(free[order[:count]])


def _network(
    experiment: Experiment, shape: tuple[int, ...], classes: int, start: int = 0
) -> Callable[[], torch.nn.Module]:
    """What makes the network, also in another process."""
    wanted = side(experiment.model.name)
    if wanted is not None and len(shape) == 3:
        shape = (shape[0], wanted, wanted)
    seed = seed_of(experiment.seed, "model", client=start)
    return partial(make, experiment.model.name, shape, classes, seed, **experiment.model.options)


def problem_of(experiment: Experiment, shape: tuple[int, ...], classes: int) -> Problem:
    """What an algorithm knows of an experiment on samples of a shape, before any of them is read."""
    layout = layout_of(_network(experiment, shape, classes)())

    def fresh(start: int) -> torch.Tensor:
        return flatten(_network(experiment, shape, classes, start)(), layout)

    local = experiment.local
    return Problem(
        layout=layout,
        fresh=fresh,
        clients=experiment.data.clients,
        seed=experiment.seed,
        rounds=experiment.rounds,
        training=LocalTraining(local.epochs, local.batch, local.optimizer, local.lr, local.momentum),
        lr_decay=local.lr_decay,
        public=torch.empty(0) if experiment.data.public else None,  # until the data is read
    )


def rehearse(algorithm: Algorithm[Any], problem: Problem) -> None:
    """Ask for a first plan as if all clients belonged together, so that wrong layers are found before data is read.

    Raises:
        ExperimentError: when a key of the algorithm does not fit the network.
    """
    problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    try:
        algorithm.plan(problem, algorithm.init(problem), torch.arange(problem.clients))
    except LayoutError as error:
        raise ExperimentError(f"algorithm.{_key_of(algorithm, problem.layout)} = {error}") from None


def _key_of(algorithm: Algorithm[Any], layout: Layout) -> str:
    """The key whose selectors do not match."""
    for field in fields(algorithm):  # type: ignore[arg-type]  # every registered algorithm is a dataclass
        value = getattr(algorithm, field.name)
        try:
            if field.name in SELECTORS:
                layout.select(*([value] if isinstance(value, str) else value))
        except LayoutError:
            return field.name
    return "name"


SELECTORS = ("layers", "personal")
"""Keys of algorithms that hold selectors of layers."""
