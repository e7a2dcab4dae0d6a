"""Read data sets in one ``.npz`` file of numpy. The file may be hostile, so the sizes that it declares are checked."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib.npyio import NpzFile

from fedstrata.data.dataset import (
    Dataset,
    Split,
    channel_statistics,
    check_class_count,
    check_sample_size,
    finite_float32,
)
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch
from fedstrata.limits import COLUMN_CHARACTERS, NPY_HEADER_BYTES, ZIP_DIRECTORY_BYTES, ZIP_MEMBERS, memory_problem

_INPUT_NAMES = ("x", "inputs")
_LABEL_NAMES = ("y", "labels")

RESERVED_NAMES = _INPUT_NAMES + _LABEL_NAMES
"""The names of arrays that are no further columns."""


def read_npz(name: str, file: Path, split: Split) -> Dataset:
    """Read one split of a ``.npz`` file, whose arrays are those of `dataset_of_arrays`.

    Args:
        name: The name of the data set.
        file: The file.
        split: The split that is read.

    Raises:
        DataError: When an array or a row, counted from 0, is missing or does not fit.
    """
    return dataset_of_arrays(name, read_arrays(file), split, str(file))


def dataset_of_arrays(name: str, arrays: dict[str, np.ndarray], split: Split, file: str) -> Dataset:
    """Make a data set of one split of some arrays.

    The arrays are ``x`` or ``inputs``, (samples, channels, ...), and ``y`` or ``labels``, (samples,) integers or
    texts. Every other array is a further column, (samples,). The test split has the same names with ``_test`` appended.
    uint8 stays as it is, all other numbers become float32. uint8 images may also come as (samples, height, width) or
    with one or three channels last.

    Args:
        name: The name of the data set.
        arrays: The arrays by their names.
        split: The split that is made.
        file: Where the arrays come from, for messages.

    Raises:
        DataError: When an array or a row, counted from 0, is missing or does not fit.
    """
    x = _pick(arrays, _INPUT_NAMES, split, file)
    y = _pick(arrays, _LABEL_NAMES, split, file)
    # Both splits, so that a class means the same in each of them.
    all_labels = {key: _flat(array) for key, array in arrays.items() if key.removesuffix("_test") in _LABEL_NAMES}
    arrays = {**arrays, **all_labels}
    kinds = "U" if arrays[y].dtype.kind == "U" else "f" if arrays[y].dtype.kind == "f" else "iu"
    for key, array in all_labels.items():
        fits = array.ndim == arrays[y].ndim and 1 <= array.ndim <= (1 if kinds == "U" else 2)
        if not fits or array.dtype.kind not in kinds:
            raise DataError(
                f"{file}: {key} is {_describe(array)}; expected integers, texts or numbers, (samples,), or integers or "
                "numbers, (samples, outputs), in both splits alike"
            )
    place = f"{file}: {y}"
    both = list(all_labels.values())
    targets = None
    class_names: tuple[str, ...] = ()
    if kinds == "f" or arrays[y].ndim == 2:
        labels = np.zeros(len(arrays[y]), dtype=np.int64)
        targets, classes = _convert_targets(arrays[y], both, place)
    else:
        labels, classes, class_names = _number_classes(arrays[y], both, place)
    inputs = torch.from_numpy(_convert_inputs(arrays[x], f"{file}: {x}"))
    if len(inputs) != len(labels):
        raise DataError(f"{file}: {x} has {len(inputs)} rows and {y} has {len(labels)}; expected as many")
    columns = _columns(arrays, split, len(labels), file)
    mean, std = channel_statistics(inputs)
    return Dataset(
        name,
        inputs,
        torch.from_numpy(labels),
        classes,
        mean,
        std,
        columns,
        class_names=class_names,
        targets=None if targets is None else torch.from_numpy(targets),
    )


def npz_column_names(file: Path, split: Split = "train") -> tuple[str, ...]:
    """Return the names of the further columns of a split, without ``_test``."""
    with open_archive(file) as archive:
        return tuple(_column_keys(archive.files, split))


def npz_column(file: Path, column: str, split: Split) -> np.ndarray:
    """Read one further column of a split, (samples,).

    Raises:
        DataError: When there is no such column.
    """
    with open_archive(file) as archive:
        keys = _column_keys(archive.files, split)
        if column not in keys:
            raise DataError(f"{file} has no column {column!r}; it has {', '.join(keys) or 'none'}")
        values: np.ndarray = archive[keys[column]]
    return values


def _column_keys(names: Iterable[str], split: Split) -> dict[str, str]:
    """Return the array of each further column of a split, by the name of the column."""
    ending = "_test" if split == "test" else ""
    keys = {}
    for name in names:
        column = name.removesuffix("_test")
        if column not in RESERVED_NAMES and name == column + ending:
            keys[column] = name
    return keys


def _pick(arrays: dict[str, np.ndarray], names: tuple[str, ...], split: Split, file: str) -> str:
    """Return the one array that has one of the names."""
    wanted = [name + ("_test" if split == "test" else "") for name in names]
    found = [name for name in wanted if name in arrays]
    if len(found) != 1:
        raise DataError(f"{file}: expected one array {' or '.join(wanted)}, found {', '.join(arrays) or 'none'}")
    return found[0]


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


def _number_classes(
    values: np.ndarray, all_labels: list[np.ndarray], place: str
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Return the class of each sample, (samples,) int64, the number of classes, and their names or nothing."""
    if values.dtype.kind == "U":
        if max(part.dtype.itemsize // 4 for part in all_labels) > COLUMN_CHARACTERS:
            raise DataError(f"{place} holds texts of more than {COLUMN_CHARACTERS:,} characters; expected names")
        class_names = np.unique(np.concatenate(all_labels))
        check_class_count(len(class_names), place)
        return np.searchsorted(class_names, values).astype(np.int64), len(class_names), tuple(class_names.tolist())
    classes = 1 + max((int(part.max()) for part in all_labels if part.size), default=-1)
    check_class_count(classes, place)
    return values.astype(np.int64), classes, ()


def _flat(values: np.ndarray) -> np.ndarray:
    """Return a single column of classes as (samples,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind != "f" else values


def _convert_targets(values: np.ndarray, all_values: list[np.ndarray], place: str) -> tuple[np.ndarray, int]:
    """Return what stands in place of classes, (samples, outputs) float32 or int64, and the number of token classes."""
    if values.dtype.kind == "f":
        numbers = finite_float32(values, place)
        return np.ascontiguousarray(numbers.reshape(len(numbers), -1)), 1
    classes = 1 + max((int(part.max()) for part in all_values if part.size), default=0)
    check_class_count(classes, place)
    return values.astype(np.int64), classes


def _convert_inputs(values: np.ndarray, place: str) -> np.ndarray:
    """Return the inputs as (samples, channels, ...), uint8 or float32."""
    if values.dtype.kind not in "iuf" or values.ndim < 2 or 0 in values.shape:
        raise DataError(f"{place} is {_describe(values)}; expected numbers, (samples, channels, ...)")
    check_sample_size(values.shape[1:], place)
    if values.dtype != np.uint8:
        return finite_float32(values, place)
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values)


def _columns(arrays: dict[str, np.ndarray], split: Split, samples: int, file: str) -> dict[str, np.ndarray]:
    """Return the further columns of a split, by their names without ``_test``."""
    columns = {}
    for column, name in _column_keys(arrays, split).items():
        array = arrays[name]
        if array.shape != (samples,):
            raise DataError(f"{file}: column {name} is {_describe(array)}; expected one value per sample ({samples},)")
        columns[column] = array
    return columns


class _LimitedFile(io.FileIO):
    """A file of which zipfile cannot read a large directory, or numpy a large header, in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes.

        Raises:
            BadZipFile: When more than `ZIP_DIRECTORY_BYTES` are asked for.
        """
        if size is not None and size > ZIP_DIRECTORY_BYTES:
            raise BadZipFile(f"a part of it has {size:,} bytes; expected at most {ZIP_DIRECTORY_BYTES:,}")
        return super().read(size) or b""


@contextmanager
def open_archive(file: Path) -> Iterator[NpzFile]:
    """Open an archive of numpy arrays.

    Raises:
        DataError: When it is no such archive, or its directory declares arrays that are too many or far larger than
            what is stored. Also when an array that is read inside the block is broken.
    """
    try:
        with _LimitedFile(file) as source:
            with ZipFile(source) as archive:
                members = archive.infolist()
            if problem := _directory_problem(members, file.stat().st_size):
                raise DataError(f"{file}: {problem}")
            source.seek(0)
            with np.load(source, allow_pickle=False, max_header_size=NPY_HEADER_BYTES) as arrays:
                yield arrays
    except DataError:
        raise
    # numpy and zipfile raise errors of a dozen types for files that are no archive of arrays, or half of one.
    except Exception as error:
        reason = str(error) or "out of memory"
        raise DataError(f"{file} is no readable .npz file ({reason}); write it with numpy.savez") from error


def _directory_problem(members: list[ZipInfo], stored: int) -> str:
    """Say what is wrong with the members of an archive of `stored` bytes; empty when nothing is."""
    if len(members) > ZIP_MEMBERS:
        return f"it holds {len(members):,} arrays; expected at most {ZIP_MEMBERS:,}"
    for member in members:
        # zipfile limits what it decompresses at a time in these two alone.
        if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            return f"{member.filename} is compressed in another way; write it with numpy.savez or savez_compressed"
    return memory_problem(sum(member.file_size for member in members), stored)


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Read all arrays of a file, by their names without ``.npy``."""
    with open_archive(file) as archive:
        arrays = dict(archive)
        for name, array in arrays.items():
            # numpy returns the bytes of what is no array. Any number of texts without characters takes no bytes.
            if not isinstance(array, np.ndarray) or array.itemsize == 0:
                raise ValueError(f"{name!r} is no array of plain numbers or texts")
    return arrays
