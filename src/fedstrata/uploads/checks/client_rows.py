"""Rows of some clients, taken out of what is known of all clients and put back.

They are arrays of numpy, whose calls on a few numbers take a fraction of the time of torch's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Ints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HistoryT = TypeVar("HistoryT", bound="DataclassInstance")


def of_clients(history: Any, ids: Ints) -> dict[str, NDArray[Any]]:
    """What a dataclass has of some clients, ids (m,): the rows of each field that is a tensor (n, ...), by its name."""
    tensors = ((field.name, getattr(history, field.name)) for field in fields(history))
    return {name: values.numpy()[ids] for name, values in tensors if isinstance(values, torch.Tensor)}


def with_rows(history: HistoryT, ids: Ints, rows: Any) -> HistoryT:
    """A dataclass whose tensors (n, ...) have other rows for some clients.

    Args:
        history: The dataclass, which stays as it is.
        ids: The clients, (m,).
        rows: A dataclass whose fields are these rows, (m, ...), each with the name of the tensor.
    """
    changed = dict[str, Any]()
    for field in fields(rows):
        values = getattr(history, field.name).numpy().copy()
        values[ids] = getattr(rows, field.name)
        changed[field.name] = torch.from_numpy(values)
    return replace(history, **changed)
