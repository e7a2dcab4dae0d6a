"""Read data sets in one ``.npz`` file of numpy. The file may be hostile, so the sizes that it declares are checked."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib.npyio import NpzFile

from fedstrata.base.errors import DataError, RowError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import (
    CLASSES,
    COLUMN_CHARACTERS,
    MIB,
    NPY_HEADER_BYTES,
    ZIP_DIRECTORY_BYTES,
    ZIP_MEMBERS,
    expansion_problem,
    memory_limit,
    memory_problem,
)
from fedstrata.data.dataset import (
    NUMBERS_HINT,
    Dataset,
    Split,
    channel_statistics,
    check_class_count,
    check_sample_size,
    finite_float32,
)
from fedstrata.data.mapped import Inputs, InputWriter, too_large_for_memory

_INPUT_NAMES = ("x", "inputs")
_LABEL_NAMES = ("y", "labels")

_BLOCK_BYTES = 16 * MIB
"""The bytes of an array that are read at a time."""

_RESERVED_NAMES = _INPUT_NAMES + _LABEL_NAMES
"""The names of arrays that are no further columns."""


def read_npz(name: str, file: Path, split: Split, writer: InputWriter | None = None) -> Dataset:
    """Read one split of a ``.npz`` file, whose arrays are those of `dataset_of_arrays`.

    Args:
        name: The name of the data set.
        file: The file.
        split: The split that is read.
        writer: What gets the inputs, some samples at a time; by default the memory, all at once.

    Raises:
        DataError: When an array or a row, counted from 0, is missing or does not fit.
    """
    if writer is None:
        return dataset_of_arrays(name, read_arrays(file), split, str(file))
    for block in _input_blocks(file, split):
        writer.add(block)
    with open_archive(file) as archive:
        skip = [key for key in archive.files if key.removesuffix("_test") in _INPUT_NAMES]
    return dataset_of_arrays(name, read_arrays(file, skip), split, str(file), writer.finish())


def _input_blocks(file: Path, split: Split) -> Iterator[np.ndarray]:
    """Yield the inputs of a split, some samples at a time, as `convert_inputs` returns them.

    Raises:
        DataError: When they are no numbers that lie sample after sample, or do not fit.
    """
    with open_archive(file) as archive:
        assert archive.zip is not None  # as long as it is open
        x = _pick(archive.files, _INPUT_NAMES, split, str(file))
        with archive.zip.open(x if x in archive.zip.namelist() else f"{x}.npy") as member:
            first = np.lib.format.read_magic(member) == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read_header(member, max_header_size=NPY_HEADER_BYTES)
            if dtype.hasobject or not shape or (fortran and len(shape) > 1):
                raise ValueError(f"{x!r} is no array of numbers, sample after sample; use numpy.ascontiguousarray")
            size = max(dtype.itemsize * prod(shape[1:]), 1)
            step = max(1, _BLOCK_BYTES // size)
            for start in range(0, shape[0], step):
                count = min(step, shape[0] - start)
                rows = np.frombuffer(member.read(count * size), dtype).reshape(count, *shape[1:])
                yield convert_inputs(rows, str(file), x, start)


def dataset_of_arrays(
    name: str,
    arrays: dict[str, np.ndarray],
    split: Split,
    file: str,
    inputs: Inputs | None = None,
) -> Dataset:
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
        inputs: The samples, where they are not among the arrays.

    Raises:
        DataError: When an array or a row, counted from 0, is missing or does not fit.
    """
    x = "the inputs" if inputs is not None else _pick(arrays, _INPUT_NAMES, split, file)
    y = _pick(arrays, _LABEL_NAMES, split, file)
    # Both splits, so that a class means the same in each of them.
    both = [y, *(key for key in arrays if key != y and key.removesuffix("_test") in _LABEL_NAMES)]
    answers = answers_of({key: _flat(arrays[key]) for key in both}, file)
    samples = len(answers.labels)
    if inputs is None:
        inputs = torch.from_numpy(convert_inputs(arrays[x], file, x))
    if len(inputs) != samples:
        raise DataError(f"{file}: {x} has {len(inputs)} rows and {y} has {samples}; expected as many")
    columns = _columns(arrays, split, samples, file)
    mean, std = channel_statistics(inputs)
    return Dataset(name, inputs, mean=mean, std=std, columns=columns, **answers.fields)


@dataclass(frozen=True)
class Answers:
    """What is to be learnt of some rows.

    Attributes:
        labels: The class of each row, (rows,) int64; 0 where there are targets.
        classes: The number of classes.
        class_names: Their names, or nothing.
        targets: What stands in place of classes, (rows, outputs), float32 for numbers and int64 for integers; None for
            classes.
    """

    labels: np.ndarray
    classes: int
    class_names: tuple[str, ...] = ()
    targets: np.ndarray | None = None

    def repeated(self, counts: Sequence[int]) -> Answers:
        """The same where each row is so many rows."""
        targets = None if self.targets is None else np.repeat(self.targets, counts, axis=0)
        return replace(self, labels=np.repeat(self.labels, counts), targets=targets)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a `Dataset` that hold them."""
        return {
            "labels": torch.from_numpy(self.labels),
            "classes": self.classes,
            "class_names": self.class_names,
            "targets": None if self.targets is None else torch.from_numpy(self.targets),
        }


def answers_of(values: Mapping[str, np.ndarray], place: str) -> Answers:
    """Number the classes of one split, or take numbers in place of them.

    Args:
        values: The classes or numbers of both splits, (samples,) or (samples, outputs), by what they are called in
            messages. Those of the split itself come first.
        place: Where they come from, for messages.

    Raises:
        DataError: When they do not fit, or a class is missing.
    """
    called, own = next(iter(values.items()))
    both = list(values.values())
    kinds = own.dtype.kind if own.dtype.kind in "Uf" else "iu"
    for key, array in values.items():
        fits = array.ndim == own.ndim and 1 <= array.ndim <= (1 if kinds == "U" else 2)
        if not fits or array.dtype.kind not in kinds:
            raise DataError(
                f"{place}: {key} is {_describe(array)}; expected integers, texts or numbers, (samples,), or integers "
                "or numbers, (samples, outputs), in both splits alike"
            )
        if kinds == "U":
            refuse_missing_classes(array, place, key)
    if kinds == "f" or own.ndim == 2:
        targets, classes = _convert_targets(own, both, place, called)
        return Answers(np.zeros(len(own), np.int64), classes, targets=targets)
    return Answers(*_number_classes(own, both, place, called))


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
        if column not in _RESERVED_NAMES and name == column + ending:
            keys[column] = name
    return keys


def _pick(arrays: Collection[str], names: tuple[str, ...], split: Split, file: str) -> str:
    """Return the one array that has one of the names."""
    wanted = [name + ("_test" if split == "test" else "") for name in names]
    found = [name for name in wanted if name in arrays]
    if len(found) != 1:
        raise DataError(f"{file}: expected one array {' or '.join(wanted)}, found {', '.join(arrays) or 'none'}")
    return found[0]


def refuse_missing_classes(labels: np.ndarray, place: str, called: str) -> None:
    """Refuse texts of which some are empty, as a missing text is, and whole numbers of which some are nan.

    Args:
        labels: The class of each sample, (samples,).
        place: Where they come from, for messages.
        called: What they are called there.

    Raises:
        RowError: When a class is missing.
    """
    missing = np.flatnonzero(labels == "" if labels.dtype.kind == "U" else labels != labels)
    if len(missing):
        others = f", and so do {len(missing) - 1} others" if len(missing) > 1 else ""
        raise RowError(
            place, int(missing[0]), f"of {called} holds no class{others}; fill it in or leave these rows out"
        )


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"


def _number_classes(
    values: np.ndarray, all_labels: list[np.ndarray], file: str, called: str
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Return the class of each sample, (samples,) int64, the number of classes, and their names or nothing."""
    if values.dtype.kind == "U":
        if max(part.dtype.itemsize // 4 for part in all_labels) > COLUMN_CHARACTERS:
            raise DataError(
                f"{file}: {called} holds texts of more than {COLUMN_CHARACTERS:,} characters; expected names"
            )
        class_names = np.unique(np.concatenate(all_labels))
        check_class_count(len(class_names), f"{file}: {called}")
        return np.searchsorted(class_names, values).astype(np.int64), len(class_names), tuple(class_names.tolist())
    classes = 1 + max((int(part.max()) for part in all_labels if part.size), default=-1)
    _check_largest_class(values, classes, file, called)
    return values.astype(np.int64), classes, ()


def _check_largest_class(values: np.ndarray, classes: int, file: str, called: str) -> None:
    """Refuse more classes than `CLASSES`, with the row of the largest one where it is of this split."""
    if classes > CLASSES and values.size and int(values.max()) + 1 == classes:
        row = int(np.argmax(values.reshape(len(values), -1).max(axis=1)))
        raise RowError(
            file,
            row,
            f"of {called} holds class {classes - 1:,}; expected at most {CLASSES:,} classes, from 0 without gaps; "
            f"{NUMBERS_HINT}",
        )
    check_class_count(classes, f"{file}: {called}")


def _flat(values: np.ndarray) -> np.ndarray:
    """Return a single column of classes as (samples,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind != "f" else values


def _convert_targets(
    values: np.ndarray, all_values: list[np.ndarray], file: str, called: str
) -> tuple[np.ndarray, int]:
    """Return what stands in place of classes, (samples, outputs) float32 or int64, and the number of token classes."""
    if values.dtype.kind == "f":
        numbers = finite_float32(values, file, called)
        return np.ascontiguousarray(numbers.reshape(len(numbers), -1)), 1
    classes = 1 + max((int(part.max()) for part in all_values if part.size), default=0)
    _check_largest_class(values, classes, file, called)
    return values.astype(np.int64), classes


def convert_inputs(values: np.ndarray, file: str, called: str, first_row: int = 0) -> np.ndarray:
    """Return inputs as (samples, channels, ...), uint8 or float32.

    Args:
        values: The samples.
        file: Where they come from, for messages.
        called: What they are called there.
        first_row: The number of the first sample.

    Raises:
        DataError: When they are no samples.
    """
    place = f"{file}: {called}"
    if values.dtype.kind not in "iuf" or values.ndim < 2 or 0 in values.shape:
        raise DataError(f"{place} is {_describe(values)}; expected numbers, (samples, channels, ...)")
    check_sample_size(values.shape[1:], place)
    if values.ndim == 4 and values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    if values.dtype != np.uint8:
        return finite_float32(values, file, called, first_row)
    return np.ascontiguousarray(values[:, None] if values.ndim == 3 else values)


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
    return expansion_problem(sum(member.file_size for member in members), stored)


def archive_bytes(file: Path) -> int:
    """Return the bytes that all arrays of a file take in memory.

    Raises:
        DataError: When the file is broken.
    """
    with open_archive(file) as archive:
        return _member_bytes(archive)


def _member_bytes(archive: NpzFile, skip: Collection[str] = ()) -> int:
    """Return the bytes of all arrays but some."""
    assert archive.zip is not None  # as long as it is open
    members = archive.zip.infolist()
    return sum(member.file_size for member in members if member.filename.removesuffix(".npy") not in skip)


def read_arrays(file: Path, skip: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Read all arrays of a file but for some, by their names without ``.npy``.

    Raises:
        DataError: When they take too much memory, or the file is broken.
    """
    with open_archive(file) as archive:
        size = _member_bytes(archive, skip)
        if size > memory_limit():
            # What is skipped are inputs, and those are on the disk.
            reason = memory_problem(size, size) if skip else too_large_for_memory(size)
            raise DataError(f"{file}: {reason}")
        arrays = {name: archive[name] for name in archive.files if name not in skip}
        for name, array in arrays.items():
            # numpy returns the bytes of what is no array. Any number of texts without characters takes no bytes.
            if not isinstance(array, np.ndarray) or array.itemsize == 0:
                raise ValueError(f"{name!r} is no array of plain numbers or texts")
    return arrays
