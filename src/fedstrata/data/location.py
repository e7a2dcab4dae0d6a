"""A data set and where its samples are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedstrata.data.registry import DatasetInfo

Kind = Literal["parquet", "npz", "table", "clients", "images", "memory", "hub"]
"""How the files of a data set are read."""


def ending_of(path: Path) -> str:
    """The ending of a file's name with its dot, in lower case: `Lyon.CSV` is read as `Lyon.csv` is."""
    return path.suffix.lower()


@dataclass(frozen=True)
class Location:
    """A data set and the files that hold it.

    Attributes:
        name: The name that the experiment gives.
        info: What the registry knows of the data set; None for a folder, a .npz file or a hub id of the user's own.
        train: The ``.npz`` file or the Parquet files of the training split, shards in order; empty where the registry
            names a reader.
        test: The files of the test split; empty where there is none.
        kind: How the files are read: "parquet", "npz", "table" (columns are features), "clients" (a file per client),
            "images" (a folder per class), "memory" (objects of a program, without files), or "hub" (read by the library
            ``datasets``).
        client_column: The column that names the client of each sample, where the layout or the program does; else
            empty. It is then the default of the partition.
        notes: What looked wrong while the files were searched for, in a line each.
    """

    name: str
    info: DatasetInfo | None
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    kind: Kind = "parquet"
    client_column: str = ""
    notes: tuple[str, ...] = ()
