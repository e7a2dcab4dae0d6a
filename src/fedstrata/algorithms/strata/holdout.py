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
all data. docs/strata-proof.md says what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.shared.interpolation import MAX_EXCESS_LOSS, SHARES
from fedstrata.algorithms.shared.lengths import clipped_to_median
from fedstrata.algorithms.strata.group_tree import GroupTree, candidate_groups, placed
from fedstrata.core import TRAIN, Decision, Layout, LocalTask, Plan, Problem, Report, Result, Rows
from fedstrata.core.standard_round import padded_candidates
from fedstrata.lazy_torch import torch

_MAX_ROUNDS = 10
"""The number of rounds after which a comparison is given up if too few have answered."""

_OWN_TASK = "holdout own"
"""The task in which members train on half A by themselves, where personal models are compared."""

_SIDE_TASK = "holdout side"
"""The task in which stand-ins measure the loss of models on half A, by which they choose a side."""

_LOSS_TASK = "holdout loss"
"""The task in which members measure the loss of models on data that did not train them."""

_ERRORS_TASK = "holdout errors"
"""The task in which members measure the share of errors of the same models."""

_EXTRAPOLATION = 2.0
"""How far the models of groups lie from that of the whole cluster where personal models are compared: twice as far.

A model of few clients follows the noise of their data more than one of many, and a single round hardly shows it. At
twice the distance, what the clients of a group have in common counts twice, and the variance of the noise four times.
"""

_GAIN_LEVEL = 0.025
"""The level of the t-test of the gains of personal models, where one comparison decides."""

_LARGEST_EXCESS = 3.0
"""In the choice of a share, how much more or less a member loses than with the group's model counts up to so many times
the median of what the members of its group do."""

_MAX_LOSS = 1e3
"""Larger losses, and losses that are not finite, count as so many nats."""

OUTLIERS = 1
"""The group of all outliers in a comparison of outliers."""


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
        of_outliers: Whether the groups are outliers, and all others.
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

    @property
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
        if not self.of_outliers:
            return self.groups.inside[self.groups.children(0)]
        outliers = self.groups.inside[OUTLIERS]
        return torch.stack([outliers, ~outliers])

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
    # A single long update would spoil the model of an honest group. Differential privacy has a bound of its own.
    bounded = updates if problem.privacy is not None else clipped_to_median(updates)
    models = start + group_updates(problem, bounded, clients, groups, node=node, round=round)
    if personal:
        models = _extrapolated(problem.layout, models)
    base = start[None] if personal else None
    comparison = comparison_of(clients, groups, models, base, level=level, decision=decision, round=round)
    return replace(comparison, has_stand_ins=has_stand_ins)


def _extrapolated(layout: Layout, models: torch.Tensor) -> torch.Tensor:
    """Models further away from the first one, (q, p). Running statistics stay: a step along them has no meaning."""
    further = models[:1] + _EXTRAPOLATION * (models - models[:1])
    statistics = layout.columns(layout.buffers)
    further[:, statistics] = models[:, statistics]
    return further


def first_half_updates(sent: Sequence[Rows], clients: torch.Tensor) -> Rows:
    """The updates by half A of some clients. Whoever has sent none is left out.

    Args:
        sent: The updates by every fold. Those of half A come first.
        clients: The clients, ids (m,).
    """
    first_half = sent[: (len(sent) + 1) // 2]
    ids = clients[torch.isin(clients, first_half[0].clients)]
    return Rows(ids, torch.stack([fold.of(ids) for fold in first_half]).mean(dim=0))


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


def group_updates(
    problem: Problem, updates: Rows, clients: torch.Tensor, groups: GroupTree, *, node: int, round: int
) -> torch.Tensor:
    """The mean update of every group, as it may leave the server, (q, p). Every client has the same weight.

    Where a split would leave fewer than ``problem.min_cluster`` updates on one side, both sides have that of the group.
    So such a split gains nothing. The model of the larger side would show the smaller one, as what the group has more.

    Args:
        problem: What is fixed for the run.
        updates: The updates of those of the clients that sent one, (m', p).
        clients: Who was compared, ids (m,).
        groups: Their groups.
        node: The tree node of the cluster.
        round: The round of the updates.
    """
    places = torch.searchsorted(clients, updates.clients)
    if problem.privacy is None:
        inside = groups.inside[:, places]
        if len(updates.clients) < problem.min_cluster:
            return torch.zeros(len(groups), updates.values.shape[1])
        means = list[torch.Tensor]()
        for group, served in enumerate(_served_by(groups, inside.sum(dim=1) >= problem.min_cluster)):
            own = served == group
            means.append(mean_update(problem, updates.at(inside[group])) if own else means[served])
        return torch.cat(means)
    # The clients that are in the same groups are a subset.
    contained, subsets = groups.inside.unique(dim=1, return_inverse=True)
    # Nobody else than those who were compared was asked, so that all of them are expected in every cohort.
    members = groups.inside.sum(dim=1)
    purpose = f"holdout of node {node}"
    return problem.privacy.means_of_groups(updates, subsets[places], contained, members, purpose, round)


def _served_by(groups: GroupTree, enough: torch.Tensor) -> list[int]:
    """The group whose model each group has, q in all: its own, or that of the nearest group above that has its own.

    Args:
        groups: The groups. Each comes after its parent.
        enough: Which groups have enough updates for a model of their own, bool (q,).
    """
    served = [0]
    for group in range(1, len(groups)):
        parent = int(groups.parents[group])
        own = served[parent] == parent and bool(enough[groups.children(parent)].all())
        served.append(group if own else served[parent])
    return served


def mean_update(problem: Problem, updates: Rows) -> torch.Tensor:
    """The mean of some updates by the rule of aggregation, every client with the same weight, (1, p)."""
    m = len(updates.clients)
    return problem.aggregation(updates, torch.ones(m), torch.zeros(m, dtype=torch.int64), 1)


def stand_ins(comparison: HoldoutComparison, members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The ids of those who stand in for the clients of a comparison in a round, (s,).

    Args:
        comparison: The comparison.
        members: Who is in its cluster, bool (n,).
        present: The clients that the round selects, or those of them that have answered.
    """
    if not comparison.has_stand_ins:
        return present[:0]
    return present[members[present] & ~torch.isin(present, comparison.clients)]


def add_evaluation_tasks(
    plan: Plan, layout: Layout, comparisons: Sequence[tuple[HoldoutComparison, torch.Tensor]]
) -> Plan:
    """The plan in which members also evaluate the models of comparisons that concern them, without training.

    Where personal models are compared, they first train on half A by themselves.

    Args:
        plan: The plan.
        layout: The layout of the network.
        comparisons: The comparisons, and the ids of the stand-ins of each.
    """
    if not comparisons:
        return plan
    groups = list[list[int]]([] for _ in plan.cohort)
    sides = list[list[int]]([] for _ in plan.cohort)
    shares = list[list[float]]([] for _ in plan.cohort)
    starts = torch.full((len(plan.cohort), 1), -1)
    row_of = {client: row for row, client in enumerate(plan.cohort.tolist())}
    first = len(plan.models)
    for comparison, others in comparisons:
        everything = list(range(len(comparison.groups)))
        asked = [
            (client, comparison.groups.models_for(place)) for place, client in _unanswered(comparison, plan.cohort)
        ]
        for client, nodes in [*asked, *((client, everything) for client in others.tolist())]:
            row = row_of[client]
            groups[row] = [first + node for node in nodes]
            shares[row] = list(comparison.shares)
            if comparison.of_personal_models:
                starts[row] = first + len(comparison.models)
        for client in others.tolist():
            sides[row_of[client]] = groups[row_of[client]]
        first += len(comparison.all_models)
    candidates = padded_candidates(groups)
    evaluation = replace(
        plan.tasks[TRAIN],
        candidates=candidates,
        trainable=layout.nothing,
        upload=layout.nothing,
        fold="B",
        selection_fold="B",
        # This name is a seed of random numbers, so it stays as it is.
        stream="benefit",
    )
    # The Hoeffding bound counts independent samples: those of fold B, or their units where `data.unit` names a column.
    statistics = {**plan.client_stats, "units": (candidates >= 0).any(dim=1)}
    return replace(
        plan,
        models=torch.cat([plan.models, *(comparison.all_models for comparison, _ in comparisons)]),
        tasks={
            **plan.tasks,
            **_loss_tasks(evaluation, layout, groups, shares, starts),
            _ERRORS_TASK: replace(evaluation, selection_metric="errors"),
            **_side_tasks(evaluation, sides),
        },
        client_stats=statistics,
    )


def _side_tasks(evaluation: LocalTask, sides: Sequence[Sequence[int]]) -> dict[str, LocalTask]:
    """The task by which stand-ins choose a side; none without stand-ins."""
    if not any(sides):
        return {}
    return {_SIDE_TASK: replace(evaluation, candidates=padded_candidates(sides), fold="A", selection_fold="A")}


def _loss_tasks(
    evaluation: LocalTask,
    layout: Layout,
    groups: Sequence[Sequence[int]],
    shares: Sequence[Sequence[float]],
    starts: torch.Tensor,
) -> dict[str, LocalTask]:
    """The task that measures losses, after one in which clients train by themselves where personal models are compared.

    Args:
        evaluation: The task that evaluates the models of groups as they are.
        layout: The layout of the network.
        groups: The models of groups that each client evaluates, m lists.
        shares: How far from them it evaluates models, m lists.
        starts: The model from which it trains by itself, (m, 1); -1 where it does not.
    """
    if not bool((starts >= 0).any()):
        return {_LOSS_TASK: evaluation}
    candidates = [[model for model in models for _ in own] for models, own in zip(groups, shares, strict=True)]
    ways = [[share for _ in models for share in own] for models, own in zip(groups, shares, strict=True)]
    width = max([1, *map(len, ways)])
    padded = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ways])
    own = replace(
        evaluation, candidates=starts, trainable=layout.everything, fold="A", selection_fold="all", stream=_OWN_TASK
    )
    loss = replace(evaluation, candidates=padded_candidates(candidates), shares=padded, continues=_OWN_TASK)
    return {_OWN_TASK: own, _LOSS_TASK: loss}


def with_answers(
    comparison: HoldoutComparison, report: Report, round: int, others: torch.Tensor
) -> HoldoutComparison | None:
    """A comparison with the answers of a round; None if too few have answered for too long.

    Args:
        comparison: The comparison, as in the plan that `add_evaluation_tasks` made.
        report: The report of that plan.
        round: The round of the answers.
        others: The stand-ins that have answered, ids.
    """
    comparison = _with_stand_ins(comparison, report, others)
    losses_by_share = comparison.losses_by_share.clone()
    errors = comparison.errors.clone()
    samples = comparison.samples.clone()
    measured_losses = report.results[_LOSS_TASK]
    measured_errors = report.results[_ERRORS_TASK]
    units = report.client_stats["units"]
    both = torch.isin(measured_losses.updates.clients, measured_errors.updates.clients)
    for place, client in _unanswered(comparison, measured_losses.updates.clients[both]):
        nodes = comparison.groups.models_for(place)
        answer = measured_losses.losses[_row_of(measured_losses, client), : len(nodes) * losses_by_share.shape[2]]
        losses_by_share[place, nodes] = bounded_losses(answer.reshape(len(nodes), -1))
        # Nothing that a client claims may spoil a test of all: an error rate of nan, or no samples behind it.
        errors[place, nodes] = measured_errors.losses[_row_of(measured_errors, client), : len(nodes)].nan_to_num(
            nan=1.0
        )
        samples[place] = units.of(torch.tensor([client])).flatten()[0].clamp(min=1.0)
    answered = replace(comparison, losses_by_share=losses_by_share, errors=errors, samples=samples)
    late = round >= comparison.round + _MAX_ROUNDS
    return None if late and not answered.complete else answered


def _row_of(result: Result, client: int) -> int:
    """The row of a client in a result."""
    return int((result.updates.clients == client).nonzero())


def bounded_losses(losses: torch.Tensor) -> torch.Tensor:
    """The losses that clients have measured, as far as they count."""
    return losses.nan_to_num(nan=_MAX_LOSS).clamp(max=_MAX_LOSS)


def _with_stand_ins(comparison: HoldoutComparison, report: Report, others: torch.Tensor) -> HoldoutComparison:
    """A comparison in which stand-ins are clients, each on the side whose model suits half A of its data best."""
    if _SIDE_TASK not in report.results:
        return comparison
    result = report.results[_SIDE_TASK]
    here = torch.isin(result.updates.clients, others)
    clients = result.updates.clients[here]
    losses = result.losses[here, : len(comparison.groups)].nan_to_num(nan=_MAX_LOSS)
    new = comparison_of(
        clients,
        placed(comparison.groups, losses),
        comparison.models,
        comparison.start,
        level=comparison.level,
        decision=comparison.decision,
        round=comparison.round,
    )
    return replace(
        comparison,
        clients=torch.cat([comparison.clients, clients]),
        groups=replace(comparison.groups, inside=torch.cat([comparison.groups.inside, new.groups.inside], dim=1)),
        losses_by_share=torch.cat([comparison.losses_by_share, new.losses_by_share]),
        errors=torch.cat([comparison.errors, new.errors]),
        samples=torch.cat([comparison.samples, new.samples]),
    )


def _unanswered(comparison: HoldoutComparison, present: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Place and id of those among some clients that have not answered yet."""
    here = torch.isin(comparison.clients, present) & ~comparison.answered
    yield from zip(here.nonzero().flatten().tolist(), comparison.clients[here].tolist(), strict=True)
