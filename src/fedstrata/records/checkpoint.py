"""A checkpoint: the state, the clients' stores and an unscored record in one checksummed file, never unpickled.

The state is written as plain JSON and tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Union, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from fedstrata.base.errors import ContractError, FedstrataError, RecordError, first_line
from fedstrata.base.files import json_text, open_file, read_file, remove_file, replace_file, subfolder
from fedstrata.core import State
from fedstrata.core.state import StateT

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
        notes: How a run that goes on from here differs from an uninterrupted one, in sentences; usually none.
        repeats: Whether such a run does recorded rounds, or those of newer checkpoints, again. Where every round has a
            checkpoint, the models of no other round have left the server.
    """

    state: StateT
    store: Mapping[str, torch.Tensor]
    record: Mapping[str, Any]
    experiment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lines: str = ""
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repeats: bool = False


def save(folder: Path, checkpoint: Checkpoint[Any]) -> None:
    """Write the checkpoint of a finished round, then remove all but the last three.

    Only the user may read the files: they hold what the clients sent.

    Args:
        folder: The folder of the checkpoints; it is made if need be.
        checkpoint: The checkpoint.
    """
    place = subfolder(folder.parent, folder.name, private=True)
    tensors = {f"store/{name}": values for name, values in checkpoint.store.items()}
    plain = {
        "format": _FORMAT,
        "state": encode(checkpoint.state, "state", tensors),
        "experiment": checkpoint.experiment,
        "versions": checkpoint.versions,
        "lines": checkpoint.lines,
    }
    metadata = {name: json.dumps(value, default=dict) for name, value in plain.items()}
    metadata["record"] = json_text(checkpoint.record)
    content = to_bytes(apart(tensors), metadata)
    path = place / f"{checkpoint.state.round:05d}.safetensors"
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


_SAVEABLE = (
    "fields of a state are tensors, numbers, texts, dataclasses and tuples of these, or mappings from whole numbers "
    "or texts"
)


def require_saveable(state: State) -> None:
    """Refuse a state that would not be the same when it is read again.

    Raises:
        ContractError: With the field that cannot be saved.
    """
    for field in dataclasses.fields(state):
        before, after = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        name = f"{type(state).__name__}.{field.name}"
        try:
            kind = get_type_hints(type(state))[field.name]
            text = json.dumps(encode(getattr(state, field.name), name, before), default=dict)
            plain = json.loads(text)
            again = decode(_kind_with(kind, plain), plain, before, name)
            same = json.dumps(encode(again, name, after), default=dict) == text and before.keys() == after.keys()
        # What the encoder, the decoder and a type that cannot be found raise.
        except (TypeError, ValueError, KeyError, AttributeError, NameError, StopIteration) as error:
            raise ContractError(f"{name} cannot be saved: {first_line(error)}; {_SAVEABLE}") from None
        if not same:
            raise ContractError(f"{name} is another value when it is read again; {_SAVEABLE}")


def apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each with memory of its own: a state may hold one of them twice, or a part of another."""
    found = dict[str, torch.Tensor]()
    known = set[int]()
    for name, values in tensors.items():
        place = values.untyped_storage().data_ptr()
        found[name] = values.clone() if place in known else values.contiguous()
        known.add(place)
    return found


def encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as plain JSON. A tensor goes to `tensors`, and its name stands in its place."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return name
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name), f"{name}.{field.name}", tensors) for field in fields}
    if isinstance(value, Mapping):
        return {key: encode(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple):
        # The clients of a cluster are ids alone, and they may be very many.
        if all(type(item) is int for item in value):
            return list(value)
        return [encode(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"it holds {type(value).__name__}")
    return value


def decode(kind: Any, plain: Any, tensors: Mapping[str, torch.Tensor], name: str) -> Any:
    """Return the value of a type that `encode` made plain.

    Raises:
        ValueError: When it is of another type. The text says which.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, UnionType):
        if plain is None and NoneType in inner:
            return None
        option = next(option for option in inner if option is not NoneType)
        return decode(_kind_with(option, plain), plain, tensors, name)
    if kind is torch.Tensor:
        return tensors[plain]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        fields = {field.name for field in dataclasses.fields(kind)}
        # A run of a version without such a field is as one that has its default.
        new = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
        _expect(name, plain, dict)
        if fields - new != plain.keys() - new or plain.keys() - fields:
            differ = ", ".join(sorted(fields ^ plain.keys()))
            raise ValueError(f"{name} is of another version: only one of the two has {differ}")
        of_fields = {key: _kind_with(hints[key], item) for key, item in plain.items()}
        return kind(**{key: decode(of_fields[key], item, tensors, f"{name}.{key}") for key, item in plain.items()})
    if origin is tuple:
        _expect(name, plain, list)
        if inner[0] is int and all(type(item) is int for item in plain):
            return tuple(plain)
        kinds = [inner[0]] * len(plain) if inner[1:] == (Ellipsis,) else inner
        return tuple(decode(kind, item, tensors, name) for kind, item in zip(kinds, plain, strict=True))
    if inner and isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(name, plain, dict)
        # The keys of JSON are texts.
        of_keys = int if inner[0] is int else str
        return {of_keys(key): decode(inner[1], item, tensors, name) for key, item in plain.items()}
    if kind in (int, float, str, bool):
        _expect(name, plain, (int, float) if kind is float else kind)
    return plain


def _kind_with(kind: Any, plain: Any) -> Any:
    """The type of a field, or the first subclass of it that has all fields of a value: such a one may be there too."""
    if not (dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(plain, dict)):
        return kind
    kinds = [kind]
    for each in kinds:
        kinds += each.__subclasses__()
    return next((each for each in kinds if plain.keys() <= {field.name for field in dataclasses.fields(each)}), kind)


def _expect(name: str, plain: Any, kind: type | tuple[type, ...]) -> None:
    if not isinstance(plain, kind):
        raise ValueError(f"{name} is {type(plain).__name__}")
