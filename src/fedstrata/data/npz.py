"""Data sets in one ``.npz`` file of numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedstrata.data.arrays import finite, limit_sample
from fedstrata.data.dataset import Dataset, moments
from fedstrata.data.labels import limit_classes
from fedstrata.data.locate import Location, Split
from fedstrata.data.zipped import BROKEN, opened_zip, read_array
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch
from fedstrata.limits import COLUMN_CHARACTERS

_NAMES = {"x": ("x", "inputs"), "y": ("y", "labels")}


def read_npz(location: Location, split: Split) -> Dataset:
    """Read one split of a ``.npz`` file.

    Its arrays are ``x`` or ``inputs``, (samples, channels, ...), and ``y`` or ``labels``, (samples,) integers or
    texts; every other array is a column, (samples,). The test split has the same names with ``_test`` appended.
    uint8 stays as it is, all other numbers become float32. uint8 images may also come as (samples, height,
    width) or with one or three channels last.

    Raises:
        DataError: naming the file, and the array or row (from 0) that is missing or does not fit.
    """
    file = location.train[0]
    arrays = _arrays(file)
    x, y = (_pick(arrays, what, split, file) for what in ("x", "y"))
    if arrays[y].ndim != 1 or arrays[y].dtype.kind not in "iuU":
        raise DataError(f"{file}: {y} is {_describe(arrays[y])}; expected integers or texts, (samples,)")
    # Both splits, so that a class means the same in each of them.
    everywhere = [arrays[name] for name in arrays if name.removesuffix("_test") in _NAMES["y"]]
    labels, classes, names = _codes(arrays[y], everywhere, f"{file}: {y}")
    inputs = torch.from_numpy(_inputs(arrays[x], f"{file}: {x}"))
    if len(inputs) != len(labels):
        raise DataError(f"{file}: {x} has {len(inputs)} rows and {y} has {len(labels)}; expected as many")
    columns = _columns(arrays, split, len(labels), file)
    mean, std = moments(inputs)
    return Dataset(location.name, inputs, torch.from_numpy(labels), classes, mean, std, columns, class_names=names)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of a file."""
    arrays = {}
    with opened_zip(file) as archive:
        for name in archive.namelist():
            plain = name.removesuffix(".npy")
            try:
                arrays[plain] = read_array(archive, plain)
            except BROKEN as error:
                reason = str(error) or "out of memory"
                raise DataError(
                    f"{file} holds an array that cannot be read ({reason}); expected plain numbers or texts"
                ) from error
    return arrays


def _pick(arrays: dict[str, np.ndarray], what: str, split: Split, file: Path) -> str:
    wanted = [name + ("_test" if split == "test" else "") for name in _NAMES[what]]
    found = [name for name in wanted if name in arrays]
    if len(found) != 1:
        raise DataError(f"{file}: expected one array {' or '.join(wanted)}, found {', '.join(arrays) or 'none'}")
    return found[0]


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


def _codes(values: np.ndarray, everywhere: list[np.ndarray], where: str) -> tuple[np.ndarray, int, tuple[str, ...]]:
    if values.dtype.kind == "U":
        if max(part.dtype.itemsize // 4 for part in everywhere) > COLUMN_CHARACTERS:
            raise DataError(f"{where} holds texts of more than {COLUMN_CHARACTERS:,} characters; expected names")
        names = np.unique(np.concatenate(everywhere))
        limit_classes(len(names), where)
        return np.searchsorted(names, values).astype(np.int64), len(names), tuple(names.tolist())
    classes = 1 + max((int(part.max()) for part in everywhere if part.size), default=-1)
    limit_classes(classes, where)
    return values.astype(np.int64), classes, ()


def _inputs(values: np.ndarray, where: str) -> np.ndarray:
    if values.dtype.kind not in "iuf" or values.ndim < 2 or 0 in values.shape:
        raise DataError(f"{where} is {_describe(values)}; expected numbers, (samples, channels, ...)")
    limit_sample(values.shape[1:], where)
    if values.dtype != np.uint8:
        return finite(values, where)
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values)


def _columns(arrays: dict[str, np.ndarray], split: Split, samples: int, file: Path) -> dict[str, np.ndarray]:
    columns = {}
    for name, array in arrays.items():
        plain = name.removesuffix("_test")
        if plain in (*_NAMES["x"], *_NAMES["y"]) or (split == "test") != name.endswith("_test"):
            continue
        if array.shape != (samples,):
            raise DataError(f"{file}: column {name} is {_describe(array)}; expected one value per sample ({samples},)")
        columns[plain] = array
    return columns
