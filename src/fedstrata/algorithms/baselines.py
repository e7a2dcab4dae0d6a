"""The baselines that no paper proposes: no federation, the union of all data, the true groups, and random groups."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, ModelCount
from fedstrata.algorithms.personal_layers import personal_evaluation, personal_plan
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch


@dataclass(frozen=True, config=STRICT)
class Local(core.Algorithm[core.State]):
    """Local training: every client trains a model of its own from the common start, and shares nothing.

    A federation has to beat this. The start is sent down once and nothing is sent up. Nothing is decided: the one
    cluster of the records is only where all start from. A client trains in the rounds in which it takes part.
    """

    source: ClassVar[str] = "baseline: no federation"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """Everyone goes on with the model on its own device."""
        return personal_plan(problem, state, cohort, problem.layout.everything)

    def evaluations(
        self, problem: core.Problem, state: core.State, clients: torch.Tensor
    ) -> dict[str, core.Evaluation]:
        """Everyone uses its own model."""
        return personal_evaluation(problem, state, clients, problem.layout.everything)


@dataclass(frozen=True, config=STRICT)
class Centralized(core.Algorithm[core.State]):
    """Centralized training: one model on all clients' training data together.

    This is what a federation gives up by leaving data where they are. Only a simulation can run it: the reserved client
    id n holds the union of the training data. No model is sent; that all data would have to be sent once is recorded as
    `bytes_data`. The cohort does not matter: the data of absent clients, and of those that join late, are in the union.

    Attributes:
        steps: The steps of a round. "epoch" is the local epochs over the union, or with `local.steps` n times as many
            steps. "equal" is as many steps as one client makes, with batches n times as large.
    """

    source: ClassVar[str] = "baseline: the union of all data"

    steps: Literal["epoch", "equal"] = "epoch"

    def plan(self, problem: core.Problem, state: core.State, cohort: torch.Tensor) -> core.Plan:
        """The holder of the union trains the one model, whoever takes part."""
        plan = core.fedavg_plan(problem, state, cohort[:1])
        task = plan.tasks[core.TRAIN]
        training = task.training
        if self.steps == "equal":
            training = replace(training, batch=training.batch * problem.clients)
        else:
            training = replace(training, steps=training.steps * problem.clients)
        union = replace(task, candidates=torch.zeros(1, 1, dtype=torch.int64), training=training)
        return replace(plan, cohort=torch.tensor([problem.clients]), tasks={core.TRAIN: union})

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        """Take over what the holder of the union trained."""
        result = report.results[core.TRAIN]
        # Labels have no place for the reserved id; in one cluster any client can stand for it.
        updates = core.Rows(torch.zeros_like(result.updates.clients), result.updates.values)
        union = replace(report, results={core.TRAIN: replace(result, updates=updates)})
        return core.aggregate(problem, state, union, self.assign(problem, state, report))

    def assign(self, problem: core.Problem, state: core.State, report: core.Report) -> torch.Tensor:
        """Everyone belongs to the one cluster."""
        return torch.zeros_like(state.labels)


@dataclass(frozen=True, config=STRICT)
class Oracle(core.Algorithm[core.State]):
    """FedAvg inside the true groups, which only a simulation knows.

    No clustering can do better than one that makes no mistake from round 1 on.
    """

    source: ClassVar[str] = "baseline: the partition's ground truth"

    def init(self, problem: core.Problem) -> core.State:
        """One cluster per true group, all from the same start.

        Raises:
            ExperimentError: When the partition has no ground truth.
        """
        if problem.truth is None:
            raise ExperimentError(
                "algorithm.name = 'oracle' needs a partition with true groups, found one without; "
                "use rotation, majority, label_groups, class_pairs, concept or iid"
            )
        groups, labels = problem.truth.unique(return_inverse=True)
        return core.fixed_clusters(problem, labels, len(groups), "true_groups_given")


def random_groups(problem: core.Problem, groups: int) -> torch.Tensor:
    """Groups of equal size (within one client), drawn by the seed, (n,)."""
    places = torch.randperm(problem.clients, generator=problem.generator("random groups"))
    return places % groups


@dataclass(frozen=True, config=STRICT)
class RandomGroups(core.Algorithm[core.State]):
    """Random groups: FedAvg inside equal groups that the seed draws.

    A clustering has to beat this. It shows what several models are worth when nothing is known about the clients. The
    number of groups must be given. Nothing is decided after the first draw. An absent client is left out of its
    group's mean; a client that joins late takes the group of lowest training loss.

    Attributes:
        groups: The number of groups.
    """

    source: ClassVar[str] = "baseline: groups drawn by the seed"

    groups: ModelCount = 4

    def init(self, problem: core.Problem) -> core.State:
        """One cluster per random group, all from the same start.

        Raises:
            ExperimentError: When there are more groups than clients.
        """
        if self.groups > problem.clients:
            raise ExperimentError(f"algorithm.groups = {self.groups}: expected at most the {problem.clients} clients")
        labels = random_groups(problem, self.groups)
        return core.fixed_clusters(problem, labels, self.groups, "random_groups_given")
