"""Data of clients that a program gives as objects: arrays, tensors, torch data sets and data frames.

They are kept under a name that is made of their content, ``memory:<digest>``, which ``data.name`` of the experiment
then holds. So a run can only be resumed with the same data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import (
    CLIENT_COLUMN,
    SPLIT_COLUMN,
    is_nameless_index,
    split_column,
)
from fedstrata.data.dataset import SPLITS, Split
from fedstrata.data.location import PREFIX
from fedstrata.data.sample_format import unmasked
from fedstrata.data.tables import ROWS, MemoryTable, tensors, to_numpy

Clients = Mapping[Any, Any] | Sequence[Any]
"""The data of each client, in the order of the ids; in a mapping by its name.

Of a client it is its training data, or a pair of its training and its test data. Each of them is a table: anything with
Arrow's interface for tables, such as a data frame of pandas or polars, a data set of Hugging Face, or a mapping from
the names of columns to arrays. Or it is a pair (x, y) of arrays, tensors or tables, or a torch data set of such pairs,
which is a table with the columns x and y.
"""


_KEPT: dict[str, tuple[MemoryTable, ...]] = {}
"""All data that were given to this process, by their names."""


def keep(clients: Clients) -> str:
    """Keep the data of some clients, and return the name under which an experiment finds them.

    Raises:
        DataError: When there are no clients, or the data of one are in no known form.
    """
    if not isinstance(clients, Mapping | Sequence):
        raise DataError(
            f"clients: expected a mapping or list with the data of each client, found one {type(clients).__name__}; "
            "divide a data frame by its column of sites: clients=dict(list(frame.groupby('site')))"
        )
    named = list(clients.items()) if isinstance(clients, Mapping) else list(enumerate(clients))
    if not named:
        raise DataError("clients: expected the data of at least one client, found none")
    if len({str(name) for name, _ in named}) < len(named):
        raise DataError("clients: expected a name of its own for each client, found two that read alike")
    # Ids of clients without names stay numbers, so that client 10 does not come before client 2.
    numbered = all(isinstance(name, int) for name, _ in named)
    tables = tuple(table for name, data in named for table in _tables(name if numbered else str(name), data))
    name = f"{PREFIX}{_digest(tables)[:16]}"
    _KEPT[name] = tables
    return name


def kept(name: str) -> tuple[MemoryTable, ...]:
    """Return the data under a name, with the columns ``client`` and ``split``.

    Raises:
        DataError: When this process was not given them.
    """
    if name not in _KEPT:
        raise DataError(f"the data of {name} were given as objects in Python; give the same ones again as clients=...")
    return _KEPT[name]


def _tables(client: str | int, data: Any) -> Iterator[MemoryTable]:
    """Yield the samples of a client: all, with a column ``split`` or for training, or those of each split."""
    who = f"client {shown(client)}"
    parts: list[tuple[Split | None, Any]] = [(None, data)]
    if _is_pair(data) and not _is_xy(data):
        parts = [
            (split, part) for split, part in zip(SPLITS, data, strict=True) if split == "train" or part is not None
        ]
    for split, part in parts:
        try:
            rows = _rows(part)
        # Arrow, numpy, pandas and torch raise errors of these types about values that make no table.
        except (DataError, pa.ArrowException, ValueError, TypeError) as error:
            reason = "; ".join(" ".join(str(part).split()) for part in error.args)
            raise DataError(f"{who}: {reason}") from error
        if not len(rows):
            raise DataError(f"{who} has no samples to {split or 'train'}; leave the client or the split out")
        constants = {CLIENT_COLUMN: client}
        if split or split_column(rows.column_names) is None:
            constants[SPLIT_COLUMN] = split or "train"
        yield MemoryTable(who, rows, constants=constants)


def _rows(data: Any) -> Any:
    """Return samples in any form as a ``pyarrow.Table``."""
    if _is_table(data):
        rows = data.with_format("arrow")[:] if hasattr(data, "with_format") else pa.table(data)
        return rows.drop_columns([name for name in rows.column_names if is_nameless_index(name)])
    if isinstance(data, Mapping):
        return pa.table({str(name): tensors(_array(values), str(name)) for name, values in data.items()})
    if _is_xy(data):
        x, y = data
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, tuple):
        if not len(data):
            return pa.table({})
        x, y = _read_items(data)
    else:
        raise DataError(
            "expected (x, y), a mapping of columns, a torch data set of pairs, or a table, or a pair of these to train "
            f"and to test, found {type(data).__name__}"
        )
    rows = _rows(x if _is_table(x) else {"x": x})
    if _is_table(y):
        return rows.append_column("y", _rows(y).column(0))
    return rows.append_column("y", tensors(_array(y), "y"))


def _read_items(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read every item of a torch data set once; what it changes at random is then fixed."""
    inputs, answers = [], []
    for place in range(len(data)):
        item = data[place]
        if not _is_pair(item):
            raise DataError(f"expected pairs (x, y) in its torch data set, item {place} is {type(item).__name__}")
        inputs.append(_array(item[0]))
        answers.append(_array(item[1]))
    return np.stack(inputs), np.stack(answers)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2


def _is_xy(data: Any) -> bool:
    """Return whether this is a pair of samples and their classes, and not of training and test data."""
    if not _is_pair(data):
        return False
    x, y = data
    # A table of one column holds classes: samples have features as well.
    one_column = _is_table(y) and len(getattr(y, "column_names", getattr(y, "columns", ()))) == 1
    return (_is_array(x) or _is_table(x)) and (_is_array(y) or one_column)


def _is_array(data: Any) -> bool:
    """Return whether this is an array, a tensor, a column of a data frame, or a list, also of lists, of values."""
    if isinstance(data, list):
        # A list of arrays is a pair of them, or a mistake.
        first = data[0] if data else None
        return _is_array(first) if isinstance(first, list) else isinstance(first, int | float | str | np.generic)
    return hasattr(data, "__array__") and not _is_table(data)


def _is_table(data: Any) -> bool:
    """Return whether this has the interface of a table; a column of a data frame has no columns."""
    has_columns = hasattr(data, "columns") or hasattr(data, "column_names")
    return has_columns and any(hasattr(data, name) for name in ("__arrow_c_stream__", "with_format", "iloc"))


def _array(value: Any) -> np.ndarray:
    """Return an array of numbers or texts; bools are 0 and 1.

    A missing value, which is None, nan or masked, is a text without characters among texts, and nan among numbers.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # numpy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = np.asarray(unmasked(value))
    if array.dtype.kind == "O":
        # Arrow refuses texts among numbers.
        array = to_numpy(pa.array(array.ravel(), from_pandas=True)).reshape(array.shape)
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _digest(tables: Sequence[MemoryTable]) -> str:
    """Return the SHA-256 of all names and samples."""
    found = hashlib.sha256()
    for table in tables:
        found.update(repr(sorted(table.constants.items())).encode())
        found.update(repr(sorted((table.rows.schema.metadata or {}).get(b"huggingface", b""))).encode())
        rows = table.rows.replace_schema_metadata(None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows, ROWS)
        found.update(sink.getvalue())
    return found.hexdigest()
