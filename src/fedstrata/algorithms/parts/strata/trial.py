"""Whether models of their own serve groups of a cluster better, on data that trained none of these models.

All models start from the cluster's and move by the mean update by members' A halves: of everyone, and of every group.
The members say how wrong the models that concern them are on their B halves; it is decided once half of them have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.strata.branches import Branches, grown
from fedstrata.core import Decision, Problem, Rows
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Trial:
    """Groups of one cluster, and how well their models do.

    Attributes:
        clients: who were compared, ids (m,).
        groups: of them, q in all.
        models: of each group, (q, p).
        losses: mean cross-entropy in nats of each client by the models that it is to judge, (m, q); nan for others, and
            as long as it has not said.
        errors: shares of misclassified samples, likewise, (m, q).
        samples: independent ones that these are means of, (m,).
        level: up to which p splits are proven that are not yet, all together.
        decision: of the test that came before.
        round: in which it began.
    """

    clients: torch.Tensor
    groups: Branches
    models: torch.Tensor
    losses: torch.Tensor
    errors: torch.Tensor
    samples: torch.Tensor
    level: float
    decision: Decision
    round: int

    @property
    def answered(self) -> torch.Tensor:
        """Who has said it, bool (m,)."""
        return ~self.losses[:, 0].isnan()

    @property
    def over(self) -> bool:
        """Whether enough have: half of all, and someone on each side."""
        sides = self.groups.inside[self.groups.children(0)]
        return 2 * int(self.answered.sum()) >= len(self.clients) and bool((sides & self.answered).any(dim=1).all())

    def only(self, kept: torch.Tensor) -> Trial | None:
        """That of some of the clients, by a bool (m,); None where a side is left without any."""
        if (groups := self.groups.only(kept)) is None:
            return None
        said = {name: getattr(self, name)[kept] for name in ("clients", "losses", "errors", "samples")}
        return replace(self, groups=groups, **said)


def tried(
    problem: Problem,
    round: int,
    start: torch.Tensor,
    sent: Sequence[Rows],
    clients: torch.Tensor,
    proven: Branches | None,
    level: float,
    decision: Decision,
    *,
    inside: bool = True,
) -> Trial | None:
    """A trial of groups; None where nobody of a proven group has sent anything in this round, or there is one client.

    Args:
        problem: fixed for the run.
        round: in which it begins.
        start: the cluster's model, (p,).
        sent: what members sent in this round, by fold.
        clients: who were compared, ids (m,).
        proven: the tree of proven splits; None without one.
        level: of all splits inside.
        decision: of the test.
        inside: whether groups inside the proven ones are sought as well.
    """
    halves = sent[: (len(sent) + 1) // 2]
    ids = clients[torch.isin(clients, halves[0].clients)]
    updates = Rows(ids, torch.stack([half.of(ids) for half in halves]).mean(dim=0))
    groups = grown(clients, proven, updates, inside=inside)
    if groups is None:
        return None
    senders = groups.inside[:, torch.searchsorted(clients, ids)]
    moves = torch.cat([_mean(problem, updates.at(some)) for some in senders])
    losses, errors = (torch.full((len(clients), len(groups)), torch.nan) for _ in range(2))
    return Trial(clients, groups, start + moves, losses, errors, torch.zeros(len(clients)), level, decision, round)


def _mean(problem: Problem, updates: Rows) -> torch.Tensor:
    everyone = len(updates.clients)
    return problem.aggregation(updates, torch.ones(everyone), torch.zeros(everyone, dtype=torch.int64), 1)
