"""Whether those who sent folds in a round show that their cluster is to be split: into groups, or from newcomers.

A test of groups has no power for a lone client. But newcomers are a group that is known beforehand, so a cluster that
got some is first asked whether they differ from its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedstrata.algorithms.parts.proof.budget import FOUND, gathered
from fedstrata.algorithms.parts.proof.testimony import FEWEST, Testimony, examine, looked_at
from fedstrata.clustering import Confirmation, newcomer_test
from fedstrata.core import Layout, Rows
from fedstrata.lazy import torch


@dataclass(frozen=True)
class Ruling:
    """What came of a test.

    Attributes:
        clients: who were compared, ids (m,).
        found: the decision.
        evidence: about the members of the cluster, this round's included.
        groups: whether groups were sought, and not whether newcomers differ.
    """

    MEANS: ClassVar[Mapping[bool, str]] = {True: FOUND, False: "newcomers differ from the members"}

    clients: torch.Tensor
    found: Confirmation
    evidence: Testimony
    groups: bool


def rule(
    layout: Layout,
    known: Testimony | None,
    sent: Sequence[Rows],
    members: torch.Tensor,
    newcomers: torch.Tensor,
    generator: torch.Generator,
    level: float,
) -> Ruling:
    """Test a cluster.

    Args:
        layout: of the network.
        known: evidence of earlier rounds.
        sent: updates of the same members by every fold, (m, p) each.
        members: of the cluster, bool (n,).
        newcomers: who came late and was not tested yet, bool (n,).
        generator: of re-arrangements.
        level: of the test.
    """
    evidence, clients = gathered(layout, known, sent, members), sent[0].clients
    new = newcomers[clients]
    if len(clients) >= FEWEST and bool(new.any()) and not bool(new.all()):
        found = newcomer_test(torch.stack([fold.values for fold in sent]), new, looked_at(layout), generator, level)
        if found.tested:
            return Ruling(clients, found, evidence, False)
    return Ruling(*examine(layout, evidence, generator, level), evidence, True)
