"""One client after the other, in plain torch: the definition that every other engine must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from fedstrata.base.errors import ExperimentError, UserCodeError
from fedstrata.base.randomness import generator, seed_numpy_and_python, seed_of
from fedstrata.core import (
    Evaluation,
    Layout,
    LocalTask,
    LocalTraining,
    Plan,
    Report,
    Result,
    Rows,
    Score,
    empty_rows,
)
from fedstrata.core.rows import unsent_rows
from fedstrata.engine.client_data import ClientData, SimulationSpec, client_stats_of
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.device import products_in, repeatable, seed_device
from fedstrata.engine.optimizer import Gradients, stepper
from fedstrata.engine.outside_state import OutsideState, normalises_over_batch
from fedstrata.engine.plain_networks import plain_network
from fedstrata.models import fits_outputs, layout_of, load_row, row_of
from fedstrata.objective import Objective
from fedstrata.objective.objective import in_user_code
from fedstrata.objective.training import counted_share

EVALUATION_BATCH = 1024
"""Samples of a batch without gradients."""

_HEAP_BYTES = 8 << 20
"""Bytes of freed memory, of which the C library keeps twice as many for later: what steps of small networks need."""

_Scores = dict[int, tuple[float, float]]
"""How many samples are right, and the mean loss, of some of a plan's models on some samples."""

_Done = dict[str, list[tuple[int, int, int, Tensor]]]
"""Of each task what each client has done: its id, the model that it started from, its samples, and the losses, (c,)."""


class Loop:
    """Trains and scores clients with one module, into which each client's row is copied.

    Args:
        module: The network. Its values do not matter, and its layers stay as they are.
        layout: The tensors of the module.
        client_data: The clients' data.
        store: The tensors that clients keep to themselves.
        precision: The precision in which training multiplies, "float32", "tf32" or "bfloat16". Weights, updates and
            scores are float32.
        objective: What the networks learn.
        device: The device that computes, "cpu", "cuda" or "mps". Rows and data stay in the computer's memory.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        client_data: ClientData,
        store: ClientStore | None = None,
        precision: str = "float32",
        objective: Objective | None = None,
        device: str = "cpu",
    ) -> None:
        """Take over the module."""
        # The C library gives freed memory back at once until something of this size has been freed: each step of small
        # networks would fetch its own anew, page by page.
        torch.empty(_HEAP_BYTES, dtype=torch.uint8, device="cpu")
        self.store = store or ClientStore()
        self._precision = precision
        self._device = torch.device(device)
        self._module = module.to(self._device)
        self._objective = objective or Objective()
        self._layout = layout
        self._client_data = client_data
        self._column_mask = cache(layout.column_mask)
        self._batch_norm = normalises_over_batch(module)
        self._outside = OutsideState.of(self._module, layout)
        self._functions = OutsideState.of_functions({})
        self._evaluation_seed = seed_of(client_data.seed, "evaluation")

    @classmethod
    def at(cls, spec: SimulationSpec, device: str = "cpu") -> Loop:
        """An engine of its own on the one copy of the data in this process."""
        module = spec.network()
        layout = layout_of(module)
        return cls(module, layout, spec.client_data, precision=spec.precision, objective=spec.objective, device=device)

    @property
    def has_users_code(self) -> bool:
        """Whether some layer, or a function of the objective, is neither torch's nor the library's own."""
        return bool(self._outside.places or self._objective.users_functions)

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        # They may have come with the plan, and may be used elsewhere afterwards.
        self._functions = OutsideState.of_functions(self._objective.users_functions)
        try:
            with repeatable(self._device):
                scores = {name: self._score(plan, evaluation) for name, evaluation in plan.evaluations.items()}
                return Report(self._work(plan), scores, client_stats_of(plan, self._client_data))
        finally:
            self._functions.restore()

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs (r, b, ...) of models (r, p) for inputs (b, ...), in evaluation mode, on the CPU."""
        found = list[Tensor]()
        for row in models:
            self._load(row)
            self._module.eval()
            with torch.inference_mode():
                # A copy: the network may change its input in place, such as by ReLU(inplace=True).
                found.append(self._applied(inputs.to(self._device, copy=True)).cpu())
        return torch.stack(found)

    def _work(self, plan: Plan) -> dict[str, Result]:
        """Every client does its tasks in order."""
        done: _Done = {name: [] for name in plan.tasks}
        rooms = {name: self._room(task) for name, task in plan.tasks.items()}
        for row, client in enumerate(plan.cohort.tolist()):
            self.store.write(client, plan.round, self._work_of_client(plan, row, done, rooms))
        return {name: self._result(task, done[name], rooms[name]) for name, task in plan.tasks.items()}

    def _work_of_client(self, plan: Plan, row: int, done: _Done, rooms: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """One client does its tasks. Only what it stores passes from one task to the next.

        Args:
            plan: The plan.
            row: The row of the client in it.
            done: What has been done of each task, to which its work is added.
            rooms: The updates of each task, (m, p), to which its own are added.

        Returns:
            The tensors that it stores.
        """
        client = int(plan.cohort[row])
        own = self.store.read(client, before=plan.round)
        stored = dict[int, Tensor]()
        diverged = False
        saves = True
        ends = dict[str, Tensor]()
        scores = dict[str, _Scores]()
        for name, task in plan.tasks.items():
            index, selection_samples = samples_of_task(self._client_data, plan, task, row)
            if not len(index):
                continue
            local = {tensor: values for tensor, values in own.items() if task.load_local[tensor]}
            end = ends.get(task.continues)
            starts = candidate_rows(plan, task, row, local, end, self._layout.spans)
            # The scores of one task serve the next one, unless the client's own tensors change the models.
            known = None if local or end is not None else scores.setdefault(task.selection_fold, {})
            candidates = task.candidates[row]
            place, losses = self._choose(candidates, starts, selection_samples, known)
            taken = int(candidates[place])
            start = starts(place)
            end = self._train(plan, task, client, index, start, plan.models[taken])
            if name in plan.continued:
                ends[name] = end
            saved = {t: end[span] for t, span in enumerate(self._layout.spans) if task.save_local[t]}
            own = own | saved
            stored = stored | saved
            saves &= not task.save_if_finite or bool(end.isfinite().all())
            diverged |= has_own_end(plan, name) and not bool(end.isfinite().all())
            if any(task.upload):
                self._write_update(task, start, end, rooms[name][len(done[name])])
            done[name].append((client, taken, len(index), losses))
        if not saves:
            return {}
        if diverged:
            # Tensors that lead to nothing finite may still be finite themselves; they would do so again.
            return {tensor: torch.full_like(values, torch.nan) for tensor, values in stored.items()}
        return stored

    def _write_update(self, task: LocalTask, start: Tensor, end: Tensor, out: Tensor) -> None:
        """Write what a client sends that has trained from one model (p,) to another, (p,)."""
        origin = start
        if task.upload_values:
            origin = torch.where(self._column_mask(task.upload_values), 0.0, start)
        torch.sub(end, origin, out=out)
        if not all(task.upload):
            # Not by a product: what is not sent may not be finite.
            out.copy_(torch.where(self._column_mask(task.upload), out, 0.0))

    def _room(self, task: LocalTask) -> Tensor:
        """Room for the updates of a task, (m, p)."""
        count = int((task.candidates >= 0).any(dim=1).sum())
        return empty_rows(count, self._layout.p) if any(task.upload) else unsent_rows(count, self._layout.p)

    def _choose(
        self,
        candidates: Tensor,
        starts: Callable[[int], Tensor],
        index: Tensor,
        known: _Scores | None = None,
    ) -> tuple[int, Tensor]:
        """The place of the candidate with the lowest loss, the first of equals; and the loss of each, (c,).

        Without samples to compare them on, it is the first, and the values are nan.

        Args:
            candidates: The models, (c,); -1 for none.
            starts: The row of the candidate at a place.
            index: The samples on which they are compared.
            known: The scores of models that are compared as they are; None where `starts` changes them.
        """
        losses = torch.full((len(candidates),), torch.nan)
        if len(index) and int((candidates >= 0).sum()) > 1:
            for place, model in enumerate(candidates.tolist()):
                if model < 0:
                    continue
                score = None if known is None else known.get(model)
                score = score or self._evaluate(starts(place), index)
                if known is not None:
                    known[model] = score
                _, losses[place] = score
        return best_candidate(candidates, losses), losses

    def _train(
        self, plan: Plan, task: LocalTask, client: int, index: Tensor, start: Tensor, received: Tensor
    ) -> Tensor:
        """Train from a row; the row where training ended, (p,)."""
        if not any(task.trainable):
            return start
        self._load(start, seed_of(plan.seed, f"dropout {task.stream}", plan.round, client))
        slots = zip(self._layout.tensors, task.trainable, strict=True)
        trained = {slot.name for slot, moves in slots if moves}
        parameters = dict(self._module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
        moving: list[Tensor] = [parameter for parameter in parameters.values() if parameter.requires_grad]
        if not moving:
            return start  # the task trains buffers alone
        step = self._step_of(moving, self._anchors(parameters, received), task)
        order = generator(plan.seed, task.stream, plan.round, client)
        self._module.train()
        for visited in training_orders(index, task.training, order):
            for inputs, targets in self._batches(visited, task.training.samples_per_step(len(index))):
                if len(targets) == 1 and self._batch_norm:
                    continue  # the variance of one sample is undefined
                step(self._objective.transformed(inputs), targets)
        end = row_of(self._module, self._layout).cpu()
        return end if all(task.trainable) else torch.where(self._column_mask(task.trainable), end, start)

    def _step_of(
        self, moving: list[Tensor], anchors: list[Tensor], task: LocalTask
    ) -> Callable[[Tensor, Tensor], None]:
        """The function that takes a step with the inputs (b, ...) and the targets of a batch.

        Args:
            moving: The tensors that move.
            anchors: The received values of these tensors.
            task: What is trained, and how.
        """
        objective, training = self._objective, task.training
        of_classes = objective.classifies and not objective.class_weights and self._client_data.dataset.targets is None
        plain = plain_network(self._module, moving) if of_classes and self._precision == "float32" else None
        update = stepper(moving, anchors, training, task.prox_weight)
        descends = training.plain_sgd and not task.prox_weight

        def step(inputs: Tensor, targets: Tensor) -> None:
            if plain is None or not plain.reads(inputs, targets):
                update(self._gradients(moving, inputs, targets))
            elif descends:
                plain.descend(inputs, targets, training.lr, training.weight_decay)
            else:
                update(plain.gradients(inputs, targets))

        return step

    def _gradients(self, moving: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> Gradients:
        """The gradient of the loss of a batch for each tensor that moves, by autograd."""
        with products_in(self._precision):
            # Left after every step: autocast keeps what it made of weights, which then move.
            with self._autocast():
                loss = self._objective.loss_of(self._applied(inputs), targets)
            if not loss.requires_grad:
                raise ExperimentError(
                    f"local.loss = {self._objective.loss!r}: expected a loss with a gradient for the weights of "
                    f"{type(self._module).__name__}, found none; do not detach what it is computed from"
                )
            return torch.autograd.grad(loss, moving, materialize_grads=True)

    def _load(self, row: Tensor, seed: int | None = None) -> None:
        """Give the network the values of a row, (p,), and whatever else it or a loss keeps as it was at first.

        What one client leaves there, or in the generators, is not for the next one, who may be anybody.

        Args:
            row: The row.
            seed: The seed of the generators; None where nothing is trained.
        """
        load_row(self._module, self._layout, row)
        self._outside.restore()
        self._functions.restore()
        seed = self._evaluation_seed if seed is None else seed
        seed_device(self._device, seed)
        if self._outside.places or self._functions.places:
            seed_numpy_and_python(seed)

    def _batches(self, index: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of some samples, on the device."""
        for inputs, targets in self._client_data.batches(index, size):
            yield inputs.to(self._device), targets.to(self._device)

    def _applied(self, inputs: Tensor) -> Tensor:
        """The outputs of the network. An error inside it is told as one of the user's code."""
        place = f"the network {type(self._module).__name__}"
        outputs: Tensor = in_user_code(place, self._module, inputs)
        # In evaluation mode they are checked when the network is made.
        if self._module.training:
            require_training_outputs(place, outputs, (len(inputs), *self._client_data.dataset.outputs))
        return outputs

    def _autocast(self) -> AbstractContextManager[object]:
        if self._precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    def _anchors(self, parameters: dict[str, nn.Parameter], received: Tensor) -> list[Tensor]:
        """The received values of the parameters that move."""
        spans = dict(zip((slot.name for slot in self._layout.tensors), self._layout.spans, strict=True))
        moving = ((name, parameter) for name, parameter in parameters.items() if parameter.requires_grad)
        return [received[spans[name]].view(parameter.shape).to(self._device) for name, parameter in moving]

    def _score(self, plan: Plan, evaluation: Evaluation) -> Score:
        """Metric and loss of every client's own model on its own test data."""
        scored = []
        for row, client in enumerate(evaluation.clients.tolist()):
            local = self.store.read(client, before=plan.round) if any(evaluation.load_local) else {}
            local = {tensor: values for tensor, values in local.items() if evaluation.load_local[tensor]}
            # The scores complete the record of the round before, on the data that clients had then.
            data = self._client_data.train(client, round=plan.round - 1)
            starts = candidate_rows(plan, evaluation, row, local, None, self._layout.spans)
            place, _ = self._choose(evaluation.candidates[row], starts, data)
            index = self._client_data.held_out(client, evaluation.split, plan.round - 1)
            right, loss = self._evaluate(starts(place), index)
            if self._objective.metric != "accuracy":
                with torch.inference_mode():
                    outputs, targets = _joined(self._outputs(index))
                right = self._objective.metric_of(outputs.float().cpu(), targets.cpu()) * len(index)
            scored.append((right, loss, len(index)))
        rights, losses, samples = zip(*scored, strict=True) if scored else ((), (), ())
        return Score(
            clients=evaluation.clients,
            correct=torch.tensor(rights, dtype=torch.float64),
            samples=torch.tensor(samples, dtype=torch.int64),
            loss=torch.tensor(losses),
        )

    def _evaluate(self, row: Tensor, index: Tensor) -> tuple[float, float]:
        """How many samples are right, and the mean loss.

        Padded tokens do not count. Samples of padding alone are as often right as the others.
        """
        self._load(row)
        self._module.eval()
        right = 0.0
        loss = 0.0
        samples = 0  # those with a target
        weight = 0.0
        with torch.inference_mode():
            batches = self._outputs(index)
            # Of what is no mean over samples, such as a loss that weighs classes, those of batches do not add up.
            for outputs, targets in batches if self._objective.averages else [_joined(batches)]:
                shares = counted_share(targets)
                counted = int((shares > 0).sum())
                if not counted:
                    continue
                right += counted - float(self._objective.mistakes(outputs, targets).sum())
                loss += self._objective.loss_sum(outputs, targets)
                samples += counted
                weight += float(shares.sum())
        if not samples:
            return float(len(index)), 0.0  # no model does anything wrong
        return right * (len(index) / samples), loss / weight

    def _outputs(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The outputs of the model that was loaded last for all samples, and their targets, in batches."""
        for inputs, targets in self._batches(index, EVALUATION_BATCH):
            yield self._applied(inputs), targets

    def _result(self, task: LocalTask, done: Sequence[tuple[int, int, int, Tensor]], updates: Tensor) -> Result:
        if not done:
            return empty_result(task, self._layout.p)
        clients, chosen, sizes, losses = zip(*done, strict=True)
        rows = Rows(torch.tensor(clients), updates[: len(done)])
        return Result(rows, torch.tensor(chosen), torch.tensor(sizes), torch.stack(losses))


def _joined(batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The outputs and the targets of all batches."""
    outputs, targets = zip(*batches, strict=True)
    return torch.cat(outputs), torch.cat(targets)


def training_orders(index: Tensor, training: LocalTraining, order: torch.Generator) -> Iterator[Tensor]:
    """The samples in the order in which a client steps through them, to be cut into steps from the front.

    Args:
        index: The samples of the client, (s,).
        training: How the client trains.
        order: The generator that shuffles the samples.

    Yields:
        The shuffled samples of each epoch, (s,) or fewer; or where steps are counted, those of all steps at once.
    """
    if not training.steps:
        for _ in range(training.epochs):
            shuffled = torch.randperm(len(index), generator=order)
            yield index.index_select(0, shuffled[: training.samples_per_epoch(len(index))])
        return
    needed = training.samples_seen(len(index))
    passes = -(-needed // len(index))
    shuffled = torch.cat([torch.randperm(len(index), generator=order) for _ in range(passes)])
    yield index[shuffled[:needed]]


def require_training_outputs(place: str, outputs: object, expected: tuple[int, ...]) -> None:
    """Refuse what a network returns in training if it is no tensor of a shape.

    Raises:
        UserCodeError: When it is not.
    """
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not fits_outputs(found, expected):
        raise UserCodeError(
            f"{place}: expected outputs {expected} in training as in evaluation, found {found}; return the logits alone"
        )


def samples_of_task(data: ClientData, plan: Plan, task: LocalTask, row: int) -> tuple[Tensor, Tensor]:
    """The samples that a client trains on in a task, and those on which it compares candidates.

    Both are empty where it has no work: where it is given no model, or a half of a single sample is to be trained on.
    Tasks of one client with the same candidates compare them on the same samples, whatever they train on.
    """
    nothing = torch.arange(0)
    if int(task.candidates[row].max()) < 0:
        return nothing, nothing
    client = int(plan.cohort[row])
    limit = None if task.max_samples is None else int(task.max_samples[row])
    index = data.train(client, task.fold, plan.round, limit)
    return (index, data.train(client, task.selection_fold, plan.round)) if len(index) else (nothing, nothing)


def start_row(
    model: Tensor,
    local: Mapping[int, Tensor],
    spans: Sequence[slice],
    end: Tensor | None = None,
    share: float = 1.0,
) -> Tensor:
    """The model (p,) from which a client starts.

    Args:
        model: A model of the plan, (p,).
        local: The tensors of the client's own that replace those of the model.
        spans: The columns of each tensor.
        end: The model with which it ended the task that is continued, (p,); None where there is none.
        share: The share of the way from the first model to this end (`LocalTask.shares`).
    """
    own = model.clone() if local else model
    for tensor, values in local.items():
        own[spans[tensor]] = values
    # Numbers at the end may not be finite, and the ends of the way are exact.
    if end is None or share == 0:
        return own
    return end if share == 1 else torch.lerp(own, end, share)


def candidate_rows(
    plan: Plan,
    piece: LocalTask | Evaluation,
    row: int,
    local: Mapping[int, Tensor],
    end: Tensor | None,
    spans: Sequence[slice],
) -> Callable[[int], Tensor]:
    """A function from the place of a candidate to the model that it stands for, (p,).

    Args:
        plan: The plan with the models.
        piece: The task or evaluation.
        row: The row of the client in it.
        local: The tensors of the client's own that replace those of the model.
        end: The model with which the client ended the task that is continued; None where there is none.
        spans: The columns of each tensor.
    """
    shares = piece.shares if isinstance(piece, LocalTask) else None

    def start(place: int) -> Tensor:
        model = plan.models[int(piece.candidates[row, place])]
        return start_row(model, local, spans, end, 1.0 if shares is None else float(shares[row, place]))

    return start


def has_own_end(plan: Plan, name: str) -> bool:
    """Whether the model with which a client ends a task is one with tensors of its own that go on being used.

    Where a later task continues from it, that task may choose another one, and its end is looked at instead. What is
    only saved if it is finite leads to nothing else.
    """
    task = plan.tasks[name]
    return any(task.load_local) and not task.save_if_finite and name not in plan.continued


def best_candidate(candidates: Tensor, losses: Tensor) -> int:
    """The place of the candidate with the lowest loss, the first of equals. One of nan comes last.

    Args:
        candidates: The indices of models, (c,); -1 for none.
        losses: The loss of each candidate, (c,); nan where nothing had to be chosen.
    """
    worth = torch.where(candidates >= 0, losses.nan_to_num(torch.finfo(losses.dtype).max), torch.inf)
    return int(worth.argmin())


def empty_result(task: LocalTask, p: int) -> Result:
    """The result of a task that nobody did, of models with p columns."""
    nobody = torch.empty(0, dtype=torch.int64)
    return Result(Rows(nobody, torch.empty(0, p)), nobody, nobody, torch.empty(0, task.candidates.shape[1]))
