"""What the server of a run needs of an experiment, whoever holds the data: simulated clients or devices."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from fedstrata.compression import Compression
from fedstrata.config import Experiment
from fedstrata.core import Algorithm, Layout, Problem, needs_all_data
from fedstrata.core.private_aggregation import NoiseSeed
from fedstrata.errors import ExperimentError, LayoutError
from fedstrata.objective import Objective
from fedstrata.personal import KnowsPersonalModels, PersonalMethod
from fedstrata.privacy.local import LocalPrivacy
from fedstrata.privacy.secure_sum import SumTerms
from fedstrata.runner.membership import Membership
from fedstrata.runner.privacy import PrivateRun, client_noise, private_run, with_central_privacy
from fedstrata.runner.probes import check_probes
from fedstrata.runner.problem import objective_of
from fedstrata.runner.secure_sums import sum_terms

_LAYER_KEYS = ("layers", "personal")
"""The keys of algorithms that hold selectors of layers."""


@dataclass(frozen=True, kw_only=True)
class ServerSetup:
    """What the server of a run needs.

    Attributes:
        problem: What is fixed for the run.
        algorithm: The algorithm with its hyper-parameters, and what the personal method does in every round.
        members: Who takes part in which round.
        objective: What the networks learn.
        personal: How clients make models of their own; None where they do not.
        private: The differential privacy of the run; None where there is none.
        client_noise: What clients do with updates before they send them, where that is simulated.
        sums: The terms of the sums that the server sees in place of updates, where these are simulated.
        compression: How clients compress their updates; None where they do not.
    """

    problem: Problem
    algorithm: Algorithm[Any]
    members: Membership
    objective: Objective = field(default_factory=Objective)
    personal: PersonalMethod | None = None
    private: PrivateRun | None = None
    client_noise: LocalPrivacy | None = None
    sums: SumTerms = field(default_factory=SumTerms)
    compression: Compression | None = None


def server_setup(
    experiment: Experiment,
    problem: Problem,
    members: Membership,
    *,
    noise_seed: NoiseSeed | None = None,
    members_known: bool = True,
) -> ServerSetup:
    """Fit the algorithm of an experiment, and what goes with it, to its network. No data are needed.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        members: Who takes part in which round.
        noise_seed: The seed of the noise of differential privacy; by default that of the run, which is no secret.
        members_known: Whether it is known before the run who can take part in each round.

    Raises:
        ExperimentError: When something in the experiment does not fit the network, or does not go together.
    """
    algorithm = experiment.algorithm_of()
    personal = experiment.personal_of()
    check_first_plan(algorithm, problem, personal)
    private = private_run(experiment, problem, algorithm, members, noise_seed=noise_seed, members_known=members_known)
    sums = sum_terms(experiment, problem, algorithm)
    check_probes(experiment, algorithm, problem)
    return ServerSetup(
        problem=with_central_privacy(problem, private),
        algorithm=with_personal_stage(algorithm, personal),
        members=members,
        objective=objective_of(experiment),
        personal=personal,
        private=private,
        client_noise=client_noise(private),
        sums=sums,
        compression=compression_of(experiment, problem.layout),
    )


def with_personal_stage(algorithm: Algorithm[Any], method: PersonalMethod | None) -> Algorithm[Any]:
    """The algorithm of a run with a personal method; None is a run without one."""
    if method is None:
        return algorithm
    return method.around(algorithm.with_personal_models() if isinstance(algorithm, KnowsPersonalModels) else algorithm)


def compression_of(experiment: Experiment, layout: Layout) -> Compression | None:
    """How clients compress their updates; None where they do not, or no updates travel."""
    table = experiment.network
    if table.compression == "none" or needs_all_data(experiment.algorithm_of(), experiment.rounds):
        return None
    return Compression(layout, table.compression, table.share, experiment.seed)


def check_first_plan(algorithm: Algorithm[Any], problem: Problem, personal: PersonalMethod | None = None) -> None:
    """Ask for a first plan as if all clients were in one group, so that wrong layers are found before data is read.

    Raises:
        ExperimentError: When a key of the algorithm does not fit the network, or the personal method does not fit.
    """
    problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    try:
        algorithm.plan(problem, algorithm.init(problem), torch.arange(problem.clients))
    except LayoutError as error:
        raise ExperimentError(f"algorithm.{_key_of(algorithm, problem.layout)} = {error}") from None
    if personal is not None:
        personal.check(problem, algorithm)


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
