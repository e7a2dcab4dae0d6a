"""Read folders of images: a folder for each class, and above them a folder for each client where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.dataset import Dataset
from fedstrata.data.images import decode
from fedstrata.data.locate_own import classes_of, client_of
from fedstrata.data.location import Location
from fedstrata.data.npz import dataset_of_arrays
from fedstrata.data.options import ReadOptions
from fedstrata.errors import DataError
from fedstrata.limits import IMAGE_BYTES, file_problem, memory_problem


def read_image_folder(location: Location, options: ReadOptions) -> Dataset:
    """Read all images of a data set of the kind "images".

    Args:
        location: The data set.
        options: The size to which images are resized.

    Returns:
        The images of both splits, with three channels if any of them has colour. The column ``client`` has the folder
        of the client where there is one, and ``split`` says which are for testing where there is a folder ``test``.

    Raises:
        DataError: When an image is broken, or has another size than the others.
    """
    files = location.train + location.test
    arrays = {"x": _pixels(files, options.size), "y": np.array(classes_of(files))}
    if location.client_column:
        arrays[location.client_column] = np.array([client_of(file, location) for file in files])
    if location.test:
        arrays[SPLIT_COLUMN] = np.repeat(["train", "test"], [len(location.train), len(location.test)])
    return dataset_of_arrays(location.name, arrays, "train", location.name)


def _pixels(files: Sequence[Path], size: int | None) -> np.ndarray:
    """Return all images, (images, channels, height, width) uint8."""
    images: list[np.ndarray] = []
    stored = 0
    for file in files:
        content = _content(file)
        stored += len(content)
        try:
            image = decode(content, None, size)
        # Pillow has no error of its own for bytes that are no image: its readers raise whatever they meet.
        except Exception as error:
            raise DataError(f"{file} is no readable image ({error or type(error).__name__}); replace it") from error
        if images and image.shape[1:] != images[0].shape[1:]:
            found, expected = ("x".join(map(str, each.shape[1:])) for each in (image, images[0]))
            raise DataError(
                f"{file} has {found} pixels; expected {expected}, as {files[0]}; set data.size to resize all images"
            )
        images.append(image)
        if problem := memory_problem(prod(image.shape) * len(files), max(stored, 1) * len(files) // len(images)):
            raise DataError(f"{files[0].parent}: {problem}")
    channels = max(len(image) for image in images)
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])


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
