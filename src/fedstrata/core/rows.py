"""Rows of all clients in one matrix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np

from fedstrata.base.errors import ContractError, ResourceError
from fedstrata.base.lazy_torch import torch

IN_MEMORY = 2**30
"""The bytes of rows that are held in memory. More than 1 GB lies in a temporary file that is mapped into memory."""


def empty_rows(m: int, p: int, device: str = "cpu") -> torch.Tensor:
    """Room for rows (m, p) float32, to be written: in memory, or mapped to a file when it would not fit.

    The file has no name and lies in the folder for temporary files (``TMPDIR``, which should be on a disk). It is gone
    with the tensor or with the process. The system writes out and drops its pages, so they count as no process's own
    memory. Memory for what a ``"cuda"`` device computes is pinned: the system cannot move it to a disk.

    Raises:
        ResourceError: When the disk has no room for it.
    """
    if fits(m, p):
        return torch.empty(m, p, pin_memory=device == "cuda")
    with TemporaryFile() as file:
        # Without this, a full disk would end the process at some later write, without a word.
        reserve(file.fileno(), 4 * m * p, f"rows of {m} clients")
        return torch.from_numpy(np.memmap(file, dtype=np.float32, mode="w+", shape=(m, p)))


def unsent_rows(m: int, p: int) -> torch.Tensor:
    """Rows (m, p) of clients that send nothing: zeros, which take no memory and cannot be written to."""
    return torch.zeros(1, 1).expand(m, p)


def are_unsent(values: torch.Tensor) -> bool:
    """Whether rows (m, p) are those of clients that send nothing, from `unsent_rows`: a single stored zero."""
    is_one_number = values.numel() > 1 and values.untyped_storage().nbytes() == values.element_size()
    return is_one_number and not values[0, 0].item()


def reserve(file: int, size: int, what: str) -> None:
    """Take `size` bytes on the disk, at least 1, for an empty temporary file, in which lies `what`.

    Raises:
        ResourceError: When there is no room for them.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            raise ResourceError(
                f"expected {size / 1e9:.1f} GB free in {gettempdir()} for {what}, found: {error.strerror}; "
                "free some, or set TMPDIR to a folder on another disk"
            ) from error


@dataclass(frozen=True)
class Rows:
    """One row per client, looked up by client id and never by position.

    Attributes:
        clients: The client of each row, (m,) int64. No id is there twice.
        on_device: The rows, (m, p) float32, on the device that computed them: an accelerator, or the processor. Means
            and norms are computed there.
    """

    clients: torch.Tensor
    on_device: torch.Tensor

    def __post_init__(self) -> None:
        """Refuse rows without an owner and owners with two rows.

        Raises:
            ContractError: When there is not one row for each client.
        """
        ids = self.clients.tolist()
        if len(ids) != len(self.on_device) or len(set(ids)) != len(ids):
            raise ContractError(f"expected one row for each of {ids}, found {len(self.on_device)} rows")

    @cached_property
    def values(self) -> torch.Tensor:
        """The rows in the computer's own memory, (m, p) float32.

        They are copied from an accelerator when somebody reads them. Most rounds need the mean of all updates alone,
        which the accelerator computes in a fraction of the time that the copy takes.
        """
        rows = self.on_device
        m, p = rows.shape
        return rows if rows.device.type == "cpu" else empty_rows(m, p, rows.device.type).copy_(rows)

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """What functions have computed of these rows, such as `row_products.norms`, so that they compute it once."""
        return {}

    def of(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of some clients, (len(ids), p), in the order of `ids`.

        Raises:
            ContractError: When one of them has no row.
        """
        places = {client: row for row, client in enumerate(self.clients.tolist())}
        wanted = ids.tolist()
        if not places.keys() >= set(wanted):
            raise ContractError(f"expected rows of {wanted}, found rows of {self.clients.tolist()}")
        return _picked(self.values, 0, torch.tensor([places[client] for client in wanted], dtype=torch.int64))

    def at(self, rows: torch.Tensor) -> Rows:
        """Some of the rows, by a bool (m,) or by positions."""
        places = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        if torch.equal(places, torch.arange(len(self.clients))):
            return self
        return Rows(self.clients[places], _picked(self.on_device, 0, places))

    def take_columns(self, columns: torch.Tensor) -> Rows:
        """Some of the columns of every row, (m, q), by a bool (p,) or by indices."""
        places = columns.nonzero().flatten() if columns.dtype == torch.bool else columns
        return Rows(self.clients, _picked(self.on_device, 1, places))


def _picked(values: torch.Tensor, axis: int, places: torch.Tensor) -> torch.Tensor:
    """Some rows (axis 0) or columns (axis 1) of rows (m, p), copied; into a file where they would not fit in memory."""
    if axis == 0 and values.stride() == (0, 0):  # A single stored number stays one, as in `unsent_rows`.
        return values[:1].expand(len(places), -1)
    shape = (len(places), values.shape[1]) if axis == 0 else (len(values), len(places))
    if values.device.type != "cpu" or fits(*shape):
        return values.index_select(axis, places.to(values.device))
    return torch.index_select(values, axis, places, out=empty_rows(*shape))


@lru_cache(maxsize=16)
def evenly_spread(p: int, most: int) -> torch.Tensor:
    """Some of p columns, evenly spread, (min(p, most),) int64: enough to tell long rows apart. Not to be written to."""
    return torch.linspace(0, p - 1, min(p, most), dtype=torch.float64).long()


def fits(m: int, p: int) -> bool:
    """Whether rows (m, p) float32 are held in memory."""
    return 4 * m * p <= IN_MEMORY
