"""A round of recursive bipartition, as CFL, LayerCFL and HiCFL go through it.

They differ in when they examine a cluster and how. What they have in common is here: the stability of updates, the
split guard, and that every cluster is examined once, split if need be, and averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from fedstrata.algorithms.shared.model_stability import Stability, UpdateWindow, add_updates, empty_window
from fedstrata.algorithms.shared.recursive_bipartition import (
    BipartitionState,
    RoundAnswers,
    SplitDecision,
    SplitRules,
    apply_decisions,
    collect_answers,
    one_cluster,
)
from fedstrata.algorithms.shared.split_guard import (
    GuardState,
    initial_guard,
    require_confirmation,
    run_split_half_tests,
)
from fedstrata.core import Diagnostics, Problem, Report, State
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class RecursiveState(State):
    """What an algorithm of recursive bipartition remembers.

    Attributes:
        bipartition: The norms of the updates so far, and which clusters are final.
        window: The last uploads of every client; None where model stability is not looked at.
        guard: What split-half tests have shown; None unless ``split_guard = "split_half"``.
    """

    bipartition: BipartitionState
    window: UpdateWindow | None
    guard: GuardState | None


RecursiveStateT = TypeVar("RecursiveStateT", bound=RecursiveState)

Examine: TypeAlias = "Callable[[RoundAnswers, int], SplitDecision]"
"""Decides about one cluster, given the answers of the round and its number."""


def nothing_remembered(problem: Problem, *, window: int | None, split_guard: str) -> dict[str, Any]:
    """The fields of a `RecursiveState` before the first round.

    Args:
        problem: What is fixed for the run.
        window: The number of uploads in a full window (W); None where model stability is not looked at.
        split_guard: The key of the algorithm.
    """
    return {
        "bipartition": one_cluster(),
        "window": None if window is None else empty_window(problem, window),
        "guard": initial_guard(problem, split_guard),
    }


def with_stability(
    problem: Problem, state: RecursiveStateT, report: Report, xi: float | str | None, signed: bool = False
) -> tuple[RecursiveStateT, Stability | None]:
    """The state with the uploads of a round, and how stable they are; None where that is not looked at.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        xi: As in `add_updates`.
        signed: As in `add_updates`.
    """
    if state.window is None:
        return state, None
    window, stability = add_updates(problem, state, state.window, report, xi, signed)
    return replace(state, window=window), stability


def bipartition_round(
    problem: Problem,
    state: RecursiveStateT,
    report: Report,
    compared: torch.Tensor,
    rules: SplitRules,
    examine: Examine,
    *,
    stability: Stability | None,
    alpha: float,
) -> tuple[RecursiveStateT, Diagnostics]:
    """Examine every cluster, split those that should be split, and average inside the new clusters.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        compared: The columns that the algorithm compares, (q,).
        rules: Which clusters are examined.
        examine: Decides about one cluster. A split guard may refuse its split.
        stability: How stable the updates are. Where it is known, only clients with a full window are examined.
        alpha: The level of the split guard.
    """
    if state.guard is not None:
        state = replace(state, guard=run_split_half_tests(problem, state, state.guard, report, alpha))
    usable = None if stability is None else stability.full_window
    answers = collect_answers(problem, state, state.bipartition, report, compared, rules, usable)
    decisions = {
        cluster: require_confirmation(state, state.guard, cluster, examine(answers, cluster))
        for cluster in answers.usable
    }
    moved, bipartition, diagnostics = apply_decisions(problem, state, report, answers, decisions)
    if stability is not None:
        diagnostics = replace(diagnostics, metrics=(*diagnostics.metrics, *stability.metrics))
    return replace(moved, bipartition=bipartition), diagnostics
