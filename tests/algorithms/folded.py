"""Clients without data: each is pulled towards the point of its group, which every part of its data shows with a noise
of its own. Local training goes half of the way; the loss is half the squared distance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builders import with_tree_events
from fedstrata.core import Decision, Diagnostics, Plan, Problem, Report, Result, Rows, State
from fedstrata.testing import toy_layout, toy_problem
from fedstrata.uploads.checks.update_checks import CheckName, Checks

COLUMNS = 40
SHARES = {"all": 1, "A": 2, "B": 2, "A1": 4, "A2": 4, "B1": 4, "B2": 4}
QUARTERS = {
    "all": slice(0, 4),
    "A": slice(0, 2),
    "B": slice(2, 4),
    **{part: slice(i, i + 1) for i, part in enumerate(("A1", "A2", "B1", "B2"))},
}


ALL = Checks().names


def problem_of(clients: int, checks: Sequence[CheckName] = ALL) -> Problem:
    """Two layers; groups differ in the first one."""
    return replace(toy_problem(clients, toy_layout(conv=COLUMNS, linear=COLUMNS)), checks=Checks(checks))


class Folded:
    """The clients.

    Args:
        groups: of each, (n,).
        apart: how far the points of two groups are from each other, beside a noise of 1 in every column of a quarter.
        sizes: samples of each client, (n,).
        seed: of the noise.
    """

    def __init__(
        self, groups: Sequence[int], apart: float = 2.0, sizes: Sequence[int] | None = None, seed: int = 0
    ) -> None:
        """Draw the points."""
        n, draw = len(groups), torch.Generator().manual_seed(seed)
        centres = torch.randn(max(groups) + 1, COLUMNS, generator=draw) * apart / (2 * COLUMNS) ** 0.5
        self.groups, self.sizes = torch.tensor(groups), torch.tensor([200] * n if sizes is None else list(sizes))
        points = torch.cat([centres[self.groups], torch.zeros(n, COLUMNS)], dim=1)
        quarters = points + torch.randn(4, n, 2 * COLUMNS, generator=draw) / (2 * COLUMNS) ** 0.5
        self.points = {part: quarters[where].mean(dim=0) for part, where in QUARTERS.items()}
        self.still: dict[str, Sequence[int]] = {}
        self.short: dict[str, Mapping[int, int]] = {}

    def run(self, plan: Plan) -> Report:
        """Answer every task."""
        results = dict[str, Result]()
        for name, task in plan.tasks.items():
            busy = (task.candidates >= 0).any(dim=1)
            clients, offers = plan.cohort[busy], task.candidates[busy]
            away = plan.models[offers.clamp(min=0)] - self.points[task.selection_fold][clients][:, None]
            losses = torch.where(offers >= 0, away.square().sum(dim=2) / 2, torch.inf)
            given = offers[torch.arange(len(clients)), losses.argmin(dim=1)]
            update = (self.points[task.fold][clients] - plan.models[given]) / 2 * any(task.trainable)
            update[torch.isin(clients, torch.tensor(list(self.still.get(task.fold, ())), dtype=torch.int64))] = 0.0
            sizes = self.sizes[clients] // SHARES[task.fold]
            sizes = sizes if task.max_samples is None else sizes.minimum(task.max_samples[busy])
            for client, size in self.short.get(task.fold, {}).items():
                sizes[clients == client] = size
            several = (offers >= 0).sum(dim=1, keepdim=True) > 1
            told = torch.where(several & losses.isfinite(), losses, torch.nan)
            results[name] = Result(Rows(clients, update), given, sizes, told)
        asked = {name: plan.cohort[who] for name, who in plan.client_stats.items()}
        return Report(results, client_stats={name: Rows(ids, self.sizes[ids, None]) for name, ids in asked.items()})


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
    problem, turns = problem_of(len(clients.groups), checks), list[Turn]()
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
