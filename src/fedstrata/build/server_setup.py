"""What the server of a run needs of an experiment, whoever holds the data: simulated clients or devices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.build.participation import Participation
from fedstrata.build.privacy import PrivateRun, client_noise, private_run, with_central_privacy
from fedstrata.build.probes import check_probes
from fedstrata.build.problem import objective_of
from fedstrata.config import Experiment
from fedstrata.core import Algorithm, Layout, Plan, Problem
from fedstrata.objective import Objective
from fedstrata.personal import KnowsPersonalModels, PersonalMethod
from fedstrata.uploads.compression import Compression
from fedstrata.uploads.disclosure import Disclosure, disclosure_of
from fedstrata.uploads.noise import LocalNoise, NoiseSeed

_LAYER_KEYS = ("layers", "personal")
"""The keys of algorithms that hold selectors of layers."""


@dataclass(frozen=True, kw_only=True)
class ServerSetup:
    """What the server of a run needs.

    Attributes:
        problem: What is fixed for the run.
        algorithm: The algorithm with its hyper-parameters, and what the personal method does in every round.
        participation: Who takes part in which round.
        objective: What the networks learn.
        personal: How clients make models of their own; None where they do not.
        private: The differential privacy of the run; None where there is none.
        client_noise: What clients do with updates before they send them, if they do. A run on devices takes it out of
            its setup, as the devices do it.
        compression: How clients compress their updates; None where they do not.
    """

    problem: Problem
    algorithm: Algorithm[Any]
    participation: Participation
    objective: Objective
    personal: PersonalMethod | None
    private: PrivateRun | None
    client_noise: LocalNoise | None
    compression: Compression | None


def server_setup(
    experiment: Experiment,
    problem: Problem,
    participation: Participation,
    *,
    noise_seed: NoiseSeed | None = None,
    participants_known: bool = True,
) -> ServerSetup:
    """Fit the algorithm of an experiment, and what goes with it, to its network. No data are needed.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        participation: Who takes part in which round.
        noise_seed: The seed of the noise of differential privacy; by default that of the run, which is no secret.
        participants_known: Whether it is known before the run who can take part in each round.

    Raises:
        ExperimentError: When something in the experiment does not fit the network, or does not go together.
    """
    personal = experiment.personal_of()
    algorithm = _before_personal_stage(experiment.algorithm_of(), personal)
    plan = first_plan(algorithm, problem)
    if personal is not None:
        personal.check(problem, algorithm)
    disclosure = disclosure_of(algorithm, experiment.rounds)
    private = private_run(
        experiment,
        problem,
        disclosure,
        plan,
        participation,
        noise_seed=noise_seed,
        participants_known=participants_known,
    )
    check_probes(experiment, algorithm, problem)
    return ServerSetup(
        problem=with_central_privacy(problem, private),
        algorithm=algorithm if personal is None else personal.around(algorithm),
        participation=participation,
        objective=objective_of(experiment),
        personal=personal,
        private=private,
        client_noise=client_noise(private),
        compression=compression_of(experiment, problem.layout, disclosure),
    )


def with_personal_stage(algorithm: Algorithm[Any], method: PersonalMethod | None) -> Algorithm[Any]:
    """The algorithm of a run with a personal method; None is a run without one."""
    algorithm = _before_personal_stage(algorithm, method)
    return algorithm if method is None else method.around(algorithm)


def _before_personal_stage(algorithm: Algorithm[Any], method: PersonalMethod | None) -> Algorithm[Any]:
    """The algorithm that decides in a run with a personal method: it may know that personal models follow."""
    if method is not None and isinstance(algorithm, KnowsPersonalModels):
        return algorithm.with_personal_models()
    return algorithm


def compression_of(experiment: Experiment, layout: Layout, disclosure: Disclosure | None) -> Compression | None:
    """How clients compress their updates; None where they do not, or no updates travel."""
    table = experiment.network
    if table.compression == "none" or (disclosure is not None and not disclosure.clients_keep_data):
        return None
    return Compression(layout, table.compression, table.share, experiment.seed)


def first_plan(algorithm: Algorithm[Any], problem: Problem) -> Plan:
    """The first plan of an algorithm, for all clients, as if they were in one true group.

    No data are needed for it, so that wrong layers are found before any are read.

    Raises:
        ExperimentError: When a key of the algorithm does not fit the network.
    """
    problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    try:
        return algorithm.plan(problem, algorithm.init(problem), torch.arange(problem.clients))
    except LayoutError as error:
        raise ExperimentError(f"algorithm.{_key_of(algorithm, problem.layout)} = {error}") from None


def _key_of(algorithm: Algorithm[Any], layout: Layout) -> str:
    """The key whose selectors match no layer."""
    for each in fields(algorithm):  # type: ignore[arg-type]  # every registered algorithm is a dataclass
        value = getattr(algorithm, each.name)
        try:
            if each.name in _LAYER_KEYS:
                layout.select(*([value] if isinstance(value, str) else value))
        except LayoutError:
            return each.name
    return "name"
