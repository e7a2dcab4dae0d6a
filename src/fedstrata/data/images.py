"""Decode images to pixels: those of a Parquet column, and folders of images.

In a folder of images there is a folder for each class, and above them a folder for each client where there are several.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, ImageOps, UnidentifiedImageError

from fedstrata.base.errors import DataError
from fedstrata.base.limits import IMAGE_BYTES, IMAGE_FORMATS, IMAGE_PIXELS, expansion_problem, file_problem
from fedstrata.data.column_roles import SPLIT_COLUMN, ReadOptions
from fedstrata.data.dataset import Dataset
from fedstrata.data.location import Location, classes_of, client_of
from fedstrata.data.mapped import InputWriter
from fedstrata.data.npz import dataset_of_arrays
from fedstrata.data.parquet_columns import Chunk, read_chunks, stored_bytes

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
    stored = stored_bytes(files)
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


def read_image_folder(location: Location, options: ReadOptions, writer: InputWriter | None = None) -> Dataset:
    """Read all images of a data set of the kind "images".

    Args:
        location: The data set.
        options: The size to which images are resized.
        writer: What gets the pixels; by default the memory.

    Returns:
        The images of both splits, with three channels if any of them has colour. The column ``client`` has the folder
        of the client where there is one, and ``split`` says which are for testing where there is a folder ``test``.

    Raises:
        DataError: When an image is broken, or has another size than the others.
    """
    files = location.train + location.test
    writer = writer or InputWriter(location.name)
    _write_pixels(files, options.size, writer)
    arrays = {"y": np.array(classes_of(files))}
    if location.client_column:
        arrays[location.client_column] = np.array([client_of(file, location) for file in files])
    if location.test:
        arrays[SPLIT_COLUMN] = np.repeat(["train", "test"], [len(location.train), len(location.test)])
    return dataset_of_arrays(location.name, arrays, "train", location.name, writer.finish())


def _write_pixels(files: Sequence[Path], size: int | None, writer: InputWriter) -> None:
    """Decode all images, (images, channels, height, width) uint8."""
    stored = 0
    for place, file in enumerate(files, start=1):
        content = _content(file)
        stored += len(content)
        try:
            image = decode(content, None, size)
        # Pillow has no error of its own for bytes that are no image: its readers raise whatever they meet.
        except Exception as error:
            raise DataError(f"{file} is no readable image ({error or type(error).__name__}); replace it") from error
        sides = writer.shape[1:] or image.shape[1:]
        if image.shape[1:] != sides:
            found, expected = ("x".join(map(str, each)) for each in (image.shape[1:], sides))
            raise DataError(
                f"{file} has {found} pixels; expected {expected}, as {files[0]}; set data.size to resize all images"
            )
        if problem := expansion_problem(image.nbytes * len(files), max(stored, 1) * len(files) // place):
            raise DataError(f"{files[0].parent}: {problem}")
        writer.add(image[None], len(files))


def _content(file: Path) -> bytes:
    """Return the bytes of a file that is not too large for an image."""
    reason = file_problem(file)
    try:
        if not reason and file.stat().st_size > IMAGE_BYTES:
            reason = f"it has more than {IMAGE_BYTES:,} bytes"
        content = b"" if reason else file.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise DataError(f"{file} cannot be read as an image ({reason}); copy it again, or take it out")
    return content
