"""How alike rows are: cosines, l2 and l1 distances and Jensen-Shannon divergences of every pair; and stability."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import BLOCK_COLUMNS, Array, blocks, require_finite, require_rows, tensor

STILL = 1e-12
"""A row of at most this norm did not move: its direction is rounding, so it is similar to nobody."""

BlockMeasure: TypeAlias = "Callable[[torch.Tensor, bool], torch.Tensor]"
"""What a block of columns (m, w) float64 adds to a sum. The bool says whether all columns fit into one block."""

Sums: TypeAlias = "Callable[..., list[torch.Tensor]]"
"""How measures of rows are summed: over all columns by `over_columns`, or over those of each view by `in_views`."""

_TILE_ROWS = 128
"""The number of rows that are multiplied with as many others at a time. Tiles below the diagonal are left out."""

_SLICE_BITS = 20
"""The bits of one slice of a number. The products of 4096 slices add up to at most 52 bits, which float64 holds."""

_SLICES_OF_A_ROW = 3
"""The number of slices of a row. They reach 60 bits below its largest number, further than float64 does."""


def over_columns(rows: Array, *measures: BlockMeasure, spans: Sequence[slice] | None = None) -> list[torch.Tensor]:
    """Sums of some measures over the columns of rows (m, p), a block of columns at a time.

    Args:
        rows: The rows, (m, p).
        measures: The measures. Each is additive over columns.
        spans: The columns; None is all of them.

    Returns:
        The sum of each measure.
    """
    require_rows(rows)
    spans = [slice(0, rows.shape[1])] if spans is None else spans
    few = sum(span.stop - span.start for span in spans) <= BLOCK_COLUMNS
    sums = [measure(tensor(rows[:, :0]).double(), False) for measure in measures]
    for span in spans:
        for block in blocks(rows, span.start, span.stop):
            for total, measure in zip(sums, measures, strict=True):
                total += measure(block, few)
    return sums


def cosine(rows: Array, sums: Sums = over_columns) -> torch.Tensor:
    """Cosine similarity of every pair of rows, of all columns or of several views of them in one pass.

    A row of norm at most 1e-12 is similar to nobody (0). Everything is summed in float64, for products in float32 of
    rows that were normalised first err by 2e-6 on equal numbers.

    Up to 4096 columns, the cosine of two rows has the same bits whatever other rows stand beside them, in whatever
    order. Wider rows are multiplied as matrices, which is faster; a matrix product rounds by its shape, so there
    other rows may change a cosine, by less than 1e-10.

    Args:
        rows: The rows, (m, p), of any floating or integer type.
        sums: Over which columns: all of them, or those of each view, ``in_views(views)``.

    Returns:
        (m, m) float64, exactly symmetric, in [-1, 1], the diagonal exactly 1; with views (v, m, m).

    Raises:
        ValueError: When the rows are no matrix, the norm of one is not finite, or a view names no column.
    """
    square, inner = sums(rows, squares, products)
    lengths = _lengths(square)
    similarity = _symmetric(inner / (lengths[..., :, None] * lengths[..., None, :])).clamp_(-1.0, 1.0)
    similarity.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return similarity


def cosine_of(rows: Array, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Cosine of chosen pairs of rows, in float64 throughout.

    Args:
        rows: The rows, (m, p).
        left: The first row of each pair, (pairs,) int64.
        right: The second row of each pair, (pairs,) int64.

    Returns:
        (pairs,) float64 in [-1, 1]; 0 where a row did not move.
    """
    lengths = _lengths(over_columns(rows, squares)[0])
    total = lengths.new_zeros(len(left))
    for block in blocks(rows):
        total += (block[left] * block[right]).sum(dim=1)
    return (total / (lengths[left] * lengths[right])).clamp(-1.0, 1.0)


def stability(updates: Array) -> torch.Tensor:
    """How unsteadily one client's updates turn; the smaller, the more stable.

    S_t = |(T_t + T_(t-1)) / 2 - T_(t-2~t)|, where T_t is the cosine of updates t - 1 and t, and T_(t-2~t) that of
    updates t - 2 and t. (Eq. 16, the same written out, lacks the 1/2.) An update of norm at most 1e-12 has
    cosine 0.

    Args:
        updates: The updates of one client in the order of rounds, (t, p).

    Returns:
        S of the third round and later, (t - 2,) float64 in [0, 2]; empty for fewer than three rounds.

    Raises:
        ValueError: When the updates are no matrix, or the norm of one is not finite.
    """
    rounds = torch.arange(len(updates))
    turns = cosine_of(updates, rounds[:-1], rounds[1:])
    across = cosine_of(updates, rounds[:-2], rounds[2:])
    return ((turns[1:] + turns[:-1]) / 2 - across).abs()  # Eq. 14


def euclidean(rows: Array, sums: Sums = over_columns) -> torch.Tensor:
    """Euclidean distance of every pair of rows, by all columns or by several views of them in one pass.

    Differences are taken before they are squared: models of one federation differ by a thousandth of their norm,
    and |a|^2 + |b|^2 - 2ab would lose those digits. So ``euclidean(base + updates)`` is ``euclidean(updates)`` up
    to the rounding of the sum itself, and a distance has the same bits whatever other rows stand beside it.

    Args:
        rows: The rows, (m, p), of any floating or integer type.
        sums: Over which columns, as in `cosine`.

    Returns:
        (m, m) float64, exactly symmetric, at least 0, the diagonal 0; with views (v, m, m).

    Raises:
        ValueError: When the rows are no matrix, the norm of one is not finite, or a view names no column.
    """
    square, apart = sums(rows, squares, lambda block, _: torch.nn.functional.pdist(block).square())
    _lengths(square)
    return _matrix(apart.sqrt(), len(rows))


def manhattan(rows: Array, sums: Sums = over_columns) -> torch.Tensor:
    """Manhattan (l1) distance of every pair of rows; everything else is as in `euclidean`.

    Args:
        rows: The rows, (m, p), of any floating or integer type.
        sums: Over which columns, as in `cosine`.

    Returns:
        (m, m) float64, exactly symmetric, at least 0, the diagonal 0; with views (v, m, m).
    """
    square, apart = sums(rows, squares, lambda block, _: torch.nn.functional.pdist(block, p=1))
    _lengths(square)
    return _matrix(apart, len(rows))


def norms(rows: Array, sums: Sums = over_columns) -> torch.Tensor:
    """Euclidean norm of every row, over all columns or those of several views.

    Args:
        rows: The rows, (m, p), of any floating or integer type.
        sums: Over which columns, as in `cosine`.

    Returns:
        (m,) float64; with views (v, m).
    """
    return sums(rows, squares)[0].sqrt()


def jensen_shannon(probabilities: Array) -> torch.Tensor:
    """Jensen-Shannon divergence of every pair of clients, the mean over a batch of predictions, in nats.

    FedTSDP Eq. 5: JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 with natural logarithms; no square root.

    Args:
        probabilities: The probabilities by client, sample and class, (m, b, c). They sum to 1 over the classes.

    Returns:
        (m, m) float64, exactly symmetric, in [0, ln 2], the diagonal 0.

    Raises:
        ValueError: When there is no sample, or some (c,) is no distribution.
    """
    shares = tensor(probabilities).double()
    if shares.ndim != 3 or 0 in shares.shape[1:]:
        raise ValueError(f"expected probabilities of shape (m, b, c), found {tuple(shares.shape)}")
    require_finite(shares, "probabilities")
    if (shares < 0).any() or ((shares.sum(dim=2) - 1).abs() > 1e-3).any():
        raise ValueError("expected probabilities that sum to 1 over the classes; take the softmax of logits first")
    entropies = torch.special.entr(shares).flatten(1).sum(dim=1)

    mixed = shares.new_zeros(len(shares), len(shares))
    for row in range(len(shares) - 1):
        halves = torch.special.entr((shares[row] + shares[row + 1 :]) / 2)
        mixed[row, row + 1 :] = halves.flatten(1).sum(dim=1)
    total = mixed - (entropies[:, None] + entropies) / 2
    return (_symmetric(total) / shares.shape[1]).clamp(0.0, math.log(2))


def _lengths(square: torch.Tensor) -> torch.Tensor:
    """Norms (..., m) from squared norms. They are infinite where a row did not move: anything divided by them is 0."""
    lengths = require_finite(square.sqrt().movedim(-1, 0), "norms").movedim(0, -1)
    return lengths.where(lengths > STILL, torch.inf)


def _matrix(pairs: torch.Tensor, m: int) -> torch.Tensor:
    """The matrices (..., m, m) whose upper triangles hold the values of pairs (..., m (m - 1) / 2), the diagonal 0."""
    left, right = torch.triu_indices(m, m, offset=1, device=pairs.device)
    total = pairs.new_zeros(*pairs.shape[:-1], m, m)
    total[..., left, right] = pairs
    return _symmetric(total)


def _symmetric(total: torch.Tensor) -> torch.Tensor:
    """The upper triangle of (..., m, m) and its mirror image, the diagonal 0."""
    upper = total.triu(1)
    return upper + upper.mT


Views: TypeAlias = "Collection[Array]"
"""The columns of each view, (q,) int64; views may overlap, and a column that is named twice in one counts once."""


def in_views(views: Views) -> Sums:
    """Sums over the columns of each view; columns that views share are measured once.

    Args:
        views: The columns of each view, such as those of every layer. Views may overlap.

    Returns:
        What takes the place of `over_columns`. Its sums are (v, ...). It raises ValueError where a view names a column
        that there is not.
    """

    def sums(rows: Array, *measures: BlockMeasure) -> list[torch.Tensor]:
        zeros = over_columns(rows, *measures, spans=())
        totals = [zero.new_zeros(len(views), *zero.shape) for zero in zeros]
        for spans, members in _parts(views, rows.shape[1]):
            for each, total in zip(totals, over_columns(rows, *measures, spans=spans), strict=True):
                each[members] += total
        return totals

    return sums


def without_mean(sums: Sums) -> Sums:
    """The same sums over rows without the mean of all rows, which is taken away a block of columns at a time."""

    def around_mean(measure: BlockMeasure) -> BlockMeasure:
        return lambda block, few: measure(block - block.mean(dim=0), few)

    return lambda rows, *measures: sums(rows, *map(around_mean, measures))


def _parts(views: Views, p: int) -> list[tuple[list[slice], list[int]]]:
    """The columns cut up so that each part lies wholly inside or outside every view: its spans, and whose it is."""
    edges = [_edges(columns, p) for columns in views]
    parts: dict[tuple[int, ...], list[slice]] = {}
    for start, stop in pairwise(sorted(set().union(*edges))):
        members = tuple(view for view, own in enumerate(edges) if bisect_right(own, start) % 2)
        if members:
            parts.setdefault(members, []).append(slice(start, stop))
    return [(spans, list(members)) for members, spans in parts.items()]


def _edges(columns: Array, p: int) -> list[int]:
    """The columns where a view begins and ends, in turn, ascending."""
    index = tensor(columns).long().cpu()
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < p:
        raise ValueError(f"expected columns in 0..{p - 1}, found {int(index.min())} to {int(index.max())}")
    inside = torch.zeros(p + 2, dtype=torch.bool)  # with a column on either side that belongs to nobody
    inside[index + 1] = True
    edges: list[int] = (inside[1:] != inside[:-1]).nonzero().flatten().tolist()
    return edges


def products(block: torch.Tensor, few: bool) -> torch.Tensor:
    """Inner products of rows over a block of columns.

    A matrix product rounds in an order that depends on its shape. So a tile of the result is multiplied by itself,
    and has the same bits as long as its own rows are the same and in the same place.

    Args:
        block: The block, (m, w) float64.
        few: Whether the result has the same bits whatever other rows there are, in any order, with any number of
            threads. That takes six times as long and works for at most 4096 columns.

    Returns:
        (m, m) float64, of which only the upper triangle is to be read.
    """
    factors = _exact_factors(block) if few else [(block, block)]
    total = block.new_zeros(len(block), len(block))
    tiles = [slice(start, start + _TILE_ROWS) for start in range(0, len(block), _TILE_ROWS)]
    for row, above in enumerate(tiles):
        for beside in tiles[row:]:
            for left, right in factors:
                total[above, beside] += left[above] @ right[beside].T
    return total


def squares(block: torch.Tensor, few: bool) -> torch.Tensor:
    """Squared norms of rows over a block of columns (m, w), (m,)."""
    return block.square().sum(dim=1)


def _exact_factors(block: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of matrices whose products, small ones first, add up to those of the rows (m, w), and round nowhere else.

    Ozaki et al., "Error-free transformations of matrix multiplication", 2012. Each number is a sum of slices, of so few
    bits that sums of their products are exact. Added to a number whose last bit is the last one wanted, a number is
    rounded there.
    """
    largest = block.abs().amax(dim=1, keepdim=True)
    power = torch.where(largest > 0, largest / torch.frexp(largest).mantissa, 1.0)  # of 2, above the largest number
    last = 1.5 * 2.0 ** (52 - _SLICE_BITS) * power
    slices = []
    for _ in range(_SLICES_OF_A_ROW):
        part = (block + last) - last
        slices.append(part)
        block = block - part
        last = last / 2**_SLICE_BITS
    counts = range(_SLICES_OF_A_ROW, 0, -1)
    return [(torch.cat(slices[:count], dim=1), torch.cat(slices[count - 1 :: -1], dim=1)) for count in counts]
