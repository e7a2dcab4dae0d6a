"""The server of a federation: an ordinary run, with the same records, whose clients are devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedstrata import report
from fedstrata.config import Experiment, choose
from fedstrata.data import Dataset
from fedstrata.engine import resolve_engine
from fedstrata.errors import DataError, ExperimentError, RecordError
from fedstrata.files import append_line, read_file, refuse_links, replace_file
from fedstrata.flower.alone import alone
from fedstrata.flower.app_signature import hand_over_signature
from fedstrata.flower.certificates import read_public_keys
from fedstrata.flower.deploy import NETWORK
from fedstrata.flower.exchange import Clock, Grid
from fedstrata.flower.federation import Federation, read_federation
from fedstrata.flower.greeting import Greeter
from fedstrata.flower.remote import Remote
from fedstrata.flower.roster import Roster, load_roster, save_roster
from fedstrata.flower.samples import no_client_data
from fedstrata.flower.terms import Terms
from fedstrata.models import layout_of
from fedstrata.records.checkpoint import checkpoints
from fedstrata.report.words import warnings
from fedstrata.runner.build import RunSetup, problem_of, rehearse
from fedstrata.runner.membership import membership
from fedstrata.runner.progress import Progress, StatusLine
from fedstrata.runner.rounds import PlanReply, Run, ask, one_thread, run_steps

WAITING = "another server application still works in this run folder; waiting until it has ended"
"""One whose SuperLink was killed lives on while it tries to reach it, and is ended at last when there is a new one."""


def serve(grid: Grid, config: Mapping[str, Any]) -> Run:
    """Run the experiment that a Flower run is about.

    Args:
        grid: of Flower.
        config: of the run: paths of the experiment, of the federation's file and of the run folder, and ``resume``.

    Raises:
        InputError: when something in one of them is wrong.
        EngineError: when too few clients are there.
    """
    path, resume = Path(str(config["federation"])), bool(config["resume"])
    source = None if resume else Path(str(config["experiment"]))
    experiment, out = choose(source, (), Path(str(config["out"])), resume=resume)
    federation = read_federation(path)
    public = _public(path.parent / federation.public, federation) if federation.public else None
    public_keys = read_public_keys(path.parent)
    hand_over_signature(path.parent)
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
        grid: of Flower.
        experiment: checked and complete.
        federation: who is in it.
        out: the run folder.
        public: unlabelled samples on the server, normalised, (samples, ...).
        resume: go on from the folder's checkpoint.
        clock: what the time is.
        public_keys: key of a client -> public key of its node, as the operator has it; None where nodes have no keys.
    """
    _possible(experiment, federation, public)
    folder = out / NETWORK
    refuse_links(out, [NETWORK])
    with one_thread(), StatusLine(quiet=False) as line, alone(folder, partial(line.keep, WAITING)):
        tell, clock = line.keep, clock or Clock()
        terms = terms_of(experiment, federation, _name(folder))
        for warning in _warnings(federation, public_keys):
            tell(warning)
        empty = Roster(federation.clients, terms.clients, most=federation.max_samples, public_keys=public_keys or {})
        roster = load_roster(folder / "roster.json", empty)
        layout = layout_of(terms.network(0))
        longest = federation.rounds.deadline * federation.rounds.max_attempts
        greeter = Greeter(grid, terms, layout, federation.wait_seconds, tell, clock, between=longest)
        wanted = federation.min_clients or len(federation.clients)
        roster = greeter.gather(roster, wanted, _next(out) if roster.seats else 0)
        save_roster(folder / "roster.json", roster)
        remote = Remote(grid, terms, roster, federation.rounds, tell, clock)
        setup, joins = _setting(experiment, federation, terms, remote, public)
        running = run_steps(
            experiment, setup, out, resume=resume, show=Progress(experiment.rounds, line).show, tell=tell
        )
        answer: PlanReply | None = None
        try:
            while True:
                plan = ask(running, answer)
                began = perf_counter()
                answered, journey = remote.run(plan), remote.journey
                answer = PlanReply(answered, perf_counter() - began, journey.absent, journey.rejected)
                _note(folder, plan.round, remote, answer.seconds)
                remote.roster = greeter.meet(remote.roster, plan.round + 1)
                save_roster(folder / "roster.json", remote.roster)
                joins.update(_joins(experiment, remote.roster))
        except StopIteration as end:
            finished: Run = end.value
        for warning in warnings(finished.summary):
            tell(warning)
        report.build(out)
        return finished


def terms_of(experiment: Experiment, federation: Federation, run: str) -> Terms:
    """What devices have to know of an experiment."""
    model, engine = experiment.model, experiment.engine
    options = json.dumps(model.options)
    clients = experiment.data.clients
    return Terms(run, clients, experiment.seed, model.name, options, engine.precision, federation.samples)


def _setting(
    experiment: Experiment, federation: Federation, terms: Terms, remote: Remote, public: torch.Tensor | None
) -> tuple[RunSetup, dict[int, int]]:
    """What a run needs, and the rounds in which clients join, which may be changed while it goes on."""
    samples = federation.samples
    problem = problem_of(experiment, samples.shape, samples.classes)
    truth = torch.tensor(federation.truth) if federation.truth else None
    problem = replace(problem, truth=truth, public=public, predict=remote.predict)
    algorithm = experiment.algorithm_of()
    rehearse(algorithm, problem)
    joins = _joins(experiment, remote.roster)
    members = replace(membership(experiment), joins=joins)
    name, device = resolve_engine("loop", "cpu")
    engine = experiment.engine.model_copy(update={"name": name, "device": device})
    return RunSetup(problem, algorithm, remote, members, no_client_data(terms), engine), joins


def _joins(experiment: Experiment, roster: Roster) -> dict[int, int]:
    """Round of each client's first cohort: when it came, and not before the experiment lets it join."""
    planned = membership(experiment).joins
    return {client: max(round, planned.get(client, 0)) for client, round in roster.joins().items()}


def _possible(experiment: Experiment, federation: Federation, public: torch.Tensor | None) -> None:
    """Refuse what only a simulator can do, and what does not fit together."""
    n, truth = experiment.data.clients, federation.truth
    if experiment.algorithm.name == "centralized":
        raise ExperimentError("algorithm.name = 'centralized': no device holds all data; run it in the simulator")
    if experiment.events.change:
        raise ExperimentError("events.change: expected none, as real clients' data are their own; take it out")
    if truth and len(truth) != n:
        raise ExperimentError(f"truth = {list(truth)}: expected a group for each of data.clients = {n}")
    if experiment.data.public and public is None:
        raise ExperimentError(
            f"data.public = {experiment.data.public}: expected the federation's file to name a file of public samples"
        )


def _warnings(federation: Federation, public_keys: Mapping[str, str] | None) -> list[str]:
    """What the operator has left open."""
    warnings = []
    if not federation.max_samples:
        warnings.append(
            "WARNING: max_samples = 0 in the federation's file: a client may say that it has any number of samples, "
            "and weighs as much in every mean; set max_samples to the number that the largest client can have"
        )
    unknown = [client for client in federation.clients if public_keys is not None and client not in public_keys]
    if unknown:
        warnings.append(
            f"WARNING: no nodes/<client>/key.pub of {', '.join(unknown)}: whoever comes first under one of these "
            "names is bound to it for this run"
        )
    return warnings


def _public(path: Path, federation: Federation) -> torch.Tensor:
    """Unlabelled samples of the server, normalised as all others."""
    samples = federation.samples
    try:
        with np.load(path, allow_pickle=False) as archive:
            inputs = torch.from_numpy(archive["x"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: expected a .npz file with an array x of samples: {error}") from None
    found, shape = str(inputs.dtype).removeprefix("torch."), tuple(inputs.shape[1:])
    if (found, shape) != (samples.dtype, samples.shape):
        raise DataError(f"{path}: expected samples of {samples.dtype} {samples.shape}, found {found} {shape}")
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    dataset = Dataset(str(path), inputs, labels, samples.classes, samples.mean, samples.std)
    return dataset.prepare(torch.arange(len(inputs)))


def _name(folder: Path) -> str:
    """What the run is called on the devices; the same when it is resumed."""
    path = folder / "run"
    try:
        name = read_file(path, limit=100).decode(errors="replace")
    except FileNotFoundError:
        name = token_hex(8)
        replace_file(path, name.encode(), private=True)
    if re.fullmatch(r"[0-9a-f]{16}", name) is None:
        raise RecordError(f"{path}: expected 16 hexadecimal digits, found {name!r}; restore it, or start a new run")
    return name


def _next(out: Path) -> int:
    """The round that a run in a folder goes on with; 0 before its first."""
    done = checkpoints(out / "checkpoint")
    return int(done[0].stem) + 1 if done else 0


def _note(folder: Path, round: int, remote: Remote, seconds: float) -> None:
    """Write what became of a plan; a resumed run tells of its last round once more."""
    journey = remote.journey
    record = {
        "round": round,
        "absent": journey.absent,
        "rejected": journey.rejected,
        "bytes_down": journey.down,
        "bytes_up": journey.up,
        "seconds": seconds,
    }
    append_line(folder / "rounds.jsonl", json.dumps(record) + "\n", private=True)
