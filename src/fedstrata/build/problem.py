"""What is fixed for a run before any sample is read: the network, local training, and what the server averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import prod

import torch

from fedstrata.base.errors import ExperimentError
from fedstrata.base.randomness import model_seed
from fedstrata.config import Experiment
from fedstrata.config.tables import LocalTable, ServerTable
from fedstrata.core import Layout, LearningRateSchedule, LocalTraining, Problem, ServerOptimizer
from fedstrata.engine.outside_state import normalises_over_batch
from fedstrata.models import NetworkMaker, NetworkShape, layout_of, portable, row_of, side
from fedstrata.objective import Objective
from fedstrata.uploads.checks.update_checks import CheckName, Checks
from fedstrata.uploads.rules import aggregation_of


def objective_of(experiment: Experiment) -> Objective:
    """What the networks of an experiment learn."""
    local = experiment.local
    balanced = local.class_weights == "balanced"
    weights = () if balanced or local.class_weights is None else tuple(map(float, local.class_weights))
    return Objective(local.loss, local.metric or "accuracy", local.transform, weights, balanced)


def network_of(experiment: Experiment, shape: tuple[int, ...], outputs: tuple[int, ...]) -> NetworkMaker:
    """What makes the network of an experiment, for samples and outputs of some shapes."""
    kind = NetworkShape(as_read(experiment, shape), outputs, experiment.data.tokens)
    return NetworkMaker(portable(experiment.model.name), kind, model_seed(experiment.seed), experiment.model.options)


def as_read(experiment: Experiment, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample as the network reads it: some read images of one size only."""
    wanted = side(experiment.model.name)
    return (shape[0], wanted, wanted) if wanted is not None and len(shape) == 3 else shape


def problem_of(experiment: Experiment, network: NetworkMaker) -> Problem:
    """The problem of an experiment, before any sample is read.

    Args:
        experiment: The experiment.
        network: What makes its network.
    """
    layout = layout_of(network())

    def fresh(start: int) -> torch.Tensor:
        # The frozen tensors of the first network are those of all models.
        made = replace(network, seed=model_seed(experiment.seed, start)) if start else network
        row = row_of(made(), layout)
        if start and torch.equal(row, fresh(0)):
            raise ExperimentError(
                f"algorithm.name = {experiment.algorithm.name!r} begins with several different models, and the network "
                "has the same weights whenever it is made; give a class or function whose weights are random"
            )
        return row

    return problem_with(experiment, layout, fresh, features=prod(network.kind.inputs))


def problem_with(
    experiment: Experiment, layout: Layout, fresh: Callable[[int], torch.Tensor], features: int | None = None
) -> Problem:
    """The problem of an experiment whose models are given, such as those of another framework.

    Args:
        experiment: The experiment.
        layout: The tensors of a model.
        fresh: Makes the first models, (p,), by their numbers from 0 on.
        features: The numbers of an input; None where that is not known.
    """
    return Problem(
        layout=layout,
        fresh=fresh,
        clients=experiment.data.clients,
        seed=experiment.seed,
        rounds=experiment.rounds,
        training=training_of(experiment.local),
        lr_factor=schedule_of(experiment),
        classifies=objective_of(experiment).classifies,
        aggregation=aggregation_of(
            experiment.server.aggregation,
            experiment.server.model_dump(),
            least_clients=experiment.privacy.min_cluster,
        ),
        checks=checks_of(experiment),
        server=server_of(experiment.server),
        features=features,
        public=torch.empty(0) if experiment.data.public else None,  # a placeholder until the data is read
    )


def refuse_single_samples(experiment: Experiment, network: NetworkMaker) -> None:
    """Refuse steps of one sample where a layer normalises over the batch: no such step is ever made.

    Args:
        experiment: The experiment.
        network: What makes its network.

    Raises:
        ExperimentError: In one line.
    """
    if experiment.local.batch == 1 and normalises_over_batch(network()):
        raise ExperimentError(
            "local.batch = 1: expected at least 2, or 0 for all samples, with a network that normalises over the "
            "batch, as one sample has no variance; use a larger one, or group normalisation"
        )


def training_of(local: LocalTable) -> LocalTraining:
    """The local training before any schedule: the keys that have the name of a field."""
    return LocalTraining(**{field.name: getattr(local, field.name) for field in fields(LocalTraining)})


def checks_of(experiment: Experiment) -> Checks | None:
    """What is checked of updates; None where nothing is."""
    names = experiment.server.checks
    if names == "auto":
        of_algorithm: Sequence[CheckName] = getattr(type(experiment.algorithm_of()), "default_checks", ())
        names = tuple(of_algorithm) if experiment.privacy.kind != "central" else ()
    return Checks(names) if names else None


def server_of(server: ServerTable) -> ServerOptimizer | None:
    """What the server makes of the mean updates; None where models move by them."""
    if server.optimizer == "none" and server.lr in (None, 1.0):
        return None
    return ServerOptimizer(server.optimizer, server.lr or 1.0, server.momentum, server.beta2, server.tau)


def schedule_of(experiment: Experiment) -> LearningRateSchedule:
    """How the learning rate changes from round to round. A cosine falls over all rounds, if nothing else is said."""
    local = experiment.local
    return LearningRateSchedule(
        decay=local.lr_decay,
        kind=local.schedule or "exponential",
        period=local.schedule_rounds or experiment.rounds - local.warmup_rounds,
        floor=local.lr_min / local.lr,
        warmup=local.warmup_rounds,
    )
