"""The arrays of a run folder: scores, gaps, and the matrices behind the decisions."""

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan, prod
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.errors import RecordError
from fedstrata.files import read_file
from fedstrata.records.schema import LARGE
from fedstrata.report.records import Gap, Matrix, Round, Scores
from fedstrata.report.words import plural, ranges

T = TypeVar("T")
DAMAGED = (OSError, ValueError, KeyError, TypeError, RecordError, zipfile.BadZipFile, zlib.error, pa.ArrowException)
MOST_BYTES = 512 * 2**20
"""Of a file of these, and of what is packed in it; more is not read."""
MOST_ROWS = 20_000_000
"""Of a table; more is not read."""
CELLS = 1_200_000
"""Pairs of clients, over all matrices, that a page holds: about 3 MB of it."""
PEOPLE = 150
"""Clients of a matrix that can still be told apart on a page; of more, so many stand for all."""


def scores(folder: Path, rounds: Iterable[Round], notes: list[str]) -> dict[int, Scores]:
    """What each client scored in each round; notes say what is missing or damaged."""
    numbers = [each.round for each in rounds]
    found = _gather(folder, "clients", "parquet", numbers, _score, notes)
    if missing := [number for number in numbers if not (folder / "clients" / f"{number:05d}.parquet").exists()]:
        notes.append(f"clients/ has no file for round {ranges(missing)}, so this page is without it.")
    return found


def gaps(folder: Path, rounds: Iterable[Round], notes: list[str]) -> tuple[Gap, ...]:
    """The gaps of all layers and measures in all rounds."""
    tables = _gather(folder, "gaps", "parquet", [each.round for each in rounds], _gap, notes)
    return tuple(
        Gap(number, row["layer"], row["measure"], nan if row["gap"] is None else row["gap"])
        for number, rows in tables.items()
        for row in rows
    )


def matrices(folder: Path, rounds: Sequence[Round], notes: list[str]) -> tuple[Matrix, ...]:
    """The matrices that decided about the nodes, and of the other rounds as many, evenly, as a page can hold.

    The names and the clients come first and the values only of the rounds that are shown: a long run holds gigabytes
    of them.
    """
    surveyed = _gather(folder, "matrices", "npz", [each.round for each in rounds], _survey, notes)
    people = _standing(rounds)
    cells = {number: sum(len(people & each.clients) ** 2 // 2 for each in found) for number, found in surveyed.items()}
    decisive = _decisive(rounds, surveyed)
    rest = enumerate(number for number in surveyed if number not in decisive)
    # Bits of the place from right to left: each next one falls into a widest gap.
    spread = [number for _, number in sorted(rest, key=lambda pair: f"{pair[0]:032b}"[::-1])]
    kept: list[int] = []
    for number in [*decisive, *spread]:
        if not kept or sum(cells[each] for each in kept) + cells[number] <= CELLS:
            kept.append(number)
    if len(kept) < len(surveyed):
        left = plural(len(surveyed) - len(kept), "round")
        notes.append(f"This page holds the matrices of {len(kept)} rounds; those of {left} more are in matrices/.")
    if any(each.clients - people for found in surveyed.values() for each in found):
        notes.append(f"In the matrices {len(people)} clients stand for all; the others are in matrices/.")
    loaded = _gather(folder, "matrices", "npz", sorted(kept), lambda path: _examined(path, people), notes)
    return tuple(matrix for found in loaded.values() for matrix in found)


class _Key(NamedTuple):
    node: int
    clients: frozenset[int]


def _standing(rounds: Sequence[Round]) -> frozenset[int]:
    """The clients whom matrices show: all, or so many, evenly, of every final cluster."""
    labels = rounds[-1].labels if rounds else []
    order = sorted(range(len(labels)), key=lambda client: (labels[client], client))
    if len(order) <= PEOPLE:
        return frozenset(order)
    return frozenset(order[place * len(order) // PEOPLE] for place in range(PEOPLE))


def _decisive(rounds: Sequence[Round], surveyed: Mapping[int, Sequence[_Key]]) -> list[int]:
    """The rounds in which a node was examined last before its split, or last of all."""
    split = {event.get("node"): each.round for each in rounds for event in each.splits}
    found: dict[int, int] = {}
    for number, keys in surveyed.items():
        for key in keys:
            if number <= split.get(key.node, number):
                found[key.node] = number
    return sorted(set(found.values()))


def _gather(
    folder: Path, kind: str, ending: str, numbers: Iterable[int], load: Callable[[Path], T], notes: list[str]
) -> dict[int, T]:
    """What each of these rounds has of a kind; a file that cannot be read is remembered."""
    found, broken = {}, []
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


def _table(path: Path, columns: list[str]) -> pa.Table:
    """Some columns of a Parquet file, if they are no larger than is read of a file."""
    content = read_file(path, MOST_BYTES)
    file = pq.ParquetFile(io.BytesIO(content))
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > MOST_BYTES or file.metadata.num_rows > MOST_ROWS:
        raise ValueError("it is too large")
    return file.read(columns=columns, use_threads=False)


def _score(path: Path) -> Scores:
    table = _table(path, list(Scores.__dataclass_fields__))
    found = {
        name: _numbers(table[name], kind)
        for name, kind in zip(Scores.__dataclass_fields__, (*(pa.int64(),) * 3, *(pa.float64(),) * 2), strict=True)
    }
    scores = Scores(**found)
    if len(np.unique(scores.client)) < len(scores.client) or (scores.client < 0).any() or (scores.samples < 0).any():
        raise ValueError("clients or samples cannot be so")
    return scores


def _numbers(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """A column of numbers, none of which is missing or would overflow."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise ValueError(f"a column is {column.type}")
    values = column.cast(kind).to_numpy()
    _refuse_large(values)
    return values


def _refuse_large(values: Any) -> None:
    """Refuse numbers whose squares or sums would overflow; what is not finite is left out of pictures anyway."""
    found = values[np.isfinite(values)]
    if found.size and max(abs(float(found.min())), abs(float(found.max()))) > LARGE:
        raise ValueError("a number is too large")


def _gap(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _table(path, ["layer", "measure", "gap"]).to_pylist()
    for row in rows:
        if not isinstance(row["layer"], str) or not isinstance(row["measure"], str):
            raise ValueError("a layer or measure is no text")
        if not isinstance(row["gap"], float | NoneType) or abs(row["gap"] or 0) > LARGE:
            raise ValueError("a gap is no number")
    return rows


def _survey(path: Path) -> list[_Key]:
    with _archive(path) as entries:
        return [
            _Key(_node(key), frozenset(_array(entries, key, 1).tolist()))
            for key in entries.namelist()
            if key.endswith("|clients.npy")
        ]


def _examined(path: Path, people: frozenset[int]) -> list[Matrix]:
    found = []
    with _archive(path) as entries:
        for key in entries.namelist():
            if key.endswith("|clients.npy"):
                continue
            name = key.removesuffix(".npy")
            node, measure, layer = name.split("|", 2)
            clients = _array(entries, f"{name}|clients.npy", 1).tolist()
            values = _array(entries, key, 2)
            if values.shape != (len(clients), len(clients)):
                raise ValueError(f"{key} is {values.shape} for {len(clients)} clients")
            shown = [place for place, client in enumerate(clients) if client in people]
            some = [clients[place] for place in shown]
            found.append(Matrix(int(path.stem), int(node), measure, layer, values[np.ix_(shown, shown)], some))
    return found


def _archive(path: Path) -> zipfile.ZipFile:
    """A ``.npz`` file that does not unpack to more than is read of a file."""
    archive = zipfile.ZipFile(io.BytesIO(read_file(path, MOST_BYTES)))
    if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
        raise ValueError("it unpacks to too much")
    return archive


def _node(key: str) -> int:
    node = int(key.split("|")[0])
    if not 0 <= node < 2**31:
        raise ValueError(f"there is no node {node}")
    return node


def _array(archive: zipfile.ZipFile, key: str, dimensions: int) -> Any:
    """An array of numbers; its header is looked at before room is made for it."""
    with archive.open(key) as entry:
        version = np.lib.format.read_magic(entry)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(entry)
        if len(shape) != dimensions or kind.kind not in ("iu" if dimensions == 1 else "iuf"):
            raise ValueError(f"{key} is {kind} {shape}")
        if prod(shape) * kind.itemsize > archive.getinfo(key).file_size:
            raise ValueError(f"{key} holds less than its header says")
        entry.seek(0)
        values = np.lib.format.read_array(entry, allow_pickle=False)
    if dimensions == 1 and len(values) and not 0 <= values.min() <= values.max() < 2**31:
        raise ValueError(f"{key} names no clients")
    _refuse_large(values)
    return values
