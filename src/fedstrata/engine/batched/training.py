"""Local training of many clients, wherever they come from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.core import LocalTask
from fedstrata.engine.batched.network import Network
from fedstrata.engine.batched.replay import Replay, recorder, upload
from fedstrata.engine.batched.resident import Source, read
from fedstrata.engine.batched.schedule import arrange, chunks, split, steps
from fedstrata.randomness import generator, seed_of

TRAINERS = 16
"""Kinds of tasks of which memory and recordings are kept."""
FEW = 4
"""The same where more would take more memory than is worked on at a time."""


@dataclass(frozen=True, eq=False)
class Job:
    """One task of one client.

    Attributes:
        trainers: of its network.
        source: who has its samples.
        index: its samples, (s,).
        start: where it starts, (p,).
        received: the model that it was offered, (p,).
        task: how it trains.
        seed: of the run.
        round: of the plan.
        client: its id.
    """

    trainers: Trainers
    source: Source
    index: Tensor
    start: Tensor
    received: Tensor
    task: LocalTask
    seed: int
    round: int
    client: int

    @property
    def kind(self) -> Hashable:
        """Equal for jobs that are trained together."""
        return self.trainers.network.identity, self.task.trainable, self.task.training, self.task.prox_weight

    def orders(self) -> Tensor:
        """Its samples in the order of every epoch, (epochs, s): the very order of the loop."""
        order = generator(self.seed, self.task.stream, self.round, self.client)
        epochs = [torch.randperm(len(self.index), generator=order) for _ in range(self.task.training.epochs)]
        return self.index[torch.stack(epochs)]

    def salts(self, count: int) -> list[int]:
        """Where each dropout begins."""
        if not count:
            return []
        stream = f"dropout {self.task.stream}"
        return [seed_of(self.seed, f"{stream} {site}", self.round, self.client) >> 31 for site in range(count)]


@dataclass(frozen=True)
class Stack:
    """What training reads and changes of g clients; row r of every tensor is one client's.

    Attributes:
        moving: the parameters that move, side by side, (g, q).
        fixed: every other tensor of the network, buffers included, (g, *shape); then the salts of dropout, (g,).
        anchors: the received values of `moving`, (g, q); (g, 0) without a pull.
        moments: of the optimiser, (g, q), and for Adam the number of steps, (g, 1).
    """

    moving: Tensor
    fixed: tuple[Tensor, ...]
    anchors: Tensor
    moments: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (self.moving, *self.fixed, self.anchors, *self.moments)

    def each(self, change: Callable[[Tensor], Tensor]) -> Stack:
        """The same with every tensor changed."""
        fixed, moments = (tuple(map(change, tensors)) for tensors in (self.fixed, self.moments))
        return Stack(change(self.moving), fixed, change(self.anchors), moments)

    def first(self, g: int) -> Stack:
        """The first clients, in the same memory."""
        return self.each(lambda tensor: tensor[:g])


def train(jobs: Sequence[Job]) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
    """Train; jobs of the same network, recipe and trained tensors go together, whoever's they are.

    Returns:
        Chunk by chunk the places of the jobs, where they started (g, p) and where they ended (g, p).
    """
    kinds: dict[Hashable, list[int]] = {}
    for place, job in enumerate(jobs):
        kinds.setdefault(job.kind, []).append(place)
    sources = {job.source: number for number, job in enumerate(jobs)}
    for places in kinds.values():
        first = jobs[places[0]]
        trainer, batch = first.trainers.of(first.task), first.task.training.batch
        places.sort(key=lambda place: (split(len(jobs[place].index), batch), sources[jobs[place].source]), reverse=True)
        for chunk in chunks(len(places), trainer.most([jobs[place] for place in places])):
            yield places[chunk], *trainer.run([jobs[place] for place in places[chunk]])


class Trainers:
    """What a network needs for each kind of task.

    Args:
        network: of all of them.
    """

    def __init__(self, network: Network) -> None:
        """Start without any."""
        self.network = network
        self._known: OrderedDict[Hashable, Trainer] = OrderedDict()

    def of(self, task: LocalTask) -> Trainer:
        """The trainer for a task; step size and pull may differ from round to round."""
        training = task.training
        key = (task.trainable, training.optimizer, training.momentum, bool(task.prox_weight))
        if key not in self._known:
            self._known[key] = Trainer(self.network, task)
        self._known.move_to_end(key)
        while len(self._known) > (FEW if self._held() > self.network.memory else TRAINERS):
            self._known.popitem(last=False)
        return self._known[key]

    def _held(self) -> int:
        """Bytes that are kept for the next round."""
        return sum(trainer.held for trainer in self._known.values())


class Trainer:
    """Trains clients that move the same tensors by the same optimiser.

    Args:
        network: of the clients.
        fit: one of its kind.
    """

    def __init__(self, network: Network, task: LocalTask) -> None:
        """Take the tensors apart."""
        slots = network.layout.tensors
        moves = [slot.kind != "buffer" and slot.name not in network.frozen for slot in slots]
        moves = [may and asked for may, asked in zip(moves, task.trainable, strict=True)]
        self._network, self._device = network, network.device
        self._moving = [place for place, moved in enumerate(moves) if moved]
        self._fixed = [place for place, moved in enumerate(moves) if not moved]
        self._left = [slots[place].kind == "buffer" and task.trainable[place] for place in self._fixed]
        self._shapes = [slots[place].shape for place in self._moving]
        self._widths = [prod(shape) for shape in self._shapes]
        self._names = [network.names[place] for place in (*self._moving, *self._fixed)] + network.salts
        self._momentum, self._adam, self._pulled = (
            task.training.momentum,
            task.training.optimizer == "adam",
            bool(task.prox_weight),
        )
        # On the device, so that a recorded step reads what they are by then.
        self._lr, self._pull = torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        self._empty()

    def _empty(self, g: int = 0) -> None:
        """Make room for g clients; what was recorded for the old room is forgotten."""
        slots, width = self._network.layout.tensors, sum(self._widths)
        room = partial(torch.zeros, device=self._device)
        fixed = [room(g, *slots[place].shape) for place in self._fixed]
        fixed += [room(g, dtype=torch.int64) for _ in self._network.salts]
        wide = 2 if self._adam else int(bool(self._momentum))
        moments = [room(g, width) for _ in range(wide)] + [room(g, 1, dtype=torch.float64)] * self._adam
        self._stack = Stack(room(g, width), tuple(fixed), room(g, width * self._pulled), tuple(moments))
        self._aside = self._stack.each(torch.empty_like)
        self._replay = Replay(recorder(self._device))

    @property
    def held(self) -> int:
        """Bytes that it keeps between two runs."""
        return sum(tensor.nbytes for stack in (self._stack, self._aside) for tensor in stack.tensors)

    def most(self, jobs: Sequence[Job]) -> int:
        """Clients that fit into the memory together, at least one."""
        inputs, _ = jobs[0].source.samples(upload(jobs[0].index[:1], self._device))
        batch = jobs[0].task.training.batch or max(len(job.index) for job in jobs)
        sample = 2 * inputs.nbytes + 2 * self._network.weigh(inputs)
        rows = 6 + 2 * (self._pulled + len(self._stack.moments))
        return max(1, self._network.memory // (4 * rows * self._network.layout.p + batch * sample))

    def run(self, jobs: Sequence[Job]) -> tuple[Tensor, Tensor]:
        """Train one chunk, sorted as `steps` wants it; where they started and ended, (g, p) each."""
        g, training = len(jobs), jobs[0].task.training
        if len(self._stack.moving) < g:
            self._empty(g)
        starts, stack = torch.stack([job.start for job in jobs]), self._stack.first(g)
        self._fill(stack, starts, jobs)
        table = upload(arrange([job.orders() for job in jobs], training.batch), self._device)
        least = 2 if self._network.norm else 1  # the variance of one sample is undefined
        epoch = list(steps([len(job.index) for job in jobs], training.batch, least))
        apart = [None if step.whole else upload(torch.tensor(step.clients), self._device) for step in epoch]
        for number in range(training.epochs):
            for step, rows in zip(epoch, apart, strict=True):
                columns = slice(step.column, step.column + step.size)
                clients = slice(len(step.clients)) if rows is None else rows
                inputs, labels = read([jobs[row].source for row in step.clients], table[clients, number, columns])
                self._advance(stack, rows, inputs, labels)
        return starts, self._ends(stack, starts)

    def _fill(self, stack: Stack, starts: Tensor, jobs: Sequence[Job]) -> None:
        """Put every client where it starts; the optimiser's state begins anew."""
        spans, task = self._network.layout.spans, jobs[0].task
        self._lr.fill_(task.training.lr)
        self._pull.fill_(task.prox_weight)
        for place, part in zip(self._moving, stack.moving.split(self._widths, dim=1), strict=True):
            part.copy_(starts[:, spans[place]])
        for place, tensor in zip(self._fixed, stack.fixed, strict=False):
            tensor.copy_(starts[:, spans[place]].view_as(tensor))
        if self._pulled:
            received = torch.stack([job.received for job in jobs])
            for place, part in zip(self._moving, stack.anchors.split(self._widths, dim=1), strict=True):
                part.copy_(received[:, spans[place]])
        for moment in stack.moments:
            moment.zero_()
        salts = upload(torch.tensor([job.salts(len(self._network.salts)) for job in jobs]), self._device)
        for tensor, column in zip(stack.fixed[len(self._fixed) :], salts.unbind(dim=1), strict=True):
            tensor.copy_(column)

    def _ends(self, stack: Stack, starts: Tensor) -> Tensor:
        """Rows (g, p) with the tensors that were trained where they are now."""
        spans, ends = self._network.layout.spans, starts.clone()
        for place, part in zip(self._moving, stack.moving.split(self._widths, dim=1), strict=True):
            ends[:, spans[place]] = part
        for place, tensor, left in zip(self._fixed, stack.fixed, self._left, strict=False):
            if left:
                ends[:, spans[place]] = tensor.flatten(1)
        return ends

    def _advance(self, stack: Stack, rows: Tensor | None, inputs: Tensor, labels: Tensor) -> None:
        """One step of the first clients of a stack, or of some rows of it; only those are computed."""
        g, b = labels.shape
        if rows is None:
            self._replay(("first", g, b), partial(self._step, stack.first(g)), inputs, labels)
            return
        aside = self._aside.first(g)
        for own, all in zip(aside.tensors, stack.tensors, strict=True):
            torch.index_select(all, 0, rows, out=own)
        self._replay(("aside", g, b), partial(self._step, aside), inputs, labels)
        for own, all in zip(aside.tensors, stack.tensors, strict=True):
            all.index_copy_(0, rows, own)

    def _step(self, stack: Stack, inputs: Tensor, labels: Tensor) -> None:
        """One step of every client of a stack, in place; everything that it touches stays where it is."""
        leaf = stack.moving.detach().requires_grad_()
        parts = zip(leaf.split(self._widths, dim=1), self._shapes, strict=True)
        tensors = [*(part.view(len(leaf), *shape) for part, shape in parts), *stack.fixed]
        logits = self._network.logits(self._names, tensors, inputs, train=True)
        # Each client's mean, summed: no client's gradient depends on another.
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]
        (gradient,) = torch.autograd.grad(loss, [leaf], materialize_grads=True)
        with torch.no_grad():
            self._move(stack, gradient)

    def _move(self, stack: Stack, gradient: Tensor) -> None:
        """Along gradients (g, q), by the rules of torch's SGD and Adam."""
        if self._pulled:
            gradient.add_((stack.moving - stack.anchors).mul_(self._pull))
        if self._adam:
            mean, square, count = stack.moments
            count.add_(1)
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            # 1 - 0.999 has too few digits in float32.
            first, second = (1 - 0.9**count).float(), (1 - 0.999**count).float()
            spread = (square / second).sqrt_().add_(1e-8)
            stack.moving.sub_((mean / first).div_(spread).mul_(self._lr))
            return
        if self._momentum:
            (velocity,) = stack.moments
            gradient = velocity.mul_(self._momentum).add_(gradient)
        stack.moving.sub_(gradient * self._lr)
