"""The arrays of a run folder: scores, gaps, and the matrices behind the decisions.

A folder may come from somebody else, so sizes and headers are checked before memory is allocated.
"""

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy import float64
from numpy.typing import NDArray

from fedstrata.errors import RecordError
from fedstrata.files import read_file
from fedstrata.records.schema import CLIENTS_SUFFIX, LARGE, Gap, MatrixName, Round, Scores
from fedstrata.report.words import plural, ranges

T = TypeVar("T")

DAMAGED = (OSError, ValueError, KeyError, TypeError, RecordError, zipfile.BadZipFile, zlib.error, pa.ArrowException)
"""What reading a damaged file raises."""

MOST_BYTES = 512 * 2**20
"""A larger file is not read, nor is one that unpacks to more."""

MOST_ROWS = 20_000_000
"""A table with more rows is not read."""

MOST_PAIRS = 1_200_000
"""Pairs of clients in all matrices of a page: about 3 MB of it."""

MOST_CLIENTS = 150
"""Clients of a matrix that can still be told apart on a page. Of more clients, so many are shown."""


@dataclass(frozen=True)
class Matrix:
    """A client-by-client matrix behind a decision.

    Attributes:
        round: The round in which it was computed.
        node: The tree node that the decision was about.
        measure: What the clients were compared by; `fedstrata.report.words.MEASURES` says what it means.
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


def read_scores(folder: Path, rounds: Iterable[Round], notes: list[str]) -> dict[int, Scores]:
    """The scores of the clients in each round. Notes say what is missing or damaged."""
    numbers = [each.round for each in rounds]
    found = _read_rounds(folder, "clients", "parquet", numbers, _load_scores, notes)
    if missing := [number for number in numbers if not (folder / "clients" / f"{number:05d}.parquet").exists()]:
        notes.append(f"clients/ has no file for round {ranges(missing)}, so this page is without it.")
    return found


def read_gaps(folder: Path, rounds: Iterable[Round], notes: list[str]) -> dict[int, tuple[Gap, ...]]:
    """The gaps of all layers and measures in each round that has some."""
    return _read_rounds(folder, "gaps", "parquet", [each.round for each in rounds], _load_gaps, notes)


def read_matrices(folder: Path, rounds: Sequence[Round], notes: list[str]) -> tuple[Matrix, ...]:
    """The matrices that decided about the nodes, and of the other rounds as many, evenly, as a page can hold.

    The names and client ids of all rounds are read first, and then the values of the rounds that are shown: a long run
    holds gigabytes of values.
    """
    contents = _read_rounds(folder, "matrices", "npz", [each.round for each in rounds], _load_contents, notes)
    shown = _shown_clients(rounds)
    pairs = {
        number: sum(len(shown & clients) ** 2 // 2 for clients in matrices.values())
        for number, matrices in contents.items()
    }
    kept: list[int] = []
    for number in _by_importance(rounds, contents):
        if not kept or sum(pairs[each] for each in kept) + pairs[number] <= MOST_PAIRS:
            kept.append(number)
    if len(kept) < len(contents):
        rest = plural(len(contents) - len(kept), "round")
        notes.append(f"This page holds the matrices of {len(kept)} rounds; those of {rest} more are in matrices/.")
    if any(clients - shown for matrices in contents.values() for clients in matrices.values()):
        notes.append(f"The matrices on this page show {len(shown)} of the clients; matrices/ holds all.")
    loaded = _read_rounds(folder, "matrices", "npz", sorted(kept), lambda path: _load_matrices(path, shown), notes)
    return tuple(matrix for found in loaded.values() for matrix in found)


def _shown_clients(rounds: Sequence[Round]) -> frozenset[int]:
    """The clients that matrices show: all, or `MOST_CLIENTS` of them, evenly from every final cluster."""
    labels = rounds[-1].labels if rounds else []
    order = sorted(range(len(labels)), key=lambda client: (labels[client], client))
    if len(order) <= MOST_CLIENTS:
        return frozenset(order)
    return frozenset(order[place * len(order) // MOST_CLIENTS] for place in range(MOST_CLIENTS))


def _by_importance(rounds: Sequence[Round], contents: Mapping[int, Mapping[MatrixName, frozenset[int]]]) -> list[int]:
    """The rounds with matrices: first those that decided about a node, then the others, evenly."""
    split = {event.node: each.round for each in rounds for event in each.splits}
    last: dict[int, int] = {}
    for number, names in contents.items():
        for name in names:
            if number <= split.get(name.node, number):
                last[name.node] = number
    decisive = sorted(set(last.values()))
    others = [number for number in contents if number not in decisive]
    # Bits of the place from right to left: each next one falls into a widest gap.
    spread = sorted(range(len(others)), key=lambda place: f"{place:032b}"[::-1])
    return [*decisive, *(others[place] for place in spread)]


def _read_rounds(
    folder: Path, kind: str, ending: str, numbers: Iterable[int], load: Callable[[Path], T], notes: list[str]
) -> dict[int, T]:
    """The content of the file of each round that has one. A note says which ones cannot be read."""
    found = {}
    broken = []
    for number in numbers:
        try:
            found[number] = load(folder / kind / f"{number:05d}.{ending}")
        except FileNotFoundError:
            continue
        except DAMAGED:
            broken.append(number)
    if broken:
        notes.append(f"{kind}/ cannot be read for round {ranges(broken)}, so this page is without it.")
    return found


def _load_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Some columns of a Parquet file that is not too large."""
    content = read_file(path, MOST_BYTES)
    file = pq.ParquetFile(io.BytesIO(content))
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > MOST_BYTES or file.metadata.num_rows > MOST_ROWS:
        raise ValueError("it is too large")
    return file.read(columns=list(columns), use_threads=False)


def _load_scores(path: Path) -> Scores:
    table = _load_table(path, Scores._fields)
    integers = ("client", "node", "samples")
    columns = {name: _numbers(table[name], pa.int64() if name in integers else pa.float64()) for name in Scores._fields}
    scores = Scores(**columns)
    if len(np.unique(scores.client)) < len(scores.client) or (scores.client < 0).any() or (scores.samples < 0).any():
        raise ValueError("the clients or samples of no run")
    return scores


def _numbers(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """A column of numbers, none of which is missing or too large."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise ValueError(f"a column is {column.type}")
    values = column.cast(kind).to_numpy()
    _refuse_large(values)
    return values


def _refuse_large(values: Any) -> None:
    """Refuse numbers whose squares or sums would overflow. Charts leave out what is not finite."""
    found = values[np.isfinite(values)]
    if found.size and max(abs(float(found.min())), abs(float(found.max()))) > LARGE:
        raise ValueError("a number is too large")


def _load_gaps(path: Path) -> tuple[Gap, ...]:
    rows = [Gap(**row) for row in _load_table(path, Gap._fields).to_pylist()]
    for row in rows:
        if not isinstance(row.layer, str) or not isinstance(row.measure, str):
            raise ValueError("a layer or measure is no text")
        if not isinstance(row.gap, float | NoneType) or abs(row.gap or 0) > LARGE:
            raise ValueError("a gap is no number")
    return tuple(row._replace(gap=nan) if row.gap is None else row for row in rows)


def _load_contents(path: Path) -> dict[MatrixName, frozenset[int]]:
    """The name and the clients of each matrix in a file."""
    with _open_archive(path) as archive:
        return {
            MatrixName.parse(name): frozenset(_array(archive, f"{name}{CLIENTS_SUFFIX}", 1).tolist())
            for name in _matrix_names(archive)
        }


def _load_matrices(path: Path, shown: frozenset[int]) -> list[Matrix]:
    """The matrices in a file, for the clients that are shown."""
    found = []
    with _open_archive(path) as archive:
        for name in _matrix_names(archive):
            clients = _array(archive, f"{name}{CLIENTS_SUFFIX}", 1).tolist()
            values = _array(archive, name, 2)
            if values.shape != (len(clients), len(clients)):
                raise ValueError(f"{name} is {values.shape} for {len(clients)} clients")
            places = [place for place, client in enumerate(clients) if client in shown]
            node, measure, layer = MatrixName.parse(name)
            values = values[np.ix_(places, places)]
            found.append(Matrix(int(path.stem), node, measure, layer, values, [clients[place] for place in places]))
    return found


def _open_archive(path: Path) -> zipfile.ZipFile:
    """A ``.npz`` file that does not unpack to too much."""
    archive = zipfile.ZipFile(io.BytesIO(read_file(path, MOST_BYTES)))
    if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
        raise ValueError("it unpacks to too much")
    return archive


def _matrix_names(archive: zipfile.ZipFile) -> list[str]:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    return [name for name in names if not name.endswith(CLIENTS_SUFFIX)]


def _array(archive: zipfile.ZipFile, name: str, dimensions: int) -> Any:
    """An array of numbers. Its header is checked before memory is allocated for it."""
    entry_name = f"{name}.npy"
    with archive.open(entry_name) as entry:
        version = np.lib.format.read_magic(entry)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(entry)
        if len(shape) != dimensions or kind.kind not in ("iu" if dimensions == 1 else "iuf"):
            raise ValueError(f"{name} is {kind} {shape}")
        if prod(shape) * kind.itemsize > archive.getinfo(entry_name).file_size:
            raise ValueError(f"{name} holds less than its header says")
        entry.seek(0)
        values = np.lib.format.read_array(entry, allow_pickle=False)
    if dimensions == 1 and len(values) and not 0 <= values.min() <= values.max() < 2**31:
        raise ValueError(f"{name} names no clients")
    _refuse_large(values)
    return values
