"""Begin a run in its folder, or go on with the one that it holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedstrata.base.errors import RecordError
from fedstrata.base.files import refuse_links, remove_file
from fedstrata.base.quoting import shown
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment, dumps
from fedstrata.config.reading import completed_keys, plain_keys
from fedstrata.core import State
from fedstrata.data import DATASETS
from fedstrata.play.client_descriptions import describe_clients, digest_clients
from fedstrata.records import Folder
from fedstrata.records.origin import origin
from fedstrata.records.resume import Resumable, find_resumable
from fedstrata.records.schema import RUN_FOLDER_ENTRIES

_logger = logging.getLogger(__name__)


def begin_run(
    experiment: Experiment,
    setup: RunSetup,
    folder: Folder,
    fresh: State,
    tell: Callable[[str], object],
    *,
    resume: bool,
) -> tuple[State, Mapping[str, Any] | None]:
    """Begin a run in its folder, or go on with the one that it holds.

    Args:
        experiment: The experiment, with what the setup chose for it.
        setup: What was built from it.
        folder: The run folder, which is locked.
        fresh: The state of a run that begins.
        tell: Is called with a line for the user for what is unusual about a run that goes on.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.

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
    found = None
    if resume:
        made_with = origin(setup.engine.device)
        found = find_resumable(folder, fresh, plain_keys(experiment), made_with, completed_keys)
    own_data = experiment.data.name not in DATASETS
    held = setup.client_data
    # On a network, the clients alone have data.
    simulated = all(len(held.train(client)) for client in range(len(held)))
    if found is not None and not simulated:
        _refuse_repeated_rounds(experiment, found, folder)
    if found is not None and own_data:
        _refuse_changed_data(experiment, setup, folder)
    folder.create(dumps(experiment))
    if found is None:
        _logger.info("%s: the run begins", folder.path)
        folder.rewind(0)
        if simulated:
            digests = digest_clients(held) if own_data else None
            folder.add_client_descriptions(describe_clients(held)._replace(digests=digests))
        return fresh, None
    _logger.info("%s: the run goes on after round %d", folder.path, found.checkpoint.state.round)
    for line in found.notes:
        tell(f"resumed from round {found.checkpoint.state.round}: {line}")
    setup.clients.store.restore(found.checkpoint.store)
    # The run may have been finished. It is not any more, until its end has been made again.
    remove_file(folder.path / "summary.json")
    folder.rewind(found.checkpoint.state.round)
    return found.checkpoint.state, found.checkpoint.record


def _refuse_repeated_rounds(experiment: Experiment, found: Resumable, folder: Folder) -> None:
    """Refuse to repeat rounds on a network, where noise is counted: their answers may be others.

    Raises:
        RecordError: When rounds would be repeated.
    """
    if found.repeats and experiment.privacy.kind != "none":
        raise RecordError(
            f"{folder.path}: expected the checkpoint of the last round, as epsilon counts each round once, found that "
            f"of round {found.checkpoint.state.round}; models of later rounds have left the server, and those of "
            "repeated rounds would be further ones; restore checkpoint/ from a copy, or start a new run"
        )


def _refuse_changed_data(experiment: Experiment, setup: RunSetup, folder: Folder) -> None:
    """Refuse to go on with other samples of the clients than those that the run began with.

    Raises:
        RecordError: When a client has others; the text names the first one.
    """
    before = folder.client_digests()
    if before is None:
        return
    now = digest_clients(setup.client_data)
    for client, name in enumerate(setup.names):
        if len(before) != len(now) or not np.array_equal(before[client], now[client]):
            raise RecordError(
                f"{folder.path}: expected the data that the run began with, found others of client {name}; "
                f"put the old data back in {shown(experiment.data.name)}, or start a run without --resume"
            )
