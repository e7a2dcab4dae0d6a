"""Which clusters are to be tested in a round, and who is heard."""

from __future__ import annotations

from fedstrata.algorithms.parts.proof.budget import is_twin_round, level
from fedstrata.algorithms.parts.proof.hearings import Hearing, handful, hearing
from fedstrata.algorithms.parts.strata.memory import Stratified
from fedstrata.core import Problem


def due(state: Stratified) -> list[int]:
    """Clusters that are to be tested in the next round: by the calendar, or once they are steady."""
    round, calm, found = state.round + 1, state.calm, list[int]()
    for cluster, memory in enumerate(state.memories):
        steady = calm is not None and int(state.nodes[cluster]) in calm.steady and 2 * round >= 3 * memory.heard
        if memory.idle and (steady if calm is not None else is_twin_round(round)):
            found.append(cluster)
    return found


def docket(problem: Problem, state: Stratified, alpha: float, folds: int | str) -> list[Hearing]:
    """Who votes in the next round, on what.

    Args:
        problem: fixed for the run.
        state: before the round.
        alpha: of a cluster over the run.
        folds: of each voter, or ``"auto"``.
    """
    found = []
    for cluster in due(state):
        memory = state.memories[cluster]
        spend = level(alpha, memory.tests)
        some = hearing(problem, state, state.sizes, cluster, folds, spend, memory.answered)
        found.append(some or handful(state, state.sizes, cluster))
    return [each for each in found if each is not None]
