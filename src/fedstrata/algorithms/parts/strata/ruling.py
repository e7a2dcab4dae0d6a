"""Whether those who sent folds in a round show that their cluster is to be split: into groups, or from newcomers.

A test of groups has no power for a lone client. But newcomers are a group that is known beforehand, so a cluster that
got some is first asked whether they differ from its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedstrata.algorithms.parts.proof.budget import FOUND, gathered, level
from fedstrata.algorithms.parts.proof.testimony import FEWEST, Testimony, add, examine, looked_at, silence
from fedstrata.algorithms.parts.strata.branches import MOST, Branches, forked, rooted
from fedstrata.clustering import Confirmation, newcomer_test
from fedstrata.core import Layout, Rows
from fedstrata.lazy_torch import torch


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
    spend: float,
) -> Ruling:
    """Test a cluster.

    Args:
        layout: of the network.
        known: evidence of earlier rounds.
        sent: updates of the same members by every fold, (m, p) each.
        members: of the cluster, bool (n,).
        newcomers: who came late and was not tested yet, bool (n,).
        generator: of re-arrangements.
        spend: level of the test.
    """
    evidence, clients = gathered(layout, known, sent, members), sent[0].clients
    new = newcomers[clients]
    if len(clients) >= FEWEST and bool(new.any()) and not bool(new.all()):
        found = newcomer_test(torch.stack([fold.values for fold in sent]), new, looked_at(layout), generator, spend)
        if found.tested:
            return Ruling(clients, found, evidence, False)
    return Ruling(*examine(layout, evidence, generator, spend), evidence, True)


class Proven(NamedTuple):
    """A confirmed split, and those inside its sides that are proven with it.

    Attributes:
        groups: the tree of them.
        tested: who is on a side that was tested, bool (m,).
        told: about the splits inside, in words.
    """

    groups: Branches
    tested: torch.Tensor
    told: str


def prove(
    layout: Layout,
    ruling: Ruling,
    sent: Sequence[Rows],
    generator: torch.Generator,
    alpha: float,
    tests: torch.Tensor,
    *,
    inside: bool,
) -> Proven:
    """Test every side of a confirmed split as the cluster that it may become, and the sides inside it.

    Args:
        layout: of the network.
        ruling: that confirmed the split.
        sent: as in `rule`.
        generator: of re-arrangements.
        alpha: of a cluster over the run.
        tests: to which a group with each client was put as a side before, (n,).
        inside: whether sides are tested at all.
    """
    second, clients = ruling.found.proposal, ruling.clients
    tree, node, said = forked(rooted(len(clients)), 0, ~second, second), 0, list[str]()
    tested = torch.zeros_like(second)
    while inside and tree.proven < MOST and (node := node + 1) < len(tree):
        side = tree.inside[node]
        ids = clients[side]
        # Measured anew: what is left of the whole cluster's likeness would show who is noisy, in all folds alike.
        evidence = add(layout, silence(layout, len(sent)), [fold.at(torch.isin(fold.clients, ids)) for fold in sent])
        compared, found = examine(layout, evidence, generator, level(alpha, int(tests[ids].max())))
        if not found.tested:
            continue
        tested |= side
        if found.confirmed:
            parts = (torch.isin(clients, compared[part]) for part in (~found.proposal, found.proposal))
            tree = forked(tree, node, *parts)
            said.append(f"{found.layer}: p = {found.p:.2g}, level {found.level:.2g}")
    return Proven(tree, tested, f"; so do groups inside them ({'; '.join(said)})" if said else "")
