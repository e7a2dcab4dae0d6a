"""One decoded copy of a data set on disk, so that images are decoded once and not at every start."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedstrata.data.dataset import Dataset
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch

VERSION = 1
"""To be raised when the decoding or the form of the files changes: older copies are then no longer found."""


def directory() -> Path:
    """Where copies lie: ``$FEDSTRATA_CACHE``, else ``$XDG_CACHE_HOME/fedstrata``, else ``~/.cache/fedstrata``."""
    if chosen := os.environ.get("FEDSTRATA_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedstrata"


def cached(files: Sequence[Path], parameters: Mapping[str, object], decode: Callable[[], Dataset]) -> Dataset:
    """The decoded copy of some files, decoded and stored if there is none.

    A copy is found by path, size and time of change of the files and by the parameters. A damaged copy is replaced.
    A folder that cannot be written is no error: the next run then decodes again.

    Args:
        files: all that `decode` reads.
        parameters: all else that it depends on, as JSON can write it.
        decode: makes the data set.

    Raises:
        DataError: when `decode` raises it.
    """
    try:
        facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}); copy or download it again") from error
    key = hashlib.sha256(json.dumps([VERSION, facts, parameters], sort_keys=True).encode()).hexdigest()
    copy = directory() / f"{key[:32]}.safetensors"
    # A copy that is absent, cut short, altered or written by something else; each means decoding.
    with suppress(OSError, SafetensorError, ValueError, KeyError, TypeError, DataError):
        return _read(copy)
    dataset = decode()
    with suppress(OSError, SafetensorError):
        _write(copy, dataset)
    return dataset


def _write(copy: Path, dataset: Dataset) -> None:
    tensors = {"inputs": dataset.inputs.contiguous(), "labels": dataset.labels.contiguous()}
    texts: dict[str, list[str]] = {}
    for name, column in dataset.columns.items():
        values = column
        if column.dtype.kind == "U":
            vocabulary, values = np.unique(column, return_inverse=True)
            texts[name] = vocabulary.tolist()
        tensors[f"column.{name}"] = torch.from_numpy(np.ascontiguousarray(values))
    facts = {
        "name": dataset.name,
        "classes": dataset.classes,
        "mean": dataset.mean,
        "std": dataset.std,
        "unit": dataset.unit,
        "class_names": dataset.class_names,
        "columns": list(dataset.columns),
        "texts": texts,
        "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
    }
    copy.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=copy.parent, suffix=".partial")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={"dataset": json.dumps(facts)})
        os.replace(temporary, copy)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _read(copy: Path) -> Dataset:
    with safe_open(copy, framework="pt") as file:
        facts = json.loads(file.metadata()["dataset"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    if any(_checksum(tensors[name]) != checksum for name, checksum in facts["checksums"].items()):
        raise ValueError("checksum")
    columns = {name: tensors[f"column.{name}"].numpy() for name in facts["columns"]}
    for name, vocabulary in facts["texts"].items():
        columns[name] = np.array(vocabulary, dtype=np.str_)[columns[name]]
    return Dataset(
        facts["name"],
        tensors["inputs"],
        tensors["labels"],
        facts["classes"],
        tuple(facts["mean"]),
        tuple(facts["std"]),
        columns,
        facts["unit"],
        tuple(facts["class_names"]),
    )


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.numpy().data)
