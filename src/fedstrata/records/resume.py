"""Which checkpoint a run is resumed from, and which differences to an uninterrupted run are reported.

The last digits of a result depend on the versions of the libraries and on the machine, beside the experiment. Torch,
oneDNN, MKL and OpenBLAS have several kernels for the same product of matrices, and choose one by the processor. Kernels
add the same numbers in another order, so sums differ in their last bits. Training makes such differences larger.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from fedstrata.base.errors import RecordError
from fedstrata.core import State
from fedstrata.core.state import StateT
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint
from fedstrata.records.folder import Folder
from fedstrata.records.schema import Round, parse_record, refuse_other


def find_resumable(
    folder: Folder,
    fresh: State,
    experiment: Mapping[str, Any],
    versions: Mapping[str, str],
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Checkpoint[Any] | None:
    """Find the newest checkpoint that a run can be resumed from, with all records of the rounds before it.

    A checkpoint is skipped when it is damaged, when its models are not finite, or when lines of the rounds before it
    are missing or damaged: an older one repeats those rounds.

    Args:
        folder: The folder of the run.
        fresh: The state before the first round.
        experiment: The experiment to resume; plain JSON values.
        versions: The versions of the installed libraries, and the machine, by name.
        completed: Returns the experiment of a checkpoint with the defaults of keys that an older version did not have.

    Returns:
        The checkpoint, whose record has an event with its notes; None when the run was stopped before its first one.

    Raises:
        RecordError: When the run cannot be resumed: no checkpoint can be used, or it is of another experiment.
    """

    def unusable(checkpoint: Checkpoint[Any]) -> str:
        refuse_other(experiment, completed(checkpoint.experiment), folder.path)
        return (
            _unfit(checkpoint.state, fresh)
            or _unfit_record(checkpoint.record)
            or folder.log.missing(checkpoint.state.round - 1, checkpoint.lines)
        )

    checkpoint = find_checkpoint(folder.checkpoints, type(fresh), unusable)
    lines = len(folder.log.lines())
    if checkpoint is None:
        if lines:
            raise RecordError(
                f"{folder.path}: expected a checkpoint beside the records of {lines} rounds, found none; "
                "restore checkpoint/ from a copy, or start anew in another folder"
            )
        return None
    round = checkpoint.state.round
    notes = [f"the checkpoint {reason}" for reason in checkpoint.skipped]
    if lines > round:
        notes.append(f"{lines - round} recorded rounds after round {round} are repeated")
    for name, now in versions.items():
        before = checkpoint.versions.get(name, "unknown")
        if before != now:
            notes.append(f"{name} was {before}, is {now}: the last bits of results may differ")
    events = [*checkpoint.record["events"]]
    if notes:
        events.append({"kind": "resume", "round": round, "why": "; ".join(notes)})
    return dataclasses.replace(
        checkpoint,
        record={**checkpoint.record, "events": events},
        notes=tuple(notes),
        repeats=bool(checkpoint.skipped) or lines > round,
    )


def last_state(
    folder: Folder,
    experiment: Mapping[str, Any],
    fresh: StateT,
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> StateT:
    """Read the state that a run ended with.

    Args:
        folder: The folder of the run.
        experiment: The experiment of the run; plain JSON values. Its engine does not matter.
        fresh: The state of the same run before its first round.
        completed: Returns the experiment of a checkpoint with the defaults of keys that an older version did not have.

    Raises:
        RecordError: When there is no checkpoint, or none that can be used.
    """

    def unusable(found: Checkpoint[StateT]) -> str:
        now = {**experiment, "engine": found.experiment.get("engine")}
        refuse_other(now, completed(found.experiment), folder.path)
        return _unfit(found.state, fresh)

    found = find_checkpoint(folder.checkpoints, type(fresh), unusable)
    if found is None:
        raise RecordError(f"expected a checkpoint in {folder.checkpoints}, found none; run the experiment again")
    return found.state


def _unfit(state: State, fresh: State) -> str:
    """Return why a run cannot be resumed from a state; an empty text if it can.

    Args:
        state: The state of a checkpoint.
        fresh: The state of the same run before its first round.
    """
    if state.labels.shape != fresh.labels.shape or state.models.shape[1:] != fresh.models.shape[1:]:
        return (
            f"expected {len(fresh.labels)} clients and models of {fresh.models.shape[-1]} parameters, found "
            f"{len(state.labels)} and {tuple(state.models.shape)}"
        )
    if not bool(torch.isfinite(state.models).all()):
        return "its models are not finite"
    ordered = all(node.id == place and (node.parent or 0) <= place for place, node in enumerate(state.tree))
    named = [*state.nodes.tolist(), *state.waiting.tolist()]
    if not ordered or not all(-1 <= node < len(state.tree) for node in named):
        return "its clusters are not those of its tree"
    return ""


def _unfit_record(record: Mapping[str, Any]) -> str:
    """Return why the record of a checkpoint, which waits for its scores, cannot be completed; empty if it can."""
    scores = ("acc_client", "acc_weighted", "acc_cluster", "acc_worst", "loss", "ari")
    try:
        parse_record({**dict.fromkeys(scores), **record}, Round)
    except ValueError as error:
        return f"its record: {error}"
    return ""


def origin(device: str) -> dict[str, str]:
    """The versions and the machine together, for a run on a device such as "cpu"."""
    return {**versions(), **machine(device)}


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that compute."""
    names = ("fedstrata", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


@cache
def machine(device: str = "cpu") -> dict[str, str]:
    """The system, the processor, and the instructions that torch uses; of a run on a GPU also the name of the GPU.

    Args:
        device: The device that trains: "cpu", "cuda" or "mps".
    """
    found = {
        "system": " ".join((platform.system(), *platform.libc_ver())).strip(),
        "processor": platform.processor() or platform.machine(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }
    if device == "cuda":
        found["accelerator"] = torch.cuda.get_device_name()
    return found
