"""Decode images to pixels: those of a column, and of a folder, whose rows are its files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, ImageOps, UnidentifiedImageError

from fedstrata.base.errors import DataError
from fedstrata.base.limits import IMAGE_BYTES, IMAGE_FORMATS, IMAGE_PIXELS
from fedstrata.data.column_roles import CLIENT_COLUMN
from fedstrata.data.tables import Chunk, Table

_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")

_FILES = 64
"""The number of files that are read at a time."""


@dataclass(frozen=True, eq=False)
class ImageTable(Table):
    """A folder of images.

    Attributes:
        clients: Whether there are folders of clients. Files are ``<class>/<image>`` or ``<client>/<class>/<image>``,
            below further folders.
    """

    clients: bool

    @cached_property
    def stored(self) -> int:
        """Return the bytes of all files."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def own_schema(self) -> Any:
        """Return the ``pyarrow.Schema``: an image, its class and its client."""
        columns = [("image", pa.binary()), ("label", pa.string())]
        return pa.schema([*columns, (CLIENT_COLUMN, pa.string())] if self.clients else columns)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows."""
        read = {
            "image": _content,
            "label": lambda file: file.parent.name,
            CLIENT_COLUMN: lambda file: file.parent.parent.name,
        }
        for start in range(0, len(self.files), _FILES):
            some = self.files[start : start + _FILES]
            arrays = [pa.array(map(read[name], some), self.own_schema.field(name).type) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, columns)


def _content(file: Path) -> bytes:
    """Return the bytes of a file; of one that is too large for an image, more than an image may have."""
    try:
        with file.open("rb") as stream:
            return stream.read(IMAGE_BYTES + 1)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); copy it again, or take it out") from error


def has_colour(chunks: Iterable[Chunk]) -> bool:
    """Return whether any image has colour. Of each, only the begin is read; what is wrong with one is found later."""
    for content in chain.from_iterable(map(_contents, chunks)):
        with suppress(Exception):
            if content is not None and _opened(content).mode in _COLOUR:
                return True
    return False


def pixels_of(chunk: Chunk, mode: str, size: int | None, expected: Sequence[int]) -> np.ndarray:
    """Decode images to (rows, channels, height, width) uint8.

    Args:
        chunk: The images, bytes or a struct with a field of them.
        mode: The mode of Pillow to convert them to.
        size: The height and width to which they are resized; None to leave them as they are.
        expected: The shape of all images; empty if it is that of the first.

    Raises:
        DataError: When an image is missing, unreadable or of another size.
    """
    found = list[np.ndarray]()
    for row, content in enumerate(_contents(chunk)):
        if content is None:
            raise chunk.error(row, "holds no bytes; images must lie in the file")
        try:
            image = decode(content, mode, size)
        # Pillow has no error of its own for bytes that are no image: its readers raise whatever they meet.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise chunk.error(row, f"is no readable image ({reason}); replace it or take it out") from error
        expected = expected or image.shape
        if image.shape[1:] != tuple(expected[1:]):
            sides, others = ("x".join(map(str, each)) for each in (image.shape[1:], expected[1:]))
            raise chunk.error(row, f"has {sides} pixels; expected {others} of all images; data.size resizes them")
        found.append(image)
    return np.stack(found)


def _contents(chunk: Chunk) -> list[bytes | None]:
    """Return the bytes of each image."""
    is_struct = pa.types.is_struct(chunk.values.type)
    values: list[bytes | None] = (pc.struct_field(chunk.values, "bytes") if is_struct else chunk.values).to_pylist()
    return values


def decode(content: bytes, mode: str, size: int | None = None) -> np.ndarray:
    """Return the pixels of an image, (channels, height, width) uint8.

    Args:
        content: The file.
        mode: The mode of Pillow to convert it to. What is transparent is white.
        size: The height and width to which it is resized; None to leave it as it is.

    Raises:
        ValueError: When its format or size is not allowed. Pillow raises errors of other types for broken images.
    """
    image = _opened(content)
    if image.width * image.height > IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels; expected at most {IMAGE_PIXELS:,} in all")
    if image.mode not in _GREY + _COLOUR:
        raise ValueError(f"mode {image.mode}; expected 8 bits per channel")
    # Phones save what they saw lying on its side, and a note of how to turn it.
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert(mode)
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _opened(content: bytes) -> Image.Image:
    """Open an image, of which no pixel is decoded yet."""
    if len(content) > IMAGE_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; expected at most {IMAGE_BYTES:,}")
    with warnings.catch_warnings():
        # Pillow warns of images beyond a limit of its own. Ours is lower.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return Image.open(BytesIO(content), formats=IMAGE_FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"expected {' or '.join(IMAGE_FORMATS)}") from None
