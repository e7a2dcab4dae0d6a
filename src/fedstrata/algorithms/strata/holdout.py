"""Hold-out comparisons: do models of their own serve the groups of a cluster better on data that trained none of them?

The model of a candidate group is the cluster's model plus the mean update of the group on half A of its members' data.
The members measure the loss and the error rate of the models that concern them on half B, the hold-out data.

Where clients make personal models from that of their cluster, such models are compared instead. They lie between the
model of the group and the one that the client trains on half A by itself, as far from the group's as suits its members
best. The share is chosen on half B as well. The models of groups then lie twice as far from that of the whole cluster.

Where a round selects few of many members, those who were compared are seldom selected again. Then other members stand
in for them: a stand-in takes the side whose model has the lower loss on half A of its data, and measures on half B.

No update of half B enters a model, and none enters a group that the permutation test has not confirmed. Two things
come from both halves: the groups that it has confirmed, and the cluster's model, which earlier rounds have trained on
all data. docs/evidence/strata-proof.md says what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fedstrata.algorithms.strata.groups import GroupTree, candidate_groups, extrapolated, group_updates
from fedstrata.algorithms.tuning import MAX_EXCESS_LOSS, SHARES
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Decision, Problem, Rows

_GAIN_LEVEL = 0.025
"""The level of the t-test of the gains of personal models, where one comparison decides."""

_LARGEST_EXCESS = 3.0
"""A member's excess loss is clamped to so many times the median absolute excess of its group, before a share is chosen.

The excess loss is that of a personal model beyond that of the group's model.
"""


@dataclass(frozen=True)
class HoldoutComparison:
    """The candidate groups of one cluster, and how well their models do.

    Attributes:
        clients: Who was compared, ids (m,).
        groups: The tree of groups, q in all.
        models: The model of each group, (q, p). The first one is that of the whole cluster. Where personal models are
            compared, the others lie further away from it than the updates of their members lead.
        start: The model of the cluster from which they come, (1, p), where personal models are compared; else None.
        losses_by_share: The mean cross-entropy in nats of each client by the models that it evaluates, (m, q, s): the
            models above, or personal models in the order of `SHARES`. It is nan for the other models,
            and as long as the client has not answered.
        errors: The shares of misclassified samples by the models of groups as they are, likewise, (m, q).
        samples: The number of independent samples behind them, (m,).
        level: The level of the error-rate tests of all other splits than the confirmed ones, together.
        decision: The decision of the permutation test. Without one, its kind is that of a split by error-rate tests.
        round: The round in which the comparison began.
        of_outliers: Whether outliers are compared with all others, who evaluate the models of all groups of outliers.
        has_stand_ins: Whether other members stand in for those who were compared. They join `clients` when they answer.
        gain_level: The level of the t-test of the gains of personal models.
    """

    clients: torch.Tensor
    groups: GroupTree
    models: torch.Tensor
    start: torch.Tensor | None
    losses_by_share: torch.Tensor
    errors: torch.Tensor
    samples: torch.Tensor
    level: float
    decision: Decision
    round: int
    of_outliers: bool = False
    has_stand_ins: bool = False
    gain_level: float = _GAIN_LEVEL

    @property
    def answered(self) -> torch.Tensor:
        """Who has answered, bool (m,)."""
        return ~self.losses_by_share[:, 0, 0].isnan()

    @property
    def of_personal_models(self) -> bool:
        """Whether personal models are compared."""
        return self.start is not None

    @property
    def all_models(self) -> torch.Tensor:
        """The models of the groups, and that from which members train by themselves if they do, (q or q + 1, p)."""
        return self.models if self.start is None else torch.cat([self.models, self.start])

    @property
    def shares(self) -> tuple[float, ...]:
        """How far the compared models lie from those of the groups."""
        return SHARES if self.of_personal_models else SHARES[:1]

    @cached_property
    def losses(self) -> torch.Tensor:
        """The loss of each client by each group, (m, q): with the share that suits the members of the group best."""
        members = (self.groups.inside.T & self.answered[:, None])[:, :, None]  # (m, q, 1)
        # A member that diverged when it trained by itself does not choose for all.
        bounded = self.losses_by_share.minimum(self.losses_by_share[:, :, :1] + MAX_EXCESS_LOSS)
        excess = torch.where(members, bounded - bounded[:, :, :1], torch.nan).double()
        # Nor does one that claims anything.
        most = _LARGEST_EXCESS * excess.abs().nanquantile(0.5, dim=0)  # (q, s)
        best = excess.clamp(min=-most, max=most).nansum(dim=0).argmin(dim=1)
        return bounded[:, torch.arange(len(best)), best]

    @property
    def sides(self) -> torch.Tensor:
        """Who is on each of the two sides, bool (2, m): of the first split, or the outliers and all others."""
        subgroups = self.groups.inside[self.groups.children(0)]
        return torch.cat([subgroups, ~subgroups]) if self.of_outliers else subgroups

    def models_for(self, place: int) -> list[int]:
        """The groups whose models a client evaluates, ascending."""
        return list(range(len(self.groups))) if self.of_outliers else self.groups.models_for(place)

    @property
    def complete(self) -> bool:
        """Whether half of those compared have answered, and someone on each side."""
        on_each_side = bool((self.sides & self.answered).any(dim=1).all())
        return 2 * int(self.answered.sum()) >= len(self.clients) and on_each_side

    def only(self, kept: torch.Tensor) -> HoldoutComparison | None:
        """The comparison for some of the clients, by a bool (m,); None where a side is left without any."""
        if not bool(self.sides[:, kept].any(dim=1).all()):
            return None
        return replace(
            self,
            clients=self.clients[kept],
            groups=replace(self.groups, inside=self.groups.inside[:, kept]),
            losses_by_share=self.losses_by_share[kept],
            errors=self.errors[kept],
            samples=self.samples[kept],
        )


def start_comparison(
    problem: Problem,
    start: torch.Tensor,
    updates: Rows,
    clients: torch.Tensor,
    confirmed: GroupTree,
    *,
    level: float,
    decision: Decision,
    node: int,
    round: int,
    finer: bool = True,
    personal: bool = False,
    has_stand_ins: bool = False,
) -> HoldoutComparison | None:
    """A comparison of groups; None where nobody of a confirmed group has sent anything, or there is one client.

    Args:
        problem: What is fixed for the run.
        start: The model of the cluster, (p,).
        updates: The updates of the members by half A of their data.
        clients: Who was compared, ids (m,).
        confirmed: The tree of confirmed splits, or a single group.
        level: The level of the error-rate tests of all other splits, together.
        decision: The decision of the permutation test.
        node: The tree node of the cluster.
        round: The round in which the comparison begins.
        finer: Whether groups inside the confirmed ones are compared as well.
        personal: Whether personal models are compared.
        has_stand_ins: Whether other members stand in for those who were compared.
    """
    groups = candidate_groups(confirmed, clients, updates, finer=finer)
    if groups is None:
        return None
    models = start + group_updates(problem, updates, clients, groups, node=node, round=round)
    if personal:
        models = extrapolated(problem.layout, models)
    base = start[None] if personal else None
    comparison = comparison_of(clients, groups, models, base, level=level, decision=decision, round=round)
    return replace(comparison, has_stand_ins=has_stand_ins)


def comparison_of(
    clients: torch.Tensor,
    groups: GroupTree,
    models: torch.Tensor,
    start: torch.Tensor | None = None,
    *,
    level: float,
    decision: Decision,
    round: int,
    of_outliers: bool = False,
) -> HoldoutComparison:
    """A comparison in which nobody has answered yet. The arguments are its fields."""
    shape = (len(clients), len(groups))
    shares = 1 if start is None else len(SHARES)
    return HoldoutComparison(
        clients=clients,
        groups=groups,
        models=models,
        start=start,
        losses_by_share=torch.full((*shape, shares), torch.nan),
        errors=torch.full(shape, torch.nan),
        samples=torch.zeros(len(clients)),
        level=level,
        decision=decision,
        round=round,
        of_outliers=of_outliers,
    )
