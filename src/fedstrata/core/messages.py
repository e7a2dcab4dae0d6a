"""What goes to the clients and what comes back, and what a decision leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedstrata.core.layout import Mask
from fedstrata.core.problem import LocalTraining
from fedstrata.core.rows import Rows
from fedstrata.errors import ContractError
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class LocalTask:
    """One piece of local work, for every client of the cohort.

    Attributes:
        candidates: models that each client may start from, (m, c) indices into the plan's models, -1 for none; of
            several it takes the one that is least wrong on its training data; a row of -1 has nothing to do.
        training: how it trains.
        trainable: tensors that move, (l,).
        upload: tensors whose update is sent back, (l,); the others are 0 in the report.
        load_local: tensors that start from the client's own store, (l,); one it does not have is the received value.
        save_local: tensors that are left in the client's store afterwards, (l,).
        prox_weight: weight of the proximal term that pulls towards the received model.
        fold: a fixed part of the client's training data, of ``FOLDS``: all of it, a random half, or half of a half.
        max_samples: samples of the part that each client uses at most, (m,), the same ones every time; None for all.
        selection_fold: the part on which several offers are compared.
        selection_metric: how wrong a model is: its mean cross-entropy, "loss", or its share of misclassified samples, "errors".
        stream: name of its random stream.
        upload_values: of the uploaded tensors those that are sent as they are and not as updates, (l,), or () for none: what
            a kept tensor started from is known to its client alone.
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
    selection_metric: Literal["loss", "errors"] = "loss"
    stream: str = "train"
    upload_values: Mask = ()

    def only(self, rows: torch.Tensor) -> LocalTask:
        """The work of some of the cohort, by a bool (m,)."""
        return replace(self, candidates=self.candidates[rows], max_samples=None if self.max_samples is None else self.max_samples[rows])


FOLDS = ("all", "A", "B", "A1", "A2", "B1", "B2")
"""Parts of a client's training data: two halves that share no sample, and two halves of each."""


@dataclass(frozen=True)
class Evaluation:
    """Which model each of some clients would use, to be scored on their test data.

    Attributes:
        name: what this way of using the models is called.
        clients: who is scored, (s,) int64.
        candidates: as in `LocalTask`, (s, c).
        load_local: tensors that come from the client's own store, (l,).
    """

    name: str
    clients: torch.Tensor
    candidates: torch.Tensor
    load_local: Mask


@dataclass(frozen=True)
class Plan:
    """What all clients of one round are asked.

    Attributes:
        round: counted from 1.
        seed: of the run.
        cohort: who takes part, ascending client ids (m,) int64.
        models: what may be offered, (k, p).
        tasks: the Fits in order; each starts from its own offered model.
        evaluations: what is scored, before any work.
        client_stats: facts about their training data, of ``CLIENT_STATS``, and who of the cohort sends each along, bool (m,).
    """

    round: int
    seed: int
    cohort: torch.Tensor
    models: torch.Tensor
    tasks: tuple[LocalTask, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    client_stats: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse offers of models that the plan does not carry."""
        for offers in [fit.candidates for fit in self.tasks] + [use.candidates for use in self.evaluations]:
            worst = int(offers.max()) if offers.numel() else -1
            if worst >= len(self.models):
                raise ContractError(f"an offer names model {worst}, but the plan carries {len(self.models)}")

    def only(self, rows: torch.Tensor) -> Plan:
        """The plan for some of the cohort, by a bool (m,); who is scored stays the same."""
        work = tuple(fit.only(rows) for fit in self.tasks)
        ask = {name: asked[rows] for name, asked in self.client_stats.items()}
        return replace(self, cohort=self.cohort[rows], tasks=work, client_stats=ask)


@dataclass(frozen=True)
class Result:
    """What came back for one Fit; an absent client is an absent row.

    Attributes:
        updates: local model minus the model it started from, (m', p); in the columns of ``LocalTask.values`` the local model.
        chosen: the offered model that each took, (m',).
        sizes: training samples of each, (m',).
        losses: how wrong each offered model is on training data, as `LocalTask.by` has it, (m', c); nan where nothing had to
            be chosen.
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
    """How one Use did on the test data of each client.

    Attributes:
        clients: who was scored, (s,).
        correct: samples classified correctly, (s,).
        samples: test samples, (s,).
        loss: mean cross-entropy in nats, (s,).
    """

    clients: torch.Tensor
    correct: torch.Tensor
    samples: torch.Tensor
    loss: torch.Tensor


CLIENT_STATS = ("classes", "entropy", "subspaces", "units")
"""What a plan may ask: number of classes present, (m, 1); Shannon entropy of the classes in bits, (m, 1); the first
left singular vectors of the samples of each class, (m, classes * vectors * features), zero for an absent class; how
many independent samples half B is worth, on which models are judged that half A made, (m, 1)."""

SINGULAR_VECTORS = 3
"""Singular vectors of each class (PACFL uses 3 to 5)."""


@dataclass(frozen=True)
class Report:
    """What came back.

    Attributes:
        results: in the order of the plan's work.
        scores: in the order of the plan's Uses.
        client_stats: what was asked, by name; a row per client that answered.
        cohort: who was asked, whether it answered or not, (m,) int64; None where nobody noted it.
    """

    results: tuple[Result, ...]
    scores: tuple[Score, ...] = ()
    client_stats: Mapping[str, Rows] = field(default_factory=dict)
    cohort: torch.Tensor | None = None


@dataclass(frozen=True)
class Matrix:
    """A client-by-client matrix behind a decision: tree node, layers, measure, ids (m,) and values (m, m)."""

    node: int
    layer: str
    measure: str
    clients: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Diagnostics:
    """What a round's decision leaves behind for people; no part of equality or resume."""

    events: tuple[Mapping[str, Any], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: tuple[Matrix, ...] = ()
