"""Records of many clients: who is in which cluster, as changes to the round before.

A line of ``rounds.jsonl`` has the node of every client in ``labels``, and the waiting clients in ``pending``. Of more
than `MANY_CLIENTS` clients, a line has only what changed, in ``labels_changed`` and ``pending_changed``, where that is
shorter. Both are rows ``[value, first, last]``: the new value of all clients from the first to the last id. The values
are nodes in the one and 1 or 0 in the other, for clients that wait and those that do not. The first line has the whole
lists. So has every line of a run of an earlier version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MANY_CLIENTS = 1_000
"""Of more clients, records have changes in place of whole lists."""

_LABELS = "labels"
_PENDING = "pending"
_SUFFIX = "_changed"

_MAX_NODE = 2**31
"""The ids of tree nodes are below it."""

Row = list[int]
"""A value, and the first and the last client that has it from this round on."""


class CheckedIds(list[int]):
    """Ids that were made from checked ones, so that `fedstrata.records.schema` does not check them again."""


class ClusterLabels(NamedTuple):
    """Who was in which cluster after a round.

    Attributes:
        round: The number of the round.
        labels: The tree node of each client, (n,).
        pending: The clients that wait for a cluster, ascending.
    """

    round: int
    labels: Sequence[int]
    pending: Sequence[int]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> ClusterLabels:
        """Return the membership in a record with whole lists."""
        return cls(record["round"], record[_LABELS], record[_PENDING])


def shortened(record: Mapping[str, Any], before: ClusterLabels | None) -> Mapping[str, Any]:
    """Return a record with changes in place of whole lists, where they are shorter.

    Args:
        record: The record of a round, with whole lists.
        before: The membership after the round before; None in the first round.
    """
    n = len(record[_LABELS])
    if before is None or n <= MANY_CLIENTS or before.round != record["round"] - 1:
        return record
    if len(before.labels) != n or max(before.pending, default=0) >= n:
        return record
    labels = _changes(np.array(before.labels), np.array(record[_LABELS]))
    pending = _changes(_flags(before.pending, n), _flags(record[_PENDING], n))
    short = dict(record)
    for name, rows in ((_LABELS, labels), (_PENDING, pending)):
        # A row is three numbers. The order of the keys stays.
        if 3 * len(rows) < len(record[name]):
            short = {(key + _SUFFIX if key == name else key): value for key, value in short.items()}
            short[name + _SUFFIX] = rows
    return short


def completed(record: dict[str, Any], before: ClusterLabels | None) -> dict[str, Any]:
    """Return a record with whole lists.

    Args:
        record: A line of ``rounds.jsonl``.
        before: The membership in the line before; None for the first line.

    Raises:
        ValueError: When it has changes to a round that is not known, or damaged ones. The text continues a sentence
            that begins with the name of the file.
    """
    changed = [name for name in (_LABELS, _PENDING) if name + _SUFFIX in record and name not in record]
    if not changed:
        return record
    if before is None or record.get("round") != before.round + 1:
        raise ValueError("has changes to the round before, and the line before it is not of that round")
    whole = dict(record)
    for name in changed:
        rows = whole.pop(name + _SUFFIX)
        _check(rows, len(before.labels), 1 if name == _PENDING else _MAX_NODE - 1, name + _SUFFIX)
        whole[name] = _applied(before.labels, rows) if name == _LABELS else _pending(before.pending, rows)
    return whole


def _changes(before: NDArray[np.int64], after: NDArray[np.int64]) -> list[Row]:
    """Return the rows that make one array (n,) of the other."""
    changed = np.flatnonzero(before != after)
    if not len(changed):
        return []
    values = after[changed]
    starts = np.flatnonzero(np.r_[True, (np.diff(changed) > 1) | (np.diff(values) != 0)])
    ends = np.r_[starts[1:], len(changed)] - 1
    rows: list[Row] = np.stack([values[starts], changed[starts], changed[ends]], axis=1).tolist()
    return rows


def _flags(clients: Sequence[int], n: int) -> NDArray[np.int64]:
    """Return 1 for some of n clients and 0 for the others, (n,)."""
    flags = np.zeros(n, dtype=np.int64)
    flags[np.array(clients, dtype=np.int64)] = 1
    return flags


def _check(rows: Any, n: int, largest: int, name: str) -> None:
    """Refuse rows that are not those of n clients, each once."""
    smallest = 0 if largest == 1 else -1
    following = 0
    for row in rows if isinstance(rows, list) else [rows]:
        numbers = isinstance(row, list) and len(row) == 3 and all(type(number) is int for number in row)
        if not numbers or not smallest <= row[0] <= largest or not following <= row[1] <= row[2] < n:
            raise ValueError(f"has a row in {name} that is not a value, and the first and last of {n} clients")
        following = row[2] + 1


def _applied(labels: Sequence[int], rows: Sequence[Row]) -> Sequence[int]:
    """Return the labels with changes; the same list where there are none, so that rounds share it."""
    if not rows:
        return _checked(labels)
    after = CheckedIds(labels)
    for value, first, last in rows:
        after[first : last + 1] = [value] * (last + 1 - first)
    return after


def _checked(ids: Sequence[int]) -> Sequence[int]:
    """Return ids as a list that is neither checked nor copied again."""
    return ids if isinstance(ids, CheckedIds) else CheckedIds(ids)


def _pending(pending: Sequence[int], rows: Sequence[Row]) -> Sequence[int]:
    """Return the pending clients, ascending, with changes; the same list where there are none."""
    if not rows:
        return _checked(pending)
    named = {client for _, first, last in rows for client in range(first, last + 1)}
    added = [client for value, first, last in rows if value for client in range(first, last + 1)]
    kept = (client for client in pending if client not in named)
    return CheckedIds(sorted([*kept, *added]))
