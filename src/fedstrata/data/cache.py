"""A decoded copy of each data set on disk, so that images are decoded once and not at every start."""

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
"""The version of the decoding and of the files. When it is raised, older copies are no longer found."""


def cache_folder() -> Path:
    """The folder of the copies: ``$FEDSTRATA_CACHE``, ``$XDG_CACHE_HOME/fedstrata`` or ``~/.cache/fedstrata``."""
    if chosen := os.environ.get("FEDSTRATA_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedstrata"


def cached(files: Sequence[Path], parameters: Mapping[str, object], decode: Callable[[], Dataset]) -> Dataset:
    """Read the decoded copy of some files; decode and store them if there is none.

    A copy is found by the path, size and modification time of the files, and by the parameters. A damaged copy is
    replaced. A folder that cannot be written is no error: the next run then decodes again.

    Args:
        files: All files that `decode` reads.
        parameters: All other values that it depends on, as JSON can write them.
        decode: The function that makes the data set.

    Raises:
        DataError: When a file cannot be read, or `decode` raises it.
    """
    try:
        versions = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}); copy or download it again") from error
    key = hashlib.sha256(json.dumps([VERSION, versions, parameters], sort_keys=True).encode()).hexdigest()
    path = cache_folder() / f"{key[:32]}.safetensors"
    # A copy that is absent, cut short, altered or written by something else is decoded again.
    with suppress(OSError, SafetensorError, ValueError, KeyError, TypeError, DataError):
        return _read(path)
    dataset = decode()
    with suppress(OSError, SafetensorError):
        _write(path, dataset)
    return dataset


def _write(path: Path, dataset: Dataset) -> None:
    tensors = {"inputs": dataset.inputs.contiguous(), "labels": dataset.labels.contiguous()}
    # Tensors hold no texts: a column of texts is stored as its distinct texts and the number of each sample's one.
    texts: dict[str, list[str]] = {}
    for name, column in dataset.columns.items():
        values = column
        if column.dtype.kind == "U":
            distinct, values = np.unique(column, return_inverse=True)
            texts[name] = distinct.tolist()
        tensors[f"column.{name}"] = torch.from_numpy(np.ascontiguousarray(values))
    metadata = {
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    try:
        save_file(tensors, draft, metadata={"dataset": json.dumps(metadata)})
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _read(path: Path) -> Dataset:
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["dataset"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    if any(_checksum(tensors[name]) != checksum for name, checksum in metadata["checksums"].items()):
        raise ValueError("checksum")
    columns = {name: tensors[f"column.{name}"].numpy() for name in metadata["columns"]}
    for name, distinct in metadata["texts"].items():
        columns[name] = np.array(distinct, dtype=np.str_)[columns[name]]
    return Dataset(
        name=metadata["name"],
        inputs=tensors["inputs"],
        labels=tensors["labels"],
        classes=metadata["classes"],
        mean=tuple(metadata["mean"]),
        std=tuple(metadata["std"]),
        columns=columns,
        unit=metadata["unit"],
        class_names=tuple(metadata["class_names"]),
    )


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.numpy().data)
