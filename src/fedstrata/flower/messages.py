"""Letters as messages of Flower's and back. Arrays travel in numpy's own format, which here never unpickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedstrata.errors import InputError
from fedstrata.flower.extra import flower
from fedstrata.flower.letter import Letter, one

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

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
    settings = {name.removesuffix(".settings"): dict(record) for name, record in content.config_records.items()}
    arrays = {
        name.removesuffix(".arrays"): {key: _tensor(key, array) for key, array in record.items()}
        for name, record in content.array_records.items()
    }
    return Letter(settings, arrays)  # type: ignore[arg-type]  # bytes, which no letter of ours has, are refused where read


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


def content_of(message: Message) -> Letter:
    """The letter in a reply.

    Raises:
        InputError: when there is none, but an error of Flower's or the reason why the device could not do it.
    """
    if message.has_error():
        reason = " ".join((message.error.reason or "").split())
        raise InputError(f"Flower reports error {message.error.code}: {reason[-LONGEST:] or 'no reason given'}")
    letter = read_letter(message.content)
    if "failed" in letter.settings:
        raise InputError(f"its device says: {one(letter.record('failed'), 'reason', str)[:LONGEST]}")
    return letter


def weight(content: RecordDict) -> int:
    """Bytes of a message's content on the wire: of tensors with their headers, and of the settings."""
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())
