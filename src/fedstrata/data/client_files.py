"""Read tables in one file per split, or one file per client."""

from __future__ import annotations

from pathlib import Path

from fedstrata.data.dataset import Dataset, Split
from fedstrata.data.locate_own import client_of
from fedstrata.data.location import Location
from fedstrata.data.npz import read_arrays
from fedstrata.data.options import ReadOptions
from fedstrata.data.parquet_columns import opened
from fedstrata.data.parts import Part, put_together
from fedstrata.data.tables import read_csv


def read_files(location: Location, options: ReadOptions) -> Dataset:
    """Read all files of a data set.

    Args:
        location: The data set, of the kind "table" or "clients".
        options: The columns that are inputs and classes.

    Returns:
        The samples of both splits. The column ``client`` has the name of the file where there is a file per client, and
        the column ``split`` says which samples are for testing where there are files for that.

    Raises:
        DataError: When a file is broken, or the files do not fit together.
    """
    parts = [_part(file, location, "train" if location.test else None) for file in location.train]
    parts += [_part(file, location, "test") for file in location.test]
    return put_together(location.name, parts, options)


def _part(file: Path, location: Location, split: Split | None) -> Part:
    """Read a file."""
    client = client_of(file, location) if location.client_column else None
    if file.suffix == ".npz":
        named = {"inputs": "x", "labels": "y"}
        arrays = {named.get(key, key): array for key, array in read_arrays(file).items()}
        return Part(client, split, arrays, place=str(file))
    if file.suffix == ".csv":
        return Part(client, split, None, read_csv(file), str(file))
    with opened(file) as parquet:
        return Part(client, split, None, parquet.read(), str(file))
