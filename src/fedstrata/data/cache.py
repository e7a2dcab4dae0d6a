"""Keep a decoded copy of each data set on disk, so that images are decoded once and not at every start.

A copy is two files: the numbers of all inputs, which can be mapped into memory, and an archive with everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import memory_limit
from fedstrata.data.column_roles import Memory
from fedstrata.data.dataset import Dataset
from fedstrata.data.mapped import Collect, Inputs, MappedInputs, collected, replacing

_VERSION = 12
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
    decode: Callable[[Collect], Dataset],
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
        decode: The function that makes the data set. It has its inputs collected, which may leave them on the disk.
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
    rest, inputs = (cache_folder() / f"{key[:32]}{ending}" for ending in (".npz", ".npy"))
    # A copy that is absent, cut short or written by something else is decoded again.
    with suppress(Exception):
        return _read(rest, inputs, memory)
    try:
        dataset = decode(partial(collected, place=str(files[0]), memory=memory, path=inputs))
    except DataError:
        inputs.unlink(missing_ok=True)
        raise
    if keep or dataset.on_disk:
        with suppress(DataError):
            _write(rest, inputs, dataset)
    return dataset


def _version(file: Path) -> tuple[object, ...]:
    """Return what changes whenever the content of a file does.

    Its size and the time of its last change do not: copies and archives keep the time. No program can set the time at
    which the system last wrote the file's entry, and a file that replaces another one has another entry.
    """
    found = file.stat()
    return str(file.absolute()), str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


def _write(rest: Path, inputs: Path, dataset: Dataset) -> None:
    """Write a copy.

    Args:
        rest: The archive of everything but the inputs. It is complete when all is.
        inputs: The file of the inputs, which are there already if they are not in memory.
        dataset: The data set.
    """
    metadata = {name: getattr(dataset, name) for name in _METADATA}
    columns: dict[str, Any] = {f"column.{name}": column for name, column in dataset.columns.items()}
    if dataset.targets is not None:
        columns["targets"] = dataset.targets.numpy()
    with replacing(rest) as archive:
        np.savez(archive, metadata=repr(metadata), labels=dataset.labels.numpy(), **columns)
        if not dataset.on_disk:
            with replacing(inputs) as file:
                np.save(file, dataset.inputs.numpy())


def _read(rest: Path, inputs: Path, memory: Memory) -> Dataset:
    """Read a copy; raises anything where it is damaged, or where it is too large for the memory."""
    with rest.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        # Reading an array to its end compares it with the checksum that the archive holds.
        return Dataset(
            inputs=_read_inputs(MappedInputs(inputs), memory),
            labels=torch.from_numpy(arrays["labels"]),
            targets=torch.from_numpy(arrays["targets"]) if "targets" in arrays.files else None,
            columns={key.removeprefix("column."): arrays[key] for key in arrays.files if key.startswith("column.")},
            **literal_eval(str(arrays["metadata"])),
        )


def _read_inputs(mapped: MappedInputs, memory: Memory) -> Inputs:
    """Read inputs into memory, or leave them in their file. It has the right size; no more is known."""
    if memory == "disk":
        return mapped
    if mapped.rows.nbytes <= memory_limit():
        return torch.from_numpy(np.array(mapped.rows))
    if memory == "auto":
        return mapped
    raise ValueError(f"{mapped.path} does not fit into memory; to decode it says so")
