"""Compression of the updates that clients send: what travels, and what the server makes of it.

A client compresses what it is about to send, and the server has nothing else of it: clusters and models follow from the
decompressed update. Everything here is a function of the update, the seed and what the client left out before, so that
simulated clients and real devices send the same bits.

- ``bfloat16``: each number rounded to the nearest one of 16 bits, ties to even.
- ``int8``: stochastic quantisation, QSGD: Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization
  and encoding", NeurIPS 2017. As in their experiments, the scale of a tensor is its largest absolute value.
- ``top_k``: the k numbers of the largest absolute value, with error feedback: Stich, Cordonnier, Jaggi, "Sparsified SGD
  with memory", NeurIPS 2018, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal, Protocol, TypeAlias

from fedstrata.base.errors import InputError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core import TRAIN, Layout, LocalTask, Mask, Plan, Report, Result, Rows, empty_rows

CompressionKind = Literal["none", "bfloat16", "int8", "top_k"]

Packed: TypeAlias = "Mapping[str, torch.Tensor]"
"""A compressed update as it travels: some arrays by name."""

Form = tuple[tuple[int, ...], str]
"""The shape of an array, and the name of its type."""

_LEVELS = 127
"""The number of levels of either sign in 8 bits (s of QSGD)."""

_ITEM_BYTES = {"float32": 4, "int32": 4, "int16": 2, "int8": 1}


class Remainders(Protocol):
    """What clients keep to themselves: what was left out of their updates so far."""

    def residual(self, client: int, before: int) -> torch.Tensor | None:
        """What was left out of the updates of a client before a round, (p,); None where nothing was."""

    def write_residual(self, client: int, round: int, values: torch.Tensor) -> None:
        """Keep what was left out of the updates of a client up to a round, (p,)."""


@dataclass(frozen=True)
class Compression:
    """What clients do with their updates before they send them.

    Running statistics and tensors that are sent as values travel as they are.

    Attributes:
        layout: The tensors of the network.
        kind: The form of an update.
        share: The share of the numbers of an update that ``top_k`` sends, rounded up (k/d).
        seed: The seed of the run.
    """

    layout: Layout
    kind: CompressionKind
    share: float
    seed: int

    def mask(self, task: LocalTask) -> Mask:
        """The tensors whose updates a task compresses, (l,)."""
        as_values = task.upload_values or self.layout.nothing
        parts = zip(self.layout.tensors, task.upload, as_values, strict=True)
        return tuple(sent and not value and spec.kind != "buffer" for spec, sent, value in parts)

    def plain(self, task: LocalTask) -> Mask:
        """The tensors that a task uploads as they are, (l,)."""
        return tuple(sent and not small for sent, small in zip(task.upload, self.mask(task), strict=True))

    def forms(self, task: LocalTask) -> dict[str, Form]:
        """The arrays of a compressed update of a task, by name; none where it compresses nothing."""
        widths = self._widths(task)
        count = sum(widths)
        if not count:
            return {}
        if self.kind == "bfloat16":
            return {"halves": ((count,), "int16")}
        if self.kind == "int8":
            return {"levels": ((count,), "int8"), "scales": ((len(widths),), "float32")}
        sent = self._sent(count)
        return {"indices": ((sent,), "int32"), "values": ((sent,), "float32")}

    def parameter_bytes(self, task: LocalTask) -> int:
        """The bytes of the parameters of one update of a task, without running statistics."""
        packed = sum(int(shape[0]) * _ITEM_BYTES[dtype] for shape, dtype in self.forms(task).values())
        parts = zip(self.layout.tensors, self.layout.spans, self.plain(task), strict=True)
        plain = sum(int(span.stop - span.start) for spec, span, sent in parts if sent and spec.kind != "buffer")
        return packed + _ITEM_BYTES["float32"] * plain

    def packed(self, plan: Plan, name: str, result: Result, store: Remainders) -> Iterator[Packed]:
        """The updates of a result as they travel, row by row; nothing where its task compresses nothing.

        Error feedback is for the updates that move models, those of the task `TRAIN`. What other tasks upload is
        compared, and not summed up from round to round.
        """
        task = plan.tasks[name]
        columns = self.layout.columns(self.mask(task))
        if not len(columns):
            return
        for row, client in enumerate(result.updates.clients.tolist()):
            update = result.updates.values[row, columns]
            if self.kind == "top_k" and name == TRAIN:
                left_out = store.residual(client, before=plan.round)
                update = update if left_out is None else update + left_out[columns]
            if not bool(update.isfinite().all()):
                # No part of it is of use, and what is left out of it would spoil all that follows.
                yield self._pack(torch.full_like(update, torch.nan), plan, name, client)
                continue
            packed = self._pack(update, plan, name, client)
            if self.kind == "top_k" and name == TRAIN:
                rest = torch.zeros(self.layout.p)
                rest[columns] = update - self.unpack(task, packed)
                store.write_residual(client, plan.round, rest)
            yield packed

    def unpack(self, task: LocalTask, packed: Packed) -> torch.Tensor:
        """The update that arrives, in the columns of `mask`, (d,)."""
        widths = torch.tensor(self._widths(task))
        if self.kind == "bfloat16":
            return packed["halves"].view(torch.bfloat16).float()
        if self.kind == "int8":
            scales = packed["scales"].double().repeat_interleave(widths)
            return (packed["levels"].double() * scales / _LEVELS).float()
        update = torch.zeros(int(widths.sum()))
        update[packed["indices"].long()] = packed["values"]
        return update

    def check(self, task: LocalTask, packed: Packed) -> None:
        """Refuse arrays, of the right forms, that no client would send.

        Raises:
            InputError: For the first of them.
        """
        if self.kind == "int8" and bool((packed["scales"] < 0).any() | (packed["levels"] < -_LEVELS).any()):
            raise InputError(f"expected scales of at least 0 and levels of -{_LEVELS} to {_LEVELS}, found others")
        if self.kind == "top_k":
            indices = packed["indices"]
            count = sum(self._widths(task))
            if int(indices[0]) < 0 or int(indices[-1]) >= count or bool((indices.diff() <= 0).any()):
                raise InputError(f"expected ascending indices of 0 to {count - 1}, found others")

    def _pack(self, update: torch.Tensor, plan: Plan, name: str, client: int) -> Packed:
        if self.kind == "bfloat16":
            return {"halves": update.to(torch.bfloat16).view(torch.int16)}
        if self.kind == "int8":
            draw = generator(self.seed, f"compression {name}", plan.round, client)
            return _quantised(update, self._widths(plan.tasks[name]), draw)
        return _largest(update, self._sent(len(update)))

    def _widths(self, task: LocalTask) -> list[int]:
        """The number of columns of each tensor that a task compresses."""
        parts = zip(self.layout.spans, self.mask(task), strict=True)
        return [span.stop - span.start for span, small in parts if small]

    def _sent(self, count: int) -> int:
        """How many of so many numbers are sent (k): at least one."""
        # 0.07 of 100 is 7.000000000000001 by floating point.
        return max(1, ceil(round(self.share * count, 9)))


@dataclass(frozen=True)
class CompressedUploads:
    """A step in which clients compress their updates, and the server decompresses them.

    Attributes:
        compression: How.
        store: What these clients keep to themselves.
    """

    compression: Compression
    store: Remainders

    def of_report(self, plan: Plan, report: Report) -> Report:
        """A report as the server has it, with every update decompressed."""
        return report.with_results(partial(self._of_result, plan))

    def _of_result(self, plan: Plan, name: str, result: Result) -> Result:
        task = plan.tasks[name]
        compression = self.compression
        mask = compression.mask(task)
        if not any(mask):
            return result
        columns = compression.layout.columns(mask)
        values = empty_rows(*result.updates.values.shape)
        values.copy_(result.updates.values)
        for row, packed in enumerate(compression.packed(plan, name, result, self.store)):
            values[row, columns] = compression.unpack(task, packed)
        return replace(result, updates=Rows(result.updates.clients, values))


def _quantised(update: torch.Tensor, widths: list[int], draw: torch.Generator) -> Packed:
    """An update (d,) in levels of the largest number of each tensor, rounded at random to the level below or above.

    The expected value of a rounded number is the number (QSGD, Lemma 3.1).
    """
    scales = torch.stack([part.abs().max() for part in update.split(widths)])
    scale = scales.double().repeat_interleave(torch.tensor(widths))
    shares = torch.where(scale > 0, update.double().abs() / scale, 0.0)
    up = torch.rand(len(update), generator=draw, dtype=torch.float64)
    # A number that is as large as the scale has no level above it.
    levels = (shares * _LEVELS + up).floor().clamp(max=_LEVELS).nan_to_num(0.0) * update.sign().nan_to_num(0.0)
    return {"levels": levels.to(torch.int8), "scales": scales}


def _largest(update: torch.Tensor, count: int) -> Packed:
    """The numbers of the largest absolute value of an update (d,), the first ones of equal numbers."""
    sizes = update.abs().nan_to_num(torch.inf)
    least = sizes.topk(count).values[-1]
    chosen = sizes > least
    equal = (sizes == least).nonzero().flatten()
    chosen[equal[: count - int(chosen.sum())]] = True
    indices = chosen.nonzero().flatten()
    return {"indices": indices.int(), "values": update[indices]}
