"""Sums over the columns of several views (layers, and all layers together) from one pass over the rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import TypeAlias

from fedstrata.clustering.arrays import WIDTH, Array, blocks, require_rows, tensor
from fedstrata.lazy_torch import torch

Views: TypeAlias = "Collection[Array]"
"""The columns of each view, (q,) int64; views may overlap, and a column that is named twice in one counts once."""

Measure: TypeAlias = "Callable[[torch.Tensor, bool], torch.Tensor]"
"""What a block of columns (m, w) float64 adds to a sum, and whether it belongs to few columns: at most ``WIDTH``."""


def summed(rows: Array, views: Views | None, *measures: Measure) -> list[torch.Tensor]:
    """Sums of some measures over the columns of every view; columns that views share are measured once.

    Args:
        rows: (m, p).
        views: what is looked at; None is all columns as the only view.
        measures: each of them additive over columns.

    Returns:
        Of each measure (v, ...), or (...) without views.

    Raises:
        ValueError: when the rows are no matrix, or a view names a column that there is not.
    """
    require_rows(rows)
    parts = [([slice(0, rows.shape[1])], [0])] if views is None else _parts(views, rows.shape[1])
    nothing = tensor(rows[:, :0]).double()
    zeros = [measure(nothing, False) for measure in measures]
    totals = [zero.new_zeros(1 if views is None else len(views), *zero.shape) for zero in zeros]
    for spans, members in parts:
        few = sum(span.stop - span.start for span in spans) <= WIDTH
        sums = [zero.clone() for zero in zeros]
        for span in spans:
            for block in blocks(rows, span.start, span.stop):
                for total, measure in zip(sums, measures, strict=True):
                    total += measure(block, few)
        for each, total in zip(totals, sums, strict=True):
            each[members] += total
    return [total[0] for total in totals] if views is None else totals


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
    """Where a view begins and where it ends, in turn, ascending."""
    index = tensor(columns).long().cpu()
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < p:
        raise ValueError(f"expected columns in 0..{p - 1}, found {int(index.min())} to {int(index.max())}")
    inside = torch.zeros(p + 2, dtype=torch.bool)  # with a column on either side that belongs to nobody
    inside[index + 1] = True
    edges: list[int] = (inside[1:] != inside[:-1]).nonzero().flatten().tolist()
    return edges
