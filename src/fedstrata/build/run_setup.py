"""What a run needs: its server, and its clients, who are simulated or devices.

The server of a run needs no data: whoever holds them, it is made of the experiment and the form of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.build.participation import Participation
from fedstrata.build.privacy import PrivateRun, private_run
from fedstrata.build.probes import check_probes
from fedstrata.build.problem import objective_of
from fedstrata.config import Experiment
from fedstrata.config.tables import EngineTable
from fedstrata.core import Algorithm, Plan, Problem
from fedstrata.engine import ClientData, Engine
from fedstrata.models import NetworkMaker
from fedstrata.objective import Objective
from fedstrata.personal import KnowsPersonalModels, PersonalMethod
from fedstrata.uploads import UploadStep
from fedstrata.uploads.attacks.backdoor import Trigger
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients
from fedstrata.uploads.compression import CompressedUploads, Compression
from fedstrata.uploads.disclosure import disclosure_of
from fedstrata.uploads.noise import CentralNoise, LocalNoise, NoiseSeed
from fedstrata.uploads.validation import ValidAnswers


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
        compression: How clients compress their updates; None where they do not.
    """

    problem: Problem
    algorithm: Algorithm[Any]
    participation: Participation
    objective: Objective
    personal: PersonalMethod | None
    private: PrivateRun | None
    compression: Compression | None

    @property
    def client_noise(self) -> LocalNoise | None:
        """What clients do with updates before they send them; None where they do nothing."""
        mechanism = None if self.private is None else self.private.mechanism
        return mechanism if isinstance(mechanism, LocalNoise) else None


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a run needs: its server, and the clients.

    Attributes:
        server: What the server needs.
        clients: The engine, or the devices, that hold the data.
        client_data: The data of all clients.
        engine: The engine of the experiment, with the choice that "auto" led to.
        names: The name of each client, (n,). Clients without names have their numbers.
        warnings: What looks wrong with the data and the network, in a line each.
        public: The unlabelled samples of the server before they are normalised, (samples, ...); None for none.
        inputs: Which columns of a table the networks read, in one line; empty where the data are no table.
        choices: What was chosen for the experiment, also where it does not say, in a line each.
        byzantine: The clients that send something else than they have trained; None where all are honest.
        trigger: The trigger of their backdoor; None where they have none.
        on_devices: Whether the clients are real devices, which add noise and compress themselves.
        network: What makes the networks of the clients; None where only arrays of an app are known here.
    """

    server: ServerSetup
    clients: Engine
    client_data: ClientData
    engine: EngineTable
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    public: torch.Tensor | None = None
    inputs: str = ""
    choices: tuple[str, ...] = ()
    byzantine: ByzantineClients | None = None
    trigger: Trigger | None = None
    on_devices: bool = False
    network: NetworkMaker | None = None

    @property
    def everyone(self) -> torch.Tensor:
        """All client ids, (n,)."""
        return torch.arange(self.server.problem.clients)

    @property
    def steps(self) -> tuple[UploadStep, ...]:
        """What happens to a report between the clients and the algorithm, in this order."""
        server = self.server
        found: list[UploadStep | None] = []
        if not self.on_devices:
            found += [server.client_noise, self.byzantine]
            if server.compression is not None:
                # Nothing else fits into what travels, whoever sends it.
                found.append(CompressedUploads(server.compression, self.clients.store))
        # With noisy sums, whether a client counts must not depend on others: the noise is for what one client changes.
        found.append(ValidAnswers(server.problem.layout, compared=server.problem.aggregation.exact))
        return tuple(step for step in found if step is not None)

    def truth(self, round: int) -> torch.Tensor | None:
        """The true group of each client in a round, (n,). It changes with the data of a client."""
        if self.server.problem.truth is None:
            return None
        truth = self.server.problem.truth.clone()
        for client, (since, other) in self.server.participation.handovers.items():
            truth[client] = truth[other if round >= since else client]
        return truth


def server_setup(
    experiment: Experiment,
    problem: Problem,
    participation: Participation,
    *,
    noise_seed: NoiseSeed | None = None,
) -> ServerSetup:
    """Fit the algorithm of an experiment, and what goes with it, to its network. No data are needed.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        participation: Who takes part in which round.
        noise_seed: The seed of the noise of differential privacy; by default that of the run, which is no secret.

    Raises:
        ExperimentError: When something in the experiment does not fit the network, or does not go together.
    """
    personal = experiment.personal_of()
    algorithm = experiment.algorithm_of()
    if personal is not None and isinstance(algorithm, KnowsPersonalModels):
        algorithm = algorithm.with_personal_models()
    plan = first_plan(algorithm, problem)
    if personal is not None:
        personal.check(problem, algorithm)
    disclosure = disclosure_of(algorithm, experiment.rounds)
    private = private_run(experiment, problem, disclosure, plan, participation, noise_seed=noise_seed)
    check_probes(experiment, problem.layout)
    if private is not None and isinstance(private.mechanism, CentralNoise):
        problem = replace(problem, aggregation=private.mechanism)
    compression = None
    if experiment.network.compression != "none" and (disclosure is None or disclosure.clients_keep_data):
        network = experiment.network
        compression = Compression(problem.layout, network.compression, network.share, experiment.seed)
    return ServerSetup(
        problem=problem,
        algorithm=algorithm if personal is None else personal.around(algorithm),
        participation=participation,
        objective=objective_of(experiment),
        personal=personal,
        private=private,
        compression=compression,
    )


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
        raise ExperimentError(f"algorithm.{_key_of(algorithm, error.selector)} = {error}") from None


def _key_of(algorithm: Algorithm[Any], selector: str) -> str:
    """The key that holds a selector, alone or in a list; the name of the algorithm, where the selector is its own."""
    for each in fields(algorithm):  # type: ignore[arg-type]  # every registered algorithm is a dataclass
        value = getattr(algorithm, each.name)
        if selector in (value if isinstance(value, list | tuple) else [value]):
            return each.name
    return "name"
