"""Local training of many clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.adam import adam

from fedstrata.base.randomness import generator, random_words
from fedstrata.core import LocalTask, LocalTraining, Mask, Plan
from fedstrata.engine.device import products_in, to_device
from fedstrata.engine.loop import training_orders
from fedstrata.engine.optimizer import CLIP_EPSILON
from fedstrata.engine.vectorized.batches import (
    SampleSource,
    arrange,
    chunks,
    epoch_steps,
    full_batches_and_rest,
    read_samples,
)
from fedstrata.engine.vectorized.cuda_graphs import Replay, recorder
from fedstrata.engine.vectorized.network import Network

_MAX_TRAINERS = 4
"""Kinds of tasks whose memory and recordings are kept."""


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One task of one client.

    Attributes:
        plan: The plan of the task.
        task: The task.
        client: The id of the client.
        index: Its samples, (s,).
        start: The model that it starts from, (p,).
        received: The model that it received, (p,).
        finish: The function that takes where training started and where it ended, (p,) each.
    """

    plan: Plan
    task: LocalTask
    client: int
    index: Tensor
    start: Tensor
    received: Tensor
    finish: Callable[[Tensor, Tensor], None]

    @property
    def counted_batch(self) -> int | None:
        """The samples of every step where steps are counted; None where epochs are."""
        training = self.task.training
        return training.samples_per_step(len(self.index)) if training.steps else None

    @property
    def batch(self) -> int:
        """The samples of a full step; 0 is all samples at once."""
        return self.task.training.batch if self.counted_batch is None else self.counted_batch

    @property
    def samples(self) -> int:
        """The samples of an epoch; where steps are counted, all steps are one epoch."""
        training = self.task.training
        return training.samples_seen(len(self.index)) if training.steps else training.samples_per_epoch(len(self.index))

    def orders(self) -> Tensor:
        """The samples in the order of every epoch, (epochs, samples), exactly as in the loop."""
        order = generator(self.plan.seed, self.task.stream, self.plan.round, self.client)
        return torch.stack(list(training_orders(self.index, self.task.training, order)))

    def salts(self, count: int) -> list[int]:
        """The first salt of each of so many dropout layers."""
        if not count:
            return []
        return random_words(count, self.plan.seed, f"dropout {self.task.stream}", self.plan.round, self.client)


@dataclass(frozen=True)
class Stack:
    """The tensors that training reads and changes, with one row for each of g clients.

    Attributes:
        moving: The parameters that move, side by side, (g, q).
        fixed: Every other tensor of the network, buffers included, (g, *shape); then the salts of dropout, (g,).
        anchors: The received values of `moving`, (g, q); (g, 0) without a proximal term.
        moments: The moments of the optimiser, (g, q), and for Adam the number of steps, (g, 1).
    """

    moving: Tensor
    fixed: tuple[Tensor, ...]
    anchors: Tensor
    moments: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return (self.moving, *self.fixed, self.anchors, *self.moments)

    def each(self, change: Callable[[Tensor], Tensor]) -> Stack:
        """The stack with a change made to every tensor."""
        fixed, moments = (tuple(map(change, tensors)) for tensors in (self.fixed, self.moments))
        return Stack(change(self.moving), fixed, change(self.anchors), moments)

    def first(self, g: int) -> Stack:
        """The first clients, in the same memory."""
        return self.each(lambda tensor: tensor[:g])


def train_jobs(trainer: Trainer, source: SampleSource, jobs: Sequence[TrainingJob]) -> None:
    """Train, and finish every job of a task. Those with steps of the same size are trained together."""
    by_batch = dict[int | None, list[TrainingJob]]()
    for job in jobs:
        by_batch.setdefault(job.counted_batch, []).append(job)
    for alike in by_batch.values():
        batch = alike[0].batch
        alike.sort(key=lambda job: full_batches_and_rest(job.samples, batch), reverse=True)
        for chunk in chunks(len(alike), trainer.clients_at_once(source, alike)):
            starts, ends = trainer.run(source, alike[chunk])
            for job, start, end in zip(alike[chunk], starts, ends, strict=True):
                job.finish(start, end)


class Trainers:
    """The trainers of a network, one for each kind of task, of which the last ones are kept.

    Args:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        """Start without any."""
        self.network = network
        self._of = lru_cache(_MAX_TRAINERS)(partial(Trainer, network))

    def of(self, task: LocalTask) -> Trainer:
        """The trainer for a task. Its steps, their size and the proximal weight may change from round to round."""
        kind = replace(task.training, epochs=1, batch=1, steps=0, lr=1.0)
        return self._of(task.trainable, kind, bool(task.prox_weight))


class Trainer:
    """Trains clients that move the same tensors by the same optimiser.

    Args:
        network: The network of the clients.
        trainable: The tensors that move.
        training: The optimiser and its options; the step size and the samples may change.
        proximal: Whether there is a proximal term.
    """

    def __init__(self, network: Network, trainable: Mask, training: LocalTraining, proximal: bool) -> None:
        """Take the tensors apart."""
        slots = network.layout.tensors
        self._network = network
        self._device = network.device
        self._moving = network.moving(trainable)
        self._fixed = [place for place in range(len(slots)) if place not in self._moving]
        self._left = [slots[place].kind == "buffer" and trainable[place] for place in self._fixed]
        self._shapes = [slots[place].shape for place in self._moving]
        self._widths = [prod(shape) for shape in self._shapes]
        self._names = [network.names[place] for place in (*self._moving, *self._fixed)] + network.salts
        self._momentum = 0.0 if training.optimizer != "sgd" else training.momentum
        self._adam = training.optimizer in ("adam", "adamw")
        self._weight_decay = training.weight_decay
        self._decoupled = training.optimizer == "adamw"
        self._clip_norm = training.clip_norm
        self._proximal = proximal
        self._accelerated = self._device.type != "cpu"
        # On the device, so that a recorded step reads what they are by then.
        self._lr = torch.zeros((), device=self._device)
        self._prox_weight = torch.zeros((), device=self._device)
        self._empty()

    def _empty(self, g: int = 0) -> None:
        """Make room for g clients. What was recorded for the old room is forgotten."""
        slots = self._network.layout.tensors
        width = sum(self._widths)
        room = partial(torch.zeros, device=self._device)
        fixed = [room(g, *slots[place].shape) for place in self._fixed]
        fixed += [room(g, dtype=torch.int64) for _ in self._network.salts]
        wide = 2 if self._adam else int(bool(self._momentum))
        # On an accelerator torch's own Adam counts in float32.
        count = room(g, 1, dtype=torch.float32 if self._accelerated else torch.float64)
        moments = [room(g, width) for _ in range(wide)] + [count] * self._adam
        self._stack = Stack(room(g, width), tuple(fixed), room(g, width * self._proximal), tuple(moments))
        self._aside = self._stack.each(torch.empty_like)
        self._replay = Replay(recorder(self._device))

    def clients_at_once(self, source: SampleSource, jobs: Sequence[TrainingJob]) -> int:
        """The number of clients that fit into memory together, at least one."""
        inputs, _ = source.samples(to_device(jobs[0].index[:1], self._device))
        batch = jobs[0].batch or max(job.samples for job in jobs)
        kept, copies = self._network.step_bytes(inputs)
        sample = 2 * inputs.nbytes + 2 * kept
        rows = 6 + 2 * (self._proximal + len(self._stack.moments))
        return max(1, self._network.memory // (4 * rows * self._network.layout.p + 2 * copies + batch * sample))

    def run(self, source: SampleSource, jobs: Sequence[TrainingJob]) -> tuple[Tensor, Tensor]:
        """Train jobs, sorted as for `epoch_steps`; where they started and where they ended, (g, p) each."""
        g = len(jobs)
        batch = jobs[0].batch
        if len(self._stack.moving) < g:
            self._empty(g)
        starts = torch.stack([job.start for job in jobs])
        stack = self._stack.first(g)
        # First of all, so that an accelerator has work while the orders are drawn.
        self._fill(stack, starts, jobs)
        self._salt(stack, jobs)
        table = to_device(arrange([job.orders() for job in jobs], batch), self._device)
        least = 2 if self._network.batch_norm else 1  # the variance of one sample is undefined
        epoch = list(epoch_steps([job.samples for job in jobs], batch, least))
        apart = [None if step.whole else to_device(torch.tensor(step.clients), self._device) for step in epoch]
        for number in range(table.shape[1]):
            for step, rows in zip(epoch, apart, strict=True):
                columns = slice(step.column, step.column + step.size)
                clients = slice(len(step.clients)) if rows is None else rows
                self._advance(stack, rows, source, table[clients, number, columns])
        return starts, self._ends(stack, starts)

    def _fill(self, stack: Stack, starts: Tensor, jobs: Sequence[TrainingJob]) -> None:
        """Put every client where it starts. The optimiser's state begins anew."""
        spans = self._network.layout.spans
        task = jobs[0].task
        self._lr.fill_(task.training.lr)
        self._prox_weight.fill_(task.prox_weight)
        for place, part in zip(self._moving, stack.moving.split(self._widths, dim=1), strict=True):
            part.copy_(starts[:, spans[place]])
        for place, tensor in zip(self._fixed, stack.fixed, strict=False):
            tensor.copy_(starts[:, spans[place]].view_as(tensor))
        if self._proximal:
            received = torch.stack([job.received for job in jobs])
            for place, part in zip(self._moving, stack.anchors.split(self._widths, dim=1), strict=True):
                part.copy_(received[:, spans[place]])
        for moment in stack.moments:
            moment.zero_()

    def _salt(self, stack: Stack, jobs: Sequence[TrainingJob]) -> None:
        """Give every client the first salts of its dropout layers."""
        if not self._network.salts:
            return
        salts = to_device(torch.tensor([job.salts(len(self._network.salts)) for job in jobs]), self._device)
        for tensor, column in zip(stack.fixed[len(self._fixed) :], salts.unbind(dim=1), strict=True):
            tensor.copy_(column)

    def _ends(self, stack: Stack, starts: Tensor) -> Tensor:
        """The models after training, (g, p)."""
        spans = self._network.layout.spans
        ends = starts.clone()
        for place, part in zip(self._moving, stack.moving.split(self._widths, dim=1), strict=True):
            ends[:, spans[place]] = part
        for place, tensor, left in zip(self._fixed, stack.fixed, self._left, strict=False):
            if left:
                ends[:, spans[place]] = tensor.flatten(1)
        return ends

    def _advance(self, stack: Stack, rows: Tensor | None, source: SampleSource, index: Tensor) -> None:
        """One step of the first clients of a stack, or of some rows of it.

        Args:
            stack: The stack.
            rows: The rows, (g,); None for the first ones.
            source: The source of the samples. A recorded step reads from the same one for ever.
            index: The samples of the step, (g, b).
        """
        g, b = index.shape
        if rows is None:
            self._replay(("first", g, b), partial(self._step, stack.first(g), source), index)
            return
        aside = self._aside.first(g)
        for own, all in zip(aside.tensors, stack.tensors, strict=True):
            torch.index_select(all, 0, rows, out=own)
        self._replay(("aside", g, b), partial(self._step, aside, source), index)
        for own, all in zip(aside.tensors, stack.tensors, strict=True):
            all.index_copy_(0, rows, own)

    def _step(self, stack: Stack, source: SampleSource, index: Tensor) -> None:
        """One step of every client of a stack, in place. All tensors that it touches stay where they are."""
        inputs, labels = read_samples(source, index)
        leaves = [part.detach().requires_grad_() for part in self._parts(stack)]
        with products_in(self._network.precision):
            logits = self._network.logits(self._names, [*leaves, *stack.fixed], inputs, train=True)
            # Each client's mean, summed: no client's gradient depends on another.
            weights = self._network.class_weights
            if weights is None:
                loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]
            else:
                losses = cross_entropy(logits.movedim(2, 1), labels, weights, reduction="none")
                loss = (losses.sum(dim=1) / weights[labels].sum(dim=1)).sum()
            gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        with torch.no_grad():
            if self._accelerated and self._plain:
                for part, gradient in zip(self._parts(stack), gradients, strict=True):
                    part.addcmul_(gradient, self._lr, value=-1)
            else:
                self._move(stack, torch.cat([gradient.reshape(len(gradient), -1) for gradient in gradients], dim=1))

    def _parts(self, stack: Stack) -> list[Tensor]:
        """The parameters that move, (g, *shape) each, in the memory of the stack."""
        parts = stack.moving.split(self._widths, dim=1)
        return [part.view(len(part), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    @property
    def _plain(self) -> bool:
        """Whether weights move along the gradient alone."""
        return not (self._adam or self._momentum or self._weight_decay or self._clip_norm or self._proximal)

    def _move(self, stack: Stack, gradient: Tensor) -> None:
        """Move along gradients (g, q), by the rules of torch's SGD, Adam and AdamW."""
        if self._proximal:
            gradient.add_((stack.moving - stack.anchors).mul_(self._prox_weight))
        if self._clip_norm:
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient.mul_((self._clip_norm / (norm + CLIP_EPSILON)).clamp_(max=1.0))
        if self._adam and self._accelerated:
            self._adam_at_once(stack, gradient)
            return
        if self._decoupled:
            stack.moving.mul_(1 - self._lr * self._weight_decay)
        elif self._weight_decay:
            gradient.add_(stack.moving, alpha=self._weight_decay)
        if self._adam:
            mean, square, count = stack.moments
            count.add_(1)
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            # 1 - 0.999 has too few digits in float32.
            first = (1 - 0.9**count).float()
            second = (1 - 0.999**count).float()
            spread = (square / second).sqrt_().add_(1e-8)
            stack.moving.sub_((mean / first).div_(spread).mul_(self._lr))
            return
        if self._momentum:
            (velocity,) = stack.moments
            gradient = velocity.mul_(self._momentum).add_(gradient)
        if self._accelerated:
            stack.moving.addcmul_(gradient, self._lr, value=-1)
        else:
            stack.moving.sub_(gradient * self._lr)

    def _adam_at_once(self, stack: Stack, gradient: Tensor) -> None:
        """Move along gradients (g, q) by Adam or AdamW in one pass over memory, for which the CPU has other bits."""
        mean, square, count = (list(moment) for moment in stack.moments)
        adam(
            list(stack.moving),
            list(gradient),
            mean,
            square,
            [],
            count,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._lr,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
            decoupled_weight_decay=self._decoupled,
        )
