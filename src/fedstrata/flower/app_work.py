"""What one client of an app does for a plan: what is asked of the app, one after the other, and how that travels.

`Work` has the meaning of a plan, as `fedstrata.engine.Loop` has it, in terms of two things that every app can do: train
a model, and evaluate one. It runs on the server, which then sends a message for each (`app_clients`), or on the client,
where the app's own functions answer (`serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata.base.errors import ExperimentError, InputError
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import shown
from fedstrata.core import Evaluation, Layout, LocalTask, LocalTraining, Mask, Plan, Report, Result, Rows, Score
from fedstrata.engine.loop import best_candidate, candidate_rows, empty_result, has_own_end, selection_value
from fedstrata.flower.app import ANCHOR, FOLD, MOST, PROX_WEIGHT, TEST, UNITS
from fedstrata.flower.payload import flower

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, MetricRecord, RecordDict


class Ask(NamedTuple):
    """What is asked of the app: to train a model, or to evaluate it.

    Attributes:
        kind: Which of both.
        model: The model, (p,).
        fold: The part of the training data, or `TEST`.
        most: The number of samples at most; 0 is all.
        training: How long and with which step size; None where nothing is trained.
        prox_weight: The weight of the proximal term.
        anchor: The model that this term pulls towards, (p,); None where there is no such term.
    """

    kind: Literal["train", "evaluate"]
    model: Tensor
    fold: str
    most: int = 0
    training: LocalTraining | None = None
    prox_weight: float = 0.0
    anchor: Tensor | None = None


class Answer(NamedTuple):
    """What the app answers.

    Attributes:
        samples: The samples that it used.
        model: The trained model, (p,); None where nothing was trained.
        loss: The mean loss; nan where it was not asked.
        accuracy: The share of samples that are right; nan where that is not known.
        units: The independent units among the samples; 0 where each sample is one.
    """

    samples: int
    model: Tensor | None = None
    loss: float = float("nan")
    accuracy: float = float("nan")
    units: int = 0


class Done(NamedTuple):
    """What a client has done for a task.

    Attributes:
        chosen: The model of the plan that it took.
        samples: Its training samples.
        losses: How wrong each candidate is, (c,).
        start: The model with which it began, (p,).
        end: The model with which it ended, (p,).
    """

    chosen: int
    samples: int
    losses: Tensor
    start: Tensor
    end: Tensor


_NUMPY = "numpy.ndarray"
"""The form of Flower's arrays."""

_Steps = Generator[list[Ask], list[Answer], None]


@dataclass
class Work:
    """What one client does for a plan.

    Attributes:
        plan: The plan.
        client: The id of the client.
        layout: The tensors of the models.
        own: The tensors that it keeps to itself, by their places in the layout.
        done: What it has done, by task.
        scores: The answer of each evaluation.
        units: The largest number of independent units in part B that the app told of.
    """

    plan: Plan
    client: int
    layout: Layout
    own: Mapping[int, Tensor] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    scores: dict[str, Answer] = field(default_factory=dict)
    units: int = 0
    _saves: bool = True
    _diverged: bool = False
    _kept: dict[int, Tensor] = field(default_factory=dict)
    _known: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def steps(self) -> _Steps:
        """Yield what is asked of the app, and be sent the answers. Pieces of work that need no others go together."""
        rows = {client: row for row, client in enumerate(self.plan.cohort.tolist())}
        scored = [
            (name, each, each.clients.tolist().index(self.client))
            for name, each in self.plan.evaluations.items()
            if self.client in each.clients.tolist()
        ]
        tasks = [
            (name, task, rows[self.client])
            for name, task in self.plan.tasks.items()
            if self.client in rows and int(task.candidates[rows[self.client]].max()) >= 0
        ]
        # A task may begin with what an earlier one has left.
        alone = not any(any(task.save_local) for _, task, _ in tasks)
        first = [piece for piece in tasks if alone and not piece[1].continues]
        yield from self._together([*scored, *first])
        for piece in tasks:
            if piece not in first:
                yield from self._together([piece])

    def _together(self, pieces: Sequence[tuple[str, LocalTask | Evaluation, int]]) -> _Steps:
        """Choose among candidates, then train and score."""
        starts = [self._starts(piece, row) for _, piece, row in pieces]
        choices = dict[tuple[str, int], Ask]()
        keys = dict[tuple[int, int], tuple[str, int]]()
        for at, (name, piece, row) in enumerate(pieces):
            candidates = piece.candidates[row]
            # Where nothing is trained, the app still says how many samples it has.
            if int((candidates >= 0).sum()) > 1 or (isinstance(piece, LocalTask) and not any(piece.trainable)):
                part = piece.selection_fold if isinstance(piece, LocalTask) else "all"
                as_sent = not any(piece.load_local) and not (isinstance(piece, LocalTask) and piece.continues)
                for place in (candidates >= 0).nonzero().flatten().tolist():
                    # A model that is compared as it was sent is compared once on the same samples.
                    key = (part, int(candidates[place])) if as_sent else (f"{part} in {name}", place)
                    keys[at, place] = key
                    if key not in self._known:
                        choices[key] = Ask("evaluate", starts[at](place), part)
        self._known |= yield from _asked(choices)
        self.units = max([self.units, *(each.units for (part, _), each in self._known.items() if part == "B")])
        asks = dict[int, Ask]()
        for at, (name, piece, row) in enumerate(pieces):
            candidates = piece.candidates[row]
            losses = torch.full((len(candidates),), torch.nan)
            own = {place: self._known[key] for (of, place), key in keys.items() if of == at}
            for place, answer in own.items() if len(own) > 1 else ():
                metric = piece.selection_metric if isinstance(piece, LocalTask) else "loss"
                if metric == "errors" and isnan(answer.accuracy):
                    raise ExperimentError(
                        "expected an app that tells the share of samples that are right, as this algorithm compares "
                        "errors, found none; name its metric in Clustered(accuracy=...)"
                    )
                losses[place] = selection_value(metric, answer.accuracy * answer.samples, answer.loss, answer.samples)
            place = best_candidate(candidates, losses)
            start = starts[at](place)
            if isinstance(piece, Evaluation):
                asks[at] = Ask("evaluate", start, TEST)
                continue
            samples = own[place].samples if place in own else 0
            self.done[name] = Done(int(candidates[place]), samples, losses, start, start)
            if any(piece.trainable):
                most = 0 if piece.max_samples is None else int(piece.max_samples[row])
                anchor = self.plan.models[int(candidates[place])] if piece.prox_weight else None
                asks[at] = Ask("train", start, piece.fold, most, piece.training, piece.prox_weight, anchor)
        for at, answer in (yield from _asked(asks)).items():
            name, piece, _ = pieces[at]
            if isinstance(piece, LocalTask):
                assert answer.model is not None
                self.done[name] = self.done[name]._replace(samples=answer.samples, end=answer.model)
            elif answer.samples:
                self.scores[name] = answer
        for name, piece, _ in pieces:
            if isinstance(piece, LocalTask):
                self._keep(name, piece)

    def _starts(self, piece: LocalTask | Evaluation, row: int) -> Callable[[int], Tensor]:
        """The model that each candidate stands for."""
        earlier = self.done.get(piece.continues) if isinstance(piece, LocalTask) else None
        local = {place: values for place, values in {**self.own, **self._kept}.items() if piece.load_local[place]}
        return candidate_rows(self.plan, piece, row, local, None if earlier is None else earlier.end, self.layout.spans)

    @property
    def stored(self) -> dict[int, Tensor]:
        """The tensors that the client keeps to itself from now on."""
        if not self._saves:
            return {}
        found = dict(self._kept)
        # Tensors that lead to nothing finite may still be finite themselves; they would do so again.
        return {place: torch.full_like(each, torch.nan) for place, each in found.items()} if self._diverged else found

    def _keep(self, name: str, task: LocalTask) -> None:
        """Keep the tensors that the task saves."""
        end = self.done[name].end
        finite = bool(end.isfinite().all())
        spans = enumerate(self.layout.spans)
        self._kept |= {place: end[span].clone() for place, span in spans if task.save_local[place]}
        self._saves &= finite or not task.save_if_finite
        self._diverged |= has_own_end(self.plan, name) and not finite

    def update_of(self, name: str) -> Tensor:
        """What the client sends back for a task, (p,)."""
        task = self.plan.tasks[name]
        done = self.done[name]
        sent = done.end - torch.where(self._columns(task.upload_values), 0.0, done.start)
        # Not by a product: what is not sent may not be finite.
        return torch.where(self._columns(task.upload), sent, 0.0)

    def _columns(self, mask: Mask) -> Tensor:
        return self.layout.column_mask(mask or self.layout.nothing)


def _asked(asks: Mapping[Any, Ask]) -> Generator[list[Ask], list[Answer], dict[Any, Answer]]:
    """Ask, and give each answer the key of its question; nothing is yielded where nothing is asked."""
    if not asks:
        return {}
    answers = yield list(asks.values())
    return dict(zip(asks, answers, strict=True))


def report_of(plan: Plan, works: Sequence[Work], layout: Layout) -> Report:
    """Put the work of clients, ascending, together: every row where the simulator has it."""
    results = dict[str, Result]()
    for name, task in plan.tasks.items():
        own = {work.client: work for work in works if name in work.done}
        done = [work.done[name] for work in own.values()]
        results[name] = empty_result(task, layout.p)
        if done:
            results[name] = Result(
                updates=Rows(torch.tensor(list(own)), torch.stack([work.update_of(name) for work in own.values()])),
                chosen=torch.tensor([each.chosen for each in done]),
                sizes=torch.tensor([each.samples for each in done]),
                losses=torch.stack([each.losses for each in done]),
            )
    scores = dict[str, Score]()
    for name in plan.evaluations:
        answers = {work.client: work.scores[name] for work in works if name in work.scores}
        scores[name] = Score(
            clients=torch.tensor(list(answers), dtype=torch.int64),
            correct=torch.tensor([each.accuracy * each.samples for each in answers.values()], dtype=torch.float64),
            samples=torch.tensor([each.samples for each in answers.values()], dtype=torch.int64),
            loss=torch.tensor([each.loss for each in answers.values()]),
        )
    stats = dict[str, Rows]()
    for name, asked in plan.client_stats.items():
        # Of "units" alone: where the app does not say, each sample is one, and part B has half of them.
        halves = {
            work.client: [float(work.units) or max(1.0, max(each.samples for each in work.done.values()) / 2)]
            for work in works
            if work.client in plan.cohort[asked].tolist() and work.done
        }
        values = torch.tensor(list(halves.values())).reshape(len(halves), 1)
        stats[name] = Rows(torch.tensor(list(halves), dtype=torch.int64), values)
    return Report(results, scores, stats)


_WHOLE_SHARE = 0.9
"""A half of the samples that has more than this share of all is no half."""


def refuse_whole(ask: Ask, samples: int, known: int) -> None:
    """Refuse an app that trains on all data where a part was asked: its updates would say nothing of the parts.

    Args:
        ask: What was asked.
        samples: The samples that it trained on.
        known: All training samples of the client; 0 where they are not known.

    Raises:
        InputError: When it does.
    """
    if ask.kind == "train" and ask.fold != "all" and known and samples > max(1, _WHOLE_SHARE * known):
        raise InputError(
            f"expected part {ask.fold!r} of {known} training samples, found {samples}; the app trains on all data "
            "where a part is asked: write `data = fold(data, message)` of fedstrata.flower into its train function"
        )


_LAYERS = "layers of a client's own"


def refuse_needs(plan: Plan, algorithm: str, *, served: bool) -> None:
    """Refuse a plan that asks more than the app can do.

    Args:
        plan: The plan.
        algorithm: The name of the algorithm.
        served: Whether the app does with a message what `fedstrata.flower.serve` does.

    Raises:
        ExperimentError: When it asks more.
    """
    found = dict[str, str]()
    for task in plan.tasks.values():
        if any(task.load_local) or any(task.save_local) or any(task.upload_values):
            found[_LAYERS] = "" if served else "write `serve(app, train, evaluate)` of fedstrata.flower into it"
        if any(task.trainable) and not all(task.trainable):
            found["to train some layers alone"] = "take another algorithm"
    for name in plan.client_stats:
        if name != "units":
            found[f"the statistic {name!r} of a client's data"] = "take another algorithm"
    for what, remedy in found.items():
        if remedy:
            raise ExperimentError(
                f"algorithm.name = {shown(algorithm)}: expected what an app can do by training and evaluating, found a "
                f"need for {what}; {remedy}, or run the experiment by fedstrata deploy"
            )


@dataclass(frozen=True)
class AppKeys:
    """How an app names what travels: the arguments of `Clustered` of the same meaning."""

    arrays: str
    config: str
    samples: str
    loss: str
    accuracy: str


@dataclass(frozen=True)
class AppForm:
    """How models and questions become messages of an app, and its replies answers.

    Attributes:
        layout: The tensors of the models.
        fixed: The arrays that are no part of the models, by name: they stay as they were at first.
        dtypes: The name of the type of each array of a record, by name, in their order.
        keys: How the app names what travels.
    """

    layout: Layout
    fixed: Mapping[str, NDArray[Any]]
    dtypes: Mapping[str, str]
    keys: AppKeys

    @classmethod
    def of(cls, layout: Layout, first: Mapping[str, NDArray[Any]], keys: AppKeys) -> AppForm:
        """The form of models like a first one, whose arrays are given by name."""
        moving = {spec.name for spec in layout.tensors}
        fixed = {name: values for name, values in first.items() if name not in moving}
        return cls(layout, fixed, {name: str(values.dtype) for name, values in first.items()}, keys)

    def record(self, row: Tensor) -> ArrayRecord:
        """The arrays of a model (p,), in the order, shapes and types of the first one."""
        own = flower()
        arrays = dict(self.fixed)
        for spec, span in zip(self.layout.tensors, self.layout.spans, strict=True):
            arrays[spec.name] = row[span].reshape(spec.shape).numpy().astype(self.dtypes[spec.name])
        record: ArrayRecord = own.ArrayRecord({name: own.Array(arrays[name]) for name in self.dtypes})
        return record

    def row(self, record: ArrayRecord) -> Tensor:
        """The model (p,) of arrays.

        Raises:
            InputError: When they are not those of the models.
        """
        if other := sorted({*self.dtypes} ^ {*record}):
            raise InputError(f"expected the arrays {', '.join(self.dtypes)}, found a difference in {other[0]!r}")
        parts = list[NDArray[np.float32]]()
        for spec in self.layout.tensors:
            array = record[spec.name]
            said = (tuple(array.shape), array.dtype, array.stype)
            if said != (wanted := (spec.shape, self.dtypes[spec.name], _NUMPY)):
                raise InputError(f"expected {spec.name} to be {wanted}, found {said}")
            values = array.numpy()
            if tuple(values.shape) != spec.shape or str(values.dtype) != self.dtypes[spec.name]:
                raise InputError(f"expected {spec.name} to be {wanted}, found {(values.shape, str(values.dtype))}")
            parts.append(np.asarray(values, np.float32).reshape(-1))
        return torch.from_numpy(np.concatenate(parts))

    def content(self, ask: Ask, config: Mapping[str, Any]) -> RecordDict:
        """The content of the message with a question, whose config has that of the user."""
        own = flower()
        told = {**config, FOLD: ask.fold, MOST: ask.most}
        if ask.training is not None:
            told["local-epochs"] = ask.training.epochs
            if "lr" in told:
                told["lr"] = ask.training.lr
        records = {self.keys.arrays: self.record(ask.model)}
        if ask.anchor is not None:
            told[PROX_WEIGHT] = ask.prox_weight
            records[ANCHOR] = self.record(ask.anchor)
        content: RecordDict = own.RecordDict({**records, self.keys.config: own.ConfigRecord(told)})
        return content

    def answer(self, content: RecordDict, ask: Ask) -> Answer:
        """The answer in the content of a reply, which somebody else has made.

        Raises:
            InputError: When it is none.
        """
        try:
            return self._answer(content, ask)
        except (ValueError, TypeError, KeyError, OverflowError, EOFError, MemoryError) as error:
            raise InputError(f"expected arrays and metrics of this app, found {type(error).__name__}") from None

    def _answer(self, content: RecordDict, ask: Ask) -> Answer:
        metrics = _only(list(content.metric_records.values()), "record of metrics")
        samples = self._number(metrics, self.keys.samples)
        # A client without test data has no score.
        least = 0 if ask.fold == TEST else 1
        if not least <= samples <= MAX_SAMPLES or samples % 1:
            raise InputError(f"expected {self.keys.samples} to be a whole number of {least} or more, found {samples:g}")
        if ask.kind == "train":
            return Answer(int(samples), self.row(_only(list(content.array_records.values()), "record of arrays")))
        units = self._number(metrics, UNITS) if UNITS in metrics else 0
        if not 0 <= units <= samples:
            raise InputError(f"expected {UNITS} of at most {samples:g} samples, found {units:g}")
        if not samples:
            return Answer(0)
        accuracy = self._number(metrics, self.keys.accuracy) if self.keys.accuracy in metrics else float("nan")
        if not (isnan(accuracy) or 0 <= accuracy <= 1):
            raise InputError(f"expected {self.keys.accuracy} to be a share of 0 to 1, found {accuracy:g}")
        return Answer(int(samples), None, self._number(metrics, self.keys.loss), accuracy, int(units))

    def _number(self, metrics: MetricRecord, name: str) -> float:
        value = metrics.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            names = ", ".join(metrics) or "none"
            raise InputError(f"expected the metric {name!r}, a number, found {names}; name the app's own in Clustered")
        return float(value)


def _only(records: Sequence[Any], what: str) -> Any:
    if len(records) != 1:
        raise InputError(f"expected one {what} in a reply, found {len(records)}")
    return records[0]
