"""Encoded images in a Parquet column, decoded to pixels."""

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, UnidentifiedImageError

from fedstrata.data.rows import batches
from fedstrata.errors import DataError
from fedstrata.limits import IMAGE_BYTES, IMAGE_FORMATS, IMAGE_PIXELS, too_much

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read_images(files: Sequence[Path], column: str, rows: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Decode a column of images.

    Args:
        files: of one split, shards in order.
        column: struct with the field ``bytes``, or plain binary.
        rows: in all files together.
        shape: what each image is known to be, (channels, height, width); None to take the size of the first, and
            three channels if any image has colour, else one.

    Returns:
        (rows, channels, height, width) uint8.

    Raises:
        DataError: naming file and row of an image that is missing, unreadable or of another size.
    """
    with warnings.catch_warnings():
        # Pillow warns of large images from a limit of its own on; what is too large is refused here.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return _read(files, column, rows, shape)


def _read(files: Sequence[Path], column: str, rows: int, shape: tuple[int, ...] | None) -> np.ndarray:
    mode = "RGB" if (shape[0] == 3 if shape else _any_colour(files, column)) else "L"
    pixels: np.ndarray | None = None
    for place, (file, row, encoded) in enumerate(_encoded(files, column)):
        try:
            image = _decode(encoded, mode)
        # As in `_any_colour`.
        except Exception as error:
            raise _unreadable(file, row, column, error) from error
        if pixels is None:
            whole = (rows, *(shape or image.shape))
            if problem := too_much(prod(whole), sum(each.stat().st_size for each in files)):
                raise DataError(f"{file}: column {column!r} holds {rows:,} images: {problem}")
            pixels = np.empty(whole, dtype=np.uint8)
        if image.shape != pixels.shape[1:]:
            found, expected = ("x".join(map(str, size[1:])) for size in (image.shape, pixels.shape[1:]))
            raise DataError(f"{file}: the image in row {row} is {found} pixels; expected {expected}, as all others")
        pixels[place] = image
    assert pixels is not None, "labels are read first, and refuse a file without rows"
    return pixels


def _any_colour(files: Sequence[Path], column: str) -> bool:
    for file, row, encoded in _encoded(files, column):
        try:
            with _opened(encoded) as image:
                colour = image.mode not in _GREY
        # Pillow has no error of its own for bytes that are no image: its readers raise whatever they run into.
        except Exception as error:
            raise _unreadable(file, row, column, error) from error
        if colour:
            return True
    return False


def _encoded(files: Sequence[Path], column: str) -> Iterator[tuple[Path, int, bytes]]:
    for file, first, batch in batches(files, [column]):
        array = batch.column(0)
        array = pc.struct_field(array, "bytes") if pa.types.is_struct(array.type) else array
        for row, encoded in enumerate(array.to_pylist(), start=first):
            if encoded is None:
                raise DataError(f"{file}: row {row} of column {column!r} holds no bytes; images must lie in the file")
            yield file, row, encoded


def _unreadable(file: Path, row: int, column: str, error: Exception) -> DataError:
    """The error that names the row of an image that cannot be read."""
    reason = str(error) or type(error).__name__
    return DataError(f"{file}: row {row} of column {column!r} is no readable image ({reason})")


def _opened(encoded: bytes) -> Image.Image:
    """Open an image of a format and a size that are decoded; its pixels are not read yet."""
    if len(encoded) > IMAGE_BYTES:
        raise ValueError(f"it has {len(encoded):,} bytes; expected at most {IMAGE_BYTES:,}")
    try:
        image = Image.open(BytesIO(encoded), formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"expected {' or '.join(IMAGE_FORMATS)}") from None
    if image.width * image.height > IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels; expected at most {IMAGE_PIXELS:,} in all")
    return image


def _decode(encoded: bytes, mode: str) -> np.ndarray:
    """The pixels of one image, (channels, height, width) uint8."""
    with _opened(encoded) as image:
        if image.mode not in _GREY + _COLOUR:
            raise ValueError(f"mode {image.mode}; expected 8 bits per channel")
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
