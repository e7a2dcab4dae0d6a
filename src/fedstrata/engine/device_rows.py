"""Rows that stay on an accelerator until somebody needs them elsewhere.

Most rounds need the mean of all updates alone. The accelerator computes it in a fraction of the time that a copy of all
updates to the computer's own memory takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedstrata.core import Rows
from fedstrata.core.rows import check_owners, picked_rows
from fedstrata.engine.device import pinned_rows


class DeviceRows(Rows):
    """One row per client on an accelerator. `values` copies them to the computer's own memory when it is first read.

    Args:
        clients: The client of each row, (m,) int64.
        values: The rows, (m, p) float32, on the accelerator.

    Raises:
        ContractError: When there is not one row for each client.
    """

    _source: _Source
    _places: Tensor | None

    def __init__(self, clients: Tensor, values: Tensor) -> None:
        """Copy nothing."""
        check_owners(clients, len(values))
        _keep(self, clients, _Source(values), None)

    def __getattr__(self, name: str) -> Tensor:
        """Copy the values when they are asked for; Python comes here for what an object has not yet.

        Raises:
            AttributeError: For any other name.
        """
        if name != "values":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # All rows are copied: whoever reads others of them, or all, need not wait again.
        found = self._source.in_memory
        values = found if self._places is None else picked_rows(found, self._places)
        object.__setattr__(self, "values", values)
        return values

    @property
    def on_device(self) -> Tensor:
        """The rows on the accelerator, (m, p)."""
        rows = self._source.on_device
        return rows if self._places is None else rows[self._places.to(rows.device)]

    def _some(self, places: Tensor) -> Rows:
        """The rows at some positions, (m',). Reading them copies all rows of the source."""
        some = DeviceRows.__new__(DeviceRows)
        check_owners(self.clients[places], len(places))
        _keep(some, self.clients[places], self._source, places if self._places is None else self._places[places])
        return some

    def take_columns(self, columns: Tensor) -> Rows:
        """Some of the columns of every row, (m, q), by a bool (p,) or by indices. Only these are copied, if any are."""
        if self._source.is_in_memory:
            return Rows(self.clients, self.values).take_columns(columns)
        rows = self.on_device
        places = columns.nonzero().flatten() if columns.dtype == torch.bool else columns
        return DeviceRows(self.clients, rows.index_select(1, places.to(rows.device)))


@dataclass(eq=False)
class _Source:
    """Rows on an accelerator, and their copy once there is one.

    Attributes:
        on_device: The rows, (m, p).
    """

    on_device: Tensor

    @cached_property
    def in_memory(self) -> Tensor:
        """The rows in the computer's own memory, (m, p)."""
        return pinned_rows(self.on_device.device, *self.on_device.shape).copy_(self.on_device)

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows have been copied."""
        return "in_memory" in vars(self)


def _keep(rows: DeviceRows, clients: Tensor, source: _Source, places: Tensor | None) -> None:
    """Give an object its parts: the owners (m,), and the places of their rows in the source, (m,); None is all.

    The base class is frozen, and has its field `values` only once it was read.
    """
    object.__setattr__(rows, "clients", clients)
    object.__setattr__(rows, "_source", source)
    object.__setattr__(rows, "_places", places)
