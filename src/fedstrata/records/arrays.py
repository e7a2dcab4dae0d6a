"""The tables and arrays of a run folder, read. A folder may come from somebody else.

So the size of a file is looked at before memory is taken for its content, and nothing is ever unpickled. Importing this
imports no torch. Each function raises one of `DAMAGED` where a file is not what a run leaves.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy import float64
from numpy.typing import NDArray

from fedstrata.base.errors import RecordError
from fedstrata.base.files import parse_json, read_file
from fedstrata.records.schema import (
    CLIENTS_SUFFIX,
    INPUT_MEANS,
    LARGE,
    PREDICTIONS,
    ClientDescriptions,
    Gap,
    MatrixName,
    Predictions,
    Scores,
)

DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    MemoryError,  # where the header of an array promises more than there is
    RecordError,
    zipfile.BadZipFile,
    zlib.error,
    pa.ArrowException,
)
"""What reading a damaged file raises, or one that is missing."""

_MOST_BYTES = 512 * 2**20
"""A larger file is not read, nor is one that unpacks to more."""

_MOST_VALUES = 100_000_000
"""A table of more values is not read: the same value many times takes no room in a file."""


@dataclass(frozen=True)
class ClientMatrix:
    """A client-by-client matrix: one behind a decision, or one of all clients that answered.

    Attributes:
        round: The round in which it was computed.
        node: The tree node that the decision was about; `ALL_CLIENTS` where it is about all clients.
        measure: What the clients were compared by; `fedstrata.report.catalogue.COMPARED_BY` says what it means.
        layer: The layers that were compared.
        values: The matrix, (m, m).
        clients: The client of each row and column, (m,).
    """

    round: int
    node: int
    measure: str
    layer: str
    values: NDArray[float64]
    clients: list[int]


def last_scores(folder: Path) -> dict[int, tuple[int, float]]:
    """Return the number of test samples and the metric of each client after the last round; {} where unreadable."""
    files = sorted((folder / "clients").glob("[0-9]*.parquet"))
    try:
        return known_scores(read_scores(files[-1]))
    except (IndexError, *DAMAGED):
        return {}


def known_scores(scores: Scores) -> dict[int, tuple[int, float]]:
    """Return the number of test samples and the metric of each client whose metric is known."""
    rows = zip(scores.client.tolist(), scores.samples.tolist(), scores.accuracy.tolist(), strict=True)
    return {client: (samples, value) for client, samples, value in rows if isfinite(value)}


def read_scores(path: Path) -> Scores:
    """Read a file of ``clients``."""
    whole = dict.fromkeys(("client", "node", "samples"), pa.int64())
    table = _read_table(path, {**whole, "accuracy": pa.float64(), "loss": pa.float64()})
    scores = Scores(*(_bounded(column.to_numpy()) for column in table.columns))
    if len(np.unique(scores.client)) < len(scores.client) or (scores.client < 0).any() or (scores.samples < 0).any():
        raise ValueError("the clients or samples of no run")
    return scores


def last_predictions(folder: Path) -> dict[int, Predictions]:
    """Return what the model of each client predicts at the end of a run; {} where that is not known."""
    try:
        return read_predictions(folder / PREDICTIONS).by_client()
    except DAMAGED:
        return {}


def read_predictions(path: Path, clients: int = 2**31) -> Predictions:
    """Read what the models of so many clients predict for their test samples."""
    columns = [pa.int64()] * 3 + [pa.float64()] * 3
    table = _read_table(path, dict(zip(Predictions._fields, columns, strict=True)))
    found = Predictions(*(_bounded(column.to_numpy()) for column in table.columns))
    if (np.diff(found.client) < 0).any() or not ((found.client >= 0) & (found.client < clients)).all():
        raise ValueError(f"its clients are not in the order of their ids, or not those of {clients}")
    return found


def read_gaps(path: Path) -> tuple[Gap, ...]:
    """Read a file of ``gaps``; an unknown gap is nan."""
    table = _read_table(path, {"layer": pa.string(), "measure": pa.string(), "gap": pa.float64()})
    gaps = _bounded(table["gap"].to_numpy())
    return tuple(map(Gap, table["layer"].to_pylist(), table["measure"].to_pylist(), gaps.tolist()))


def read_matrix_clients(path: Path) -> dict[MatrixName, frozenset[int]]:
    """Return the name and the clients of each matrix in a file of ``matrices``."""
    with _open_arrays(path) as arrays:
        return {MatrixName.parse(name): frozenset(clients) for name, clients in _matrices(arrays)}


def read_matrices(path: Path, shown: frozenset[int]) -> list[ClientMatrix]:
    """Return the matrices in a file of ``matrices``, for some of the clients."""
    found = []
    with _open_arrays(path) as arrays:
        for name, clients in _matrices(arrays):
            values = _array(arrays, name, 2)
            if values.shape != (len(clients), len(clients)):
                raise ValueError(f"{name} is {values.shape} for {len(clients)} clients")
            places = [place for place, client in enumerate(clients) if client in shown]
            kept = [clients[place] for place in places]
            found.append(ClientMatrix(int(path.stem), *MatrixName.parse(name), values[np.ix_(places, places)], kept))
    return found


def read_client_descriptions(path: Path) -> ClientDescriptions:
    """Read what is known of the clients' data."""
    with _open_arrays(path) as arrays:
        counts = _array(arrays, "class_counts", 2)
        classes, features = (_texts(arrays, name) for name in ("class_names", "feature_names"))
        means = None
        if "mean_inputs" in arrays.files:
            means = _array(arrays, "mean_inputs", 2)
            means = means.reshape(len(counts), *_array(arrays, "shape", 1).tolist())
    if len(classes) not in (0, counts.shape[1]):
        raise ValueError(f"it does not name its {counts.shape[1]} classes")
    named = means is not None and means.shape[1:] == (len(features),)
    return ClientDescriptions(counts, means, classes, features if named else ())


def read_input_means(folder: Path, width: int) -> tuple[list[int], NDArray[float64]]:
    """Return the clients that have sent the statistic "inputs", (m,), and what they sent, (m, width).

    Raises:
        RecordError: When the run has none, or the file is damaged.
    """
    try:
        with _open_arrays(folder / INPUT_MEANS) as arrays:
            clients, means = _array(arrays, "clients", 1).tolist(), _array(arrays, "means", 2).astype(float64)
        if means.shape != (len(clients), width) or not np.isfinite(means).all():
            raise ValueError(f"{means.shape} numbers of {len(clients)} clients, or not finite ones")
    except DAMAGED:
        raise RecordError(
            f"{folder}: expected {INPUT_MEANS}, which says what the clients' inputs are, found none that can be read; "
            "resume the run with records.inputs = true, which trains no round again"
        ) from None
    return clients, means


def _read_table(path: Path, columns: Mapping[str, pa.DataType]) -> pa.Table:
    """Return some columns of a Parquet file that is not too large, by their types. No value may be missing."""
    file = pq.ParquetFile(io.BytesIO(read_file(path, _MOST_BYTES)))
    groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
    values = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
    if values > _MOST_VALUES or sum(group.total_byte_size for group in groups) > _MOST_BYTES:
        raise ValueError("it is too large")
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])
    return file.read(columns=list(columns), use_threads=False).select(list(columns)).cast(schema)


def _bounded(values: Any) -> Any:
    """Refuse numbers whose squares or sums would overflow. Charts leave out what is not finite."""
    found = values[np.isfinite(values)]
    if found.size and max(abs(float(found.min())), abs(float(found.max()))) > LARGE:
        raise ValueError("a number is too large")
    return values


def _open_arrays(path: Path) -> Any:
    """Open a ``.npz`` file that does not unpack to too much."""
    content = io.BytesIO(read_file(path, _MOST_BYTES))
    with zipfile.ZipFile(content) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError("it unpacks to too much")
    return np.load(content, allow_pickle=False)


def _array(arrays: Any, name: str, dimensions: int) -> Any:
    """Return an array of numbers; one of one dimension has clients, sizes or bytes."""
    values = np.asarray(arrays[name])
    if values.ndim != dimensions or values.dtype.kind not in ("iu" if dimensions == 1 else "iuf"):
        raise ValueError(f"{name} is {values.dtype} {values.shape}")
    if dimensions == 1 and len(values) and not 0 <= values.min() <= values.max() < 2**31:
        raise ValueError(f"{name} names no clients")
    return _bounded(values)


def _matrices(arrays: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each matrix, and its clients."""
    for name in arrays.files:
        if not name.endswith(CLIENTS_SUFFIX):
            yield name, _array(arrays, f"{name}{CLIENTS_SUFFIX}", 1).tolist()


def _texts(arrays: Any, name: str) -> tuple[str, ...]:
    """Return the names in an array of the bytes of JSON."""
    found = parse_json(_array(arrays, name, 1).astype(np.uint8).tobytes())
    if not isinstance(found, list):
        raise ValueError(f"{name} is no list")
    return tuple(map(str, found))
