"""The ServerApp of a federation: an ordinary run, with the same records, whose clients are devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import flwr.serverapp
import numpy as np
import torch
from flwr.app import Context

from fedstrata import report
from fedstrata.base.errors import ContractError, DataError
from fedstrata.base.files import append_line, folder_lock, refuse_links
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.build.participation import participation_of, sampling_weights
from fedstrata.build.problem import objective_of, problem_of, refuse_single_samples
from fedstrata.build.run_setup import RunSetup, server_setup
from fedstrata.build.samples import spreads_units
from fedstrata.config import Experiment, choose
from fedstrata.core import Plan
from fedstrata.data import Dataset
from fedstrata.engine import resolve_engine
from fedstrata.engine.device import one_thread
from fedstrata.flower.client_data import no_client_data
from fedstrata.flower.client_registry import ClientRegistry, Registrar, load_registry, save_registry
from fedstrata.flower.clients import FlowerClients
from fedstrata.flower.credentials import read_public_keys
from fedstrata.flower.federation import FEDERATION_FILE, NETWORK, Federation, read_federation
from fedstrata.flower.grid import BoundedGrid, Clock, Grid
from fedstrata.flower.on_devices import refuse_on_devices, require
from fedstrata.flower.requests import RunConfig
from fedstrata.play.progress import StatusLine
from fedstrata.play.rounds import PlanReply, timed_reply
from fedstrata.play.run import play_shown
from fedstrata.records.checkpoint import checkpoints
from fedstrata.records.folder import Folder
from fedstrata.records.schema import ClientEntry, DataRecord
from fedstrata.report.summary import warnings
from fedstrata.results.run import Run
from fedstrata.uploads.noise import SIMULATED_RUN, NoiseSeed, random_digits, secret_seed

_REGISTRY_FILE = "clients.json"
"""The file of the client registry, in the folder of the network."""

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
    folder = out / NETWORK
    refuse_links(out, [NETWORK])
    with one_thread(), StatusLine(quiet=False) as line, folder_lock(folder, partial(line.keep, _WAITING)):
        tell = line.keep
        clock = clock or Clock()
        config = run_config(experiment, federation, random_digits(folder / "run", len(SIMULATED_RUN)))
        for warning in _warnings(federation, public_keys):
            tell(warning)
        longest = federation.rounds.deadline * federation.rounds.max_attempts
        registrar = Registrar(grid, config, federation.wait_seconds, tell, clock, between=longest)
        empty = ClientRegistry(
            federation.clients, config.clients, max_samples=federation.max_samples, public_keys=public_keys or {}
        )
        registry = load_registry(folder / _REGISTRY_FILE, empty)
        wanted = federation.min_clients or len(federation.clients)
        registry = registrar.wait_for(registry, wanted, _next_round(out) if registry.registrations else 0)
        save_registry(folder / _REGISTRY_FILE, registry)
        clients = FlowerClients(grid, registry, federation.rounds, tell, clock, config=config)
        secret = secret_seed(folder / _NOISE_SEED_FILE) if experiment.privacy.kind == "central" else None
        setup, joins = _run_setup(experiment, federation, config, clients, public, secret)

        def reply(plan: Plan) -> PlanReply:
            reply = timed_reply(clients, plan)
            traffic = clients.traffic
            # A resumed run tells of its last round once more.
            line = {"round": plan.round, **asdict(traffic), "seconds": reply.seconds}
            append_line(folder / "rounds.jsonl", json.dumps(line) + "\n", private=True)
            clients.registry = registrar.update(clients.registry, plan.round + 1)
            save_registry(folder / _REGISTRY_FILE, clients.registry)
            joins.update(_joins(experiment, clients.registry))
            return reply._replace(absent=traffic.absent, rejected=traffic.rejected)

        finished = play_shown(experiment, setup, out, line, reply=reply, resume=resume, may_skip_checkpoints=False)
        _record_clients(out, federation, clients)
        for warning in warnings(finished.summary):
            tell(warning)
        report.build(out)
        return finished


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
    refuse_single_samples(experiment, config.samples.network_shape, config.outputs)
    problem = problem_of(experiment, config.samples.network_shape, config.outputs)
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
) -> tuple[RunSetup, dict[int, int]]:
    """Build what a run needs, and the rounds in which clients join, which may be changed while it goes on.

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
    problem = problem_of(experiment, config.samples.network_shape, config.outputs)
    problem = replace(problem, truth=truth, public=public, predict=predict)
    joins = _joins(experiment, clients.registry)

    def sizes(round: int) -> list[int]:
        # The registry grows while the run goes on; a client that is not in it takes no part.
        held = clients.registry.by_id()
        return [held[client][1].train if client in held else 0 for client in range(problem.clients)]

    participation = replace(
        participation_of(experiment), joins=joins, weights=sampling_weights(experiment.cohort, sizes), known=False
    )
    noise_seed = None
    if secret is not None:
        # The seed of the run goes to all devices. They must not know who else was drawn.
        participation = replace(participation, seed=secret, secret=True)
        noise_seed = NoiseSeed(secret, config.run)
    server = server_setup(experiment, problem, participation, noise_seed=noise_seed)
    if server.client_noise is not None and server.client_noise.noise_multiplier != config.noise_multiplier:
        # Devices were told before how much noise to add.
        raise ContractError("algorithm.name: expected a first plan that does not depend on which clients are there")
    name, device = resolve_engine("loop", "cpu")
    setup = RunSetup(
        server=server,
        clients=clients,
        client_data=no_client_data(config),
        engine=experiment.engine.model_copy(update={"name": name, "device": device}),
        names=_client_names(federation, clients),
        # They do to their updates what `run_config` tells them; it is not to be simulated as well.
        on_devices=True,
    )
    return setup, joins


def _client_names(federation: Federation, clients: FlowerClients) -> tuple[str, ...]:
    """The name of each client, or else its key. One that joins later has its id until the run is resumed."""
    registry = clients.registry
    names = dict(enumerate(federation.names or registry.known))
    names = {client: key for client, (key, _) in registry.by_id().items()} | names
    return tuple(names.get(client, str(client)) for client in range(registry.clients))


def _record_clients(out: Path, federation: Federation, clients: FlowerClients) -> None:
    """Write who the clients were: some have joined since the run began, and only they know their numbers of samples."""
    sizes = {client: {"train": held.train, "test": held.test} for client, (_, held) in clients.registry.by_id().items()}
    names = enumerate(_client_names(federation, clients))
    entries = [ClientEntry(id=client, name=name, **sizes.get(client, {})) for client, name in names]
    with folder_lock(out):
        folder = Folder(out)
        before = folder.data() or DataRecord(clients=[])
        folder.add_data(DataRecord(clients=entries, network=before.network))


def _joins(experiment: Experiment, registry: ClientRegistry) -> dict[int, int]:
    """Find the round of each client's first cohort: when it came, and not before the experiment lets it join."""
    planned = participation_of(experiment).joins
    return {client: max(round, planned.get(client, 0)) for client, round in registry.joins().items()}


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
            f"WARNING: no nodes/<client>/key.pub of {', '.join(unknown)}: whoever comes first under one of these "
            "names is bound to it for this run"
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


def _next_round(out: Path) -> int:
    """Find the round that a run in a folder goes on with; 0 before its first."""
    done = checkpoints(out / "checkpoint")
    return int(done[0].stem) + 1 if done else 0


server_app = flwr.serverapp.ServerApp()


@server_app.main()
def _main(grid: flwr.serverapp.Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    serve(BoundedGrid(grid), context.run_config)
