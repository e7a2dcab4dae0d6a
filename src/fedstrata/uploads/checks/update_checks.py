"""Which updates count in the models of clusters, and how much.

Byzantine clients send updates that point backwards, that are much longer than others, that lie on one side of them, or
that are all the same. They are left out of the means, or shortened. Decisions go on with them: they may be an honest
group that wants another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import Bools, Floats
from fedstrata.core import TRAIN, Layout, Report
from fedstrata.core.server import CheckedUpdates, UpdateHistory
from fedstrata.core.state import ServerMemory
from fedstrata.uploads.checks.compared_updates import compared_updates, own_clusters
from fedstrata.uploads.checks.copied_updates import copied
from fedstrata.uploads.checks.directions import DirectionHistory, no_directions, reassigned, with_directions
from fedstrata.uploads.checks.norms import (
    NormHistory,
    clip_long_updates,
    clip_to_median_of_others,
    no_norms,
    with_norms,
)
from fedstrata.uploads.checks.one_sided_updates import one_sided

CheckName = Literal["directions", "norms", "signs", "copies"]
"""What is checked: updates that keep pointing against those of their cluster; that are much longer; that lie on one
side of them; and that several clients send alike."""


@dataclass(frozen=True)
class CheckHistory(UpdateHistory):
    """What is known of the updates of each client.

    Attributes:
        directions: How they have pointed; None where nobody checks it.
        norms: How long they have been; None where nobody checks it.
    """

    directions: DirectionHistory | None = None
    norms: NormHistory | None = None

    @property
    def suspect(self) -> torch.Tensor | None:
        """Who is left out because of the directions of its updates, or doubted, bool (n,)."""
        return None if self.directions is None else self.directions.left_out | self.directions.doubted

    @property
    def drifted(self) -> torch.Tensor | None:
        """Whose updates have become longer, and who has not chosen a cluster since, bool (n,)."""
        return None if self.norms is None else self.norms.drifted

    def left_out(self, n: int) -> torch.Tensor:
        """Whose updates of the last round are left out of the means of clusters, bool (n,)."""
        left_out = torch.zeros(n, dtype=torch.bool)
        for known in (self.directions, self.norms):
            left_out = left_out if known is None else left_out | known.left_out
        return left_out

    def forgetting(self, clients: torch.Tensor) -> CheckHistory:
        """The same without what is known of some clients, bool (n,), but for whom to doubt."""
        return CheckHistory(
            directions=None if self.directions is None else self.directions.forgetting(clients),
            norms=None if self.norms is None else self.norms.without(clients),
        )

    def doubting(self, clients: torch.Tensor) -> CheckHistory:
        """The same where some clients, ids, are doubted."""
        return self if self.directions is None else replace(self, directions=self.directions.doubting(clients))


@dataclass(frozen=True)
class Checks:
    """Finds the clients whose updates keep pointing backwards, are longer, one-sided or the same.

    Attributes:
        names: What is checked.
    """

    names: Sequence[CheckName] = ("directions", "norms", "signs", "copies")

    def no_history(self, clients: int) -> CheckHistory:
        """What is known before the first round, of n clients."""
        return CheckHistory(
            directions=no_directions(clients) if "directions" in self.names else None,
            norms=no_norms(clients) if "norms" in self.names else None,
        )

    def counted(
        self, layout: Layout, history: ServerMemory, report: Report, before: torch.Tensor, labels: torch.Tensor
    ) -> tuple[Report, ServerMemory]:
        """The updates of a round that count, as `UpdateChecks` says."""
        checked = self.check(layout, history, report, before, labels)
        return replace(checked.counted, events=checked.events), checked.history

    def check(
        self,
        layout: Layout,
        history: ServerMemory,
        report: Report,
        before: torch.Tensor,
        labels: torch.Tensor,
        *,
        newcomers: torch.Tensor | None = None,
        chose: torch.Tensor | None = None,
    ) -> CheckedUpdates:
        """Check the updates of a round, as `DecisionChecks` says."""
        nobody = np.zeros(len(before), np.bool_)
        updates = compared_updates(layout, report, before)
        known = history if isinstance(history, CheckHistory) else CheckHistory()
        directions = known.directions
        if directions is not None:
            directions = with_directions(directions, updates, before)
        norms, shorter, counted, who = _check_norms(
            layout, known.norms, report, before, labels, updates.norms, newcomers, chose
        )
        if not torch.equal(labels, before):
            updates = replace(updates, own=own_clusters(report, labels))
            if directions is not None:
                changed = labels != before
                # A doubted client that was absent when its cluster was split chooses its cluster later.
                directions = reassigned(directions, changed & ((before >= 0) | directions.doubted))
        reversed_ = nobody if directions is None else directions.left_out.numpy()
        left_out = reversed_ | who["oversized"]
        on_one_side = nobody
        if "signs" in self.names and (found := one_sided(updates)):
            on_one_side = nobody.copy()
            on_one_side[found] = True
            # Nobody else is to choose a cluster that they come to have for themselves.
            directions = None if directions is None else directions.doubting(torch.tensor(found))
        copies = copied(updates, left_out | on_one_side) if "copies" in self.names else nobody
        not_counted = left_out | on_one_side | copies
        # Of what does not count, nothing is told but the reason.
        who = {
            "reversed": reversed_,
            **who,
            "clipped": who["clipped"] & ~not_counted,
            "one_sided": on_one_side & ~left_out,
            "copied": copies & ~on_one_side & ~left_out,
        }
        told = ((kind, updates.clients[those[updates.clients]].tolist()) for kind, those in who.items())
        events = tuple({"kind": kind, "clients": ids} for kind, ids in told if ids)
        return CheckedUpdates(CheckHistory(directions, norms), shorter, _without(counted, not_counted), events)


def _check_norms(
    layout: Layout,
    before: NormHistory | None,
    report: Report,
    labels_before: torch.Tensor,
    labels: torch.Tensor,
    norms: Floats,
    newcomers: torch.Tensor | None,
    chose: torch.Tensor | None,
) -> tuple[NormHistory | None, Report, Report, dict[str, Bools]]:
    """Find the clients whose updates are much longer, if norms are checked: by their norms, float32 (m,).

    Returns:
        What is known of norms; the reports for decisions and for means, in which no update is longer than it may be;
        and who was found, bool (n,), by the kind of event.
    """
    nobody = np.zeros(len(labels), np.bool_)
    if before is None:
        return None, report, report, dict.fromkeys(("oversized", "clipped", "drifted"), nobody)
    if chose is not None and before.drifted.numpy().any():
        # Whoever was offered other models has now chosen.
        answered = torch.zeros_like(before.drifted).index_fill(0, report.results[TRAIN].updates.clients, True)
        before = replace(before, drifted=before.drifted & ~(answered & chose))
    history = with_norms(before, norms, report, labels_before, newcomers)
    if chose is None:
        history = replace(history, drifted=before.drifted)
    counted, ids = clip_long_updates(history, norms, report, labels)
    clipped = nobody.copy()
    clipped[ids] = True
    who = {
        "oversized": history.left_out.numpy(),
        "clipped": clipped,
        "drifted": history.drifted.numpy() & ~before.drifted.numpy(),
    }
    return history, clip_to_median_of_others(layout, report, history.left_out), counted, who


def _without(report: Report, who: Bools) -> Report:
    """The report without what some clients, bool (n,), have trained normally."""
    result = report.results[TRAIN]
    found = who[result.updates.clients.numpy()]
    if not found.any():
        return report
    return replace(report, results={**report.results, TRAIN: result.only(torch.from_numpy(~found))})
