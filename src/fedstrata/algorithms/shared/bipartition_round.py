"""A round of recursive bipartition, as CFL, LayerCFL and HiCFL go through it.

They differ in when they examine a cluster and how. What they have in common is here: every cluster is examined once,
a split guard may refuse its split, and the models are averaged inside the clusters that there are then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from fedstrata.algorithms.shared.model_stability import Stability
from fedstrata.algorithms.shared.recursive_bipartition import (
    BipartitionState,
    RoundAnswers,
    SplitDecision,
    SplitRules,
    apply_decisions,
    collect_answers,
)
from fedstrata.algorithms.shared.split_guard import GuardState, require_confirmation, run_split_half_tests
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Diagnostics, Problem, Report
from fedstrata.core.state import StateT

Examine: TypeAlias = "Callable[[RoundAnswers, int], SplitDecision]"
"""Decides about one cluster, given the answers of the round and its number."""


def bipartition_round(
    problem: Problem,
    state: StateT,
    report: Report,
    remembered: BipartitionState,
    guard: GuardState | None,
    *,
    compared: torch.Tensor,
    rules: SplitRules,
    examine: Examine,
    alpha: float,
    stability: Stability | None = None,
) -> tuple[StateT, BipartitionState, GuardState | None, Diagnostics]:
    """Examine every cluster, split those that should be split, and average inside the new clusters.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        remembered: What is remembered of the clusters.
        guard: What the guard remembers; None lets every split through.
        compared: The columns that the algorithm compares, (q,).
        rules: Which clusters are examined.
        examine: Decides about one cluster.
        alpha: As in `run_split_half_tests`.
        stability: How stable the updates are. Where it is known, only clients with a full window are examined.

    Returns:
        The state after the round, without what the algorithm itself remembers; what is remembered of its clusters, and
        by the guard; and what is noted of the round.
    """
    guard = run_split_half_tests(problem, state, guard, report, alpha)
    usable = None if stability is None else stability.full_window
    answers = collect_answers(problem, state, remembered, report, compared, rules, usable)
    decisions = {
        cluster: require_confirmation(state, guard, cluster, examine(answers, cluster)) for cluster in answers.usable
    }
    moved, after, diagnostics = apply_decisions(problem, state, report, answers, decisions)
    if stability is not None:
        diagnostics = replace(diagnostics, metrics=(*diagnostics.metrics, *stability.metrics))
    return moved, after, guard, diagnostics
