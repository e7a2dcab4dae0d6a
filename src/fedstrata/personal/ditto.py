"""A personal model for every client beside the rounds, which a proximal term keeps near its cluster's model.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1,
with the model of the client's cluster in the place of the global one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.ditto import ditto_task
from fedstrata.algorithms.keys import STRICT, Auto, NonNegative, PositiveInteger
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    CLIENT,
    SHARED,
    Algorithm,
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    State,
)
from fedstrata.personal.stage import LastModels, PersonalPlans

PERSONAL_TASK = "personal"
"""The task that trains the personal model."""


@dataclass(frozen=True, config=STRICT)
class DittoBeside:
    """Ditto: every client also trains a model of its own in each round, pulled towards its cluster's.

    A personal model starts from the first model that its client receives. It stays as it is while the client is absent
    or waits for a cluster. Every device trains a second time. Algorithms that keep layers on the devices are refused.

    Attributes:
        lam: The weight of the pull towards the cluster's model (lambda); 0 is training alone.
        epochs: The local epochs of the personal model. "auto" is as many as the cluster's model gets.
    """

    source: ClassVar[str] = "Li et al., ICML 2021"
    sends: ClassVar[str] = ""

    lam: NonNegative = 1.0
    epochs: PositiveInteger | Auto = "auto"

    def check(self, problem: Problem, algorithm: Algorithm[Any]) -> None:
        """Refuse algorithms whose clients keep layers of their own: there is one store for both."""
        problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
        everyone = torch.arange(problem.clients)
        plan = algorithm.plan(problem, algorithm.init(problem), everyone)
        own = any(any((*task.load_local, *task.save_local)) for task in plan.tasks.values())
        if own or getattr(algorithm, "keeps_layers", False) or not torch.equal(plan.cohort, everyone):
            raise ExperimentError(
                "personal.method = 'ditto': expected an algorithm whose clients train the model of a cluster and keep "
                f"no layers, found {type(algorithm).__name__}; use finetune or best"
            )

    def around(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The algorithm, with the second training of each client and the evaluation of its result."""
        return WithDitto(algorithm, self.lam, self.epochs)

    def after(self, problem: Problem, last: LastModels) -> PersonalPlans:
        """Nothing is left to do when the rounds are over."""
        return ()
        yield  # a generator without plans


@dataclasses.dataclass(frozen=True)
class WithDitto:
    """An algorithm with a personal model of each client beside it.

    Attributes:
        algorithm: The algorithm.
        lam: The weight of the pull towards the cluster's model.
        epochs: The local epochs of the personal model; "auto" is as many as the cluster's model gets.
    """

    source: ClassVar[str] = "Li et al., ICML 2021"

    algorithm: Algorithm[Any]
    lam: float
    epochs: int | Auto

    def init(self, problem: Problem) -> State:
        """The state of the algorithm."""
        state: State = self.algorithm.init(problem)
        return state

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """Everyone also trains its own model."""
        plan = self.algorithm.plan(problem, state, cohort)
        uses = self.algorithm.evaluations(problem, state, plan.cohort)[CLIENT].candidates
        # A client that waits for a cluster has several models, and none of them is the one to be pulled to.
        waits = (uses >= 0).sum(dim=1, keepdim=True) > 1
        personal = ditto_task(problem, plan.round, torch.where(waits, -1, uses), self.lam, self.epochs)
        return replace(plan, tasks={**plan.tasks, PERSONAL_TASK: personal})

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """The update of the algorithm; personal models have no part in it."""
        return self.algorithm.update(problem, state, without_personal(report))

    def assign(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """As the algorithm does."""
        return self.algorithm.assign(problem, state, without_personal(report))

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses its personal model; that of its cluster is recorded beside it."""
        inner = self.algorithm.evaluations(problem, state, clients)
        own = replace(inner[CLIENT], load_local=problem.layout.everything)
        return {**inner, CLIENT: own, SHARED: inner[CLIENT]}


def without_personal(report: Report) -> Report:
    """The report of the algorithm's own tasks."""
    return replace(report, results={name: each for name, each in report.results.items() if name != PERSONAL_TASK})
