"""When to test without a calendar: as soon as the updates of a cluster's members turn steadily (HiCFL's stability)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.proof.testimony import FEWEST
from fedstrata.algorithms.parts.recursive.recursion import watch
from fedstrata.algorithms.parts.recursive.steadiness import Windowed, curves, observe, remember
from fedstrata.algorithms.parts.recursive.timing import epsilon_of
from fedstrata.core import Problem, Report, State
from fedstrata.lazy_torch import torch

WINDOW = 3
"""Uploads of a client that its stability is the mean over."""


@dataclass(frozen=True)
class Calm:
    """What stability remembers of every client; see `Windowed`.

    Attributes:
        uploads: the last ones, (n, W - 1, q).
        count: of uploads since the client came to its cluster, (n,).
        chosen: columns that stability looks at, (n, q) bool.
        lineage: tree node of the cluster in which the uploads were made, (n,).
        steady: tree nodes of the clusters that had a stable layer in the last round.
    """

    uploads: torch.Tensor
    count: torch.Tensor
    chosen: torch.Tensor
    lineage: torch.Tensor
    steady: tuple[int, ...] = ()


def listening(problem: Problem) -> Calm:
    """No upload seen yet."""
    start = remember(problem, WINDOW)
    return Calm(start.uploads, start.count, start.chosen, start.lineage)


def listened(problem: Problem, calm: Calm, state: State, report: Report) -> tuple[Calm, dict[str, float]]:
    """Take in the uploads of a round; and the curves of stability.

    Args:
        problem: fixed for the run.
        calm: before the round.
        state: before the round.
        report: of the round.
    """
    core = {name: getattr(state, name) for name in State.__dataclass_fields__}
    memory = {name: getattr(calm, name) for name in ("uploads", "count", "chosen", "lineage")}
    rest = {name: value for name, value in vars(watch(problem)).items() if name not in core}
    seen, steady = observe(problem, Windowed(**core, **rest, **memory), report, "auto")
    epsilon, nodes = epsilon_of("auto", problem.training_of(state.round + 1).lr), list[int]()
    for node in state.nodes.tolist():
        full = steady[(seen.lineage == node) & steady.isfinite().all(dim=1)]
        if len(full) >= FEWEST and bool((full.mean(dim=0) < epsilon).any()):  # Eq. 15, of the members' mean
            nodes.append(node)
    updated = replace(calm, uploads=seen.uploads, count=seen.count, chosen=seen.chosen, lineage=seen.lineage)
    return replace(updated, steady=tuple(nodes)), curves(problem, seen, steady)
