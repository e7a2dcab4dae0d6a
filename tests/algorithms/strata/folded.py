"""Clients without data: each is pulled towards the point of its group, which either half of its data shows with a noise
of its own. Local training goes half of the way, and the loss is half the squared distance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builders import with_tree_events
from fedstrata.core import Decision, Diagnostics, Plan, Problem, Report, Result, Rows, State
from fedstrata.testing import toy_layout, toy_problem
from fedstrata.uploads.checks.update_checks import CheckName, Checks

COLUMNS = 40
ALL = Checks().names


def problem_of(clients: int, checks: Sequence[CheckName] = ALL) -> Problem:
    """Two layers; groups differ in the first one."""
    return replace(toy_problem(clients, toy_layout(conv=COLUMNS, linear=COLUMNS)), checks=Checks(checks))


class Folded:
    """The clients.

    Args:
        groups: of each, (n,).
        apart: how far the points of two groups are from each other, beside a noise of 0.7 in each half.
        sizes: samples of each client, (n,).
        seed: of the noise.

    Attributes:
        points: what each half and all of the data show of each client, (n, p) by fold.
        lies: the losses that clients claim of the models that they are offered, in that order.
    """

    def __init__(
        self, groups: Sequence[int], apart: float = 2.0, sizes: Sequence[int] | None = None, seed: int = 0
    ) -> None:
        """Draw the points."""
        n, draw = len(groups), torch.Generator().manual_seed(seed)
        centres = torch.randn(max(groups) + 1, COLUMNS, generator=draw) * apart / (2 * COLUMNS) ** 0.5
        points = torch.cat([centres[torch.tensor(groups)], torch.zeros(n, COLUMNS)], dim=1)
        one, other = points + torch.randn(2, n, 2 * COLUMNS, generator=draw) / (4 * COLUMNS) ** 0.5
        self.points = {"A": one, "B": other, "all": (one + other) / 2}
        self.sizes = torch.tensor([200] * n if sizes is None else list(sizes))
        self.lies: dict[int, Sequence[float]] = {}

    def run(self, plan: Plan) -> Report:
        """Answer every task."""
        results = dict[str, Result]()
        ends = dict[str, torch.Tensor]()
        for name, task in plan.tasks.items():
            offered = task.candidates >= 0
            models = plan.models[task.candidates.clamp(min=0)]
            if task.continues:
                assert task.shares is not None
                models = models + task.shares[:, :, None] * (ends[task.continues][:, None] - models)
            losses = (models - self.points[task.selection_fold][plan.cohort][:, None]).square().sum(dim=2) / 2
            losses = torch.where(offered, losses, torch.inf)
            first = losses.argmin(dim=1)
            rows = torch.arange(len(plan.cohort))
            update = (self.points[task.fold][plan.cohort] - models[rows, first]) / 2 * any(task.trainable)
            ends[name] = models[rows, first] + update
            several = offered.sum(dim=1, keepdim=True) > 1
            told = torch.where(several & offered, losses, torch.nan)
            for client, lie in self.lies.items():
                told[plan.cohort == client] = torch.tensor(lie)[: told.shape[1]]
            sizes = self.sizes[plan.cohort] // (1 if task.fold == "all" else 2)
            result = Result(Rows(plan.cohort, update), task.candidates[rows, first], sizes, told)
            results[name] = result.only(offered.any(dim=1))
        return Report(results)


@dataclass(frozen=True)
class Turn:
    """One round."""

    plan: Plan
    report: Report
    state: Any
    diagnostics: Diagnostics

    @property
    def events(self) -> list[str]:
        """What happened."""
        return [str(event["kind"]) for event in self.diagnostics.events]

    def decision(self, node: int = 0) -> Decision:
        """What was last decided about a node."""
        return self.state.tree[node].decision or Decision("")


def drive(
    algorithm: Any,
    clients: Folded,
    rounds: int,
    state: State | None = None,
    cohorts: Mapping[int, Iterable[int]] | None = None,
    absent: Mapping[int, Iterable[int]] | None = None,
    checks: Sequence[CheckName] = ALL,
) -> list[Turn]:
    """Play some rounds.

    Args:
        algorithm: with its keys.
        clients: who answer.
        rounds: to play.
        state: to start from.
        cohorts: who is asked in a round; everyone by default.
        absent: who of them never answers.
        checks: what is checked of updates.
    """
    problem, turns = problem_of(len(clients.sizes), checks), list[Turn]()
    current: Any = algorithm.init(problem) if state is None else state
    for _ in range(rounds):
        round = current.round + 1
        cohort = torch.tensor(sorted((cohorts or {}).get(round, range(problem.clients))), dtype=torch.int64)
        plan = algorithm.plan(problem, current, cohort)
        lost = torch.tensor(list((absent or {}).get(round, ())), dtype=torch.int64)
        report = replace(clients.run(plan.only(~torch.isin(cohort, lost))), cohort=cohort)
        current, diagnostics = with_tree_events(current, *algorithm.update(problem, current, report))
        turns.append(Turn(plan, report, current, diagnostics))
    return turns


def groups_of(state: State) -> list[list[int]]:
    """Members of every cluster, by the least of them."""
    labels = state.labels
    return sorted((labels == c).nonzero().flatten().tolist() for c in labels[labels >= 0].unique().tolist())
