"""Encoded images in a Parquet column, decoded to pixels."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, UnidentifiedImageError

from fedstrata.data.parquet_columns import Chunk, read_chunks
from fedstrata.errors import DataError
from fedstrata.limits import IMAGE_BYTES, IMAGE_FORMATS, IMAGE_PIXELS, memory_problem

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read_images(files: Sequence[Path], column: str, rows: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Decode a column of images.

    Args:
        files: The files of one split, shards in order.
        column: The column, a struct with the field ``bytes`` or plain binary.
        rows: The number of rows in all files together.
        shape: The known shape of each image, (channels, height, width). None takes the size of the first image, and
            three channels if any image has colour.

    Returns:
        The pixels, (rows, channels, height, width) uint8.

    Raises:
        DataError: When an image is missing, unreadable or of another size, or all take too much memory.
    """
    colour = _any_colour(files, column) if shape is None else shape[0] == 3
    pixels: np.ndarray | None = None
    for place, encoded in enumerate(_encoded_images(files, column)):
        image = encoded.decode(colour)
        if pixels is None:
            whole = (rows, *(shape or image.shape))
            if problem := memory_problem(prod(whole), sum(file.stat().st_size for file in files)):
                raise DataError(f"{encoded.chunk.file}: column {column!r} holds {rows:,} images: {problem}")
            pixels = np.empty(whole, dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            found, expected = ("x".join(map(str, size[1:])) for size in (image.shape, pixels.shape[1:]))
            raise encoded.chunk.error(
                encoded.row, f"holds an image of {found} pixels; expected {expected}, as all others"
            )
        pixels[place] = image
    assert pixels is not None, "labels are read first, and refuse a file without rows"
    return pixels


def _any_colour(files: Sequence[Path], column: str) -> bool:
    for encoded in _encoded_images(files, column):
        with encoded.opened() as image:
            if image.mode not in _GREY:
                return True
    return False


@dataclass(frozen=True)
class _EncodedImage:
    """One image as it is stored.

    Attributes:
        chunk: The rows that hold it.
        row: Its place in them.
        content: Its bytes.
    """

    chunk: Chunk
    row: int
    content: bytes

    @contextmanager
    def opened(self) -> Iterator[Image.Image]:
        """Open the image; its pixels are not decoded yet.

        Raises:
            DataError: When it cannot be opened, or not be read inside the block.
        """
        try:
            with _open(self.content) as image:
                yield image
        # Pillow has no error of its own for bytes that are no image: its readers raise whatever they meet.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise self.chunk.error(self.row, f"is no readable image ({reason})") from error

    def decode(self, colour: bool) -> np.ndarray:
        """The pixels, (channels, height, width) uint8, with three channels or one."""
        mode = "RGB" if colour else "L"
        with self.opened() as image:
            if image.mode not in _GREY + _COLOUR:
                raise ValueError(f"mode {image.mode}; expected 8 bits per channel")
            pixels = np.asarray(image if image.mode == mode else image.convert(mode))
        return pixels.transpose(2, 0, 1) if colour else pixels[None]


def _encoded_images(files: Sequence[Path], column: str) -> Iterator[_EncodedImage]:
    for (chunk,) in read_chunks(files, [column]):
        values = chunk.values
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "bytes")
        for row, content in enumerate(values.to_pylist()):
            if content is None:
                raise chunk.error(row, "holds no bytes; images must lie in the file")
            yield _EncodedImage(chunk, row, content)


def _open(content: bytes) -> Image.Image:
    """Open an image of an allowed format and size."""
    if len(content) > IMAGE_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; expected at most {IMAGE_BYTES:,}")
    with warnings.catch_warnings():
        # Pillow warns of images beyond a limit of its own. Ours is lower.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(BytesIO(content), formats=IMAGE_FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"expected {' or '.join(IMAGE_FORMATS)}") from None
    if image.width * image.height > IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels; expected at most {IMAGE_PIXELS:,} in all")
    return image
