"""Which updates count in the models of clusters, and how much.

Byzantine clients send updates that point backwards, that are much longer than others, or that are all the same. They
are left out of the means, or shortened. Tests and comparisons of groups go on with them: they may be an honest group
that wants another model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedstrata.algorithms.shared.copied_updates import originals_of
from fedstrata.algorithms.shared.directions import with_directions
from fedstrata.algorithms.shared.lengths import clipped, shortened, update_norms, with_lengths
from fedstrata.algorithms.strata.reassignment import unsettled
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
    layout: Layout, state: StrataState, report: Report, labels: torch.Tensor, *, copy_check: bool
) -> CheckedUpdates:
    """Find the clients whose updates keep pointing against those of their cluster, are much longer, or are the same.

    Args:
        layout: The layout of the network.
        state: The state before the round.
        report: The report of the round.
        labels: The cluster of each client in this round, (n,).
        copy_check: Whether to find those that are the same. What keeps being found is in the state.
    """
    clients = report.results[TRAIN].updates.clients
    nobody = torch.zeros(len(state.labels), dtype=torch.bool)
    everyone = torch.arange(len(nobody))
    originals = originals_of(report, state.labels) if copy_check else everyone
    copied = originals != everyone
    compared = _without(report, copied)
    directions = state.directions and with_directions(state.directions, layout, compared, state.labels)
    lengths = state.lengths
    oversized = drifted = long = nobody
    counted = compared
    if lengths is not None:
        # Whoever was offered other models has now chosen.
        chosen = nobody.index_fill(0, clients, True) & unsettled(state)
        before = lengths.settled(chosen)
        norms = update_norms(layout, compared)
        lengths = with_lengths(before, norms, compared, state.labels, state.newcomers).shared_with(originals)
        oversized = lengths.left_out
        drifted = lengths.drifted & ~before.drifted
        counted, ids = clipped(lengths, norms, compared, labels)
        long = nobody.index_fill(0, ids, True) & ~oversized
        report = shortened(report, oversized)
    directions = directions and directions.shared_with(originals)
    backwards = nobody if directions is None else directions.left_out
    state = replace(state, directions=directions, lengths=lengths)
    kinds = {
        "reversed": backwards,
        "oversized": oversized,
        "clipped": long & ~backwards,
        "drifted": drifted,
        "copied": copied & ~state.left_out,
    }
    events = ({"kind": kind, "clients": clients[who[clients]].tolist()} for kind, who in kinds.items())
    return CheckedUpdates(
        state=state,
        report=report,
        counted=_without(counted, state.left_out),
        events=tuple(event for event in events if event["clients"]),
    )


def _without(report: Report, who: torch.Tensor) -> Report:
    """The report without what some clients, bool (n,), have trained normally."""
    result = report.results[TRAIN]
    found = who[result.updates.clients]
    if not bool(found.any()):
        return report
    return replace(report, results={**report.results, TRAIN: result.only(~found)})
