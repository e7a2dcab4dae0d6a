"""Keep a decoded copy of each data set on disk, so that images are decoded once and not at every start.

A copy is two files: the numbers of all inputs, which can be mapped into memory, and an archive with everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import memory_limit
from fedstrata.data.column_roles import Memory
from fedstrata.data.dataset import Dataset
from fedstrata.data.mapped import InputFile, Inputs, InputWriter, MappedInputs

_VERSION = 10
"""The version of the decoding and of the files. When it is raised, older copies are no longer found."""

_METADATA = ("name", "classes", "mean", "std", "unit", "class_names", "feature_names", "texts", "notes")
"""The attributes of a data set that are no arrays."""


def cache_folder() -> Path:
    """Return the folder of copies: ``$FEDSTRATA_CACHE``, ``$XDG_CACHE_HOME/fedstrata`` or ``~/.cache/fedstrata``."""
    if chosen := os.environ.get("FEDSTRATA_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedstrata"


def cached(
    files: Sequence[Path],
    parameters: Mapping[str, object],
    decode: Callable[[InputWriter], Dataset],
    memory: Memory = "ram",
    *,
    keep: bool = True,
) -> Dataset:
    """Read the decoded copy of some files; decode and store them if there is none.

    A copy is found by the path, size and version of the files, and by the parameters. A damaged copy is replaced. A
    folder that cannot be written is no error for samples in memory: the next run then decodes again.

    Args:
        files: All files that `decode` reads.
        parameters: All other values that it depends on, as JSON can write them.
        decode: The function that makes the data set. Inputs that it gives to the writer may be left on the disk.
        memory: Whether inputs are read into memory, or left on the disk.
        keep: Whether samples in memory are stored as well.

    Raises:
        DataError: When a file cannot be read, or `decode` raises it.
    """
    try:
        versions = [_version(file) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}); copy or download it again") from error
    key = hashlib.sha256(json.dumps([_VERSION, versions, parameters], sort_keys=True).encode()).hexdigest()
    copy = _Copy(cache_folder() / f"{key[:32]}.npz", cache_folder() / f"{key[:32]}.inputs")
    # A copy that is absent, cut short, altered or written by something else is decoded again.
    with suppress(Exception):
        return _read(copy, memory)
    with InputWriter(str(files[0]), memory, copy.inputs) as writer:
        dataset = decode(writer)
    if keep or dataset.on_disk:
        with suppress(OSError):
            _write(copy, dataset, writer.crc)
    return dataset


def _version(file: Path) -> tuple[object, ...]:
    """Return what changes whenever the content of a file does.

    Its size and the time of its last change do not: copies and archives keep the time. No program can set the time at
    which the system last wrote the file's entry, and a file that replaces another one has another entry.
    """
    found = file.stat()
    return str(file.absolute()), str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


class _Copy(NamedTuple):
    """The files of a copy.

    Attributes:
        rest: An archive of numpy arrays, with everything but the inputs. It is written last.
        inputs: The numbers of all inputs.
    """

    rest: Path
    inputs: Path


def _write(copy: _Copy, dataset: Dataset, crc: int) -> None:
    """Write a copy.

    Args:
        copy: Where it is written.
        dataset: The data set. Its inputs are in their file already, if they are not in memory.
        crc: The CRC-32 of this file.
    """
    copy.rest.parent.mkdir(parents=True, exist_ok=True)
    inputs = dataset.inputs
    array = None if isinstance(inputs, MappedInputs) else np.ascontiguousarray(inputs.numpy())
    stored = inputs.file if array is None else InputFile(copy.inputs, array.dtype.str, array.shape)
    metadata = {name: getattr(dataset, name) for name in _METADATA}
    metadata["inputs"] = {
        "dtype": stored.dtype,
        "shape": stored.shape,
        "crc": crc if array is None else crc32(array.data),
    }
    columns: dict[str, Any] = {f"column.{name}": column for name, column in dataset.columns.items()}
    if dataset.targets is not None:
        columns["targets"] = dataset.targets.numpy()
    with _replacing(copy.rest) as rest:
        np.savez(rest, metadata=json.dumps(metadata), labels=dataset.labels.numpy(), **columns)
        if array is not None:
            with _replacing(copy.inputs) as file:
                file.write(array.data)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces another one when it is complete."""
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _read(copy: _Copy, memory: Memory) -> Dataset:
    """Read a copy; raises anything where it is damaged."""
    with copy.rest.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        # Reading an array to its end compares it with the checksum that the archive holds.
        metadata = json.loads(str(arrays["metadata"]))
        stored = metadata.pop("inputs")
        attributes: dict[str, Any] = {name: _as_tuple(value) for name, value in metadata.items()}
        inputs = InputFile(copy.inputs, stored["dtype"], tuple(stored["shape"]))
        return Dataset(
            inputs=_read_inputs(inputs, stored["crc"], memory),
            labels=torch.from_numpy(arrays["labels"]),
            targets=torch.from_numpy(arrays["targets"]) if "targets" in arrays.files else None,
            columns={key.removeprefix("column."): arrays[key] for key in arrays.files if key.startswith("column.")},
            **attributes,
        )


def _as_tuple(value: Any) -> Any:
    """What JSON made a list of."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _read_inputs(file: InputFile, crc: int, memory: Memory) -> Inputs:
    """Read inputs into memory, or map them. Those that are mapped have the right number of bytes; no more is known."""
    mapped_bytes = file.rows.nbytes  # which refuses a file of another size
    if memory == "disk" or (memory == "auto" and mapped_bytes > memory_limit()):
        return MappedInputs(file, torch.from_numpy(np.empty(0, file.dtype)).dtype)
    if mapped_bytes > memory_limit():
        raise ValueError(f"{file.path} does not fit into memory; to decode it says so")
    whole = np.fromfile(file.path, file.dtype)
    if crc32(whole.data) != crc:
        raise ValueError(f"{file.path} is damaged")
    return torch.from_numpy(whole.reshape(file.shape))
