"""Clients whose answers are scripted. An algorithm is pure, so it is tested without any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from fedstrata.build.participation import CohortSample
from fedstrata.core import (
    CLIENT,
    Algorithm,
    Clients,
    Diagnostics,
    Layout,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    RuleAggregation,
    Score,
    State,
    TensorSpec,
)
from fedstrata.core.state import StateT
from fedstrata.play.rounds import Rules, answer_plans, play_rounds, timed_reply
from fedstrata.uploads.validation import without_clients


def toy_layout(conv: int = 3, linear: int = 3) -> Layout:
    """Make a layout of two layers, ``conv.weight`` and ``fc.weight``.

    Args:
        conv: The number of columns of the first.
        linear: The number of columns of the second.

    Returns:
        The layout.
    """
    return Layout(
        (TensorSpec("conv.weight", "conv", "conv", (conv,)), TensorSpec("fc.weight", "fc", "linear", (linear,)))
    )


def toy_problem(clients: int, layout: Layout | None = None, truth: Sequence[int] | None = None) -> Problem:
    """Make a problem whose models start at zero.

    Args:
        clients: The number of clients, n.
        layout: The tensors of the network; by default `toy_layout`.
        truth: The true group of each client, (n,).

    Returns:
        The problem.
    """
    layout = layout or toy_layout()
    return Problem(
        layout=layout,
        fresh=lambda start: torch.full((layout.p,), float(start)),
        clients=clients,
        aggregation=RuleAggregation(),
        truth=None if truth is None else torch.tensor(truth),
    )


class Scripted:
    """Clients whose updates are given. A client with several candidate models takes the first.

    Args:
        updates: The updates of each round, (n, p) each; the last ones serve all later rounds too.
        sizes: The number of training samples of each client, (n,); by default 1.
        client_stats: The statistics that a plan may ask for, by name, (n, q) each.
    """

    def __init__(
        self,
        updates: Sequence[torch.Tensor],
        sizes: torch.Tensor | None = None,
        client_stats: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Keep the script."""
        self._updates = updates
        self._client_stats = client_stats or {}
        self._sizes = torch.ones(len(updates[0]), dtype=torch.int64) if sizes is None else sizes

    def run(self, plan: Plan) -> Report:
        """Answer every task with the same updates, and score every evaluation as half right."""
        rows = Rows(plan.cohort, self._updates[min(plan.round, len(self._updates)) - 1][plan.cohort])
        results = dict[str, Result]()
        for name, task in plan.tasks.items():
            chosen = task.candidates[:, 0]
            losses = torch.full(task.candidates.shape, torch.nan)
            results[name] = Result(rows, chosen, self._sizes[plan.cohort], losses).only(chosen >= 0)
        scores = dict[str, Score]()
        for name, evaluation in plan.evaluations.items():
            one = torch.ones(len(evaluation.clients), dtype=torch.int64)
            scores[name] = Score(evaluation.clients, one, 2 * one, one.float())
        client_stats = {
            name: Rows(plan.cohort[rows], self._client_stats[name][plan.cohort[rows]])
            for name, rows in plan.client_stats.items()
            if name in self._client_stats
        }
        return Report(results, scores, client_stats)


def play(
    algorithm: Algorithm[StateT],
    problem: Problem,
    updates: Sequence[torch.Tensor],
    cohorts: Sequence[Sequence[int]] | None = None,
    sizes: torch.Tensor | None = None,
    client_stats: Mapping[str, torch.Tensor] | None = None,
    absent: Sequence[Sequence[int]] | None = None,
) -> tuple[StateT, list[Diagnostics]]:
    """Play one round for each entry of `updates`. Nothing is validated.

    Args:
        algorithm: The algorithm with its hyper-parameters.
        problem: What is fixed for the run.
        updates: The updates of each round, as in `Scripted`.
        cohorts: The clients that are selected in each round; by default all.
        sizes: The numbers of training samples, as in `Scripted`.
        client_stats: The statistics of the clients, as in `Scripted`.
        absent: The clients of each cohort that do not answer; by default none.

    Returns:
        The last state, and the diagnostics of each round.
    """
    clients = Scripted(updates, sizes, client_stats)
    diagnostics = list[Diagnostics]()

    def sample(round: int) -> CohortSample:
        cohort = range(problem.clients) if cohorts is None else cohorts[round - 1]
        dropped = () if absent is None else absent[round - 1]
        return CohortSample(torch.tensor(cohort, dtype=torch.int64), torch.tensor(dropped, dtype=torch.int64))

    # A script may hold updates that no honest client sends.
    steps = play_rounds(
        Rules(algorithm=algorithm, problem=problem, sample=sample, checked=False),
        algorithm.init(problem),
        stop=lambda state: state.round >= len(updates),
        observe=lambda done: diagnostics.append(done.diagnostics),
    )
    return answer_plans(steps, partial(timed_reply, clients)), diagnostics


def check_algorithm(
    algorithm: Algorithm[StateT],
    problem: Problem | None = None,
    clients: Clients | None = None,
    rounds: int = 5,
) -> None:
    """Check what every algorithm must hold, by some rounds of clients that train nothing.

    Its functions are pure: the same arguments give the same bits, in whatever order the answers came. A round ends with
    finite models, and with a cluster or a place to wait for every client. If nobody answers, no model moves.

    Args:
        algorithm: The algorithm with its hyper-parameters.
        problem: What is fixed for the run; by default eight clients and the layers of `toy_layout`.
        clients: Who answers; by default `Scripted` clients in two groups whose updates differ.
        rounds: The number of rounds.

    Raises:
        AssertionError: When something does not hold; it says what, and in which round.
    """
    problem = problem or toy_problem(8)
    n = problem.clients
    if clients is None:
        draw = torch.Generator().manual_seed(0)
        sides = torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)[:, None]
        clients = Scripted([sides + 0.1 * torch.randn(n, problem.layout.p, generator=draw) for _ in range(rounds)])
    everyone = torch.arange(n)
    state = algorithm.init(problem)
    for round in range(1, rounds + 1):
        plan = algorithm.plan(problem, state, everyone)
        assert plan.round == round, f"round {round}: the plan is of round {plan.round}"
        report = replace(clients.run(plan), cohort=everyone)
        after, _ = algorithm.update(problem, state, report)
        assert after.round == round, f"round {round}: the state after it says round {after.round}"
        assert bool(after.models.isfinite().all()), f"round {round}: a model is not finite"
        assert len(after.labels) == n, f"round {round}: expected labels of {n} clients, found {len(after.labels)}"
        again, _ = algorithm.update(problem, state, report)
        assert _equal(again, after), f"round {round}: the same report gives another state"
        turned, _ = algorithm.update(problem, state, _turned(report))
        assert _equal(turned, after), f"round {round}: the order of the answers matters"
        quiet, _ = algorithm.update(problem, state, without_clients(report, everyone.tolist()))
        moved = quiet.models.shape != state.models.shape or not torch.equal(quiet.models, state.models)
        assert not moved, f"round {round}: a model moves though nobody answers"
        evaluations = algorithm.evaluations(problem, after, everyone)
        assert CLIENT in evaluations, f"round {round}: the evaluation {CLIENT!r} is missing"
        state = after


def _equal(one: State, other: State) -> bool:
    """Whether two states have the same models and clusters, to the bit."""
    same_shape = one.models.shape == other.models.shape
    return same_shape and torch.equal(one.models, other.models) and torch.equal(one.labels, other.labels)


def _turned(report: Report) -> Report:
    """The same answers in the opposite order."""
    turned = report.with_results(lambda _, result: result.only(torch.arange(len(result.chosen) - 1, -1, -1)))
    stats = {name: rows.at(torch.arange(len(rows.clients) - 1, -1, -1)) for name, rows in report.client_stats.items()}
    return replace(turned, client_stats=stats)
