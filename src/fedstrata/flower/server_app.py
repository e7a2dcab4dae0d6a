"""The ServerApp of a federation: an ordinary run, with the same records, whose clients are devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import flwr.serverapp
import numpy as np
import torch
from flwr.app import Context

from fedstrata.base.errors import ContractError, DataError
from fedstrata.base.files import folder_lock
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.build.elsewhere import require
from fedstrata.build.participation import participation_elsewhere, participation_of
from fedstrata.build.problem import objective_of, problem_of, refuse_single_samples
from fedstrata.build.run_setup import RunSetup, server_setup
from fedstrata.build.samples import spreads_units
from fedstrata.config import Experiment, choose
from fedstrata.data import Dataset
from fedstrata.engine.device import one_thread
from fedstrata.flower.client_data import no_client_data
from fedstrata.flower.clients import FlowerClients
from fedstrata.flower.credentials import read_public_keys
from fedstrata.flower.federation import FEDERATION_FILE, Federation, read_federation
from fedstrata.flower.grid import BoundedGrid, Clock, Grid
from fedstrata.flower.members import Members
from fedstrata.flower.on_devices import refuse_on_devices
from fedstrata.flower.requests import RunConfig
from fedstrata.flower.rounds import known_members, network_folder, play_on_nodes
from fedstrata.play.progress import StatusLine
from fedstrata.results.run import Run
from fedstrata.uploads.noise import SIMULATED_RUN, NoiseSeed, random_digits, secret_seed

_NOISE_SEED_FILE = "noise_seed"
"""The file with the seed of the server's noise, in the folder of the network. It never leaves the server."""

_WAITING = "another server application still works in this run folder; waiting until it has ended"
"""What a server application logs while another one has the run folder.

An application whose SuperLink was killed lives on while it tries to reach it. It ends when a new SuperLink is there.
"""


def serve(grid: Grid, config: Mapping[str, Any]) -> Run:
    """Run the experiment that a Flower run is about.

    Args:
        grid: Flower's grid.
        config: The config of the Flower run: the paths of the experiment, of the federation's file and of the run
            folder, and ``resume``.

    Raises:
        InputError: When something in one of them is wrong.
        EngineError: When too few clients are there.
    """
    path = Path(str(config["federation"]))
    resume = bool(config["resume"])
    source = None if resume else Path(str(config["experiment"]))
    # The clients have the data. A relative path to them began in another directory, that of the command.
    experiment, out = choose(source, (), Path(str(config["out"])), resume=resume, find_data=False)
    federation = read_federation(path)
    public = read_public_samples(path.parent, federation)
    public_keys = read_public_keys(path.parent)
    return drive(grid, experiment, federation, out, public=public, resume=resume, public_keys=public_keys)


def drive(
    grid: Grid,
    experiment: Experiment,
    federation: Federation,
    out: Path,
    *,
    public: torch.Tensor | None = None,
    resume: bool = False,
    clock: Clock | None = None,
    public_keys: Mapping[str, str] | None = None,
) -> Run:
    """Drive a run over a grid, round by round, and write its report.

    Args:
        grid: Flower's grid.
        experiment: The experiment, checked and complete.
        federation: Who is in the federation.
        out: The run folder.
        public: The unlabelled samples on the server, normalised, (samples, ...).
        resume: Whether the run goes on from the folder's checkpoint.
        clock: Tells the time.
        public_keys: The public key of each client's node by the client's key, as the operator has it; None where nodes
            have no keys.
    """
    refuse_unfit(experiment, federation, public)
    folder = network_folder(out)
    with one_thread(), StatusLine(quiet=False) as line, folder_lock(folder, partial(line.keep, _WAITING)):
        tell = line.keep
        clock = clock or Clock()
        config = run_config(experiment, federation, random_digits(folder / "run", len(SIMULATED_RUN)))
        for warning in _warnings(federation, public_keys):
            tell(warning)
        planned = participation_of(experiment).joins
        members = Members([*federation.clients], config.clients, public_keys or {}, planned, tell)
        round = known_members(members, out) if resume else 0
        members.wait(
            grid.get_nodes,
            federation.min_clients or federation.clients,
            federation.wait_seconds,
            clock,
            round=round,
            key="min_clients in the federation's file",
        )
        most = federation.max_samples or MAX_SAMPLES
        clients = FlowerClients(grid, members, federation.rounds, tell, clock, config=config, max_samples=most)
        secret = secret_seed(folder / _NOISE_SEED_FILE) if experiment.privacy.kind == "central" else None
        setup = _run_setup(experiment, federation, config, clients, public, secret)
        called = partial(_client_names, federation, members)
        return play_on_nodes(experiment, setup, out, line, members, grid.get_nodes, resume=resume, names=called)


def run_config(experiment: Experiment, federation: Federation, run: str) -> RunConfig:
    """Make the config of a run, which is all that devices have to know of an experiment.

    Args:
        experiment: The experiment.
        federation: Who belongs to it.
        run: The name of the run on the devices.

    Raises:
        ExperimentError: When something in the experiment does not fit the network, or does not go together.
    """
    config = RunConfig(
        run=run,
        clients=experiment.data.clients,
        seed=experiment.seed,
        model=experiment.model.name,
        options=json.dumps(experiment.model.options),
        precision=experiment.engine.precision,
        samples=federation.samples,
        objective=objective_of(experiment),
        reading=experiment.reading,
        spread_units=spreads_units(experiment),
        compression=experiment.network.compression,
        compression_share=experiment.network.share,
    )
    refuse_single_samples(experiment, config.network)
    problem = problem_of(experiment, config.network)
    planned = server_setup(experiment, problem, replace(participation_of(experiment), known=False))
    if planned.client_noise is None:
        return config
    noise = planned.client_noise
    return replace(config, clip_norm=noise.clip_norm, noise_multiplier=noise.noise_multiplier)


def _run_setup(
    experiment: Experiment,
    federation: Federation,
    config: RunConfig,
    clients: FlowerClients,
    public: torch.Tensor | None,
    secret: int | None,
) -> RunSetup:
    """Build what a run needs.

    Args:
        experiment: The experiment.
        federation: Who belongs to it.
        config: What devices know of the run.
        clients: The devices.
        public: The unlabelled samples on the server; None for none.
        secret: The secret seed of a run in which the server adds the noise; None otherwise.
    """
    truth = torch.tensor(federation.truth) if federation.truth else None
    predict = config.objective.predictor(clients.outputs)
    problem = problem_of(experiment, config.network)
    problem = replace(problem, truth=truth, public=public, predict=predict)
    # The members change the rounds of joining while the run goes on.
    participation = participation_elsewhere(experiment, clients.members.joins)
    noise_seed = None
    if secret is not None:
        # The seed of the run goes to all devices. They must not know who else was drawn.
        participation = replace(participation, seed=secret, secret=True)
        noise_seed = NoiseSeed(secret, config.run)
    server = server_setup(experiment, problem, participation, noise_seed=noise_seed)
    if server.client_noise is not None and server.client_noise.noise_multiplier != config.noise_multiplier:
        # Devices were told before how much noise to add.
        raise ContractError("algorithm.name: expected a first plan that does not depend on which clients are there")
    return RunSetup(
        server=server,
        clients=clients,
        client_data=no_client_data(config),
        network=config.network,
        engine=experiment.engine.model_copy(update={"name": "loop", "device": "cpu"}),
        names=_client_names(federation, clients.members),
        # They do to their updates what `run_config` tells them; it is not to be simulated as well.
        on_devices=True,
    )


def _client_names(federation: Federation, members: Members) -> tuple[str, ...]:
    """The name of each client for people, or else that of its node."""
    return (*federation.names, *members.all_names[len(federation.names) :])


def refuse_unfit(experiment: Experiment, federation: Federation, public: torch.Tensor | None) -> None:
    """Refuse an experiment that cannot run on devices, or does not fit its federation.

    Args:
        experiment: The experiment.
        federation: Who belongs to it.
        public: The unlabelled samples on the server; None for none.

    Raises:
        ExperimentError: In one line.
    """
    refuse_on_devices(experiment)
    wanted, samples = experiment.data, federation.samples
    truth, rounds = federation.truth, federation.rounds
    shifted = any(samples.mean) or set(samples.std) - {1.0}
    # Epsilon holds where no client decides whether the update of another one counts.
    central = experiment.privacy.kind == "central"
    require(
        {
            "data.tokens: expected true with samples.dtype = 'int64', and else false": (
                wanted.tokens == (samples.dtype == "int64")
            ),
            "data.scale: expected true, unless samples.mean is 0 and samples.std is 1": wanted.scale or not shifted,
            "data.scale: expected as in samples.preparation": samples.preparation is None
            or samples.preparation.options.scale == wanted.scale,
            "data.clients: expected as many as there are true groups (truth)": len(truth) in (0, wanted.clients),
            "probe.gap: expected the true group of each client (truth)": bool(truth) or not experiment.probe.gap,
            "data.public: expected a file of public samples (public)": public is not None or not wanted.public,
            "rounds.min_reply_fraction: expected 1 with privacy.kind = 'central'": (
                rounds.min_reply_fraction == 1 or not central
            ),
            "rounds.min_replies: expected 1 with privacy.kind = 'central'": rounds.min_replies == 1 or not central,
        },
        f"in {FEDERATION_FILE}",
    )


def _warnings(federation: Federation, public_keys: Mapping[str, str] | None) -> list[str]:
    """Say what the operator has left open."""
    warnings = []
    if not federation.max_samples:
        warnings.append(
            "WARNING: max_samples = 0 in the federation's file: a client may claim any number of samples up to "
            f"{MAX_SAMPLES}, and its weight in every mean is this number"
        )
    unknown = [client for client in federation.clients if public_keys is not None and client not in public_keys]
    if unknown:
        warnings.append(
            f"WARNING: no nodes/<client>/key.pub of {', '.join(unknown)}: whoever is registered under one of these "
            "names speaks for it"
        )
    return warnings


def read_public_samples(home: Path, federation: Federation) -> torch.Tensor | None:
    """Read the unlabelled samples of the server, normalised as all others; None where it has none.

    Args:
        home: The folder of the federation.
        federation: What its file says.

    Raises:
        DataError: When they are not there or do not fit.
    """
    if not federation.public:
        return None
    path = home / federation.public
    samples = federation.samples
    try:
        with np.load(path, allow_pickle=False) as archive:
            inputs = torch.from_numpy(archive["x"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: expected a .npz file with an array x of samples: {error}") from None
    found = str(inputs.dtype).removeprefix("torch.")
    shape = tuple(inputs.shape[1:])
    if (found, shape) != (samples.dtype, samples.shape):
        raise DataError(f"{path}: expected samples of {samples.dtype} {samples.shape}, found {found} {shape}")
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    dataset = Dataset(str(path), inputs, labels, samples.classes, **samples.normalisation)
    return dataset.prepare(torch.arange(len(inputs)))


server_app = flwr.serverapp.ServerApp()


@server_app.main()
def _main(grid: flwr.serverapp.Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    serve(BoundedGrid(grid), context.run_config)
