"""Which checkpoint a run goes on from, and what has to be said about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch

from fedstrata.core import State
from fedstrata.errors import RecordError
from fedstrata.records.checkpoint import Checkpoint, checkpoints, find_checkpoint
from fedstrata.records.folder import Folder
from fedstrata.records.schema import BegunRound, check

S = TypeVar("S", bound=State)

FREE = (("algorithms",), ("records",), ("data", "root"), ("engine", "workers"), ("engine", "timeout"))
"""Keys that may differ when a run goes on: no result depends on them, as long as the data are the same."""

SHOWN = 5
"""Keys that differ, of which a message tells."""

EQUAL_ENGINES = ("loop", "processes", "ray")
"""Engines that give the same bits; a run may go on with another of them."""


class Resumed(NamedTuple):
    """What a run goes on with.

    Attributes:
        checkpoint: To go on from; its record says what is said.
        said: What differs from a run that was never stopped, in sentences; mostly nothing.
    """

    checkpoint: Checkpoint[Any]
    said: tuple[str, ...]


def find_resumable(
    folder: Folder, fresh: State, experiment: Mapping[str, Any], versions: Mapping[str, str]
) -> Resumed | None:
    """Find the newest checkpoint that a run can go on from, with all records of the rounds before it.

    A checkpoint is passed over when it is damaged, when its models are not finite, or when records of the rounds before
    it are missing or damaged: an older one does those rounds again.

    Args:
        folder: Of the run.
        fresh: The state before the first round.
        experiment: That is to go on; plain JSON values.
        versions: Of the libraries that are to go on with it.

    Returns:
        The checkpoint; None when the run has not come to its first one.

    Raises:
        RecordError: When the run cannot go on: no checkpoint is of use, or it is of another experiment.
    """
    oldest = min((int(path.stem) for path in checkpoints(folder.checkpoints)), default=0)

    def unusable(found: Checkpoint[Any]) -> str:
        refuse_other(experiment, found.experiment, folder)
        return unfit(found.state, fresh) or _wrong_record(found) or _incomplete(folder, found, oldest)

    found = find_checkpoint(folder.checkpoints, type(fresh), unusable)
    if found is None:
        done = len(folder.log.lines())
        if done:
            raise RecordError(
                f"{folder.path}: expected a checkpoint beside the records of {done} rounds, found none; "
                "restore checkpoint/ from a copy, or start anew in another folder"
            )
        return None
    checkpoint = found.checkpoint
    said = [f"the checkpoint {reason}" for reason in found.passed]
    round = checkpoint.state.round
    if damaged := folder.damaged(1, oldest - 1):
        said.append(f"of rounds that are over, {', '.join(damaged)} cannot be read")
    later = len(folder.log.lines()) - round
    if later > 0:
        said.append(f"{later} recorded rounds behind round {round} are done again")
    for name, version in versions.items():
        if (before := checkpoint.versions.get(name, "unknown")) != version:
            said.append(f"{name} was {before}, is {version}: the last bits of results may differ")
    if not said:
        return Resumed(checkpoint, ())
    event = {"kind": "resume", "round": round, "why": "; ".join(said)}
    record = {**checkpoint.record, "events": [*checkpoint.record["events"], event]}
    return Resumed(Checkpoint(checkpoint.state, checkpoint.store, record), tuple(said))


def unfit(state: State, fresh: State) -> str:
    """Why a run cannot go on from a state; an empty text if it can.

    Args:
        state: Of a checkpoint.
        fresh: That of the same run before its first round.
    """
    if state.labels.shape != fresh.labels.shape or state.models.shape[1:] != fresh.models.shape[1:]:
        return (
            f"expected {len(fresh.labels)} clients and models of {fresh.models.shape[-1]} parameters, found "
            f"{len(state.labels)} and {tuple(state.models.shape)}"
        )
    if not bool(torch.isfinite(state.models).all()):
        return "its models are not finite"
    nodes = len(state.tree)
    ordered = all(node.id == place and (node.parent or 0) <= place for place, node in enumerate(state.tree))
    named = [*state.nodes.tolist(), *state.waiting.tolist()]
    if not ordered or not all(-1 <= node < nodes for node in named):
        return "its clusters are not those of its tree"
    return ""


def refuse_other(now: Mapping[str, Any], before: Mapping[str, Any], folder: Folder) -> None:
    """Refuse to go on with another experiment.

    Args:
        now: The keys that are to go on.
        before: The keys that the checkpoint was written with.
        folder: Of the run.

    Raises:
        RecordError: That says every key that differs.
    """
    differ = differences(before, now)
    if differ:
        more = f"; and {len(differ) - SHOWN} more keys" if len(differ) > SHOWN else ""
        raise RecordError(
            f"{folder.path}: expected the experiment that the run was begun with, found another: "
            f"{'; '.join(differ[:SHOWN])}{more}; "
            "put the keys of experiment.toml back, or start a run without --resume"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, which keys of an experiment differ, but for those that no result depends on."""
    old, new = _flat(before), _flat(now)
    differ = []
    for path in dict.fromkeys([*old, *new]):
        was, is_ = old.get(path), new.get(path)
        alike = path == ("engine", "name") and was in EQUAL_ENGINES and is_ in EQUAL_ENGINES
        free = any(path[: len(key)] == key for key in FREE)
        if was != is_ and not alike and not free:
            differ.append(f"{'.'.join(path)} was {_shown(old, path)}, is {_shown(new, path)}")
    return differ


def _wrong_record(found: Checkpoint[Any]) -> str:
    """What is wrong with the unfinished record of a checkpoint; an empty text if nothing is."""
    try:
        check(found.record, BegunRound)
    except ValueError as error:
        return f"its record {error}"
    round, clients = found.record["round"], len(found.record["labels"])
    if round != found.state.round or clients != len(found.state.labels):
        return f"its record is of round {round} and {clients} clients"
    return ""


def _incomplete(folder: Folder, found: Checkpoint[Any], oldest: int) -> str:
    """Which records of the rounds before a checkpoint are missing, as far as an older one could write them again."""
    rounds = found.state.round - 1
    damaged = folder.damaged(oldest, rounds) if oldest <= rounds else []
    return folder.log.missing(rounds, found.lines) or (f"{damaged[0]} is missing or damaged" if damaged else "")


def _flat(keys: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat = dict[tuple[str, ...], Any]()
    for key, value in keys.items():
        path = (*above, key)
        flat |= _flat(value, path) if isinstance(value, Mapping) else {path: value}
    return flat


def _shown(keys: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return json.dumps(keys[path])[:60] if path in keys else "not set"
