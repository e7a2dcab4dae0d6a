"""The payload of a message: records of plain values and groups of tensors, written and read by one codec.

A `Schema` writes and reads the fields of a dataclass, which is the only list of them. Arrays travel in numpy's own
format, which here never unpickles. `ExpectedReply` refuses what was not asked for before any of it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from importlib import import_module
from io import BytesIO
from math import ceil, prod
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from annotated_types import Ge, Lt
from pydantic import Json, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from torch import Tensor

from fedstrata.base.errors import InputError
from fedstrata.base.quoting import one_line, shown
from fedstrata.core import Layout, Mask

if TYPE_CHECKING:
    from flwr.app import RecordDict

Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]
ValueRecord = Mapping[str, Value]

_Kind = TypeVar("_Kind")

PIECE_BYTES = 5 * 2**20
"""The number of bytes of each piece into which Flower cuts an array."""

_HEADER_BYTES = 4096
"""The largest header of an array in numpy's format, in bytes."""

_RECORD_BYTES = 16 * 2**10
"""The bytes that a record may take beside its lists."""


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
    """Records of plain values by name, and tensors by the names of their groups and their own."""

    records: Mapping[str, ValueRecord] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def record(self, name: str) -> ValueRecord:
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


@dataclass(frozen=True)
class Codec:
    """How one field is written into a record and read from it.

    Attributes:
        write: Makes the value of the record from the field; None for a value that is left out of the record.
        read: Makes the field from its name and the value of the record, which is None where it is missing. It raises
            InputError for a value of another type.
    """

    write: Callable[[Any], Value | None]
    read: Callable[[str, object], Any]


class Schema(Generic[_Kind]):
    """How an object of a dataclass becomes a record and is read from it again.

    The codec of a field follows from its type. The fields of a dataclass in it are in the same record, with the name
    of the outer field before their own.

    Args:
        kind: The dataclass.
        codecs: The codecs of those fields whose type does not say enough, by name.

    Raises:
        TypeError: When a field has no codec.
    """

    def __init__(self, kind: type[_Kind], **codecs: Codec) -> None:
        """Find the codec of every field."""
        self._kind = kind
        self._codecs = {name: codecs.get(name) or _codec_of(name, type) for name, type in get_type_hints(kind).items()}

    def write(self, thing: _Kind) -> dict[str, Value]:
        """Write an object as a record."""
        record: dict[str, Value] = {}
        for name, codec in self._codecs.items():
            value = getattr(thing, name)
            if isinstance(codec, Schema):
                record |= {f"{name}.{inner}": each for inner, each in codec.write(value).items()}
            elif (written := codec.write(value)) is not None:
                record[name] = written
        return record

    def read(self, record: ValueRecord, prefix: str = "") -> _Kind:
        """Read the object whose values have names that begin with `prefix`.

        Raises:
            InputError: When a value is missing or of another type.
        """
        values = dict[str, Any]()
        for field_name, codec in self._codecs.items():
            name = prefix + field_name
            if isinstance(codec, Schema):
                values[field_name] = codec.read(record, f"{name}.")
            else:
                values[field_name] = codec.read(name, record.get(name))
        return self._kind(**values)


def _codec_of(name: str, kind: Any) -> Codec | Schema[Any]:
    """Find the codec that follows from the type of a field."""
    if is_dataclass(kind) and isinstance(kind, type):
        return Schema(kind)
    first, *others = get_args(kind) or (kind,)
    if first in (bool, int, float, str) and others in ([], [...], [NoneType]):
        return _plain(first, *others)
    if get_origin(kind) is Literal:
        return Codec(str, _reading(kind))
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        raise TypeError(f"{name}: expected a type that has a codec, found {kind}") from None
    # Nested values are one text.
    return Codec(lambda value: adapter.dump_json(value).decode(), _reading(Annotated[kind, Json]))


def _plain(kind: type[Any], other: Any = None) -> Codec:
    """The codec of one value; with an ellipsis that of a list; with `NoneType` that of one that may not be there."""
    # As tensors have them: Flower's integers may be larger.
    checked: Any = Annotated[int, Ge(-(2**63)), Lt(2**63)] if kind is int else kind
    if other is ...:
        return Codec(list, _reading(tuple[checked, ...]))
    if other is NoneType:
        return Codec(lambda value: None if value is None else kind(value), _reading(checked | None))
    return Codec(kind, _reading(checked))


def _reading(kind: Any) -> Callable[[str, object], Any]:
    """How a value of a type is read from a record. A whole number is no bool, and no text is a number."""
    adapter = TypeAdapter[Any](kind)

    def read(name: str, value: object) -> Any:
        try:
            return adapter.validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
        except ValidationError as error:
            raise InputError(f"{name} = {shown(value)}: {one_line(error.errors()[0]['msg'])}") from None

    return read


_INT = _plain(int)
_FLOAT = _plain(float)
_INTS = _plain(int, ...)
_FLOATS = _plain(float, ...)
TEXTS = _plain(str, ...)

ONE_INT = Codec(int, lambda *value: torch.tensor([_INT.read(*value)]))
"""A tensor of one integer, (1,)."""

ONE_FLOAT = Codec(float, lambda *value: torch.tensor([_FLOAT.read(*value)]))
"""A tensor of one number, (1,) float32."""

ONE_DOUBLE = Codec(float, lambda *value: torch.tensor([_FLOAT.read(*value)], dtype=torch.float64))
"""A tensor of one number, (1,) float64."""

ID_ROW = Codec(lambda row: row.flatten().tolist(), lambda *value: torch.tensor([_INTS.read(*value)], dtype=torch.int64))
"""A tensor of integers with one row, (1, c)."""

OPTIONAL_IDS = Codec(
    lambda ids: [] if ids is None else ids.tolist(),
    lambda *value: torch.tensor(ids, dtype=torch.int64) if (ids := _INTS.read(*value)) else None,
)
"""A tensor of integers, (m,), or None."""

OPTIONAL_FLOAT_ROW = Codec(
    lambda row: [] if row is None else row.flatten().tolist(),
    lambda *value: torch.tensor([numbers]) if (numbers := _FLOATS.read(*value)) else None,
)
"""A tensor of numbers with one row, (1, c) float32, or None."""


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


class ReplyLimit(NamedTuple):
    """What one reply may take, known before it is fetched.

    Attributes:
        bytes: The bytes of its parts, with arrays as large as they become.
    """

    bytes: int


class ArrayForm(NamedTuple):
    """What an array in a reply has to be.

    Attributes:
        shape: Its shape.
        dtype: The name of the type of its numbers.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """The bytes of its numbers."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


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
    def limit(self) -> ReplyLimit:
        """The limit that every such reply keeps."""
        sizes = [_HEADER_BYTES + form.bytes for group in self.arrays.values() for form in group.values()]
        # Each array is an object beside its pieces; a group, a record and the message are objects as well.
        pieces = sum(1 + ceil(size / PIECE_BYTES) for size in sizes)
        records = len(self.records) + len(self.arrays) + 2
        # A value of a list takes up to 20 bytes, and an object names those in it.
        plain = _RECORD_BYTES * records + 20 * self.longest * len(self.records) + 128 * pieces
        return ReplyLimit(2 * sum(sizes) + plain)

    def check(self, content: RecordDict) -> None:
        """Refuse parts that were not asked for, records that are too long, and arrays of another shape.

        Raises:
            InputError: For the first of them.
        """
        # A name does not say of which kind the part is that has it.
        known = {f"{name}.settings" for name in self.records} & content.config_records.keys()
        known |= {f"{name}.arrays" for name in self.arrays} & content.array_records.keys()
        for name in content:
            if name not in known:
                short = name.removesuffix(".settings").removesuffix(".arrays")
                raise InputError(f"expected no part {short}: it was not asked for")
        most = _RECORD_BYTES + 20 * self.longest
        for name, record in content.config_records.items():
            if (size := len(record.deflate())) > most:
                raise InputError(f"expected at most {most} bytes in {name}, found {size}")
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
    """Make the content of a message."""
    app = flower()
    content: RecordDict = app.RecordDict()
    for name, record in payload.records.items():
        content[f"{name}.settings"] = app.ConfigRecord(dict(record))
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
    # Flower's records may hold bytes, which no codec reads.
    records: dict[str, Any] = {
        name.removesuffix(".settings"): dict(record) for name, record in content.config_records.items()
    }
    arrays = dict[str, dict[str, Tensor]]()
    for name, found in content.array_records.items():
        group = name.removesuffix(".arrays")
        arrays[group] = {key: _tensor(f"{group}.{key}", array) for key, array in found.items()}
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
        if dtype.hasobject or transposed:
            raise ValueError("its numbers are not plain")
        if file.tell() + prod(shape) * dtype.itemsize != len(array.data):
            raise ValueError(f"it has {len(array.data) - file.tell()} bytes of numbers")
    except Exception as error:
        # Bytes from elsewhere: no array, pickled objects, an archive.
        raise InputError(f"expected {name} to be an array of numbers: {one_line(str(error))}") from None
    return shape, dtype, file.tell()


def _tensor(name: str, array: Any) -> Tensor:
    shape, dtype, start = _array_header(name, array)
    # A copy: what torch writes to must not be the message's own bytes.
    return torch.from_numpy(np.frombuffer(array.data, dtype, offset=start).reshape(shape).copy())
