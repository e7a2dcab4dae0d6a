"""Rows that stay on an accelerator until somebody needs them elsewhere.

Most rounds need the mean of all updates alone. The accelerator computes it in a fraction of the time that a copy of all
updates to the computer's own memory takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstrata.core import Rows
from fedstrata.engine.device import pinned_rows


class DeviceRows(Rows):
    """One row per client on an accelerator. `values` copies them to the computer's own memory when it is first read.

    Args:
        clients: The client of each row, (m,) int64.
        held: The rows, (m, p) float32, on the accelerator.
    """

    def __init__(self, clients: Tensor, held: Tensor) -> None:
        """Copy nothing."""
        # The base class is frozen, and has its field `values` only once it was read.
        object.__setattr__(self, "clients", clients)
        object.__setattr__(self, "_held", held)

    def __getattr__(self, name: str) -> Tensor:
        """Copy the values when they are asked for; Python comes here for what an object has not yet."""
        if name != "values":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        values = pinned_rows(self.held.device, *self.held.shape)
        if values.is_pinned():
            values.copy_(self.held, non_blocking=True)
            torch.cuda.synchronize(self.held.device)
        else:
            for row, own in zip(values, self.held, strict=True):
                row.copy_(own)
        object.__setattr__(self, "values", values)
        return values

    @property
    def held(self) -> Tensor:
        """The rows on the accelerator, (m, p)."""
        held: Tensor = self._held
        return held

    def at(self, rows: Tensor) -> Rows:
        """Some of the rows, by a bool (m,) or by positions."""
        places = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        if torch.equal(places, torch.arange(len(self.clients))):
            return self
        if "values" in vars(self):
            return Rows(self.clients, self.values).at(places)
        return DeviceRows(self.clients[places], self.held[places.to(self.held.device)])
