"""Read folders of images: a folder for each class, and above them a folder for each client where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.limits import IMAGE_BYTES, expansion_problem, file_problem
from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.dataset import Dataset
from fedstrata.data.images import decode
from fedstrata.data.locate_own import classes_of, client_of
from fedstrata.data.location import Location
from fedstrata.data.mapped import InputWriter
from fedstrata.data.npz import dataset_of_arrays
from fedstrata.data.options import ReadOptions


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
