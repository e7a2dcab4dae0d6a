"""Inner products of rows, from blocks of their columns."""

from __future__ import annotations

from fedstrata.lazy_torch import torch

TILE = 128
"""Rows that are multiplied with as many others at a time; products below the diagonal are left out."""

BITS = 20
"""Bits of one slice of a number: the products of 4096 of them add up to at most 52 bits, which float64 holds."""

SLICES = 3
"""Slices of a row, 60 bits below the largest of its numbers: more than float64 keeps of it."""


def products(block: torch.Tensor, few: bool, changed: torch.Tensor | None = None) -> torch.Tensor:
    """Inner products of rows over a block of columns.

    A matrix product rounds in an order that depends on its shape. So a tile of the result is multiplied by itself,
    and has the same bits as long as its own rows are the same and in the same place.

    Args:
        block: (m, w) float64.
        few: whether to have the same bits whatever other rows there are, in whatever order, with any number of
            threads; takes six times as long, and at most 4096 columns.
        changed: rows whose products are wanted, bool (m,); by default all.

    Returns:
        (m, m) float64, only the upper triangle to be read; 0 in tiles without a row that changed.
    """
    total = block.new_zeros(len(block), len(block))
    parts = _slices(block) if few else [block]
    tiles = [slice(start, start + TILE) for start in range(0, len(block), TILE)]
    fresh = [changed is None or bool(changed[tile].any()) for tile in tiles]
    for row, above in enumerate(tiles):
        for column, beside in enumerate(tiles[row:], start=row):
            if fresh[row] or fresh[column]:
                total[above, beside] = _product([part[above] for part in parts], [part[beside] for part in parts])
    return total


def squares(block: torch.Tensor, few: bool) -> torch.Tensor:
    """Squared norms of rows over a block of columns (m, w), (m,)."""
    return block.square().sum(dim=1)


def _product(ones: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
    """Products of rows that are sums of slices, small ones first; those of one order are summed without rounding."""
    total = ones[0].new_zeros(len(ones[0]), len(others[0]))
    for order in reversed(range(len(ones))):
        exact = ones[0] @ others[order].T
        for one in range(1, order + 1):
            exact += ones[one] @ others[order - one].T
        total += exact
    return total


def _slices(block: torch.Tensor) -> list[torch.Tensor]:
    """Numbers (m, w) as sums of slices, each of so few bits that a matrix product of two of them is exact.

    Ozaki et al., "Error-free transformations of matrix multiplication", 2012. Added to a number whose last bit is the
    last one wanted, a number is rounded there.
    """
    largest = block.abs().amax(dim=1, keepdim=True)
    power = torch.where(largest > 0, largest / torch.frexp(largest).mantissa, 1.0)  # of 2, above the largest number
    last = 1.5 * 2.0 ** (52 - BITS) * power
    slices = []
    for _ in range(SLICES):
        part = (block + last) - last
        slices.append(part)
        block, last = block - part, last / 2**BITS
    return slices
