"""The batched engine: the clients of a federation as one tensor program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import islice

import torch
from torch import Tensor, nn

from fedstrata.base.errors import ExperimentError
from fedstrata.base.randomness import draws_of_numpy_and_python, global_generators, seed_global_generators
from fedstrata.core import Evaluation, Layout, LocalTask, Mask, Plan, Report, Result, Rows, Score
from fedstrata.core.rows import empty_rows, unsent_rows
from fedstrata.engine.client_data import ClientData, SimulationSpec, client_stats_of
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.device import to_device, to_host
from fedstrata.engine.loop import (
    best_candidate,
    candidate_rows,
    has_own_end,
    require_training_outputs,
    samples_of_task,
)
from fedstrata.engine.outside_state import BATCH_NORMS, OutsideState
from fedstrata.engine.vectorized.batches import Resident, SampleSource, chunks
from fedstrata.engine.vectorized.cuda_graphs import session
from fedstrata.engine.vectorized.network import Network, budget
from fedstrata.engine.vectorized.scoring import EvalRequest, EvalResults
from fedstrata.engine.vectorized.training import Trainers, TrainingJob, train_jobs
from fedstrata.models import layout_of
from fedstrata.objective.objective import in_user_code

_UPDATES_SHARE = 0.5
"""Share of the bytes that are worked on at a time which all updates of a round may take on an accelerator. Each task
may take an equal part."""


class Vectorized:
    """Trains and scores many clients as one tensor program; equals `Loop` but for rounding.

    After a local epoch in float32 an update differs by at most 1e-5 of its norm. Dropout draws other masks than the
    loop, from a stream of each client.

    Args:
        module: The network. Its values do not matter. Its only randomness may be dropout layers of torch.
        layout: The tensors of the module.
        client_data: The clients' data. An accelerator gets a normalised copy, of 4 bytes a value.
        store: The tensors that clients keep to themselves.
        precision: The precision of training, "float32", "tf32" or "bfloat16". Weights are float32 in all.
        device: The device that computes, "cpu" or "cuda".
        memory: Bytes that are worked on at a time, about, data and results aside. None is what `budget` says.
        im2col: Whether convolutions become matrix products (im2col). None is only on an accelerator.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        client_data: ClientData,
        store: ClientStore | None = None,
        precision: str = "float32",
        *,
        device: str = "cpu",
        memory: int | None = None,
        im2col: bool | None = None,
        class_weights: Sequence[float] = (),
    ) -> None:
        """Copy the module."""
        self.store = store or ClientStore()
        self.client_data = client_data
        where = torch.device(device)
        memory = budget(where) if memory is None else memory
        im2col = where.type != "cpu" if im2col is None else im2col
        self.trainers = Trainers(Network(module, layout, where, precision, memory, im2col, class_weights))

    @classmethod
    def at(cls, spec: SimulationSpec, device: str = "cpu") -> Vectorized:
        """An engine on the one copy of the data in this process.

        Raises:
            ExperimentError: When the objective, tokens as samples, or a BatchNorm without running statistics are only
                computed by the loop.
        """
        if reason := why_not_vectorized(spec):
            raise ExperimentError(f"engine.name = 'batched': expected {reason}; use loop, processes or ray")
        module = spec.network()
        weights = spec.objective.class_weights
        own = spec.client_data
        return cls(module, layout_of(module), own, precision=spec.precision, device=device, class_weights=weights)

    def run(self, plan: Plan) -> Report:
        """Score the evaluations, then do the work of every client."""
        with session(self.trainers.network.device):
            round = _Round(self, plan)
            scores = round.work()
        return round.report(scores)

    @cached_property
    def source(self) -> SampleSource:
        """The samples, on the device that computes."""
        device = self.trainers.network.device
        return self.client_data if device.type == "cpu" else Resident(self.client_data, device)

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The logits (r, b, classes) of models (r, p) for inputs (b, ...), in evaluation mode, on the CPU."""
        network = self.trainers.network
        found = list[Tensor]()
        with session(network.device):
            shown = inputs.to(network.device)
            for chunk in chunks(len(models), network.models_at_once(len(shown), shown)):
                rows = models[chunk].to(network.device)
                # Copies: a network may change its input in place.
                samples = shown.repeat(len(rows), *[1] * shown.ndim).view(len(rows), *shown.shape)
                found.append(network.predict(rows, samples))
            return torch.cat(found).cpu()


def why_not_vectorized(spec: SimulationSpec) -> str:
    """What this engine would need in place of what a run has; empty when it can compute the run."""
    for key, own in (("loss", "cross_entropy"), ("metric", "accuracy"), ("transform", "none")):
        found = getattr(spec.objective, key)
        if found != own:
            return f"local.{key} = {own!r}, found {found!r}"
    if spec.dataset.on_disk:
        return "samples in memory (data.memory = 'ram'), found them on the disk"
    if spec.dataset.holds_tokens or spec.dataset.targets is not None:
        return "one class for each sample of numbers, found tokens"
    module = spec.network()
    # They normalise by the batch in evaluation mode too, and one batch has the samples of several clients.
    layers = module.named_modules()
    norms = [path for path, layer in layers if isinstance(layer, BATCH_NORMS) and layer.running_var is None]
    if norms:
        return f"running statistics in every BatchNorm, found none in {', '.join(norms)}"
    return _kept_between_batches(module, spec.dataset.shape, spec.dataset.outputs)


def _kept_between_batches(module: nn.Module, shape: tuple[int, ...], outputs: tuple[int, ...]) -> str:
    """What else this engine would need, because the network keeps something between batches that no row has.

    Raises:
        UserCodeError: When the network fails in training, or returns something else than in evaluation.
    """
    before = dict(module.named_buffers())
    place = f"the network {type(module).__name__}"
    outside = OutsideState.of(module.train(), layout_of(module))
    with global_generators(), torch.no_grad():
        seed_global_generators(0)
        unused = draws_of_numpy_and_python()
        seed_global_generators(0)
        found = in_user_code(place, module, torch.zeros(2, *shape))
        if draws_of_numpy_and_python() != unused:
            return "a network that draws from torch alone, found that it draws from numpy or Python's random"
    require_training_outputs(place, found, (2, *outputs))
    after = dict(module.named_buffers())
    assigned = next((name for name, buffer in before.items() if after.get(name) is not buffer), "")
    if assigned:
        return f"buffers that the network changes in place, found one that it assigns: {assigned}"
    if changed := outside.changed():
        return f"a network whose tensors are all that training changes, found that it changes {changed}"
    return ""


@dataclass(frozen=True, eq=False)
class _Choice:
    """A client that may use some models.

    Attributes:
        client: The id of the client.
        candidates: The indices of the models, c of them; -1 for none.
        start: The function from the place of a candidate to the model that it stands for, (p,).
        own: Whether these models are the client's own, and not those of the plan as they are.
        selection_samples: The training samples on which several candidates are compared.
        index: The samples that the client then trains on or is scored on.
    """

    client: int
    candidates: tuple[int, ...]
    start: Callable[[int], Tensor]
    own: bool
    selection_samples: Tensor
    index: Tensor

    @property
    def scored_places(self) -> list[int]:
        """The places of the candidates among which the client has to choose; none if there is nothing to choose.

        One of two halves of a single sample has nothing to compare them on.
        """
        places = [place for place, model in enumerate(self.candidates) if model >= 0]
        return places if len(places) > 1 and len(self.selection_samples) else []

    def request(self, place: int, index: Tensor) -> EvalRequest:
        """The request to score a candidate. Clients that take models as they are ask about the same model."""
        model = (self.candidates[place], (id(self), place) if self.own else None)
        return EvalRequest(model, self.start(place), index)


class _Round:
    """A plan while it is worked on.

    Args:
        engine: The engine.
        plan: The plan.
    """

    def __init__(self, engine: Vectorized, plan: Plan) -> None:
        """Bring the models to the device that computes."""
        self._network = engine.trainers.network
        self._device = self._network.device
        self._source = engine.source
        self._plan = replace(plan, models=to_device(plan.models, self._device))
        self._client_data = engine.client_data
        self._store = engine.store
        self._trainers = engine.trainers
        self._local = dict[int, dict[int, Tensor]]()
        self._saved: dict[int, dict[int, Tensor]] = {client: {} for client in plan.cohort.tolist()}
        self._finite: dict[int, list[Tensor]] = {client: [] for client in plan.cohort.tolist()}
        self._saves: dict[int, list[Tensor]] = {client: [] for client in plan.cohort.tolist()}
        self._column_mask = cache(lambda mask: to_device(self._network.layout.column_mask(mask), self._device))
        self._results = dict[str, Result]()
        self._ends = dict[tuple[str, int], Tensor]()

    def work(self) -> EvalResults:
        """Score the evaluations, then do the tasks. What a client stores in one is there in the next."""
        evaluated = self._evaluated()
        chosen = zip(evaluated, self._choose(evaluated), strict=True)
        scores = EvalResults(
            self._network, self._source, [choice.request(place, choice.index) for choice, (place, _) in chosen]
        )
        for name, task in self._plan.tasks.items():
            choices = self._choices(name)
            jobs = self._jobs(name, choices, self._choose(choices))
            if self._network.moving(task.trainable):
                train_jobs(self._trainers.of(task), self._source, jobs)
            else:
                for job in jobs:
                    job.finish(job.start, job.start)
        return scores

    def _choose(self, choices: Sequence[_Choice]) -> list[tuple[int, Tensor]]:
        """For each client the place of the candidate of lowest loss, the first of equals; and all losses, (c,)."""
        requests = [each.request(place, each.selection_samples) for each in choices for place in each.scored_places]
        found = iter(EvalResults(self._network, self._source, requests).read())
        chosen = []
        for each in choices:
            losses = torch.full((len(each.candidates),), torch.nan)
            scores = islice(found, len(each.scored_places))
            values = [loss for _, loss in scores]
            candidates = torch.tensor(each.candidates)
            if values:
                losses[candidates >= 0] = torch.tensor(values)
            chosen.append((best_candidate(candidates, losses), losses))
        return chosen

    def _evaluated(self) -> list[_Choice]:
        """The clients that are scored, evaluation by evaluation."""
        # The scores complete the record of the round before, on the data that clients had then.
        before = self._plan.round - 1
        choices = list[_Choice]()
        for evaluation in self._plan.evaluations.values():
            for row, client in enumerate(evaluation.clients.tolist()):
                index = self._client_data.held_out(client, evaluation.split, before)
                compared_on = self._client_data.train(client, round=before)
                choices.append(self._choice(evaluation, row, client, index, compared_on))
        return choices

    def _choices(self, name: str) -> list[_Choice]:
        """The clients that have work in a task."""
        choices = list[_Choice]()
        task, *later = list(self._plan.tasks.values())[list(self._plan.tasks).index(name) :]
        is_last_use = all(each.continues != task.continues for each in later)
        end_of = self._ends.pop if is_last_use else self._ends.get
        for row, client in enumerate(self._plan.cohort.tolist()):
            index, compared_on = samples_of_task(self._client_data, self._plan, task, row)
            if len(index):
                end = end_of((task.continues, client), None)
                choices.append(self._choice(task, row, client, index, compared_on, end))
        return choices

    def _choice(
        self,
        piece: LocalTask | Evaluation,
        row: int,
        client: int,
        index: Tensor,
        compared_on: Tensor,
        end: Tensor | None = None,
    ) -> _Choice:
        """What a client in a row of a task or evaluation may use, where it continues from `end` if there is one."""
        local = self._local_tensors(client, piece.load_local)
        return _Choice(
            client=client,
            candidates=tuple(piece.candidates[row].tolist()),
            start=candidate_rows(self._plan, piece, row, local, end, self._network.layout.spans),
            own=bool(local) or end is not None,
            selection_samples=compared_on,
            index=index,
        )

    def _jobs(self, name: str, choices: Sequence[_Choice], chosen: Sequence[tuple[int, Tensor]]) -> list[TrainingJob]:
        """Note the choices of the clients for a task, and make their jobs. Updates are filled in as they come."""
        jobs = list[TrainingJob]()
        task = self._plan.tasks[name]
        shape = (len(choices), self._network.layout.p)
        updates = self._empty_updates(*shape) if any(task.upload) else unsent_rows(*shape)
        losses = torch.empty(len(choices), task.candidates.shape[1])
        models = list[int]()
        for choice, (place, found), update, row in zip(choices, chosen, updates, losses, strict=True):
            row.copy_(found)
            models.append(choice.candidates[place])
            job = TrainingJob(
                plan=self._plan,
                task=task,
                client=choice.client,
                index=choice.index,
                start=choice.start(place),
                received=self._plan.models[models[-1]],
                finish=partial(self._finish, name, choice.client, update),
            )
            jobs.append(job)
        clients = _int_tensor(choice.client for choice in choices)
        sizes = _int_tensor(len(choice.index) for choice in choices)
        self._results[name] = Result(Rows(clients, updates), _int_tensor(models), sizes, losses)
        return jobs

    def _empty_updates(self, m: int, p: int) -> Tensor:
        """Memory for updates (m, p): on the device that computes, if they do not take too much of it."""
        tasks = sum(any(task.upload) for task in self._plan.tasks.values())
        if self._device.type != "cpu" and 4 * m * p <= self._network.memory * _UPDATES_SHARE / tasks:
            return torch.empty(m, p, device=self._device)
        return empty_rows(m, p, self._device.type)

    def _finish(self, name: str, client: int, update: Tensor, start: Tensor, end: Tensor) -> None:
        """Save the local tensors of a client, and write its update (p,), from where it started and ended."""
        task = self._plan.tasks[name]
        if name in self._plan.continued:
            self._ends[name, client] = end.clone()
        saved = {t: end[span].clone() for t, span in enumerate(self._network.layout.spans) if task.save_local[t]}
        if saved:
            self._all_local_tensors(client).update(saved)
            self._saved[client] |= saved
        if task.save_if_finite:
            self._saves[client].append(end.isfinite().all())
        if has_own_end(self._plan, name):
            self._finite[client].append(end.isfinite().all())
        if not any(task.upload):
            return
        values = end - start
        if any(task.upload_values):
            values = torch.where(self._column_mask(task.upload_values), end, values)
        if not all(task.upload):
            values = torch.where(self._column_mask(task.upload), values, 0.0)
        update.copy_(values, non_blocking=update.is_pinned())  # what lies in a file is waited for

    def report(self, results: EvalResults) -> Report:
        """Write to the store, and make the report once the device has done everything; with what `work` returned."""
        found = iter(results.read())
        finite = self._all_of_each(self._finite)
        saves = self._all_of_each(self._saves)
        for client, saved in self._saved.items():
            if not saves[client]:
                continue
            values = dict(zip(saved, to_host(list(saved.values()), self._device), strict=True))
            if not finite[client]:
                # Tensors that lead to nothing finite may still be finite themselves; they would do so again.
                values = {tensor: torch.full_like(each, torch.nan) for tensor, each in values.items()}
            self._store.write(client, self._plan.round, values)
        scores = dict[str, Score]()
        for name, evaluation in self._plan.evaluations.items():
            clients = evaluation.clients.tolist()
            own = list(islice(found, len(clients)))
            before = self._plan.round - 1
            held = (self._client_data.held_out(client, evaluation.split, before) for client in clients)
            samples = _int_tensor(len(index) for index in held)
            losses = torch.tensor([loss for _, loss in own])
            correct = torch.tensor([correct for correct, _ in own], dtype=torch.float64)
            scores[name] = Score(evaluation.clients, correct, samples, losses)
        return Report(self._results, scores, client_stats_of(self._plan, self._client_data))

    def _all_of_each(self, flags: Mapping[int, Sequence[Tensor]]) -> dict[int, bool]:
        """Whether all flags of a client are true, by client. All are fetched from the device at once."""
        fetched = iter(map(bool, to_host([flag for own in flags.values() for flag in own], self._device)))
        return {client: all([next(fetched) for _ in own]) for client, own in flags.items()}

    def _local_tensors(self, client: int, mask: Mask) -> dict[int, Tensor]:
        if not any(mask):
            return {}
        return {tensor: values for tensor, values in self._all_local_tensors(client).items() if mask[tensor]}

    def _all_local_tensors(self, client: int) -> dict[int, Tensor]:
        """All tensors that a client keeps by now, on the device that computes."""
        if client not in self._local:
            stored = self._store.read(client, before=self._plan.round)
            self._local[client] = {tensor: to_device(values, self._device) for tensor, values in stored.items()}
        return self._local[client]


def _int_tensor(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)
