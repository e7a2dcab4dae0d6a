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

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import (
    CLIENT_COLUMN,
    SPLIT_COLUMN,
    ReadOptions,
    is_nameless_index,
    refuse_same_names,
)
from fedstrata.data.dataset import Dataset, Split, is_test
from fedstrata.data.parts import Part, put_together

PREFIX = "memory:"
"""Begins the name of data that were given as objects."""

Clients = Mapping[Any, Any] | Sequence[Any]
"""The data of each client, by its name or in the order of the ids.

Of a client it is its training data, or a pair of its training and its test data. Each of them is a pair (x, y) of
arrays or tensors, a mapping of such arrays and further columns, a torch data set of pairs (x, y), or a table: anything
with Arrow's interface for tables, such as a data frame of pandas or polars, or a data set of Hugging Face.
"""


_KEPT: dict[str, tuple[Part, ...]] = {}
"""All data that were given to this process, by their names."""

_MADE: dict[tuple[str, ReadOptions], Dataset] = {}
"""The data set that was made last: both of its splits are asked for one after the other."""


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
    parts = tuple(part for name, data in named for part in _parts(name if isinstance(name, int) else str(name), data))
    tables = [part for part in parts if part.arrays is None]
    if tables and len(tables) < len(parts):
        raise DataError(f"clients: expected tables or arrays, found a table of {shown(tables[0].client)} among arrays")
    name = f"{PREFIX}{_digest(parts)[:16]}"
    _KEPT[name] = parts
    return name


def kept(name: str) -> tuple[Part, ...]:
    """Return the data under a name.

    Raises:
        DataError: When this process was not given them.
    """
    if name not in _KEPT:
        raise DataError(f"the data of {name} were given as objects in Python; give the same ones again as clients=...")
    return _KEPT[name]


def column_names(name: str) -> tuple[str, ...]:
    """Return the names of the columns of kept data, all of which may be named in an experiment."""
    return kept(name)[0].column_names


def read_column(name: str, column: str) -> np.ndarray:
    """Read a column of kept data, (samples,)."""
    return np.concatenate([part.column(column) for part in kept(name)])


def read_kept(name: str, options: ReadOptions) -> Dataset:
    """Make a data set of kept data, with the columns ``client`` and ``split``.

    Raises:
        DataError: When the data of the clients do not fit together.
    """
    if (name, options) not in _MADE:
        _MADE.clear()
        _MADE[name, options] = put_together(name, kept(name), options)
    return _MADE[name, options]


# From what a program has to parts.


def _parts(client: str | int, data: Any) -> Iterator[Part]:
    """Yield the training part of a client, and its test part if there is one."""
    if isinstance(data, tuple | list) and len(data) == 2 and not _is_xy(data):
        train, test = data
        yield _part(client, "train", train)
        if test is not None:
            yield _part(client, "test", test)
        return
    train, test = _by_own_split(client, data)
    yield _part(client, "train", train)
    if test is not None:
        yield _part(client, "test", test)


def _by_own_split(client: str | int, data: Any) -> tuple[Any, Any]:
    """The training and the test rows of data with a column ``split``; of others all rows, and None.

    What is a table comes as one of Arrow.
    """
    table = _table_of(client, data)
    place = f"client {client}"
    if table is not None:
        if SPLIT_COLUMN not in table.column_names:
            return table, None
        test = is_test(table[SPLIT_COLUMN].to_numpy(zero_copy_only=False), place)
        return table.filter(~test), table.filter(test) if test.any() else None
    if isinstance(data, Mapping) and SPLIT_COLUMN in data:
        test = is_test(_as_array(data[SPLIT_COLUMN]), place)
        arrays = {key: _as_array(value) for key, value in data.items() if key != SPLIT_COLUMN}
        _check_lengths(client, {**arrays, SPLIT_COLUMN: test})
        parts = [{key: array[rows] for key, array in arrays.items()} for rows in (~test, test)]
        return parts[0], parts[1] if test.any() else None
    return data, None


def _part(client: str | int, split: Split, data: Any) -> Part:
    """Read the samples of a client for one purpose."""
    if hasattr(data, "toarray"):
        raise DataError(f"client {client}: expected arrays, found a sparse matrix; make an array of it by toarray()")
    if (table := _table_of(client, data)) is not None:
        if not len(table):
            raise DataError(f"client {shown(client)} has no samples to {split}; leave the client or the split out")
        reserved = [name for name in (CLIENT_COLUMN, SPLIT_COLUMN) if name in table.column_names]
        return Part(client, split, None, table.drop_columns(reserved))
    if isinstance(data, Mapping):
        arrays = {str(key): _as_array(value) for key, value in data.items()}
    elif _is_xy(data):
        x, y = data
        column = _table_of(client, y)
        targets = _as_array(y if column is None else column.column(0).to_pylist())
        if (features := _table_of(client, x)) is not None:
            return Part(client, split, None, _with_classes(client, features, targets))
        arrays = {"x": _as_array(x), "y": targets}
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, tuple):
        arrays = _of_torch_dataset(client, data)
    else:
        arrays = {}
    if not {"x", "y"} <= arrays.keys():
        raise DataError(
            f"client {client}: expected (x, y), a mapping with x and y, a torch data set of pairs, or a table, or a "
            f"pair of these to train and to test, found {_kind_of(data)}"
        )
    _check_lengths(client, arrays)
    if not len(arrays["y"]):
        raise DataError(f"client {client} has no samples to {split}; leave the client or the split out")
    return Part(client, split, arrays)


def _check_lengths(client: str | int, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of different lengths, and numbers in place of an array."""
    lengths = {len(array) if array.ndim else None for array in arrays.values()}
    if len(lengths) != 1 or None in lengths:
        found = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(f"client {client}: expected as many rows in each array, found {found}")


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
    import pyarrow as pa

    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]
    if classes.ndim > 1:
        raise DataError(
            f"client {client}: expected one column of classes beside a table, found {classes.shape}; give x as an array"
        )
    if len(classes) != len(features):
        raise DataError(f"client {client}: expected as many rows in x and y, found {len(features)} and {len(classes)}")
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


def _table_of(client: str | int, data: Any) -> Any:
    """Return a ``pyarrow.Table`` of a data frame or a data set of Hugging Face; None of anything else.

    Raises:
        DataError: When Arrow cannot hold it.
    """
    if not _is_table(data):
        return None
    import pyarrow as pa

    try:
        table = _table(data)
    # pandas and Arrow raise errors of several types for a column of numbers and texts, or for two of one name.
    except (pa.ArrowException, ValueError, TypeError) as error:
        reason = "; ".join(" ".join(str(part).split()) for part in error.args)
        raise DataError(
            f"client {shown(client)}: expected a table that Arrow can hold ({reason}); correct it"
        ) from None
    refuse_same_names(table.column_names, f"client {shown(client)}")
    return table


def _table(data: Any) -> Any:
    """Return a ``pyarrow.Table`` of a data frame or a data set of Hugging Face."""
    import pyarrow as pa

    if hasattr(data, "with_format"):
        table = data.with_format("arrow")[:]
    elif hasattr(data, "iloc"):
        # A frame of pandas has an index. With a name it is a column; without one it only numbers the rows.
        table = pa.Table.from_pandas(data, preserve_index=True)
        table = table.drop_columns([name for name in table.column_names if is_nameless_index(name)])
    else:
        table = pa.table(data)
    return table.cast(
        pa.schema([each.with_type(_plain_type(each.type)) for each in table.schema], table.schema.metadata)
    )


def _plain_type(kind: Any) -> Any:
    """Return a type of Arrow without the texts of polars, also in its categories, which Parquet does not have."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    return pa.string() if pa.types.is_string_view(kind) else kind


def _of_torch_dataset(client: str | int, data: Any) -> dict[str, np.ndarray]:
    """Read every item of a torch data set once; what it changes at random is then fixed."""
    inputs, labels = [], []
    for place in range(len(data)):
        item = data[place]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"client {client}: expected pairs (x, y) in its torch data set, item {place} is {type(item).__name__}"
            )
        inputs.append(_as_array(item[0]))
        labels.append(_as_array(item[1]))
    shapes = {array.shape for array in inputs}
    if len(shapes) > 1:
        raise DataError(f"client {client}: expected items of one shape, found {' and '.join(map(str, sorted(shapes)))}")
    return {"x": np.stack(inputs), "y": np.stack(labels)} if inputs else {"x": np.empty((0, 1)), "y": np.empty(0)}


def _as_array(value: Any) -> np.ndarray:
    """Return an array of numbers or texts; bools are 0 and 1.

    A missing value, which is None or nan, is a text without characters among texts, and nan among numbers.

    Raises:
        DataError: When there are texts among numbers.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # numpy has no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = np.asarray(value)
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


def _digest(parts: Sequence[Part]) -> str:
    """Return the SHA-256 of all names and samples."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr((part.client, part.split, len(part))).encode())
        if part.arrays is None:
            import pyarrow as pa

            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.table.schema.remove_metadata()) as writer:
                writer.write_table(part.table.replace_schema_metadata(None).combine_chunks())
            found.update(sink.getvalue())
            continue
        for key, array in sorted(part.arrays.items()):
            found.update(repr((key, array.dtype.str, array.shape)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
