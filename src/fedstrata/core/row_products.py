"""Norms and inner products of rows, from float32 sums over blocks of columns that are added up in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.rows import Rows, fits

_FEW_ROWS = 32
"""Of so many rows, the inner product of each two is computed: of more, there are too many products."""

_SHORT_ROWS = 2**17
"""Of few rows with up to so many columns, norms are those of the products: reading the rows takes most of the time, and
whoever asks for both has them at once. Of longer rows, the products take twice as long as norms."""

_NORM_COLUMNS = 4096
"""So many columns of a norm are summed in float32, which loses no digit that matters."""

_PRODUCT_COLUMNS = 2**15
"""So many columns of products are summed in float32: torch adds up small parts of them, and about six digits are right.

Smaller blocks take longer.
"""

_LEAST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e36
"""Squared norms between these are summed in float32, which holds the squares of all numbers that matter in them."""


def column_ranges(layout: Layout, mask: Mask) -> tuple[slice, ...]:
    """The columns of the tensors of a mask, ascending; neighbouring tensors are one slice."""
    found: list[slice] = []
    for span, chosen in zip(layout.spans, mask, strict=True):
        if not chosen:
            continue
        if found and found[-1].stop == span.start:
            found[-1] = slice(found[-1].start, span.stop)
        else:
            found.append(span)
    return tuple(found)


def compared_ranges(layout: Layout) -> tuple[slice, ...]:
    """The columns of all conv and linear tensors, as `column_ranges`."""
    return column_ranges(layout, layout.select("all"))


def norms_of(rows: Rows, spans: Sequence[slice]) -> NDArray[np.float64]:
    """The norm of some columns of every row, (m,); not finite if a number in them is not.

    They are computed once, however often they are asked for. Not to be written to.
    """
    key = ("norms", *((span.start, span.stop) for span in spans))
    if key not in rows.computed:
        values = rows.on_device
        short = values.device.type == "cpu" and values.shape[1] <= _SHORT_ROWS
        products = products_of(rows, spans) if short else None
        squares = None if products is None else products.diagonal()
        rows.computed[key] = row_norms(values, spans) if squares is None else norms_of_squares(squares, values, spans)
    norms: NDArray[np.float64] = rows.computed[key]
    return norms


def products_of(rows: Rows, spans: Sequence[slice]) -> NDArray[np.float64] | None:
    """The inner product of some columns of each two rows, (m, m); None where there are many rows, or long ones.

    They too are computed once, to the same bits in any order of the rows. Not to be written to.
    """
    values = rows.on_device
    if len(values) > _FEW_ROWS or not fits(*values.shape):
        return None
    key = ("products", *((span.start, span.stop) for span in spans))
    if key not in rows.computed:
        # In the order of the clients, as the last bits of a product may depend on the places of its rows.
        order = rows.clients.numpy().argsort()
        in_order = bool((order == np.arange(len(order))).all())
        ordered = values if in_order else values[torch.from_numpy(order).to(values.device)]
        products = np.empty((len(order), len(order)))
        products[np.ix_(order, order)] = row_products(ordered, spans)
        rows.computed[key] = products
    found: NDArray[np.float64] = rows.computed[key]
    return found


def row_norms(values: torch.Tensor, spans: Sequence[slice]) -> NDArray[np.float64]:
    """The norm of some columns of every row (m, p), (m,); not finite if a number in them is not."""
    squares = torch.zeros(len(values), dtype=torch.float64, device=values.device)
    for span in spans:
        squares += _squared_norms(values[:, span])
    return norms_of_squares(squares.cpu().numpy(), values, spans)


def row_products(values: torch.Tensor, spans: Sequence[slice]) -> NDArray[np.float64]:
    """The inner product of some columns of each two rows (m, p), (m, m).

    The last bits of a product may depend on the places of its rows, by the kernels of the processor.
    """
    by_block = [block @ block.T for block in _blocks(values, spans)]
    if not by_block:
        return np.zeros((len(values), len(values)))
    products = by_block[0].double()
    for more in by_block[1:]:
        products += more
    found: NDArray[np.float64] = products.cpu().numpy()
    return found


def norms_of_squares(squares: NDArray[np.float64], values: torch.Tensor, spans: Sequence[slice]) -> NDArray[np.float64]:
    """The norms of rows, (m,), from sums of squares; from exact ones where the squares may be no float32 numbers.

    Args:
        squares: The squared norm of some columns of each row, summed in float32, (m,).
        values: The rows, (m, p).
        spans: These columns.
    """
    norms: NDArray[np.float64] = np.sqrt(squares)
    summed = (squares >= _LEAST_SQUARE) & (squares <= _LARGEST_SQUARE)
    for row in np.flatnonzero(~summed):
        norms[row] = _exact_norm(values[row].cpu().numpy(), spans)
    return norms


def _squared_norms(values: torch.Tensor) -> torch.Tensor:
    """The squared norm of each row (m, c), (m,) float64."""
    # Not block by block: rows may lie in a file, and are read one after the other.
    blocks = values.shape[1] // _NORM_COLUMNS
    columns = blocks * _NORM_COLUMNS
    found: torch.Tensor = torch.linalg.vector_norm(values[:, columns:], dim=1).double().square()
    if blocks:
        whole = values[:, :columns].view(len(values), blocks, _NORM_COLUMNS)
        found += torch.linalg.vector_norm(whole, dim=2).double().square().sum(dim=1)
    return found


def _blocks(values: torch.Tensor, spans: Sequence[slice]) -> Iterator[torch.Tensor]:
    """Some columns of all rows (m, p), a block after the other, (m, c) each."""
    for span in spans:
        for start in range(span.start, span.stop, _PRODUCT_COLUMNS):
            yield values[:, start : min(start + _PRODUCT_COLUMNS, span.stop)]


def _exact_norm(row: NDArray[np.float32], spans: Sequence[slice]) -> float:
    """The norm of some columns of a row (p,), from float64 sums, which takes several times as long."""
    # einsum converts to float64 in a small buffer: no copy of a row, which may be long.
    return math.sqrt(sum(float(np.einsum("j,j->", row[span], row[span], dtype=np.float64)) for span in spans))
