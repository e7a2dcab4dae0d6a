"""Keep a decoded copy of each data set on disk, so that images are decoded once and not at every start."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.data.dataset import Dataset
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch

_VERSION = 4
"""The version of the decoding and of the files. When it is raised, older copies are no longer found."""

_METADATA = ("name", "classes", "mean", "std", "unit", "class_names", "feature_names", "notes")
"""The attributes of a data set that are no arrays."""


def cache_folder() -> Path:
    """Return the folder of copies: ``$FEDSTRATA_CACHE``, ``$XDG_CACHE_HOME/fedstrata`` or ``~/.cache/fedstrata``."""
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
    key = hashlib.sha256(json.dumps([_VERSION, versions, parameters], sort_keys=True).encode()).hexdigest()
    path = cache_folder() / f"{key[:32]}.npz"
    # A copy that is absent, cut short, altered or written by something else is decoded again.
    with suppress(Exception):
        return _read(path)
    dataset = decode()
    with suppress(OSError):
        _write(path, dataset)
    return dataset


def _write(path: Path, dataset: Dataset) -> None:
    metadata = json.dumps({name: getattr(dataset, name) for name in _METADATA})
    columns: dict[str, Any] = {f"column.{name}": column for name, column in dataset.columns.items()}
    if dataset.targets is not None:
        columns["targets"] = dataset.targets.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, metadata=metadata, inputs=dataset.inputs.numpy(), labels=dataset.labels.numpy(), **columns)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _read(path: Path) -> Dataset:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        # Reading an array to its end compares it with the checksum that the archive holds.
        metadata = json.loads(str(arrays["metadata"]))
        attributes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in metadata.items()
        }
        return Dataset(
            inputs=torch.from_numpy(arrays["inputs"]),
            labels=torch.from_numpy(arrays["labels"]),
            targets=torch.from_numpy(arrays["targets"]) if "targets" in arrays.files else None,
            columns={key.removeprefix("column."): arrays[key] for key in arrays.files if key.startswith("column.")},
            **attributes,
        )
