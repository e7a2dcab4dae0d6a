"""The payload of a message: records of JSON and groups of tensors.

A `Schema` writes and reads the fields of a dataclass, which is the only list of them. Large arrays travel in numpy's
own format, which here never unpickles. `ExpectedReply` refuses what was not asked for before any of it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
import torch
from annotated_types import Ge, Len, Lt
from pydantic import ConfigDict, ValidationError, create_model
from torch import Tensor

from fedstrata.base.errors import InputError
from fedstrata.base.quoting import one_line, shown
from fedstrata.core import Layout, Mask

if TYPE_CHECKING:
    from flwr.app import RecordDict

_Kind = TypeVar("_Kind")

PIECE_BYTES = 5 * 2**20
"""The number of bytes of each piece into which Flower cuts an array."""

_HEADER_BYTES = 4096
"""The largest header of an array in numpy's format, in bytes."""

RECORDS = "records"
"""The name of the record of Flower's that holds all records of a payload."""

_RECORD_BYTES = 16 * 2**10
"""The bytes, and the characters, that a record may take beside its lists."""


def flower() -> Any:
    """Import Flower's module of messages and records at its first use: it comes with an extra.

    Raises:
        InputError: When it is not installed.
    """
    try:
        return import_module("flwr.app")
    except ImportError as error:
        raise InputError(f"expected Flower, found {error}; pip install 'fedstrata[flower]'") from None


@dataclass(frozen=True)
class Payload:
    """Records by name, each one text, and tensors by the names of their groups and their own."""

    records: Mapping[str, str] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def record(self, name: str) -> str:
        """Return one record.

        Raises:
            InputError: When it is not there.
        """
        if name not in self.records:
            raise InputError(f"expected the record {name}, found {', '.join(sorted(self.records)) or 'none'}")
        return self.records[name]

    def array(self, group: str, name: str) -> Tensor:
        """Return one array of a group.

        Raises:
            InputError: When it is not there.
        """
        if name not in self.arrays.get(group, {}):
            raise InputError(f"expected the array {group}.{name}, found none of that name")
        return self.arrays[group][name]

    def __or__(self, other: Payload) -> Payload:
        """Put two payloads that share no name into one."""
        return Payload({**self.records, **other.records}, {**self.arrays, **other.arrays})


class TensorForm(NamedTuple):
    """How a small tensor is written in a record.

    Attributes:
        hint: The type of its lists of numbers.
        dtype: The type of its numbers.
    """

    hint: Any
    dtype: torch.dtype


# As tensors have them: numbers of JSON may be larger.
_Int64 = Annotated[int, Ge(-(2**63)), Lt(2**63)]

ONE_INT = TensorForm(Annotated[list[_Int64], Len(1, 1)], torch.int64)
ONE_FLOAT = TensorForm(Annotated[list[float], Len(1, 1)], torch.float32)
ONE_DOUBLE = TensorForm(Annotated[list[float], Len(1, 1)], torch.float64)
"""Tensors of one number, (1,)."""

INT_ROW = TensorForm(Annotated[list[list[_Int64]], Len(1, 1)], torch.int64)
"""A tensor of integers with one row, (1, c)."""

OPTIONAL_INTS = TensorForm(list[_Int64] | None, torch.int64)
"""A tensor of integers, (m,), or None."""

OPTIONAL_FLOAT_ROW = TensorForm(Annotated[list[list[float]], Len(1, 1)] | None, torch.float32)
"""A tensor of numbers with one row, (1, c), or None."""


class Schema(Generic[_Kind]):
    """How an object of a dataclass becomes a record and is read from it again, by pydantic.

    A whole number is no bool, and no text is a number. Numbers that are not finite are numbers.

    Args:
        kind: The dataclass. Its fields are the only list of them.
        tensors: The forms of those fields that are tensors, by name.
    """

    def __init__(self, kind: type[_Kind], **tensors: TensorForm) -> None:
        """Find the type of every field."""
        hints = get_type_hints(kind) | {name: form.hint for name, form in tensors.items()}
        config = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
        self._model = create_model(kind.__name__, __config__=config, **fields)
        self._kind, self._tensors = kind, tensors

    def write(self, thing: _Kind) -> str:
        """Write an object as a record."""
        values = {name: getattr(thing, name) for name in self._model.model_fields}
        values |= {name: None if values[name] is None else values[name].tolist() for name in self._tensors}
        text: str = self._model.model_construct(**values).model_dump_json()
        return text

    def read(self, record: str) -> _Kind:
        """Read the object in a record.

        Raises:
            InputError: When a value is missing or of another type.
        """
        try:
            found = self._model.model_validate_json(record)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = ".".join(map(str, first["loc"])) or "a record"
            raise InputError(f"{what} = {shown(first['input'])}: {one_line(first['msg'])}") from None
        values = {name: getattr(found, name) for name in type(found).model_fields}
        for name, form in self._tensors.items():
            values[name] = None if values[name] is None else torch.tensor(values[name], dtype=form.dtype)
        return self._kind(**values)


def values_of_row(row: Tensor, mask: Mask, layout: Layout) -> Tensor:
    """Cut the tensors of a mask out of a row (p,), one after the other, (d,); the row itself where these are all.

    They travel as one array: Flower stores and fetches every array by requests of its own.
    """
    return row if mask == layout.everything else row[layout.columns(mask)]


def row_of_values(group: str, name: str, payload: Payload, mask: Mask, layout: Layout) -> Tensor:
    """Put the array that `values_of_row` made of a row into a row (p,), zero elsewhere.

    Args:
        group: The group of the array.
        name: Its name.
        payload: The payload, which has no such array where the mask is empty.
        mask: The tensors in it.
        layout: The layout of the network.

    Raises:
        InputError: When it is missing, or has another shape or type.
    """
    row = torch.zeros(layout.p)
    if not any(mask):
        return row
    values = payload.array(group, name)
    shape = (width_of(mask, layout),)
    if values.dtype != row.dtype or tuple(values.shape) != shape:
        found = f"{values.dtype} {tuple(values.shape)}"
        raise InputError(f"expected {group}.{name} to be {row.dtype} {shape}, found {found}")
    if mask == layout.everything:
        return values
    row[layout.columns(mask)] = values
    return row


def width_of(mask: Mask, layout: Layout) -> int:
    """Count the numbers in the tensors of a mask."""
    return sum(span.stop - span.start for span, inside in zip(layout.spans, mask, strict=True) if inside)


class ArrayForm(NamedTuple):
    """What an array in a reply has to be.

    Attributes:
        shape: Its shape.
        dtype: The name of the type of its numbers.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class ExpectedReply:
    """What a reply may hold, known before it comes. Nothing else of it is decoded.

    Attributes:
        records: The names of the records of plain values.
        arrays: What each array has to be, by the name of its group and its own.
        longest: The number of values that a list in a record may have.
    """

    records: frozenset[str]
    arrays: Mapping[str, Mapping[str, ArrayForm]]
    longest: int

    @property
    def record_characters(self) -> int:
        """The characters that a record may have. A value of a list takes up to 25."""
        return _RECORD_BYTES + 25 * self.longest

    def check(self, content: RecordDict) -> None:
        """Refuse parts that were not asked for, records that are too long, and arrays of another shape.

        Raises:
            InputError: For the first of them.
        """
        # A name does not say of which kind the part is that has it.
        known = {RECORDS} & content.config_records.keys()
        known |= {f"{name}.arrays" for name in self.arrays} & content.array_records.keys()
        for name in content:
            if name not in known:
                raise InputError(f"expected no part {name.removesuffix('.arrays')}: it was not asked for")
        for name, text in content.config_records.get(RECORDS, {}).items():
            if name not in self.records:
                raise InputError(f"expected no record {name}: it was not asked for")
            if not isinstance(text, str) or len(text) > self.record_characters:
                raise InputError(f"expected {name} to be a text of at most {self.record_characters} characters")
        for name, arrays in content.array_records.items():
            group = name.removesuffix(".arrays")
            for key, array in arrays.items():
                if key not in self.arrays[group]:
                    raise InputError(f"expected no array {group}.{key}: it was not asked for")
                # The header says what numpy would make room for.
                shape, dtype, _ = _array_header(f"{group}.{key}", array)
                expected = self.arrays[group][key]
                if dtype != np.dtype(expected.dtype) or shape != expected.shape:
                    wanted = f"torch.{expected.dtype} {expected.shape}"
                    raise InputError(f"expected {group}.{key} to be {wanted}, found torch.{dtype} {shape}")


def encode(payload: Payload) -> RecordDict:
    """Make the content of a message. All records are one of Flower's, which stores each by requests of its own."""
    app = flower()
    content: RecordDict = app.RecordDict({RECORDS: app.ConfigRecord(dict(payload.records))})
    for name, tensors in payload.arrays.items():
        arrays = {key: app.Array(values.numpy()) for key, values in tensors.items()}
        content[f"{name}.arrays"] = app.ArrayRecord(arrays)
    return content


def decode(content: RecordDict, expected: ExpectedReply | None = None) -> Payload:
    """Read the payload in the content of a message.

    Args:
        content: The content.
        expected: What a reply may hold; None for a request.

    Raises:
        InputError: When an array cannot be read, or there is more than expected.
    """
    if expected is not None:
        expected.check(content)
    records = {name: str(text) for name, text in content.config_records.get(RECORDS, {}).items()}
    arrays = dict[str, dict[str, Tensor]]()
    for name, found in content.array_records.items():
        group = name.removesuffix(".arrays")
        arrays[group] = {key: tensor_of(f"{group}.{key}", array) for key, array in found.items()}
    return Payload(records, arrays)


def content_bytes(content: RecordDict) -> int:
    """Count the bytes of a message's content on the network: tensors with their headers, and records."""
    arrays = sum(len(array.data) for group in content.array_records.values() for array in group.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())


def _array_header(name: str, array: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Read the shape and the type of an array in numpy's format, and where its numbers begin."""
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError(f"its format is {array.stype[:40]}")
        file = BytesIO(array.data[:_HEADER_BYTES])
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, transposed, dtype = read(file, max_header_size=_HEADER_BYTES)
        # A header may have true in the place of 1.
        shape = tuple(map(int, shape))
        if dtype.kind not in "biuf" or transposed or min(shape, default=0) < 0:
            raise ValueError("its numbers are not plain")
        if file.tell() + prod(shape) * dtype.itemsize != len(array.data):
            raise ValueError(f"it has {len(array.data) - file.tell()} bytes of numbers")
    except Exception as error:
        # Bytes from elsewhere: no array, pickled objects, an archive.
        raise InputError(f"expected {name} to be an array of numbers: {one_line(str(error))}") from None
    return shape, dtype, file.tell()


def tensor_of(name: str, array: Any) -> Tensor:
    """Read an array that somebody else has made, and that is called so.

    Raises:
        InputError: When it is none of plain numbers in numpy's format.
    """
    shape, dtype, start = _array_header(name, array)
    # A copy: what torch writes to must not be the message's own bytes.
    return torch.from_numpy(np.frombuffer(array.data, dtype, offset=start).reshape(shape).copy())
