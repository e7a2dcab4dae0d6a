"""Which updates count in the models of clusters, and how much.

Byzantine clients send updates that point backwards, or that are much longer than others. They are left out of the
means, or shortened. Decisions go on with them: they may be an honest group that wants another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.core import TRAIN, Layout, Report
from fedstrata.core.state import ServerMemory
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.directions import DirectionHistory, no_directions, reassigned, with_directions
from fedstrata.uploads.checks.norms import NormHistory, clip_long_updates, no_norms, with_norms

CheckName = Literal["directions", "norms"]
"""What is checked: updates that keep pointing against those of their cluster, and that are much longer."""


@dataclass(frozen=True)
class CheckHistory(ServerMemory):
    """What is known of the updates of each client.

    Attributes:
        directions: How they have pointed; None where nobody checks it.
        norms: How long they have been; None where nobody checks it.
    """

    directions: DirectionHistory | None = None
    norms: NormHistory | None = None

    def forgetting(self, clients: torch.Tensor) -> CheckHistory:
        """The same without what is known of some clients, bool (n,), but for who is left out."""
        return CheckHistory(
            directions=None if self.directions is None else reassigned(self.directions, clients),
            norms=None if self.norms is None else self.norms.without(clients),
        )


@dataclass(frozen=True)
class Checks:
    """Finds the clients whose updates keep pointing backwards, or are much longer.

    Attributes:
        names: What is checked.
    """

    names: Sequence[CheckName] = ("directions", "norms")

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
        known = history if isinstance(history, CheckHistory) else self.no_history(len(before))
        updates = compared_updates(layout, report, before)
        clients = updates.clients
        nobody = np.zeros(len(clients), np.bool_)
        who = dict.fromkeys(("reversed", "oversized", "clipped"), nobody)
        counted = report

        # What is known of earlier rounds is of the clusters before this one.
        norms = known.norms
        if norms is not None:
            norms = with_norms(norms, updates, before)
            who["oversized"] = norms.left_out.numpy()[clients]
            counted, who["clipped"] = clip_long_updates(norms, updates, report, labels)
        directions = known.directions
        if directions is not None:
            directions = with_directions(directions, updates, before)
            if not torch.equal(labels, before):
                directions = reassigned(directions, (labels != before) & (before >= 0))
            who["reversed"] = directions.left_out.numpy()[clients]
        left_out = who["reversed"] | who["oversized"]

        # Of what does not count, nothing is told but the reason.
        who["clipped"] = who["clipped"] & ~left_out
        events = tuple({"kind": kind, "clients": clients[those].tolist()} for kind, those in who.items() if those.any())
        if left_out.any():
            kept = counted.results[TRAIN].only(torch.from_numpy(~left_out))
            counted = replace(counted, results={**counted.results, TRAIN: kept})
        return replace(counted, events=events), CheckHistory(directions, norms)
