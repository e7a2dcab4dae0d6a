"""What the algorithms that split clusters in two have in common: the walk over the clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.algorithms.parts.proof.dossier import Gate
from fedstrata.core import (
    Decision,
    Diagnostics,
    Matrix,
    Problem,
    Report,
    Result,
    State,
    aggregate,
    assign_pending,
    initial_state,
    selected,
)
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Watched(State):
    """What Sattler's criterion remembers of every cluster.

    Attributes:
        peaks: largest update norm of any member so far, over all layers and over the compared ones, (k, 2).
        final: clusters that are not examined again, (k,) bool.
        gate: what folds of the clients' data have shown; None where splits need no proof.
    """

    peaks: torch.Tensor
    final: torch.Tensor
    gate: Gate | None


W = TypeVar("W", bound=Watched)


@dataclass(frozen=True)
class SplitDecision:
    """A verdict on one cluster.

    Attributes:
        verdict: why.
        second: the fresh members that leave, as a bool (m',); None when the cluster stays whole.
        matrix: what the members were compared by, if they were.
        final: the cluster is not to be examined again.
    """

    verdict: Decision
    second: torch.Tensor | None = None
    matrix: Matrix | None = None
    final: bool = False


def watch(problem: Problem) -> Watched:
    """Everyone in one cluster, nothing seen yet."""
    nothing = torch.zeros(1, dtype=torch.bool)
    return Watched(**vars(initial_state(problem)), peaks=torch.zeros(1, 2), final=nothing, gate=None)


def recurse(
    problem: Problem,
    state: W,
    report: Report,
    columns: torch.Tensor,
    judge: Callable[[int, Result, torch.Tensor], SplitDecision],
    first: int,
    quorum: float,
    min_split: int,
    ready: torch.Tensor | None = None,
) -> tuple[W, Diagnostics]:
    """Examine every cluster, split where the verdict says so, average inside the new clusters.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: of the round.
        columns: the columns that the algorithm compares, (q,).
        judge: cluster, fresh rows of its members, peaks (2,) of its updates -> decision.
        first: first round in which a cluster may be examined.
        quorum: share of the members asked in this round that must have answered from the cluster's own model.
        min_split: least number of members that must have.
        ready: who has answered often enough to be judged, bool (n,); the others count as absent. None for everyone.
    """
    result, settled = report.results[0], assign_pending(state, report)
    result = result.only(result.updates.clients.argsort())  # between equals, the lowest id decides
    clients, peaks = result.updates.clients, state.peaks.clone()
    compared = problem.layout.columns(problem.layout.select("all"))
    # A verdict on other members is not final for those that have come since.
    final = state.final.clone()
    final[settled[settled != state.labels]] = False
    labels, parents, decisions = torch.full_like(settled, -1), list[int](), dict[int, SplitDecision]()
    for cluster in range(len(state.models)):
        members = settled == cluster
        fresh = result.only(members[clients] & (result.chosen == cluster))
        if len(fresh.sizes):
            norms = [longest_norm(fresh.updates.only(q).values) for q in (compared, columns)]
            peaks[cluster] = torch.maximum(peaks[cluster], torch.tensor(norms))
        answered = len(fresh.sizes)
        fresh = fresh if ready is None else fresh.only(ready[fresh.updates.clients])
        size, present = int(selected(report, members).sum()), len(fresh.sizes)
        if present < min_split or present / size < quorum:
            early = f", {answered - present} of them too few times since they came here" if answered > present else ""
            needed = f"{min_split} and a share of {quorum:g} are needed"
            why = f"{answered} of {size} asked members answered{early}; {needed}"
            decisions[cluster] = SplitDecision(Decision(why))
        elif state.round + 1 >= first and not final[cluster]:
            decisions[cluster] = judge(cluster, fresh, peaks[cluster])
        second = decisions[cluster].second if cluster in decisions else None
        if second is None:
            labels[members] = len(parents)
            parents.append(cluster)
        else:
            # Positions in `fresh` are not client ids: storing them as ids is the bug of every public CFL.
            for leaving in (False, True):
                labels[fresh.updates.clients[second == leaving]] = len(parents)
                parents.append(cluster)

    origin = torch.tensor(parents)
    verdicts = {cluster: decision.verdict for cluster, decision in decisions.items()}
    moved, diagnostics = aggregate(problem, state, report, labels, origin, verdicts)
    whole = torch.tensor([parents.count(cluster) == 1 for cluster in parents])
    done = torch.tensor([bool(final[c]) or (c in decisions and decisions[c].final) for c in parents])
    moved = replace(moved, peaks=peaks[origin] * whole[:, None], final=done & whole)
    matrices = tuple(d.matrix for d in decisions.values() if d.matrix is not None)
    return moved, replace(diagnostics, matrices=matrices, metrics={**diagnostics.metrics, **_norms(state, verdicts)})


def _norms(state: State, verdicts: Mapping[int, Decision]) -> dict[str, float]:
    """The norms that thresholds are chosen by, of every cluster that was examined."""
    names = ("mean_norm", "max_norm")
    return {
        f"{name} of node {int(state.nodes[cluster])}": verdict.values[name]
        for cluster, verdict in verdicts.items()
        for name in names
        if name in verdict.values
    }


def longest_norm(rows: torch.Tensor) -> float:
    """Largest norm of a row (LayerCFL Eq. 28), in float64: squares of float32 overflow long before their roots."""
    return float(rows.double().norm(dim=1).max())


def mean_norm(problem: Problem, fresh: Result) -> float:
    """Norm of the weighted mean update of some clients, all conv and linear layers (LayerCFL Eq. 27)."""
    updates = fresh.updates.only(problem.layout.columns(problem.layout.select("all")))
    together = torch.zeros(len(fresh.sizes), dtype=torch.int64)
    return float(problem.aggregation(updates, fresh.sizes, together, 1).double().norm())
