"""When to test without a calendar: as soon as the updates of a cluster's members turn steadily (HiCFL's stability)."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.parts.proof.testimony import FEWEST
from fedstrata.algorithms.shared.model_stability import UpdateWindow, add_updates, empty_window, stability_threshold
from fedstrata.core import Metric, Problem, Report, State

WINDOW = 3
"""Uploads of a client that its stability is the mean over."""


@dataclass(frozen=True)
class Calm:
    """What stability remembers of every client.

    Attributes:
        window: the last uploads of every client.
        steady: tree nodes of the clusters that had a stable layer in the last round.
    """

    window: UpdateWindow
    steady: tuple[int, ...] = ()


def listening(problem: Problem) -> Calm:
    """No upload seen yet."""
    return Calm(empty_window(problem, WINDOW))


def listened(problem: Problem, calm: Calm, state: State, report: Report) -> tuple[Calm, list[Metric]]:
    """Take in the uploads of a round; and the curves of stability.

    Args:
        problem: fixed for the run.
        calm: before the round.
        state: before the round.
        report: of the round.
    """
    window, stability = add_updates(problem, state, calm.window, report, "auto")
    epsilon = stability_threshold("auto", problem.training_of(state.round + 1).lr)
    nodes = list[int]()
    for node in state.nodes.tolist():
        full = stability.values[(window.lineage == node) & stability.ready]
        if len(full) >= FEWEST and bool((full.mean(dim=0) < epsilon).any()):  # Eq. 15, of the members' mean
            nodes.append(node)
    return Calm(window, tuple(nodes)), list(stability.metrics)
