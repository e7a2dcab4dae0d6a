"""Letters as messages of Flower's and back. Arrays travel in numpy's own format, which here never unpickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedstrata.errors import InputError
from fedstrata.flower.extra import flower
from fedstrata.flower.letter import Letter, Record, one

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Message, RecordDict

WORK, WHOAMI = "train", "query.whoami"
"""Types of messages: score and train; say who you are."""

LONGEST = 300
"""Characters of a reason from elsewhere that are shown."""


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


def read_letter(content: RecordDict) -> Letter:
    """The letter in the content of a message.

    Raises:
        InputError: when an array cannot be read.
    """
    settings = {name.removesuffix(".settings"): _plain(record) for name, record in content.config_records.items()}
    arrays = {
        name.removesuffix(".arrays"): {key: _tensor(key, array) for key, array in record.items()}
        for name, record in content.array_records.items()
    }
    return Letter(settings, arrays)


def _plain(record: ConfigRecord) -> Record:
    return dict(record)  # type: ignore[arg-type]  # bytes, which no letter of ours has, are refused where read


def _tensor(name: str, array: Any) -> torch.Tensor:
    try:
        return torch.from_numpy(array.numpy())
    except Exception as error:
        # Bytes from elsewhere: no array, pickled objects, an archive, a type that torch does not know, all of memory.
        raise InputError(f"expected {name} to be an array of numbers: {' '.join(str(error).split())}") from None


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
        InputError: when the device's reason is none.
    """
    if message.has_error():
        reason = " ".join((message.error.reason or "").split())
        return f"Flower reports error {message.error.code}: {reason[-LONGEST:] or 'no reason given'}"
    failed = message.content.config_records.get("failed.settings")
    return "" if failed is None else f"its device says: {one(_plain(failed), 'reason', str)[:LONGEST]}"


def content_of(message: Message) -> Letter:
    """The letter in a reply.

    Raises:
        InputError: when there is none, but an excuse.
    """
    if reason := excuse(message):
        raise InputError(reason)
    return read_letter(message.content)


def weight(content: RecordDict) -> int:
    """Bytes of a message's content on the wire: of tensors with their headers, and of the settings."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())
