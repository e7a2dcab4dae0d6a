"""Which updates count in the models of clusters, and how much.

Byzantine clients send updates that point backwards, that are much longer than others, that lie on one side of them, or
that are all the same. They are left out of the means, or shortened. Tests and comparisons of groups go on with them:
they may be an honest group that wants another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedstrata.algorithms.shared.groups import Bools, Floats, Ints
from fedstrata.algorithms.strata.reassignment import choosing_among_all
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.algorithms.update_checks.compared_updates import compared_updates
from fedstrata.algorithms.update_checks.copied_updates import copied
from fedstrata.algorithms.update_checks.directions import with_directions
from fedstrata.algorithms.update_checks.norms import (
    NormHistory,
    clip_long_updates,
    clip_to_median_of_others,
    with_norms,
)
from fedstrata.algorithms.update_checks.one_sided_updates import one_sided
from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Layout, Report


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
    nobody = np.zeros(len(state.labels), np.bool_)
    updates = compared_updates(layout, report, state.labels)
    directions = state.directions
    if directions is not None:
        directions = with_directions(directions, updates, state.labels)
    norms = _check_norms(layout, state, report, labels, updates.norms)
    if not torch.equal(labels, state.labels):
        updates = updates.of_clusters(report, labels)
        if directions is not None:
            changed = labels != state.labels
            # A doubted client that was absent when its cluster was split chooses its cluster later.
            directions = directions.reassigned(changed & ((state.labels >= 0) | directions.doubted))
    reversed_ = nobody if directions is None else directions.left_out.numpy()
    left_out = reversed_ | norms.who["oversized"]
    on_one_side = nobody
    if sign_check and (found := one_sided(updates)):
        on_one_side = nobody.copy()
        on_one_side[found] = True
        # Nobody else is to choose a cluster that they come to have for themselves.
        directions = None if directions is None else directions.doubting(torch.tensor(found))
    copies = copied(updates, left_out | on_one_side) if copy_check else nobody
    not_counted = left_out | on_one_side | copies
    checked = CheckedUpdates(
        state=replace(state, directions=directions, norms=norms.history),
        report=norms.report,
        counted=norms.counted,
        events=(),
    )
    # In most rounds nobody is found.
    if not (not_counted | norms.who["clipped"] | norms.who["drifted"]).any():
        return checked
    # Of what does not count, nothing is told but the reason.
    who = {
        "reversed": reversed_,
        **norms.who,
        "clipped": norms.who["clipped"] & ~not_counted,
        "one_sided": on_one_side & ~left_out,
        "copied": copies & ~on_one_side & ~left_out,
    }
    return replace(checked, counted=_without(norms.counted, not_counted), events=_events(who, updates.clients))


@dataclass(frozen=True)
class _CheckedNorms:
    """What the check of norms has found.

    Attributes:
        history: What is now known of norms; None if they are not checked.
        report: As in `CheckedUpdates`.
        counted: The report in which no update is longer than it may be.
        who: Who was found, bool (n,) each, by the kind of event.
    """

    history: NormHistory | None
    report: Report
    counted: Report
    who: dict[str, Bools]


def _check_norms(
    layout: Layout, state: StrataState, report: Report, labels: torch.Tensor, norms: Floats
) -> _CheckedNorms:
    """Find the clients whose updates are much longer, if norms are checked.

    Args:
        layout: The layout of the network.
        state: The state before the round.
        report: The report of the round.
        labels: The cluster of each client in this round, (n,).
        norms: The norms of the updates of the round, float32 (m,).
    """
    before = state.norms
    nobody = np.zeros(len(state.labels), np.bool_)
    if before is None:
        return _CheckedNorms(None, report, report, dict.fromkeys(("oversized", "clipped", "drifted"), nobody))
    if before.drifted.numpy().any():
        # Whoever was offered other models has now chosen.
        answered = torch.zeros_like(before.drifted).index_fill(0, report.results[TRAIN].updates.clients, True)
        before = before.without_drift(answered & choosing_among_all(state))
    history = with_norms(before, norms, report, state.labels, state.newcomers)
    counted, ids = clip_long_updates(history, norms, report, labels)
    clipped = nobody.copy()
    clipped[ids] = True
    who = {
        "oversized": history.left_out.numpy(),
        "clipped": clipped,
        "drifted": history.drifted.numpy() & ~before.drifted.numpy(),
    }
    return _CheckedNorms(history, clip_to_median_of_others(layout, report, history.left_out), counted, who)


def _events(who: Mapping[str, Bools], clients: Ints) -> tuple[dict[str, Any], ...]:
    """An event of each kind, with those who have answered of the clients, bool (n,), that it is about."""
    answered = ((kind, clients[found[clients]].tolist()) for kind, found in who.items())
    return tuple({"kind": kind, "clients": ids} for kind, ids in answered if ids)


def _without(report: Report, who: Bools) -> Report:
    """The report without what some clients, bool (n,), have trained normally."""
    result = report.results[TRAIN]
    found = who[result.updates.clients.numpy()]
    if not found.any():
        return report
    return replace(report, results={**report.results, TRAIN: result.only(torch.from_numpy(~found))})
