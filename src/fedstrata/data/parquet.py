"""Data sets in Parquet files: an image, an array or a recording per row, its class, and further columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from fedstrata.data.arrays import is_list, read_arrays
from fedstrata.data.dataset import Dataset, moments
from fedstrata.data.images import read_images
from fedstrata.data.labels import read_labels, vocabulary
from fedstrata.data.locate import Location, Split
from fedstrata.data.rows import opened, require, scalars
from fedstrata.data.signals import RECORDING, read_recordings
from fedstrata.errors import DataError
from fedstrata.lazy_torch import torch

LABELS = ("label", "labels", "fine_label", "class", "target", "y")
"""Names of a column that is taken for the classes, in files that the catalogue does not know."""


def read_parquet(location: Location, split: Split, window: int = 128, step: int = 128) -> Dataset:
    """Decode one split.

    Args:
        location: of files in Parquet.
        split: which of them.
        window: of recordings only: samples in one window.
        step: of recordings only: samples from the start of one window to the start of the next.

    Raises:
        DataError: naming the file, and the column or row (from 0) that is missing or broken.
    """
    files, source = (location.test if split == "test" else location.train), location.source
    with opened(files[0]) as file:
        schema = file.schema_arrow
    if set(schema.names) >= RECORDING or (source and source.values == "signal"):
        return read_recordings(location, files, window, step)
    values, label = (source.values, source.label) if source else _guess(location.train[0])
    require(files[0], schema, (values, label))
    classes, names = vocabulary(location.train + location.test, label, source.classes if source else None)
    labels = torch.from_numpy(read_labels(files, label, classes, names))
    if _is_image(schema.field(values).type):
        inputs = torch.from_numpy(read_images(files, values, len(labels), source.shape if source else None))
    elif is_list(schema.field(values).type):
        inputs = torch.from_numpy(read_arrays(files, values))
    else:
        raise DataError(f"{files[0]}: column {values!r} holds {schema.field(values).type}; expected images or lists")
    mean, std = (source.mean, source.std) if source and source.mean else moments(inputs)
    columns = scalars(files, skip=(values, label))
    return Dataset(location.name, inputs, labels, classes, mean, std, columns, class_names=names)


def _guess(file: Path) -> tuple[str, str]:
    """The columns of samples and of classes in a training file that the catalogue does not know."""
    with opened(file) as parquet:
        schema = parquet.schema_arrow
    values = [field.name for field in schema if _is_image(field.type) or is_list(field.type)]
    labels = [name for name in schema.names if name in LABELS]
    for found, what in ((values, "one column of images or lists"), (labels, f"one of {', '.join(LABELS)}")):
        if len(found) != 1:
            raise DataError(
                f"{file}: expected {what}, found {' and '.join(found) or 'none'}; "
                f"its columns are {', '.join(schema.names)}"
            )
    return values[0], labels[0]


def _is_image(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
