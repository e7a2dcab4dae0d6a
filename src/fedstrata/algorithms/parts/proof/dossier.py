"""What is remembered of clusters where a split must be proven: see `gate`."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.parts.proof.testimony import Testimony
from fedstrata.core import Decision
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Dossier:
    """What is known of one cluster.

    Attributes:
        node: its tree id.
        evidence: about its members; None before the first twin round.
        tests: that it was put to.
        cleared: clients of whom it is proven that they are not all alike; none while it is not.
        decision: of the last test; None before the first.
    """

    node: int
    evidence: Testimony | None = None
    tests: int = 0
    cleared: tuple[int, ...] = ()
    decision: Decision | None = None

    def of(self, members: torch.Tensor) -> Dossier:
        """As far as it speaks of those who are still members, a bool (n,)."""
        known = self.evidence and self.evidence.only(members[self.evidence.clients])
        if bool(members[list(self.cleared)].all()):
            return Dossier(self.node, known, self.tests, self.cleared, self.decision)
        # That some differ says nothing about those who are left.
        return Dossier(self.node, known, self.tests, decision=Decision("some of those who differed have left since"))


@dataclass(frozen=True)
class Gate:
    """What a gate remembers.

    Attributes:
        sizes: training samples of each client, (n,); 0 until it has answered.
        dossiers: of clusters that there were after the last round.
    """

    sizes: torch.Tensor
    dossiers: tuple[Dossier, ...] = ()
