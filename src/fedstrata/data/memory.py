"""Data of clients that a program gives as objects: arrays, tensors, torch data sets and data frames.

They are kept under a name that is made of their content, ``memory:<digest>``, which ``data.name`` of the experiment
then holds. So a run can only be resumed with the same data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import (
    CLIENT_COLUMN,
    SPLIT_COLUMN,
    is_nameless_index,
    refuse_same_names,
    split_column,
)
from fedstrata.data.dataset import SPLITS, Split
from fedstrata.data.location import PREFIX
from fedstrata.data.sample_format import unmasked
from fedstrata.data.tables import MemorySource, Table, tensors

Clients = Mapping[Any, Any] | Sequence[Any]
"""The data of each client, in the order of the ids; in a mapping by its name.

Of a client it is its training data, or a pair of its training and its test data. Each of them is a pair (x, y) of
arrays or tensors, a mapping of such arrays and further columns, a torch data set of pairs (x, y), or a table: anything
with Arrow's interface for tables, such as a data frame of pandas or polars, or a data set of Hugging Face.
"""


_KEPT: dict[str, tuple[Table, ...]] = {}
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


def kept(name: str) -> tuple[Table, ...]:
    """Return the data under a name, with the columns ``client`` and ``split``.

    Raises:
        DataError: When this process was not given them.
    """
    if name not in _KEPT:
        raise DataError(f"the data of {name} were given as objects in Python; give the same ones again as clients=...")
    return _KEPT[name]


def _tables(client: str | int, data: Any) -> Iterator[Table]:
    """Yield the samples of a client: all, with a column ``split`` or for training, or those of each split."""
    if isinstance(data, tuple | list) and len(data) == 2 and not _is_xy(data):
        for split, part in zip(SPLITS, data, strict=True):
            if split == "train" or part is not None:
                yield _table(client, split, part)
    else:
        yield _table(client, None, data)


def _table(client: str | int, split: Split | None, data: Any) -> Table:
    """Read some samples of a client.

    Args:
        client: The client.
        split: What they are for; None if a column may say it.
        data: The samples.
    """
    who = f"client {shown(client)}"
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple | list) else [data]
    if any(hasattr(part, "toarray") or getattr(part, "is_sparse", False) for part in parts):
        raise DataError(f"{who}: expected arrays, found a sparse matrix; make a dense array of it")
    rows = _arrow_table(client, data)
    if rows is None:
        rows = _of_arrays(client, data)
    if not len(rows):
        raise DataError(f"{who} has no samples to {split or 'train'}; leave the client or the split out")
    own_split = split_column(rows.column_names) if split is None else None
    known = {CLIENT_COLUMN: client} if own_split else {CLIENT_COLUMN: client, SPLIT_COLUMN: split or "train"}
    return Table(MemorySource(who, rows), known)


def _of_arrays(client: str | int, data: Any) -> Any:
    """Return a ``pyarrow.Table`` of arrays, whose column ``x`` has the samples, or of a table beside its classes."""
    arrays: dict[str, np.ndarray] = {}
    if isinstance(data, Mapping):
        arrays = {str(key): _as_array(value) for key, value in data.items()}
    elif _is_xy(data):
        x, y = data
        column = _arrow_table(client, y)
        targets = _as_array(y if column is None else column.column(0).to_pylist())
        if (features := _arrow_table(client, x)) is not None:
            return _with_classes(client, features, targets)
        arrays = {"x": _as_array(x), "y": targets}
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, tuple):
        arrays = _of_torch_dataset(client, data)
    if not {"x", "y"} <= arrays.keys():
        raise DataError(
            f"client {shown(client)}: expected (x, y), a mapping with x and y, a torch data set of pairs, or a table, "
            f"or a pair of these to train and to test, found {_kind_of(data)}"
        )
    _check_lengths(client, arrays)
    x = arrays["x"]
    if not len(x):
        return pa.table({})
    if x.dtype.kind not in "iuf" or x.ndim < 2:
        raise DataError(f"client {shown(client)}: x is {x.dtype} {x.shape}; expected numbers, (samples, channels, ...)")
    return pa.table({key: tensors(array, f"client {shown(client)}: {key}") for key, array in arrays.items()})


def _check_lengths(client: str | int, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of different lengths, and numbers in place of an array."""
    lengths = {len(array) if array.ndim else None for array in arrays.values()}
    if len(lengths) != 1 or None in lengths:
        found = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(f"client {shown(client)}: expected as many rows in each array, found {found}")


def _kind_of(data: Any) -> str:
    """Return what data are, in words."""
    return f"a tuple of {len(data)}" if isinstance(data, tuple) else type(data).__name__


def _is_xy(data: Any) -> bool:
    """Return whether this is a pair of samples and their classes, and not of training and test data."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    x, y = data
    return (_is_array(x) or _is_table(x)) and (_is_array(y) or _is_one_column(y))


def _is_one_column(data: Any) -> bool:
    """Return whether this is a table of one column, which are classes: samples have features as well."""
    return _is_table(data) and len(getattr(data, "column_names", getattr(data, "columns", ()))) == 1


def _with_classes(client: str | int, features: Any, classes: np.ndarray) -> Any:
    """Return a ``pyarrow.Table`` of features with the classes beside them."""
    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]
    if classes.ndim > 1:
        raise DataError(
            f"client {shown(client)}: expected one column of classes beside a table, found {classes.shape}; give x "
            "as an array"
        )
    if len(classes) != len(features):
        raise DataError(
            f"client {shown(client)}: expected as many rows in x and y, found {len(features)} and {len(classes)}"
        )
    return features.append_column("y", pa.array(classes.tolist()))


def _is_array(data: Any) -> bool:
    """Return whether this is an array, a tensor, a column of a data frame, or a list, also of lists, of values."""
    if isinstance(data, list):
        # A list of arrays is a pair of them, or a mistake.
        first = data[0] if data else None
        return _is_array(first) if isinstance(first, list) else isinstance(first, int | float | str | np.generic)
    return hasattr(data, "__array__") and not _is_table(data)


def _is_table(data: Any) -> bool:
    """Return whether this has the interface of a table; a column of a data frame has no columns."""
    is_frame = hasattr(data, "columns") or hasattr(data, "column_names")
    return is_frame and (hasattr(data, "__arrow_c_stream__") or hasattr(data, "with_format") or hasattr(data, "iloc"))


def _arrow_table(client: str | int, data: Any) -> Any:
    """Return a ``pyarrow.Table`` of a data frame or a data set of Hugging Face; None of anything else.

    Raises:
        DataError: When Arrow cannot hold it.
    """
    if not _is_table(data):
        return None
    try:
        table = _plain_table(data)
    # pandas and Arrow raise errors of several types for a column of numbers and texts, or for two of one name.
    except (pa.ArrowException, ValueError, TypeError) as error:
        reason = "; ".join(" ".join(str(part).split()) for part in error.args)
        raise DataError(
            f"client {shown(client)}: expected a table that Arrow can hold ({reason}); correct it"
        ) from None
    refuse_same_names(table.column_names, f"client {shown(client)}")
    return table


def _plain_table(data: Any) -> Any:
    """Return a ``pyarrow.Table`` of a data frame or a data set of Hugging Face."""
    if hasattr(data, "with_format"):
        table = data.with_format("arrow")[:]
    elif hasattr(data, "iloc"):
        # A frame of pandas has an index. With a name it is a column; without one it only numbers the rows.
        table = pa.Table.from_pandas(data, preserve_index=True)
        table = table.drop_columns([name for name in table.column_names if is_nameless_index(name)])
    else:
        table = pa.table(data)
    return table


def _of_torch_dataset(client: str | int, data: Any) -> dict[str, np.ndarray]:
    """Read every item of a torch data set once; what it changes at random is then fixed."""
    inputs, labels = [], []
    for place in range(len(data)):
        item = data[place]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"client {shown(client)}: expected pairs (x, y) in its torch data set, item {place} is "
                f"{type(item).__name__}"
            )
        inputs.append(_as_array(item[0]))
        labels.append(_as_array(item[1]))
    shapes = {array.shape for array in inputs}
    if len(shapes) > 1:
        raise DataError(
            f"client {shown(client)}: expected items of one shape, found {' and '.join(map(str, sorted(shapes)))}"
        )
    return {"x": np.stack(inputs), "y": np.stack(labels)} if inputs else {"x": np.empty((0, 1)), "y": np.empty(0)}


def _as_array(value: Any) -> np.ndarray:
    """Return an array of numbers or texts; bools are 0 and 1.

    A missing value, which is None, nan or masked, is a text without characters among texts, and nan among numbers.

    Raises:
        DataError: When there are texts among numbers.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # numpy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = np.asarray(unmasked(value))
    if array.dtype.kind == "O":
        array = _as_texts_or_numbers(array)
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _as_texts_or_numbers(objects: np.ndarray) -> np.ndarray:
    """Return an array of objects as one of texts or of numbers; as it is, where it holds something else."""
    known = [item for item in objects.flat if item is not None and not (isinstance(item, float) and isnan(item))]
    texts = [item for item in known if isinstance(item, str)]
    numbers = [item for item in known if isinstance(item, int | float | np.number)]
    if texts and numbers:
        raise DataError(
            f"expected texts or numbers throughout, found {shown(texts[0])} and {numbers[0]}; make them alike"
        )
    if len(texts) + len(numbers) < len(known) or not known:
        return objects
    if numbers:
        return objects.astype(np.float64)
    return np.array(["" if not isinstance(item, str) else item for item in objects.flat]).reshape(objects.shape)


def _digest(tables: Sequence[Table]) -> str:
    """Return the SHA-256 of all names and samples."""
    found = hashlib.sha256()
    for table in tables:
        found.update(repr(sorted(table.constants.items())).encode())
        schema = table.source.schema
        found.update(repr(sorted((schema.metadata or {}).get(b"huggingface", b""))).encode())
        schema = schema.remove_metadata()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in table.source.batches(schema.names):
                writer.write_batch(batch.replace_schema_metadata(None))
        found.update(sink.getvalue())
    return found.hexdigest()
