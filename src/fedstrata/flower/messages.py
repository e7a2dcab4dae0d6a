"""Letters as messages of Flower's and back. Arrays travel in numpy's own format, which here never unpickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedstrata.errors import InputError
from fedstrata.flower.exchange import BAD_REPLY
from fedstrata.flower.extra import flower
from fedstrata.flower.letter import Letter, Record, one
from fedstrata.flower.text import LONGEST, one_line, without_paths

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Message, RecordDict

WORK, WHOAMI = "train", "query.whoami"
"""Types of messages: score and train; say who you are."""

HEADER = 4096
"""Bytes of the header of an array in numpy's format, at most."""

LARGEST_RECORD = 32
"""Values that one record of a reply may have."""

LONGEST_TEXT = 1000
"""Characters that a text in a reply may have."""


def write_letter(*letters: Letter) -> RecordDict:
    """The content of a message, of letters that share no name."""
    app = flower()
    content: RecordDict = app.RecordDict()
    for letter in letters:
        for name, record in letter.settings.items():
            content[f"{name}.settings"] = app.ConfigRecord({key: value for key, value in record.items()})
        for name, tensors in letter.arrays.items():
            arrays = {key: app.Array(values.numpy()) for key, values in tensors.items()}
            content[f"{name}.arrays"] = app.ArrayRecord(arrays)
    return content


@dataclass(frozen=True)
class Expected:
    """What a reply may hold, known before it comes; nothing else of it is decoded.

    Attributes:
        records: names of the records of plain values.
        arrays: name of a group -> name of an array, all float32 -> its shape.
        longest: values that a list in a record may have.
    """

    records: frozenset[str]
    arrays: Mapping[str, Mapping[str, tuple[int, ...]]]
    longest: int


def read_letter(content: RecordDict, expected: Expected | None = None) -> Letter:
    """The letter in the content of a message.

    Args:
        content: of the message.
        expected: what the reply to a question may hold; None of a message that asks.

    Raises:
        InputError: when an array cannot be read, or there is more than expected.
    """
    if expected is not None:
        _refuse_more(content, expected)
    settings = {name.removesuffix(".settings"): _plain(record) for name, record in content.config_records.items()}
    arrays = {
        name.removesuffix(".arrays"): {key: _tensor(key, array) for key, array in record.items()}
        for name, record in content.array_records.items()
    }
    return Letter(settings, arrays)


def _refuse_more(content: RecordDict, expected: Expected) -> None:
    """Refuse whatever was not asked for, before anything of it is decoded.

    Raises:
        InputError: with the first of it.
    """
    records = {f"{name}.settings" for name in expected.records}
    groups = {f"{name}.arrays" for name in expected.arrays}
    for name in content:
        if name not in records | groups:
            short = name.removesuffix(".settings").removesuffix(".arrays")
            raise InputError(f"expected no part {short}: it was not asked for")
    for record in content.config_records.values():
        _refuse_long(record, expected.longest)
    for name, group in content.array_records.items():
        shapes = expected.arrays[name.removesuffix(".arrays")]
        for key, array in group.items():
            if key not in shapes:
                raise InputError(f"expected no tensor {key}: it was not asked for")
            _refuse_other_shape(key, array, shapes[key])


def _refuse_long(record: ConfigRecord, longest: int) -> None:
    if len(record) > LARGEST_RECORD:
        raise InputError(f"expected at most {LARGEST_RECORD} values in a record, found {len(record)}")
    for key, value in record.items():
        if isinstance(value, list) and len(value) > longest:
            raise InputError(f"expected {key} to have at most {longest} values, found {len(value)}")
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str | bytes)]
        if any(len(text) > LONGEST_TEXT for text in (key, *texts)):
            raise InputError(f"expected texts of at most {LONGEST_TEXT} characters, found {key[:40]} with more")


def _refuse_other_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Refuse an array by its header, which says what numpy would make room for."""
    found, dtype, _ = _header(name, array)
    if dtype != np.dtype(np.float32) or found != shape:
        raise InputError(f"expected {name} to be torch.float32 {shape}, found torch.{dtype} {found}")


def _plain(record: ConfigRecord) -> Record:
    return dict(record)  # type: ignore[arg-type]  # bytes, which no letter of ours has, are refused where read


def _header(name: str, array: Any) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of an array in numpy's format, and where its numbers begin.

    Raises:
        InputError: when it is no such array, or its numbers are not all that follows.
    """
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError(f"its format is {array.stype[:40]}")
        file = BytesIO(array.data[:HEADER])
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, transposed, dtype = read(file, max_header_size=HEADER)
        if dtype.hasobject or transposed:
            raise ValueError("its numbers are not plain")
        if file.tell() + prod(shape) * dtype.itemsize != len(array.data):
            raise ValueError(f"it has {len(array.data) - file.tell()} bytes of numbers")
    except Exception as error:
        # Bytes from elsewhere: no array, pickled objects, an archive.
        raise InputError(f"expected {name} to be an array of numbers: {one_line(str(error))}") from None
    return shape, dtype, file.tell()


def _tensor(name: str, array: Any) -> torch.Tensor:
    shape, dtype, start = _header(name, array)
    try:
        # A copy: what torch writes to must not be the message's own bytes.
        return torch.from_numpy(np.frombuffer(array.data, dtype, offset=start).reshape(shape).copy())
    except Exception as error:
        # A type that torch does not know, all of memory.
        raise InputError(f"expected {name} to be an array of numbers: {one_line(str(error))}") from None


def message_to(node: int, kind: str, content: RecordDict, round: int, seconds: float) -> Message:
    """A message to a node, which is of no use after so many seconds."""
    message: Message = flower().Message(content, node, kind, ttl=seconds, group_id=str(round))
    return message


def reply(message: Message, letter: Letter) -> Message:
    """A reply with a letter."""
    answer: Message = flower().Message(write_letter(letter), reply_to=message)
    return answer


def excuse(message: Message) -> str:
    """Why a reply answers nothing: an error of Flower's, or what the device could not do; empty when it is an answer.

    Raises:
        InputError: when the reply is not taken, or the device's reason is none.
    """
    if message.has_error():
        reason = without_paths(message.error.reason or "")
        if message.error.code == BAD_REPLY:
            raise InputError(one_line(reason))
        return f"Flower reports error {message.error.code}: {one_line(reason[-LONGEST:]) or 'no reason given'}"
    failed = message.content.config_records.get("failed.settings")
    if failed is None:
        return ""
    return f"its device says: {one_line(without_paths(one(_plain(failed), 'reason', str)[:LONGEST_TEXT]))}"


def content_of(message: Message, expected: Expected | None = None) -> Letter:
    """The letter in a reply.

    Raises:
        InputError: when there is none, but an excuse, or there is more than expected.
    """
    if reason := excuse(message):
        raise InputError(reason)
    return read_letter(message.content, expected)


def weight(content: RecordDict) -> int:
    """Bytes of a message's content on the wire: of tensors with their headers, and of the settings."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())
