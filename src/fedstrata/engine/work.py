"""What one client does for a plan in terms of two things: training a model, and evaluating one.

`Work` has the meaning of a plan, as `loop.Loop` has it. With it, clients that this library does not simulate take part:
an app on Flower, on the server or on its node, and any other framework whose clients can do these two things.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedstrata.core import Evaluation, Layout, LocalTask, LocalTraining, Mask, Plan, Report, Result, Rows, Score
from fedstrata.engine.loop import best_candidate, candidate_rows, empty_result, has_own_end

TEST = "test"
"""The samples that nothing is trained on."""


class Ask(NamedTuple):
    """What is asked of a client: to train a model, or to evaluate it.

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
    """What a client answers.

    Attributes:
        samples: The samples that were used.
        model: The trained model, (p,); None where nothing was trained.
        loss: The mean loss; nan where it was not asked.
        accuracy: The share of samples that are right; nan where that is not known.
    """

    samples: int
    model: Tensor | None = None
    loss: float = float("nan")
    accuracy: float = float("nan")


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
    """

    plan: Plan
    client: int
    layout: Layout
    own: Mapping[int, Tensor] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    scores: dict[str, Answer] = field(default_factory=dict)
    _saves: bool = True
    _diverged: bool = False
    _kept: dict[int, Tensor] = field(default_factory=dict)
    _known: dict[tuple[str, int], Answer] = field(default_factory=dict)

    def do(self, answer: Callable[[Ask], Answer]) -> None:
        """Do everything, one after the other.

        Args:
            answer: What answers a question, on the client.
        """
        steps = self.steps()
        given: list[Answer] | None = None
        while True:
            try:
                # A generator that has not begun takes None alone.
                asks = steps.send(given)  # type: ignore[arg-type]
            except StopIteration:
                return
            given = [answer(ask) for ask in asks]

    def steps(self) -> _Steps:
        """Yield what is asked, and be sent the answers. Pieces of work that need no others go together."""
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
            # Where nothing is trained, the client still says how many samples it has.
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
        asks = dict[int, Ask]()
        for at, (name, piece, row) in enumerate(pieces):
            candidates = piece.candidates[row]
            losses = torch.full((len(candidates),), torch.nan)
            own = {place: self._known[key] for (of, place), key in keys.items() if of == at}
            for place, answer in own.items() if len(own) > 1 else ():
                losses[place] = answer.loss
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
    return Report(results, scores)
