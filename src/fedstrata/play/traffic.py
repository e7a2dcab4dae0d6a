"""Bytes that a round would send, derived from its plan."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedstrata.core import Layout, Mask, Plan, Report
from fedstrata.uploads.compression import Compression

_FLOAT_BYTES = 4
"""Bytes of a float32, and of the index that names the chosen one of several models."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of the tensors that travel, without headers.

    Attributes:
        down: The parameters to the whole cohort, absent clients included.
        up: The parameters from the clients that answered, what they chose, the losses of models that they only
            compared, and the statistics that were asked for.
        buffers: The statistics of normalisation layers, both ways.
    """

    down: int
    up: int
    buffers: int


def traffic(
    layout: Layout,
    plan: Plan,
    report: Report,
    stored: Callable[[int], Collection[int]] | None = None,
    compression: Compression | None = None,
) -> Traffic:
    """Count what a plan sends down and what came back for it; a rejected row was sent and counts.

    Args:
        layout: The tensors of the network.
        plan: The plan for the whole cohort.
        report: The report of the clients that answered.
        stored: Returns the tensors that the device of a client had before the round; by default all that the plan
            loads from it. A tensor that is not there yet is received, as the first head of FedPer is.
        compression: How clients compress their updates; None where they do not.
    """
    down = 0
    up = 0
    buffers = 0
    for row, client in enumerate(plan.cohort.tolist()):
        own = None if stored is None else stored(client)
        needed: dict[int, Mask] = {}
        for task in plan.tasks.values():
            for candidate in task.candidates[row].tolist():
                kept = enumerate(task.load_local)
                received = tuple(not keep or (own is not None and tensor not in own) for tensor, keep in kept)
                before = needed.get(candidate, layout.nothing)
                needed[candidate] = tuple(a or b for a, b in zip(before, received, strict=True))
        for candidate, mask in needed.items():
            if candidate >= 0:
                parameters, statistics = _bytes(layout, mask)
                down += parameters
                buffers += statistics
    for name, result in report.results.items():
        task = plan.tasks[name]
        parameters, statistics = _bytes(layout, task.upload)
        if compression is not None:
            parameters = compression.parameter_bytes(task)
        known = ~result.losses.isnan()
        # A client that trains one of several models sends its choice; where nothing is trained, it sends all losses.
        numbers = known.any(dim=1) if any(task.trainable) else known
        up += parameters * len(result.sizes) + _FLOAT_BYTES * int(numbers.sum())
        buffers += statistics * len(result.sizes)
    up += sum(_FLOAT_BYTES * rows.values.numel() for rows in report.client_stats.values())
    return Traffic(down, up, buffers)


def _bytes(layout: Layout, mask: Mask) -> tuple[int, int]:
    """Bytes of the parameters and of the buffers of a mask."""
    sizes = {True: 0, False: 0}
    for slot, span, sent in zip(layout.tensors, layout.spans, mask, strict=True):
        sizes[slot.kind == "buffer"] += _FLOAT_BYTES * (span.stop - span.start) * sent
    return sizes[False], sizes[True]
