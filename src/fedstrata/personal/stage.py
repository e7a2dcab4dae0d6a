"""The stage after the rounds, or beside them, in which each client makes a model of its own.

A personal method is pure, like an algorithm. It is made of tasks and evaluations alone, so every engine and a real
network run it, and it composes with every algorithm. The personal model stays in the store of its device.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedstrata.algorithms.tuning import tuning_by_epochs
from fedstrata.base.lazy_torch import torch
from fedstrata.base.registry import Registry
from fedstrata.core import Algorithm, LocalTask, Mask, Plan, Problem, Report


@dataclass(frozen=True)
class LastModels:
    """What the clients start from when the rounds are over.

    Attributes:
        round: The number of the first plan that is still free.
        clients: The clients that take part, ascending ids (m,) int64.
        models: The models of the clusters, (k, p).
        candidates: The model that each client would use, (m, 1).
        load_local: The tensors of it that are the client's own, (l,).
        nodes: The tree node of each cluster, (k,) int64.
    """

    round: int
    clients: torch.Tensor
    models: torch.Tensor
    candidates: torch.Tensor
    load_local: Mask
    nodes: torch.Tensor

    def plan(self, problem: Problem, tasks: Mapping[str, LocalTask], round: int) -> Plan:
        """A plan of some tasks."""
        return Plan(round=round, seed=problem.seed, cohort=self.clients, models=self.models, tasks=dict(tasks))


@dataclass(frozen=True)
class PersonalChoice:
    """What a client has chosen, for people to see.

    Attributes:
        client: The id of the client.
        start: The tree node whose model it starts from.
        epochs: The local epochs of the tuning; 0 is none.
        share: How much of the tuned model it keeps, in [0, 1].
    """

    client: int
    start: int
    epochs: float
    share: float


PersonalPlans = Generator[Plan, Report, tuple[PersonalChoice, ...]]
"""The plans after the last round: each is yielded, the report of it is sent, and the choices are returned."""


class PersonalMethod(Protocol):
    """Pure functions. The fields of a method are its keys.

    Attributes:
        source: Where it comes from.
        sends: What clients send for it beside what the algorithm asks, in words for whoever reads what an epsilon does
            not cover; "" for nothing.

    A method that does not fit ``privacy.kind = "central"`` says why in `no_central_noise`, after the key that makes it
    so; "" where it fits.
    """

    source: ClassVar[str]
    sends: ClassVar[str]

    def check(self, problem: Problem, algorithm: Algorithm[Any]) -> None:
        """Refuse an algorithm or a network that the method does not fit.

        Raises:
            ExperimentError: In one line.
        """

    def around(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The algorithm with what the method does in every round. Here, that is nothing."""
        return algorithm

    def after(self, problem: Problem, last: LastModels) -> PersonalPlans:
        """What the clients do when the rounds are over, plan by plan."""


@runtime_checkable
class KnowsPersonalModels(Protocol):
    """An algorithm that decides otherwise where clients make personal models."""

    def with_personal_models(self) -> Algorithm[Any]:
        """The algorithm for a run with a personal stage."""


def tuning_tasks(
    problem: Problem, last: LastModels, name: str, epochs: int, trainable: Mask, fold: str = "all"
) -> dict[str, LocalTask]:
    """Every client tunes its model, in a task for each epoch, with a rate that falls from that of the experiment to 0.

    Nothing is sent or saved.

    Args:
        problem: What is fixed for the run. Its learning rate is that before any schedule.
        last: What the clients start from.
        name: The name of this tuning, with which those of its tasks begin.
        epochs: The number of epochs.
        trainable: The tensors that are tuned, (l,).
        fold: The part of the training data that is used.

    Returns:
        The tasks in their order. The last one ends with the tuned model.
    """
    nothing = problem.layout.nothing
    task = LocalTask(
        candidates=last.candidates,
        training=problem.training,
        trainable=trainable,
        upload=nothing,
        load_local=last.load_local,
        save_local=nothing,
        stream=name,
        fold=fold,
    )
    return tuning_by_epochs(task, problem.training, f"{name}-{fold}", epochs, stream=name)


PERSONAL: Registry[type[PersonalMethod]] = Registry(
    {
        "finetune": "fedstrata.personal.finetune:FineTuned",
        "ditto": "fedstrata.personal.ditto:DittoBeside",
        "best": "fedstrata.personal.best:Best",
    },
    group="fedstrata.personal",
)
