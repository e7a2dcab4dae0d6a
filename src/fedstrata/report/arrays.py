"""The arrays of a run folder: scores, gaps, and the matrices behind the decisions."""

import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.report.records import Gap, Matrix, Round, Scores
from fedstrata.report.words import plural, ranges

T = TypeVar("T")
DAMAGED = (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, pa.ArrowException)
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


def _score(path: Path) -> Scores:
    columns = list(Scores.__dataclass_fields__)
    table = pq.read_table(path, columns=columns, use_threads=False)
    return Scores(**{column: table[column].to_numpy() for column in columns})


def _gap(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path, columns=["layer", "measure", "gap"], use_threads=False).to_pylist()
    return rows


def _survey(path: Path) -> list[_Key]:
    with np.load(path, allow_pickle=False) as entries:
        return [
            _Key(int(key.split("|")[0]), frozenset(entries[key].tolist()))
            for key in entries.files
            if key.endswith("|clients")
        ]


def _examined(path: Path, people: frozenset[int]) -> list[Matrix]:
    found = []
    with np.load(path, allow_pickle=False) as entries:
        for key in entries.files:
            if key.endswith("|clients"):
                continue
            node, measure, layer = key.split("|", 2)
            clients = entries[f"{key}|clients"].tolist()
            values = entries[key]
            if values.shape != (len(clients), len(clients)):
                raise ValueError(f"{key} is {values.shape} for {len(clients)} clients")
            shown = [place for place, client in enumerate(clients) if client in people]
            some = [clients[place] for place in shown]
            found.append(Matrix(int(path.stem), int(node), measure, layer, values[np.ix_(shown, shown)], some))
    return found
