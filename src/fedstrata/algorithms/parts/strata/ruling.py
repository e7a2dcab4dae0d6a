"""Whether those who sent folds in a round show that their cluster is to be split: into groups, or from newcomers.

A test of groups has no power for a lone client. But newcomers are a group that is known beforehand, so a cluster that
got some is first asked whether they differ from its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedstrata.algorithms.parts.proof.budget import FOUND, gathered
from fedstrata.algorithms.parts.proof.testimony import FEWEST, Testimony, examine, looked_at
from fedstrata.algorithms.parts.strata.branches import Branches, forked, rooted
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


def proven(layout: Layout, ruling: Ruling, generator: torch.Generator, level: float) -> tuple[Branches, str]:
    """What the same evidence shows inside the sides of a confirmed split as well, as deep as it does.

    Every side is tested as the cluster that it may become.

    Args:
        layout: of the network.
        ruling: that confirmed the split.
        generator: of re-arrangements.
        level: of each of these tests; 0 for none.

    Returns:
        The proven splits, and those inside the first one in words.
    """
    tree, node, said = forked(rooted(len(ruling.clients)), 0, ruling.found.proposal), 0, list[str]()
    fresh = torch.isin(ruling.clients, ruling.evidence.clients[ruling.evidence.fresh])
    while level and (node := node + 1) < len(tree):
        inside = tree.inside[node]
        known = ruling.evidence.only(torch.isin(ruling.evidence.clients, ruling.clients[inside]))
        _, found = examine(layout, known, generator, level)
        tree = replace(tree, tested=tree.tested.index_fill(0, torch.tensor([node]), found.tested))
        second = torch.zeros_like(inside).masked_scatter(inside, found.proposal)
        # A group of whom nobody sent anything in this round can be given no model.
        if found.confirmed and bool((fresh & second).any()) and bool((fresh & inside & ~second).any()):
            tree = forked(tree, node, second)
            said.append(f"{found.layer}: p = {found.p:.2g}")
    return tree, f"; so do groups inside them ({', '.join(said)}, level {level:.2g})" if said else ""
