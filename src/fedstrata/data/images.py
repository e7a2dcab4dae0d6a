"""Decode the images in a Parquet column to pixels."""

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, ImageOps, UnidentifiedImageError

from fedstrata.base.errors import DataError
from fedstrata.base.limits import IMAGE_BYTES, IMAGE_FORMATS, IMAGE_PIXELS, expansion_problem
from fedstrata.data.mapped import InputWriter
from fedstrata.data.parquet_columns import Chunk, read_chunks

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read_images(
    files: Sequence[Path], column: str, rows: int, shape: tuple[int, ...] | None, writer: InputWriter
) -> None:
    """Decode a column of images to (rows, channels, height, width) uint8.

    Args:
        files: The files of one split, shards in order.
        column: The column, a struct with the field ``bytes`` or plain binary.
        rows: The number of rows in all files together, at least one.
        shape: The known shape of each image, (channels, height, width). None takes the size of the first image, and
            three channels if any image has colour.
        writer: What gets the pixels.

    Raises:
        DataError: When an image is missing, unreadable or of another size, or all take too much memory.
    """
    mode = None if shape is None else "RGB" if shape[0] == 3 else "L"
    stored = sum(file.stat().st_size for file in files)
    for chunk, row, image in _decoded(files, column, mode):
        size = writer.shape[1:] or (shape or image.shape)[1:]
        if image.shape[1:] != size:
            found, expected = ("x".join(map(str, sides)) for sides in (image.shape[1:], size))
            raise chunk.error(row, f"holds an image of {found} pixels; expected {expected}, as all others")
        if problem := expansion_problem(rows * image.nbytes, stored):
            raise DataError(f"{chunk.file}: column {column!r} holds {rows:,} images: {problem}")
        writer.add(image[None], rows)


def _decoded(files: Sequence[Path], column: str, mode: str | None) -> Iterator[tuple[Chunk, int, np.ndarray]]:
    """Yield each image, (channels, height, width) uint8, with its chunk and its row in it."""
    for (chunk,) in read_chunks(files, [column]):
        values = pc.struct_field(chunk.values, "bytes") if pa.types.is_struct(chunk.values.type) else chunk.values
        for row, content in enumerate(values.to_pylist()):
            if content is None:
                raise chunk.error(row, "holds no bytes; images must lie in the file")
            try:
                yield chunk, row, decode(content, mode)
            # Pillow has no error of its own for bytes that are no image: its readers raise whatever they meet.
            except Exception as error:
                reason = str(error) or type(error).__name__
                raise chunk.error(row, f"is no readable image ({reason})") from error


def decode(content: bytes, mode: str | None, size: int | None = None) -> np.ndarray:
    """Return the pixels of an image, (channels, height, width) uint8.

    Args:
        content: The file.
        mode: The mode of Pillow to convert it to; None for one channel where it is grey, and three where it has colour.
        size: The height and width to which it is resized; None to leave it as it is.

    Raises:
        ValueError: When its format or size is not allowed. Pillow raises errors of other types for broken images.
    """
    if len(content) > IMAGE_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; expected at most {IMAGE_BYTES:,}")
    with warnings.catch_warnings():
        # Pillow warns of images beyond a limit of its own. Ours is lower.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image: Image.Image = Image.open(BytesIO(content), formats=IMAGE_FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"expected {' or '.join(IMAGE_FORMATS)}") from None
    if image.width * image.height > IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels; expected at most {IMAGE_PIXELS:,} in all")
    if image.mode not in _GREY + _COLOUR:
        raise ValueError(f"mode {image.mode}; expected 8 bits per channel")
    # Phones save what they saw lying on its side, and a note of how to turn it.
    image = ImageOps.exif_transpose(image)
    image = image.convert(mode or ("L" if image.mode in _GREY else "RGB"))
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
