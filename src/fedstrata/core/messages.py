"""What goes to the clients and what comes back, and what a decision leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from fedstrata.base.errors import ContractError
from fedstrata.base.lazy_torch import torch
from fedstrata.core.layout import Mask
from fedstrata.core.rows import Rows


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains.

    Attributes:
        epochs: The number of passes over the client's data.
        batch: The samples of one step; 0 is all samples at once.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``. Its state is new for every task.
        lr: The learning rate of this round, after the schedule.
        momentum: The momentum of SGD. The others do not use it.
        weight_decay: The pull of every trained weight to zero. For SGD and Adam it is a term of the gradient (L2). For
            AdamW it is a factor on the weights (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
            2019).
        clip_norm: The largest norm of the gradient of one step, over all trained weights together; 0 is no limit.
        steps: The number of steps, in place of `epochs`; 0 is to count epochs. Every step has `batch` samples, or all
            that a client has if these are fewer. The client goes through its shuffled data again and again.
        drop_last: Whether the last step of an epoch is left out where it has fewer samples than `batch`. A client
            that has fewer in all steps with all of them.
    """

    epochs: int = 1
    batch: int = 50
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    steps: int = 0
    drop_last: bool = False

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is the gradient times the learning rate, but for the decay of weights."""
        return self.optimizer == "sgd" and not self.momentum and not self.clip_norm

    def with_epochs(self, epochs: int) -> LocalTraining:
        """The same training for a number of passes over the data."""
        return replace(self, epochs=epochs, steps=0)

    def times(self, factor: int) -> LocalTraining:
        """The same training, so many times as long."""
        return replace(self, epochs=self.epochs * factor, steps=self.steps * factor)

    def samples_per_step(self, samples: int) -> int:
        """The samples of a step of a client with so many samples; its last step of an epoch may have fewer."""
        return min(self.batch or samples, samples)

    def samples_per_epoch(self, samples: int) -> int:
        """The samples of an epoch of a client with so many samples."""
        return samples - samples % self.samples_per_step(samples) if self.drop_last else samples

    def steps_of(self, samples: int) -> int:
        """The number of steps of a client with so many samples."""
        return self.steps or self.epochs * -(-self.samples_per_epoch(samples) // self.samples_per_step(samples))

    def samples_seen(self, samples: int) -> int:
        """The samples of all steps together of a client with so many samples."""
        return (self.steps * self.samples_per_step(samples)) or self.epochs * self.samples_per_epoch(samples)


@dataclass(frozen=True)
class LocalTask:
    """One piece of local work, for every client of the cohort.

    Attributes:
        candidates: The models that each client may start from, (m, c) indices into the plan's models, -1 for none. A
            client with several candidates takes the one that fits its training data best. A row of -1 has no work.
        training: How the client trains.
        trainable: The tensors that training changes, (l,).
        upload: The tensors whose update is sent back, (l,). The others are 0 in the report.
        load_local: The tensors that start from the client's own stored values, (l,). A client without stored values
            starts from the received ones.
        save_local: The tensors that the client stores afterwards, (l,).
        prox_weight: The weight of the proximal term that pulls towards the received model (FedProx, mu).
        fold: A fixed part of the client's training data, one of ``FOLDS``.
        max_samples: The number of samples of the fold that each client uses at most, (m,). They are the same ones in
            every round. None is no limit.
        selection_fold: The fold on which several candidates are compared. A client that has no sample of it takes the
            first one, and its losses are nan.
        stream: The name of the client's random stream.
        upload_values: The uploaded tensors that are sent as values and not as updates, (l,), or () for none. The
            server cannot know from which values a locally loaded tensor started.
        continues: The name of an earlier task of the plan, or "" for none. The client then goes on from the model with
            which it ended that task. A client that did not do that task starts from its candidate as usual.
        shares: How far each candidate goes on, (m, c) in [0, 1]; None is 1 for all. A candidate is ``model + share *
            (end - model)``, where `end` is the model with which the client ended `continues`. One model may be
            several candidates, with several shares.
        save_if_finite: Whether a client whose model is not finite at the end of this task saves nothing in the round,
            so that it has the tensors that it had before. Otherwise it has none then, and begins anew from received
            ones.
    """

    candidates: torch.Tensor
    training: LocalTraining
    trainable: Mask
    upload: Mask
    load_local: Mask
    save_local: Mask
    prox_weight: float = 0.0
    fold: str = "all"
    max_samples: torch.Tensor | None = None
    selection_fold: str = "all"
    stream: str = "train"
    upload_values: Mask = ()
    continues: str = ""
    shares: torch.Tensor | None = None
    save_if_finite: bool = False


FOLDS = ("all", "A", "B", "A1", "A2", "B1", "B2")
"""Parts of a client's training data: all of it, two halves that share no sample, and the two halves of each half."""

TRAIN = "train"
"""The task whose updates move the models of the clusters."""

CLIENT = "client"
"""The evaluation that defines a client's score: the model that this client would use."""


SHARED = "shared"
"""The evaluation of the models that clients would use without the personal stage (`fedstrata.personal`)."""

VALIDATION = "validation"
"""The evaluation of the same models on samples for validation, where clients have some."""


@dataclass(frozen=True)
class Evaluation:
    """Which model some clients would use. They score it on data that nothing is trained on.

    Attributes:
        clients: The clients that score, (s,) int64.
        candidates: As in `LocalTask`, (s, c).
        load_local: The tensors that come from the client's own stored values, (l,).
        split: The samples that count: those for testing, or those for validation.
    """

    clients: torch.Tensor
    candidates: torch.Tensor
    load_local: Mask
    split: Literal["test", "validation"] = "test"

    def only(self, rows: torch.Tensor) -> Evaluation:
        """The same evaluation for some of its clients, given as a bool (s,)."""
        return replace(self, clients=self.clients[rows], candidates=self.candidates[rows])


@dataclass(frozen=True)
class Plan:
    """What the server asks of all clients in one round.

    Attributes:
        round: The number of the round, counted from 1.
        seed: The seed of the run.
        cohort: The clients that take part, ascending ids (m,) int64.
        models: The models that clients may receive, (k, p).
        tasks: The local tasks by name. Every client does them in this order; each starts from its own candidate.
        evaluations: What is scored before any work, by name. `CLIENT` is what the measures of a run are of.
        client_stats: Statistics of the training data, of ``CLIENT_STATS`` or ``"package.module:function"``, and which
            clients of the cohort send each along, bool (m,). A function gets (inputs, labels, classes) of a client and
            returns a row of numbers, (q,).
    """

    round: int
    seed: int
    cohort: torch.Tensor
    models: torch.Tensor
    tasks: Mapping[str, LocalTask] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    client_stats: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse candidates that are not models of the plan, and tasks that continue what does not come before."""
        works: list[LocalTask | Evaluation] = [*self.tasks.values(), *self.evaluations.values()]
        for each in works:
            worst = int(each.candidates.max()) if each.candidates.numel() else -1
            if worst >= len(self.models):
                raise ContractError(f"a candidate is model {worst}, but the plan carries {len(self.models)}")
        earlier = {""}
        for name, task in self.tasks.items():
            if task.continues not in earlier:
                raise ContractError(f"task {name!r} continues {task.continues!r}, which is no task before it")
            if task.shares is not None and (not task.continues or task.shares.shape != task.candidates.shape):
                found = f"{tuple(task.shares.shape)} in a task that continues {task.continues!r}"
                raise ContractError(
                    f"task {name!r}: expected shares {tuple(task.candidates.shape)} of a continued task, found {found}"
                )
            earlier.add(name)

    @property
    def continued(self) -> frozenset[str]:
        """The tasks that later tasks continue."""
        return frozenset(task.continues for task in self.tasks.values()) - {""}

    def only(self, rows: torch.Tensor) -> Plan:
        """The plan for some of the cohort, given as a bool (m,). The evaluations stay the same."""
        tasks = dict[str, LocalTask]()
        for name, task in self.tasks.items():
            max_samples = None if task.max_samples is None else task.max_samples[rows]
            shares = None if task.shares is None else task.shares[rows]
            tasks[name] = replace(task, candidates=task.candidates[rows], max_samples=max_samples, shares=shares)
        client_stats = {name: selected[rows] for name, selected in self.client_stats.items()}
        return replace(self, cohort=self.cohort[rows], tasks=tasks, client_stats=client_stats)


@dataclass(frozen=True)
class Result:
    """What came back for one task. An absent client has no row.

    Attributes:
        updates: The local model minus the model it started from, (m', p). In the columns of
            ``LocalTask.upload_values`` it is the local model itself.
        chosen: The candidate that each client took, (m',).
        sizes: The number of training samples of each client, (m',).
        losses: The mean loss of each candidate on the selection fold, (m', c); nan where
            a client had no choice.
    """

    updates: Rows
    chosen: torch.Tensor
    sizes: torch.Tensor
    losses: torch.Tensor

    def only(self, rows: torch.Tensor) -> Result:
        """Some of the rows, by a bool (m',) or by positions."""
        return Result(self.updates.at(rows), self.chosen[rows], self.sizes[rows], self.losses[rows])


@dataclass(frozen=True)
class Score:
    """The scores of one evaluation on the test data of each client.

    Attributes:
        clients: The clients that scored, (s,).
        correct: The number of samples classified correctly, (s,) float64. For another metric than accuracy its value
            times the number of samples.
        samples: The number of test samples, (s,).
        loss: The mean loss, (s,); the cross-entropy is in nats.
    """

    clients: torch.Tensor
    correct: torch.Tensor
    samples: torch.Tensor
    loss: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """The metric of each client, (s,) float64: the share of its samples that is right, or another."""
        return self.correct.double() / self.samples


CLIENT_STATS = ("classes", "entropy", "subspaces", "inputs")
"""What a plan may ask of the training data. "classes" is the number of classes present, (m, 1). "entropy" is the
Shannon entropy of the classes in bits, (m, 1). "subspaces" holds the first left singular vectors of the samples of each
class, (m, classes * vectors * features), zero for an absent class. "inputs" holds the means of random features of the
samples, (m, 32)."""

SINGULAR_VECTORS = 3
"""Singular vectors of each class (PACFL uses 3 to 5)."""


@dataclass(frozen=True)
class Report:
    """What came back from the clients.

    Attributes:
        results: The results by the name of their task.
        scores: The scores by the name of their evaluation.
        client_stats: The statistics that were asked for, by name; a row for each client that answered.
        cohort: The clients that were selected, whether they answered or not, (m,) int64; None if it is not known.
        events: What happened to it on its way, as in `Diagnostics`.
    """

    results: Mapping[str, Result] = field(default_factory=dict)
    scores: Mapping[str, Score] = field(default_factory=dict)
    client_stats: Mapping[str, Rows] = field(default_factory=dict)
    cohort: torch.Tensor | None = None
    events: tuple[Mapping[str, Any], ...] = ()

    def with_results(self, change: Callable[[str, Result], Result]) -> Report:
        """The report in which a function of its task's name and of itself takes the place of each result."""
        return replace(self, results={name: change(name, result) for name, result in self.results.items()})


@dataclass(frozen=True)
class Matrix:
    """A matrix of all pairs of clients that a decision rests on.

    Attributes:
        node: The tree node that the decision is about.
        layer: The layers that were compared.
        measure: The name of what the clients were compared by, such as ``"dcos"``.
        clients: The client of each row and column, (m,) int64.
        values: The value of each pair, (m, m).
    """

    node: int
    layer: str
    measure: str
    clients: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Metric:
    """A number that an algorithm looked at in a round, for people to see.

    Attributes:
        name: What it is, such as ``"p"`` or ``"stability"``.
        value: The number.
        node: The tree node that it is about; None where it is about the whole round.
        layer: The layer that it is about; None where it is about none.
    """

    name: str
    value: float
    node: int | None = None
    layer: str | None = None


@dataclass(frozen=True)
class Diagnostics:
    """What a round's decision leaves behind for people; no part of equality or resume.

    Attributes:
        events: What happened, such as a split; each has a ``kind`` and values.
        metrics: The numbers that the algorithm looked at.
        matrices: The matrices that decisions rest on.
    """

    events: tuple[Mapping[str, Any], ...] = ()
    metrics: tuple[Metric, ...] = ()
    matrices: tuple[Matrix, ...] = ()


class Clients(Protocol):
    """Whoever holds the data: an engine, a network of devices, or a script in a test."""

    def run(self, plan: Plan) -> Report:
        """Score the evaluations of a plan, then do its tasks."""
