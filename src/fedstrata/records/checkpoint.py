"""A checkpoint: the state, the clients' stores and an unscored record in one checksummed file, never unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from fedstrata.base.errors import FedstrataError, RecordError
from fedstrata.base.files import json_text, open_file, read_file, remove_file, replace_file, subfolder
from fedstrata.core import State
from fedstrata.core.state import StateT
from fedstrata.records.state_text import apart, decode, encode

_logger = logging.getLogger(__name__)

_KEPT_CHECKPOINTS = 3
"""How many checkpoints stay on disk. Each newest one that is damaged or cannot be resumed from costs one round."""

_FORMAT = 2
"""Version of the file format. A checkpoint of another format is refused."""

_STORE_NAME = re.compile(r"\d{1,9}/\d{1,9}/\d{1,9}")
"""Client, tensor and round of a tensor that a client keeps."""

_METADATA = (("record", dict), ("experiment", dict), ("versions", dict), ("lines", str))
"""The fields of a `Checkpoint` that are plain JSON, and the type of each."""


@dataclasses.dataclass(frozen=True)
class Checkpoint(Generic[StateT]):
    """All that a run needs to continue after a round.

    Attributes:
        state: The state after the round.
        store: The tensors that the clients keep, by name (client/tensor/round).
        record: The record of the round, still without its scores; plain JSON values.
        experiment: The keys of the experiment; plain JSON values.
        versions: The versions of the libraries that wrote it, and the machine, by name.
        lines: The SHA-256 of the lines in ``rounds.jsonl`` at that time: those of the rounds before.
        skipped: Why each newer checkpoint cannot be used; known when it was read.
    """

    state: StateT
    store: Mapping[str, torch.Tensor]
    record: Mapping[str, Any]
    experiment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lines: str = ""
    skipped: tuple[str, ...] = ()


def save(
    folder: Path,
    state: State,
    store: Mapping[str, torch.Tensor],
    record: Mapping[str, Any],
    *,
    experiment: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    lines: str = "",
) -> None:
    """Write the checkpoint of a finished round, then remove all but the last three.

    Only the user may read the files: they hold what the clients sent.

    Args:
        folder: The folder of the checkpoints; it is made if need be. The other arguments are those of `Checkpoint`.
        state: The state after the round.
        store: The tensors that the clients keep.
        record: The record of the round.
        experiment: The keys of the experiment; None where they do not matter.
        versions: The versions of the libraries, and the machine; None where they do not matter.
        lines: The SHA-256 of the lines; empty where it does not matter.
    """
    place = subfolder(folder.parent, folder.name, private=True)
    tensors = {f"store/{name}": values for name, values in store.items()}
    plain = {
        "format": _FORMAT,
        "state": encode(state, "state", tensors),
        "experiment": experiment or {},
        "versions": versions or {},
        "lines": lines,
    }
    metadata = {name: json.dumps(value, default=dict) for name, value in plain.items()}
    metadata["record"] = json_text(record)
    content = to_bytes(apart(tensors), metadata)
    path = place / f"{state.round:05d}.safetensors"
    # The checksum comes first. So a process that dies never leaves a checkpoint without one: its absence is damage.
    checksum = f"{hashlib.sha256(content).hexdigest()} {len(content)}\n"
    replace_file(path.with_suffix(".sha256"), checksum.encode(), private=True)
    try:
        replace_file(path, content, private=True)
    except OSError:
        with suppress(OSError):
            remove_file(path.with_suffix(".sha256"))
        raise
    _logger.debug("%s: %d bytes", path, len(content))
    for old in checkpoints(folder)[_KEPT_CHECKPOINTS:]:
        remove_file(old)
        remove_file(old.with_suffix(".sha256"))


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint files in a folder, the newest first; none where there is no folder.

    Raises:
        RecordError: When it is not a folder.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RecordError(f"{folder}: expected a folder, found something else; restore it, or start anew")
    found = [path for path in folder.glob("*.safetensors") if re.fullmatch(r"\d{5,9}", path.stem)]
    return sorted(found, key=_round_of, reverse=True)


def find_checkpoint(
    folder: Path, kind: type[StateT], unusable: Callable[[Checkpoint[StateT]], str] = lambda checkpoint: ""
) -> Checkpoint[StateT] | None:
    """Read the newest checkpoint that is sound and that can be used.

    Args:
        folder: The folder of the checkpoints.
        kind: The type of the state.
        unusable: Returns why a checkpoint cannot be used, in words; an empty text if it can. It may raise where an
            older checkpoint would not help.

    Returns:
        The checkpoint, which says why newer ones were skipped; None when there are no checkpoints.

    Raises:
        RecordError: When there are checkpoints, but none can be used: starting over would drop their records.
    """
    skipped = list[str]()
    for path in checkpoints(folder):
        try:
            found = _read(path, kind)
            reason = unusable(found)
        except _Unsound as error:
            reason = str(error)
        if not reason:
            return dataclasses.replace(found, skipped=tuple(skipped))
        skipped.append(f"{path.name}: {reason}")
    if skipped:
        raise RecordError(
            f"expected a sound checkpoint in {folder}, found none: {'; '.join(skipped)}; "
            "restore one from a copy, or start anew in another folder"
        )
    return None


class _Unsound(Exception):
    """Why a checkpoint cannot be read."""


def _round_of(path: Path) -> int:
    return int(path.stem)


def _read(path: Path, kind: type[StateT]) -> Checkpoint[StateT]:
    try:
        _compare_checksum(path)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        plain = {name: json.loads(text) for name, text in metadata.items()}
        if plain.get("format") != _FORMAT:
            raise _Unsound(f"expected format {_FORMAT}, found {plain.get('format', 'none')}: of another version")
        parts = {name: plain[name] for name, _ in _METADATA}
        if not all(isinstance(parts[name], expected) for name, expected in _METADATA):
            raise _Unsound("its metadata are not those of a checkpoint")
        state = decode(kind, plain["state"], tensors, "state")
    except FedstrataError as error:
        raise _Unsound(f"it is damaged ({error})") from None
    # safetensors, torch and the decoder raise these about content that they do not expect.
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError, RuntimeError) as error:
        raise _Unsound(f"it is damaged or of another version ({error!r:.200})") from None
    if state.round != _round_of(path):
        raise _Unsound(f"it is of round {state.round}")
    store = {name.removeprefix("store/"): t for name, t in tensors.items() if name.startswith("store/")}
    if not all(_STORE_NAME.fullmatch(name) for name in store):
        raise _Unsound("the tensors that clients keep are not named by client, tensor and round")
    return Checkpoint(state=state, store=store, **parts)


def _compare_checksum(path: Path) -> None:
    """Refuse a file whose size or content is not what was written."""
    checksum = path.with_suffix(".sha256")
    try:
        expected = read_file(checksum, limit=1000).split()
    except FileNotFoundError:
        raise _Unsound("it has no checksum") from None
    with open_file(path, limit=None) as file:
        size = file.seek(0, 2)
        # The size comes first: a sparse file of any size is not read.
        if len(expected) != 2 or expected[1] != str(size).encode():
            raise _Unsound("its size differs from that of the checksum")
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest().encode() != expected[0]:
            raise _Unsound("its checksum differs")
