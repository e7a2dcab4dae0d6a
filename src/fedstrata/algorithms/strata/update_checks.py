"""Which updates count in the models of clusters, and how much.

Byzantine clients send updates that point backwards, that are much longer than others, that lie on one side of them, or
that are all the same. They are left out of the means, or shortened. Tests and comparisons of groups go on with them:
they may be an honest group that wants another model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedstrata.algorithms.shared.copied_updates import copied
from fedstrata.algorithms.shared.directions import with_directions
from fedstrata.algorithms.shared.norms import clip_long_updates, clip_to_median_of_others, update_norms, with_norms
from fedstrata.algorithms.shared.one_sided_updates import one_sided
from fedstrata.algorithms.strata.reassignment import reassigned_clients, unsettled
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import TRAIN, Layout, Report
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class CheckedUpdates:
    """The updates of a round.

    Attributes:
        state: The state with what is now known of directions and norms.
        report: The report for tests and comparisons. Whoever keeps sending long updates sends none here that is longer
            than those of others.
        counted: The report for the means of clusters, without the updates that are left out.
        events: What was done to whose updates, an event of each kind where there are some.
    """

    state: StrataState
    report: Report
    counted: Report
    events: tuple[dict[str, Any], ...]


def check_updates(
    layout: Layout, state: StrataState, report: Report, labels: torch.Tensor, *, sign_check: bool, copy_check: bool
) -> CheckedUpdates:
    """Find the clients whose updates keep pointing against those of their cluster, are longer, one-sided or the same.

    Args:
        layout: The layout of the network.
        state: The state before the round.
        report: The report of the round.
        labels: The cluster of each client in this round, (n,).
        sign_check: Whether to find those that lie on one side of the others.
        copy_check: Whether to find those that are the same.
    """
    clients = report.results[TRAIN].updates.clients
    nobody = torch.zeros(len(state.labels), dtype=torch.bool)
    norms = update_norms(layout, report)
    directions = state.directions
    if directions is not None:
        directions = with_directions(directions, layout, report, state.labels, norms)
        # A doubted client that was absent when its cluster was split chooses its cluster later.
        chooses = (state.labels < 0) & (labels >= 0)
        directions = directions.reassigned(reassigned_clients(state, labels) | (chooses & directions.doubted))
    found = _check_norms(layout, replace(state, directions=directions), report, labels, norms)
    state = found.state
    on_one_side = one_sided(layout, report, labels) if sign_check else nobody
    if state.directions is not None and bool(on_one_side.any()):
        # Nobody else is to choose a cluster that they come to have for themselves.
        state = replace(state, directions=state.directions.doubting(on_one_side.nonzero().flatten()))
    copies = copied(report, labels, state.left_out | on_one_side) if copy_check else nobody
    # Of what does not count, nothing is told but the reason.
    events = {
        "reversed": nobody if directions is None else directions.left_out,
        **found.who,
        "clipped": found.who.get("clipped", nobody) & ~copies & ~on_one_side,
        "one_sided": on_one_side & ~state.left_out,
        "copied": copies & ~on_one_side & ~state.left_out,
    }
    told = ({"kind": kind, "clients": clients[who[clients]].tolist()} for kind, who in events.items())
    return CheckedUpdates(
        state=state,
        report=found.report,
        counted=_without(found.counted, state.left_out | on_one_side | copies),
        events=tuple(event for event in told if event["clients"]),
    )


@dataclass(frozen=True)
class _CheckedNorms:
    """What the check of norms has found.

    Attributes:
        state: The state with what is now known of norms.
        report: As in `CheckedUpdates`.
        counted: The report in which no update is longer than it may be.
        who: Who was found, bool (n,) each, by the kind of event.
    """

    state: StrataState
    report: Report
    counted: Report
    who: dict[str, torch.Tensor]


def _check_norms(
    layout: Layout, state: StrataState, report: Report, labels: torch.Tensor, norms: torch.Tensor
) -> _CheckedNorms:
    """Find the clients whose updates are much longer, if norms are checked.

    Args:
        layout: The layout of the network.
        state: The state before the round, with what is now known of directions.
        report: The report of the round.
        labels: The cluster of each client in this round, (n,).
        norms: The norms of the updates of the round, (m,).
    """
    if state.norms is None:
        return _CheckedNorms(state, report, report, {})
    nobody = torch.zeros(len(state.labels), dtype=torch.bool)
    # Whoever was offered other models has now chosen.
    chosen = nobody.index_fill(0, report.results[TRAIN].updates.clients, True) & unsettled(state)
    before = state.norms.without_drift(chosen)
    history = with_norms(before, norms, report, state.labels, state.newcomers)
    counted, ids = clip_long_updates(history, norms, report, labels)
    state = replace(state, norms=history)
    long = nobody.index_fill(0, ids, True)
    who = {
        "oversized": history.left_out,
        "clipped": long & ~state.left_out,
        "drifted": history.drifted & ~before.drifted,
    }
    return _CheckedNorms(state, clip_to_median_of_others(layout, report, history.left_out), counted, who)


def _without(report: Report, who: torch.Tensor) -> Report:
    """The report without what some clients, bool (n,), have trained normally."""
    result = report.results[TRAIN]
    found = who[result.updates.clients]
    if not bool(found.any()):
        return report
    return replace(report, results={**report.results, TRAIN: result.only(~found)})
