"""Hold-out comparisons: do models of their own serve the groups of a cluster better on data that trained none of them?

A comparison has a tree of candidate groups. The model of a group is the cluster's model plus the mean update of the
group on half A of its members' data. The members measure the loss and the error rate of the models that concern them on
half B, the hold-out data. A group is split under two conditions. A permutation test or an error-rate test has confirmed
the split, and its subgroups, split further where that helps, have the lower loss with models of their own.

Where clients make personal models from that of their cluster, such models are compared instead. They lie between the
model of the group and the one that the client trains on half A by itself, as far from the group's as suits its members
best. A split must then lower the loss by a paired t-test over the members. The share is chosen on half B as well.

No update of half B enters a model, and none enters a group that the permutation test has not confirmed. Two things
come from both halves: the groups that it has confirmed, and the cluster's model, which earlier rounds have trained on
all data. docs/strata.md says what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from scipy.stats import t as student_t

from fedstrata.clustering import cosine, error_rate_test, splits
from fedstrata.core import TRAIN, Decision, Layout, LocalTask, Plan, Problem, Report, Rows
from fedstrata.core.standard_round import padded_candidates
from fedstrata.lazy_torch import torch

MAX_SPLITS = 20
"""The largest number of splits in a tree, of which the clearest are kept. Up to 21 clients may all be split from each
other. With more clients, the finest groups are left out."""

_ACROSS_LEAVES = 3.0
"""The distance of clients of different groups. It is larger than one minus any cosine."""

_MAX_ROUNDS = 10
"""The number of rounds after which a comparison is given up if too few have answered."""

_OWN_TASK = "holdout own"
"""The task in which members train on half A by themselves, where personal models are compared."""

_LOSS_TASK = "holdout loss"
"""The task in which members measure the loss of models on data that did not train them."""

_ERRORS_TASK = "holdout errors"
"""The task in which members measure the share of errors of the same models."""

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far personal models lie between the model of a group, and what a member trains by itself."""

_WORST = 1.0
"""The largest loss that a personal model counts as having above that of the group, in nats."""

_PERSONAL_LEVEL = 0.025
"""The level of the t-test of the gains of personal models."""

_MAX_LOSS = 1e3
"""Larger losses, and losses that are not finite, count as so many nats."""


@dataclass(frozen=True)
class GroupTree:
    """A tree of groups. Node 0 is everyone. Each node comes after its parent, and those of confirmed splits come first.

    Attributes:
        inside: Who is in each group, bool (q, m).
        parents: The parent of each group, (q,) int64; -1 for the first.
        confirmed: The number of splits that a permutation test has confirmed.
    """

    inside: torch.Tensor
    parents: torch.Tensor
    confirmed: int

    def __len__(self) -> int:
        """The number of groups, q."""
        return len(self.parents)

    @property
    def unconfirmed(self) -> int:
        """The number of splits that no permutation test has confirmed."""
        return len(self) // 2 - self.confirmed

    def children(self, node: int) -> list[int]:
        """The two subgroups of a group, or none."""
        return (self.parents == node).nonzero().flatten().tolist()

    def is_confirmed(self, node: int) -> bool:
        """Whether a group comes from a confirmed split."""
        return node <= 2 * self.confirmed

    def models_for(self, place: int) -> list[int]:
        """The groups whose models a client evaluates, ascending: its own, and the other one of unconfirmed splits."""
        own = self.inside[:, place]
        beside = self.inside[self.parents.clamp(min=0), place]
        confirmed = torch.tensor([self.is_confirmed(node) for node in range(len(self))])
        return (own | (beside & ~confirmed)).nonzero().flatten().tolist()

    def only(self, kept: torch.Tensor) -> GroupTree | None:
        """The tree for some of the clients, by a bool (m,); None where the first split has an empty side."""
        inside = self.inside[:, kept]
        both_sides = all(bool(inside[side].any()) for side in self.children(0))
        return replace(self, inside=inside) if both_sides else None


def single_group(m: int) -> GroupTree:
    """The tree without any split, of m clients."""
    return GroupTree(torch.ones(1, m, dtype=torch.bool), torch.tensor([-1]), 0)


def with_confirmed_split(tree: GroupTree, node: int, *sides: torch.Tensor) -> GroupTree:
    """A tree of confirmed splits with one more, of a group that is not split yet.

    Args:
        tree: The tree so far.
        node: The group that is split.
        sides: Its two sides, bool (m,). Whoever was not compared is in none.
    """
    inside = torch.cat([tree.inside, torch.stack(sides)])
    return GroupTree(inside, torch.cat([tree.parents, torch.tensor([node, node])]), tree.confirmed + 1)


def candidate_groups(tree: GroupTree, clients: torch.Tensor, updates: Rows, *, finer: bool = True) -> GroupTree | None:
    """Candidate groups inside the confirmed ones, by average linkage of the updates.

    Args:
        tree: The tree of confirmed splits, or a single group.
        clients: Who was compared, ids (m,).
        updates: Their updates by one half of their data. Whoever sent none is in no group inside the confirmed ones.
        finer: Whether groups inside the confirmed ones are formed at all.

    Returns:
        The tree; None where a confirmed group has sent nothing, or where there is nobody to split.
    """
    places = torch.searchsorted(clients, updates.clients)
    if not len(places) or not bool(tree.inside[:, places].any(dim=1).all()):
        return None
    leaves = torch.tensor([node for node in range(len(tree)) if not tree.children(node)])
    compared = tree.inside[leaves][:, places].any(dim=0)  # whoever was not compared inside a side is in no group there
    places = places[compared]
    rows = updates.values[compared]
    leaf = leaves[tree.inside[leaves][:, places].int().argmax(dim=0)]
    nodes = list(tree.inside)
    parents = tree.parents.tolist()
    known = {tuple((leaf == top).nonzero().flatten().tolist()): top for top in leaves.tolist()}
    found = [split for split in splits(_distances(rows, leaf)) if split[0] < _ACROSS_LEAVES] if finer else []
    for _, one, other in found[: max(0, MAX_SPLITS - tree.confirmed)]:
        parent = known[tuple(sorted(one + other))]
        for group in (one, other):
            known[group] = len(nodes)
            nodes.append(torch.zeros(len(clients), dtype=torch.bool).index_fill(0, places[list(group)], True))
            parents.append(parent)
    return GroupTree(torch.stack(nodes), torch.tensor(parents), tree.confirmed) if len(nodes) > 1 else None


def _distances(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """One minus the cosines of rows (m, p) without the mean of their leaf; more across leaves, (m, m)."""
    distance = torch.full((len(rows), len(rows)), _ACROSS_LEAVES, dtype=torch.float64).fill_diagonal_(0.0)
    for top in leaf.unique():
        here = (leaf == top).nonzero().flatten()
        distance[here[:, None], here] = 1 - cosine(rows[here] - rows[here].mean(dim=0))
    return distance


@dataclass(frozen=True)
class HoldoutComparison:
    """The candidate groups of one cluster, and how well their models do.

    Attributes:
        clients: Who was compared, ids (m,).
        groups: The tree of groups, q in all.
        models: The model of each group, (q, p).
        start: The model of the cluster from which they come, (1, p), where personal models are compared; else (0, p).
        told: The mean cross-entropy in nats of each client by the models that it evaluates, (m, q, s): the models of
            groups as they are, and personal models in the order of `_SHARES`. It is nan for the other models, and as
            long as the client has not answered.
        errors: The shares of misclassified samples by the models of groups as they are, likewise, (m, q).
        samples: The number of independent samples behind them, (m,).
        level: The level of the error-rate tests of all other splits than the confirmed ones, together.
        decision: The decision of the permutation test. Without one, its kind is that of a split by error-rate tests.
        round: The round in which the comparison began.
        of_outliers: Whether the groups are outliers, and all others.
    """

    clients: torch.Tensor
    groups: GroupTree
    models: torch.Tensor
    start: torch.Tensor
    told: torch.Tensor
    errors: torch.Tensor
    samples: torch.Tensor
    level: float
    decision: Decision
    round: int
    of_outliers: bool = False

    @property
    def answered(self) -> torch.Tensor:
        """Who has answered, bool (m,)."""
        return ~self.told[:, 0, 0].isnan()

    @property
    def of_personal_models(self) -> bool:
        """Whether personal models are compared."""
        return len(self.start) > 0

    @property
    def shares(self) -> tuple[float, ...]:
        """How far the compared models lie from those of the groups."""
        return _SHARES if self.of_personal_models else _SHARES[:1]

    @property
    def losses(self) -> torch.Tensor:
        """The loss of each client by each group, (m, q): with the share that suits the members of the group best."""
        members = (self.groups.inside.T & self.answered[:, None])[:, :, None]  # (m, q, 1)
        # A member that diverged when it trained by itself does not choose for all.
        told = self.told.minimum(self.told[:, :, :1] + _WORST)
        totals = torch.where(members, told, 0.0).double().sum(dim=0)  # (q, s)
        best = totals.argmin(dim=1)
        return told[:, torch.arange(len(best)), best]

    @property
    def complete(self) -> bool:
        """Whether half of those compared have answered, and someone on each side."""
        sides = self.groups.inside[self.groups.children(0)]
        on_each_side = bool((sides & self.answered).any(dim=1).all())
        return 2 * int(self.answered.sum()) >= len(self.clients) and on_each_side

    def only(self, kept: torch.Tensor) -> HoldoutComparison | None:
        """The comparison for some of the clients, by a bool (m,); None where a side is left without any."""
        groups = self.groups.only(kept)
        if groups is None:
            return None
        return replace(
            self,
            clients=self.clients[kept],
            groups=groups,
            told=self.told[kept],
            errors=self.errors[kept],
            samples=self.samples[kept],
        )


def start_comparison(
    problem: Problem,
    start: torch.Tensor,
    sent: Sequence[Rows],
    clients: torch.Tensor,
    confirmed: GroupTree,
    *,
    level: float,
    decision: Decision,
    round: int,
    finer: bool = True,
    personal: bool = False,
) -> HoldoutComparison | None:
    """A comparison of groups; None where nobody of a confirmed group has sent anything, or there is one client.

    Args:
        problem: What is fixed for the run.
        start: The model of the cluster, (p,).
        sent: The updates of the members by every fold. Those of half A come first.
        clients: Who was compared, ids (m,).
        confirmed: The tree of confirmed splits, or a single group.
        level: The level of the error-rate tests of all other splits, together.
        decision: The decision of the permutation test.
        round: The round in which the comparison begins.
        finer: Whether groups inside the confirmed ones are compared as well.
        personal: Whether personal models are compared.
    """
    updates = first_half_updates(sent, clients)
    groups = candidate_groups(confirmed, clients, updates, finer=finer)
    if groups is None:
        return None
    senders = groups.inside[:, torch.searchsorted(clients, updates.clients)]
    mean_updates = torch.cat([mean_update(problem, updates.at(members)) for members in senders])
    models = start + mean_updates
    base = start[None] if personal else start[None][:0]
    return comparison_of(clients, groups, models, base, level=level, decision=decision, round=round)


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
    start: torch.Tensor,
    *,
    level: float,
    decision: Decision,
    round: int,
    of_outliers: bool = False,
) -> HoldoutComparison:
    """A comparison in which nobody has answered yet. The arguments are its fields."""
    shape = (len(clients), len(groups))
    shares = len(_SHARES) if len(start) else 1
    return HoldoutComparison(
        clients=clients,
        groups=groups,
        models=models,
        start=start,
        told=torch.full((*shape, shares), torch.nan),
        errors=torch.full(shape, torch.nan),
        samples=torch.zeros(len(clients)),
        level=level,
        decision=decision,
        round=round,
        of_outliers=of_outliers,
    )


def mean_update(problem: Problem, updates: Rows) -> torch.Tensor:
    """The mean of some updates by the rule of aggregation, every client with the same weight, (1, p)."""
    m = len(updates.clients)
    return problem.aggregation(updates, torch.ones(m), torch.zeros(m, dtype=torch.int64), 1)


def add_evaluation_tasks(plan: Plan, layout: Layout, comparisons: Sequence[HoldoutComparison]) -> Plan:
    """The plan in which members also evaluate the models of comparisons that concern them, without training.

    Where personal models are compared, they first train on half A by themselves.
    """
    if not comparisons:
        return plan
    groups = list[list[int]]([] for _ in plan.cohort)
    shares = list[list[float]]([] for _ in plan.cohort)
    starts = torch.full((len(plan.cohort), 1), -1)
    row_of = {client: row for row, client in enumerate(plan.cohort.tolist())}
    first = len(plan.models)
    for comparison in comparisons:
        for place, client in _unanswered(comparison, plan.cohort):
            row = row_of[client]
            groups[row] = [first + node for node in comparison.groups.models_for(place)]
            shares[row] = list(comparison.shares)
            if comparison.of_personal_models:
                starts[row] = first + len(comparison.models)
        first += len(comparison.models) + len(comparison.start)
    models = [torch.cat([comparison.models, comparison.start]) for comparison in comparisons]
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
        models=torch.cat([plan.models, *models]),
        tasks={
            **plan.tasks,
            **_loss_tasks(evaluation, layout, groups, shares, starts),
            _ERRORS_TASK: replace(evaluation, selection_metric="errors"),
        },
        client_stats=statistics,
    )


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


def with_answers(comparison: HoldoutComparison, report: Report, round: int) -> HoldoutComparison | None:
    """A comparison with the answers of a round; None if too few have answered for too long.

    Args:
        comparison: The comparison, as in the plan that `add_evaluation_tasks` made.
        report: The report of that plan.
        round: The round of the answers.
    """
    told = comparison.told.clone()
    errors = comparison.errors.clone()
    samples = comparison.samples.clone()
    result = report.results[_LOSS_TASK]
    for place, client in _unanswered(comparison, result.updates.clients):
        row = int((result.updates.clients == client).nonzero())
        nodes = comparison.groups.models_for(place)
        answer = result.losses[row, : len(nodes) * told.shape[2]].reshape(len(nodes), -1)
        told[place, nodes] = answer.nan_to_num(nan=_MAX_LOSS).clamp(max=_MAX_LOSS)
        errors[place, nodes] = report.results[_ERRORS_TASK].losses[row, : len(nodes)]
        samples[place] = report.client_stats["units"].of(torch.tensor([client])).flatten()[0]
    answered = replace(comparison, told=told, errors=errors, samples=samples)
    late = round >= comparison.round + _MAX_ROUNDS
    return None if late and not answered.complete else answered


def _unanswered(comparison: HoldoutComparison, present: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Place and id of those among some clients that have not answered yet."""
    here = torch.isin(comparison.clients, present) & ~comparison.answered
    yield from zip(here.nonzero().flatten().tolist(), comparison.clients[here].tolist(), strict=True)


@dataclass(frozen=True)
class ClusterSplit:
    """Which clients of a cluster get a cluster of their own.

    Attributes:
        clients: Who was compared, ids (m,).
        groups: The group of each, (m,); -1 for a client that is in no group inside its side, which was split.
        count: The number of groups; 1 if everyone stays together.
        decision: What decided.
    """

    clients: torch.Tensor
    groups: torch.Tensor
    count: int
    decision: Decision


@dataclass(frozen=True)
class _PrunedTree:
    """The tree below a group after pruning: all that is left of its splits.

    Attributes:
        losses: The loss of each client by the model of its leaf, (m,).
        leaves: The groups that are not split any more.
        p: The largest p of the error-rate tests that confirmed a split; 0 without any.
    """

    losses: torch.Tensor
    leaves: tuple[int, ...]
    p: float


def split_decision(comparison: HoldoutComparison, round: int, *, holdout_check: bool) -> ClusterSplit:
    """Decide by a comparison which groups get a cluster each.

    Args:
        comparison: One in which enough have answered.
        round: The round of the last answers.
        holdout_check: Whether a split must lower the loss.
    """
    groups = comparison.groups
    pruned = _prune(comparison, 0, holdout_check=holdout_check)
    labels = torch.full((len(comparison.clients),), -1)
    for label, leaf in enumerate(pruned.leaves):
        labels[groups.inside[leaf]] = label
    losses = pruned.losses
    p = pruned.p
    if len(pruned.leaves) == 1:
        # The decision tells what the first split would have gained.
        losses = _losses_if_split(comparison, 0, [comparison.losses[:, side] for side in groups.children(0)])
        p = pruned.p if groups.confirmed else _split_p(comparison, 0)
    gains = (comparison.losses[:, 0] - losses)[comparison.answered].double()
    decision = _to_decision(comparison, round, pruned.leaves, gains, p)
    return ClusterSplit(comparison.clients, labels, len(pruned.leaves), decision)


def _prune(comparison: HoldoutComparison, node: int, *, holdout_check: bool) -> _PrunedTree:
    """The tree below a group with only those splits that are confirmed and, with the check, lower the loss."""
    groups = comparison.groups
    answered = comparison.answered
    whole = _PrunedTree(comparison.losses[:, node], (node,), 0.0)
    subgroups = groups.children(node)
    if not subgroups or not all(bool((groups.inside[group] & answered).any()) for group in subgroups):
        return whole
    p = 0.0 if groups.is_confirmed(subgroups[0]) else _split_p(comparison, node)
    one, other = (_prune(comparison, group, holdout_check=holdout_check) for group in subgroups)
    losses = _losses_if_split(comparison, node, (one.losses, other.losses))
    here = groups.inside[node] & answered
    gains = (whole.losses - losses)[here].double()
    if p > comparison.level or (holdout_check and not _pays(comparison, gains)):
        return whole
    return _PrunedTree(losses, one.leaves + other.leaves, max(p, one.p, other.p))


def _pays(comparison: HoldoutComparison, gains: torch.Tensor) -> bool:
    """Whether a split lowers the loss of those who have answered, by their gains (m,).

    Personal models make up for groups that differ little, and then gains are chance. But each model of a group has
    fewer clients to learn from in all later rounds.
    """
    if comparison.of_personal_models:
        return _chance_of(gains) <= _PERSONAL_LEVEL
    return float(gains.sum()) > 0


def _chance_of(gains: torch.Tensor) -> float:
    """The p of the one-sided t-test that clients gain nothing, by the gain of each, (m,); 1 for a single client."""
    if len(gains) < 2:
        return 1.0
    t = gains.mean() / (gains.std() / sqrt(len(gains)))
    return float(student_t.sf(float(t.nan_to_num(0.0, torch.inf, -torch.inf)), len(gains) - 1))


def _losses_if_split(comparison: HoldoutComparison, node: int, inside: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss of each client if a group is split, by the losses in each subgroup, (m,); the others keep theirs."""
    losses = comparison.losses[:, node]
    for group, own in zip(comparison.groups.children(node), inside, strict=True):
        losses = torch.where(comparison.groups.inside[group], own, losses)
    return losses


def _split_p(comparison: HoldoutComparison, node: int) -> float:
    """The p of the error-rate test of a group's subgroups, times the number of such tests (Bonferroni)."""
    groups = comparison.groups
    first, second = groups.children(node)
    sides = (groups.inside[first], groups.inside[second])
    return min(1.0, groups.unconfirmed * two_groups_p(comparison, first, second, *sides))


def two_groups_p(
    comparison: HoldoutComparison, first: int, second: int, one: torch.Tensor, other: torch.Tensor
) -> float:
    """The p of the error-rate test of two sets of clients, each with a model.

    Args:
        comparison: The comparison, in which all of these clients evaluate both models.
        first: The group whose model is that of the first clients.
        second: The group whose model is that of the others.
        one: The first clients, bool (m,).
        other: The others, bool (m,), none of whom is among the first.
    """
    errors = comparison.errors
    one = one & comparison.answered
    both = one | (other & comparison.answered)
    own = torch.where(one, errors[:, first], errors[:, second])
    away = torch.where(one, errors[:, second], errors[:, first])
    return error_rate_test(own[both], away[both], one[both], comparison.samples[both])


def _to_decision(
    comparison: HoldoutComparison, round: int, leaves: Sequence[int], gains: torch.Tensor, p: float
) -> Decision:
    """The decision after a comparison."""
    test = comparison.decision
    groups = comparison.groups
    values = dict(test.values)
    kind = test.kind
    if not groups.confirmed:
        values = {"p": p, "level": comparison.level, "round": float(round)}
        if p > comparison.level:
            return Decision(kind="p_above_level", values=values)
    elif not all(map(groups.is_confirmed, leaves)):
        values |= {"p_holdout": p, "level_holdout": comparison.level}
    values |= {"gain": float(gains.mean()), "groups": float(len(leaves))}
    if comparison.of_personal_models:
        values |= {"p_gain": _chance_of(gains), "level_gain": _PERSONAL_LEVEL}
    return replace(test, kind=kind if len(leaves) > 1 else f"{kind}_without_gain", values=values)
