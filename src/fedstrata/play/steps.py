"""The steps of a run in its folder: how it begins or goes on, round by round, and what is written when it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from fedstrata.base.errors import RecordError
from fedstrata.base.files import folder_lock, refuse_links, remove_file, root_folder
from fedstrata.base.quoting import shown
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment, dumps
from fedstrata.config.reading import completed_keys, plain_keys
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import Plan, State
from fedstrata.data import DATASETS
from fedstrata.play.client_descriptions import data_record, describe_clients
from fedstrata.play.finish import finish_run, score_last_models
from fedstrata.play.interrupt import Stopped
from fedstrata.play.recorder import OnRound, Recorder
from fedstrata.play.rounds import PlanReply, Rules, play_rounds
from fedstrata.records.checkpoint import require_saveable
from fedstrata.records.folder import Folder
from fedstrata.records.resume import find_resumable, origin
from fedstrata.records.schema import RUN_FOLDER_ENTRIES, DataRecord
from fedstrata.records.tracking import track
from fedstrata.results.run import Run, outputs_of

_logger = logging.getLogger(__name__)

RunSteps = Generator[Plan, PlanReply, Run]
"""A run in progress: it yields what it asks of the clients, is sent the reply, and returns when it is over."""


def run_steps(
    experiment: Experiment,
    setup: RunSetup,
    out: Path,
    *,
    resume: bool = False,
    on_round: OnRound = lambda record, state: None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], object] = lambda line: None,
    may_skip_checkpoints: bool = True,
) -> RunSteps:
    """A run as a generator, so that several can be advanced side by side.

    Its records count as seconds the time that it was running itself, and the seconds that came along with each reply.

    Args:
        experiment: The experiment, checked and complete.
        setup: What was built from it.
        out: The run folder; it is made if need be. It may be a link; nothing inside it may be one.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        on_round: Is called with the record of each round once it is complete, and the state after the round.
        stop: Is asked before every round whether there shall be no more for now.
        tell: Is called with a line for the user when something is unusual about a run that goes on.
        may_skip_checkpoints: Whether the run goes on where the disk refuses a checkpoint and an older one is there.
            Resumed, it repeats the rounds since then. Real devices keep their own layers of two rounds, and cannot go
            farther back.

    Raises:
        OSError: When the disk refuses a record, or the checkpoint of the first or the last round.
        RecordError: When another process works in the folder, it holds a run that shall not be resumed, or one that
            cannot be.
        Stopped: When `stop` said so before the run was over; all its rounds are recorded then.
    """
    fresh = setup.server.algorithm.init(setup.server.problem)  # may refuse the experiment: nothing is made then
    require_saveable(fresh)
    root = root_folder(out)
    # A data set's own unit is written down, and so is that all samples are independent.
    independent = ALL_INDEPENDENT if experiment.data.unit == ALL_INDEPENDENT else None
    units = experiment.data.model_copy(update={"unit": setup.client_data.dataset.unit or independent})
    resolved = experiment.model_copy(update={"engine": setup.engine, "data": units})
    with folder_lock(root):
        folder = Folder(root)
        form = setup.client_data.dataset.sample_format
        says = [] if setup.network is None else outputs_of(setup.network(), resolved, form)
        data = data_record(setup, says, own_data=experiment.data.name not in DATASETS)
        state, record = begin_run(resolved, setup, folder, fresh, tell, resume=resume, data=data)
        folder.add_data(data)
        folder.add_metric(setup.server.objective.metric_info)
        for warning in setup.warnings:
            tell(f"WARNING: {warning}")
        if setup.server.private is not None:
            tell(setup.server.private.line)
        with track(experiment.records.track, folder.path / "tracking", dumps(resolved), folder.rounds()) as log:

            def recorded(done: Mapping[str, Any], state: State) -> None:
                log(done)
                on_round(done, state)

            recorder = Recorder(resolved, setup, folder, record, recorded, tell, may_skip_checkpoints)
            state = yield from play_rounds(
                Rules.of(setup),
                state,
                stop=lambda state: state.round >= experiment.rounds or stop(),
                observe=recorder.write,
                evaluate=recorder.evaluations,
            )
            if recorder.unsaved:
                recorder.save(state)
            used, personal = yield from score_last_models(setup, recorder, state)
        if state.round < experiment.rounds:
            raise Stopped(f"stopped after round {state.round} of {experiment.rounds}", out)
        run = finish_run(resolved, setup, folder, out, state, used, personal)
        if run.summary["acc_client"] is None:
            metric = setup.server.objective.metric_info.name
            tell(f"WARNING: the {metric} of no client is a number after the last round; look at local.metric")
        _logger.info("%s: the run is finished after round %d", folder.path, state.round)
        return run


def begin_run(
    experiment: Experiment,
    setup: RunSetup,
    folder: Folder,
    fresh: State,
    tell: Callable[[str], object],
    *,
    resume: bool,
    data: DataRecord,
) -> tuple[State, Mapping[str, Any] | None]:
    """Begin a run in its folder, or go on with the one that it holds.

    Args:
        experiment: The experiment, with what the setup chose for it.
        setup: What was built from it.
        folder: The run folder, which is locked.
        fresh: The state of a run that begins.
        tell: Is called with a line for the user for what is unusual about a run that goes on.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        data: What the data and the network are now.

    Returns:
        The state to begin or to go on with, and the record of its round that is still without scores.

    Raises:
        RecordError: When the folder holds a run that shall not be resumed, or one that cannot be.
    """
    refuse_links(folder.path, RUN_FOLDER_ENTRIES)
    if not resume and any((folder.path / name).exists() for name in ("experiment.toml", "rounds.jsonl", "checkpoint")):
        raise RecordError(
            f"{str(folder.path)!r}: expected no run in this folder, found one; resume it, or take another"
        )
    made_with = origin(setup.engine.device)
    keys = plain_keys(experiment)
    found = find_resumable(folder, fresh, keys, made_with, completed_keys) if resume else None
    if found is None:
        _logger.info("%s: the run begins", folder.path)
        folder.create(dumps(experiment))
        folder.rewind(0)
        if not setup.on_devices:  # where the clients alone have data
            folder.add_client_descriptions(describe_clients(setup.client_data))
        return fresh, None
    # On a network, the answers to rounds that are repeated may be others.
    if setup.on_devices and found.repeats and experiment.privacy.kind != "none":
        raise RecordError(
            f"{folder.path}: expected the checkpoint of the last round, as epsilon counts each round once, found that "
            f"of round {found.state.round}; models of later rounds have left the server, and those of "
            "repeated rounds would be further ones; restore checkpoint/ from a copy, or start a new run"
        )
    before = folder.data()
    if before is not None and before.network:
        before.require_same_network(data.network, data.frozen, folder.path)
    if before is not None and before.digest and before.digest != data.digest:
        raise RecordError(
            f"{folder.path}: expected the data that the run began with, found others; put the old data back in "
            f"{shown(experiment.data.name)}, or start a run without --resume"
        )
    folder.create(dumps(experiment))
    _logger.info("%s: the run goes on after round %d", folder.path, found.state.round)
    for line in found.notes:
        tell(f"resumed from round {found.state.round}: {line}")
    setup.clients.store.restore(found.store)
    # The run may have been finished. It is not any more, until its end has been made again.
    remove_file(folder.path / "summary.json")
    folder.rewind(found.state.round)
    return found.state, found.record
