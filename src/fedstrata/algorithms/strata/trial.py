"""Trials: do the members of candidate groups prefer the model of their own group, on data that trained none of them?

A trial begins in a split-half round. Members train on half A of their data, and their updates make candidate groups
(`candidates`). The model of a group is that of the cluster plus the mean update of the group. From the next round on,
each member measures the loss of these models on its half B, the hold-out data.

If all members share one distribution, those of two groups prefer one group's model to the other's equally much: which
group a client is in follows from half A, and what it prefers from half B. So the preferences of two groups are compared
by a t-test (`preference_p_value`). A split that it confirms is made if it lowers the loss of the members, too.

Where clients make personal models of that of their cluster, a confirmed split has a second trial: of personal models,
which lie between the model of the group and the one that a member trains on half A by itself.

In a trial, whoever was absent when the groups were made belongs to the group whose model has the lower loss on its
half A. No update of half B enters any model of a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from scipy.special import stdtr

from fedstrata.algorithms.strata.candidates import (
    MIN_CLIENTS,
    GroupTree,
    candidate_groups,
    clearest_layer,
    similarities,
)
from fedstrata.algorithms.tuning import MAX_EXCESS_LOSS, SHARES
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import norms
from fedstrata.core import Decision, Matrix, Problem, Rows
from fedstrata.core.aggregation import GroupAggregation

_MAX_ROUNDS = 10
"""The number of rounds after which a trial is given up if too few have answered."""

_BOUND = 6.0
"""A claim counts up to so many standard deviations from the median of all, by the median absolute deviation: a member
can claim any loss, and must not decide for all. One client that differs from all others still stands out by as much
(Hampel, "The influence curve and its role in robust estimation", JASA 1974)."""

_DEVIATIONS_PER_MEDIAN = 1.4826
"""The standard deviation of normal values in median absolute deviations."""


@dataclass(frozen=True)
class Trial:
    """The candidate groups of one cluster, and how well their models do.

    Attributes:
        clients: Who takes part, ids (m,).
        groups: The tree of groups, q in all.
        models: The model of each group, (q, p).
        start: The model from which they come, (1, p).
        losses: The mean loss of each client by each model that it judges, (m, q, s): by the model itself, or by
            personal models in the order of `SHARES`. It is nan for other models, and until the client has answered.
        samples: The number of samples behind them, (m,); 0 until the client has answered.
        level: The level of the test of all splits together.
        decision: The decision so far, for people: its layer and, of personal models, the numbers of the first trial.
        round: The round in which the groups were made.
        confirmed: Where personal models are compared: the groups of the splits that a trial has confirmed, ascending.
    """

    clients: torch.Tensor
    groups: GroupTree
    models: torch.Tensor
    start: torch.Tensor
    losses: torch.Tensor
    samples: torch.Tensor
    level: float
    decision: Decision
    round: int
    confirmed: tuple[int, ...] = ()

    @property
    def of_personal_models(self) -> bool:
        """Whether personal models are compared."""
        return bool(self.confirmed)

    @property
    def shares(self) -> tuple[float, ...]:
        """How far the compared models lie from those of the groups."""
        return SHARES if self.of_personal_models else SHARES[:1]

    @property
    def answered(self) -> torch.Tensor:
        """Who has answered, bool (m,)."""
        return ~self.losses[:, 0, 0].isnan()

    @cached_property
    def group_losses(self) -> torch.Tensor:
        """The loss of each client by each group, (m, q) float64: with the share that suits the group's members best."""
        # A member that diverged when it trained by itself does not choose for all.
        bounded = self.losses.minimum(self.losses[:, :, :1] + MAX_EXCESS_LOSS).double()
        best = list[int]()
        for group, inside in enumerate(self.groups.inside):
            excess = bounded_claims((bounded - bounded[:, :, :1])[inside & self.answered, group])
            best.append(int(excess.sum(dim=0).argmin()))
        return bounded[:, torch.arange(len(best)), best]

    def judged(self, place: int) -> list[int]:
        """The groups whose models a client judges: its own and, to tell two sides apart, those beside them.

        Of personal models, only confirmed splits are of interest.
        """
        own = self.groups.inside[:, place]
        if not self.confirmed:
            own = own | self.groups.inside[self.groups.parents.clamp(min=0), place]
        return [group for group in self.compared if own[group]]

    @property
    def compared(self) -> list[int]:
        """The groups whose models are compared: all, and of personal models those of confirmed splits."""
        parents = self.groups.parents[list(self.confirmed)].tolist()
        return sorted({0, *parents, *self.confirmed}) if self.confirmed else list(range(len(self.groups)))

    def only(self, kept: torch.Tensor) -> Trial:
        """The trial for some of the clients, by a bool (m,)."""
        groups = replace(self.groups, inside=self.groups.inside[:, kept])
        return replace(
            self, clients=self.clients[kept], groups=groups, losses=self.losses[kept], samples=self.samples[kept]
        )

    def joined_by(self, clients: torch.Tensor, losses: torch.Tensor) -> Trial:
        """The trial with more clients, each on the side whose model has the lower loss on half A.

        Args:
            clients: Their ids, (m',).
            losses: Their losses by the models of all groups on half A, (m', q).
        """
        inside = torch.cat([self.groups.inside, self.groups.placed(losses)], dim=1)
        none = self.losses.new_full((len(clients), *self.losses.shape[1:]), torch.nan)
        return replace(
            self,
            clients=torch.cat([self.clients, clients]),
            groups=replace(self.groups, inside=inside),
            losses=torch.cat([self.losses, none]),
            samples=torch.cat([self.samples, self.samples.new_zeros(len(clients))]),
        )

    def is_complete(self, members: int) -> bool:
        """Whether half of those who take part, or of all members, have answered: four at least, some on each side."""
        sides = self.groups.inside[self.groups.children(0)] & self.answered
        answers = int(self.answered.sum())
        enough = answers >= MIN_CLIENTS and 2 * answers >= min(members, len(self.clients))
        return enough and bool(sides.any(dim=1).all())

    def is_given_up(self, round: int) -> bool:
        """Whether it ends after a round without a decision."""
        return round >= self.round + _MAX_ROUNDS


def begin_trial(
    problem: Problem, start: torch.Tensor, updates: Rows, *, level: float, node: int, round: int
) -> tuple[Trial, tuple[Matrix, ...]] | None:
    """A trial of the candidate groups of those who sent an update of half A, and how similar these are by each layer.

    Args:
        problem: What is fixed for the run.
        start: The model of the cluster, (p,).
        updates: The updates of half A, (m, p).
        level: The level of the test of all splits together.
        node: The tree node of the cluster.
        round: The round of the updates.

    Returns:
        Both; None where fewer than four have sent an update that is not zero.
    """
    updates = updates.at(norms(updates.values) > 0)
    if len(updates.clients) < MIN_CLIENTS:
        return None
    by_layer = similarities(problem.layout, updates.values)
    # Where means are not exact, each part makes them less so: smaller groups would spoil the larger ones.
    groups = candidate_groups(problem.layout, updates, inside_sides=problem.aggregation.exact)
    assert isinstance(problem.aggregation, GroupAggregation)
    means = problem.aggregation.group_means(
        problem.layout,
        updates,
        torch.arange(len(updates.clients)),
        groups.inside,
        groups.parents,
        purpose=f"groups of node {node}",
        round=round,
    )
    layer = clearest_layer(by_layer, groups.inside[groups.children(0)[1]])
    trial = Trial(
        clients=updates.clients,
        groups=groups,
        models=start + means,
        start=start[None],
        losses=torch.full((len(updates.clients), len(groups), 1), torch.nan),
        samples=torch.zeros(len(updates.clients)),
        level=level,
        decision=Decision("groups_differ", layer=layer),
        round=round,
    )
    return trial, tuple(Matrix(node, layer, "likeness", updates.clients, alike) for layer, alike in by_layer.items())


def personal_trial(trial: Trial, verdict: Verdict, round: int) -> Trial:
    """The trial of personal models of the groups that a trial has confirmed."""
    return replace(
        trial,
        losses=torch.full((*trial.losses.shape[:2], len(SHARES)), torch.nan),
        samples=torch.zeros_like(trial.samples),
        decision=verdict.decision,
        round=round,
        confirmed=verdict.confirmed,
    )


@dataclass(frozen=True)
class Verdict:
    """What a trial says.

    Attributes:
        leaves: The groups that get a cluster each; the first group alone where nothing is split.
        confirmed: The groups of the splits that are made, ascending.
        decision: The decision, for people.
    """

    leaves: tuple[int, ...]
    confirmed: tuple[int, ...]
    decision: Decision


def verdict_of(trial: Trial, round: int) -> Verdict:
    """Decide by a trial in which enough have answered; the round is that of the last answers."""
    splits = len(trial.confirmed or trial.groups.parents) // 2
    found = _pruned(trial, 0, trial.level / splits)
    p = min(1.0, splits * found.p)
    values = dict(trial.decision.values)
    if trial.of_personal_models:
        values |= {"p_gain": p, "level_gain": trial.level}
    else:
        values |= {"p": p, "level": trial.level, "round": float(round)}
        if p > trial.level:
            return Verdict((0,), (), Decision("p_above_level", layer=trial.decision.layer, values=values))
    values |= {"gain": float(found.gains.mean()), "groups": float(len(found.leaves))}
    kind = "groups_differ" if len(found.leaves) > 1 else "groups_differ_without_gain"
    return Verdict(found.leaves, found.confirmed, replace(trial.decision, kind=kind, values=values))


@dataclass(frozen=True)
class _Pruned:
    """What is left of the tree below a group.

    Attributes:
        leaves: The groups that are not split any more.
        gains: What members gain by the splits that are made; where none is, by the one of the smallest p.
        confirmed: The groups of the splits that are made, ascending.
        p: The smallest p of all tests.
    """

    leaves: tuple[int, ...]
    gains: torch.Tensor
    confirmed: tuple[int, ...] = ()
    p: float = 1.0


def _pruned(trial: Trial, node: int, level: float) -> _Pruned:
    """The tree below a group with those splits alone that are confirmed, at a level each, and lower the loss.

    Where a split is not confirmed, but one inside one of its sides is, the members of the other side are in no group.
    """
    sides = trial.groups.children(node)
    answered = trial.groups.inside[sides] & trial.answered
    if not sides or not bool(answered.any(dim=1).all()):
        return _Pruned((node,), torch.zeros(1))
    inside = [_pruned(trial, side, level) for side in sides]
    leaves = tuple(leaf for each in inside for leaf in each.leaves)
    if trial.of_personal_models and sides[0] not in trial.confirmed:
        gains, p = torch.zeros(1), 1.0  # nobody was asked
    else:
        gains = _gains(trial, node, leaves)
        p = gain_p_value(gains) if trial.of_personal_models else preference_p_value(trial, *sides)
    confirmed = tuple(group for each in inside for group in each.confirmed)
    clearest = min([_Pruned((node,), gains, p=p), *inside], key=lambda each: each.p)
    if p <= level and float(gains.sum()) > 0:
        return _Pruned(leaves, gains, tuple(sorted((*sides, *confirmed))), clearest.p)
    made = [each for each in inside if each.confirmed]
    if not made:
        return _Pruned((node,), clearest.gains, p=clearest.p)
    leaves = tuple(leaf for each in made for leaf in each.leaves)
    return _Pruned(leaves, torch.cat([each.gains for each in made]), confirmed, clearest.p)


def preference_p_value(trial: Trial, one: int, other: int) -> float:
    """The p-value of no difference between two groups in how much they prefer the one's model to the other's.

    The one-sided t-test of two samples with one variance, of what each member loses by the other model, weighted by its
    samples, up to twice the median: the variance of a mean loss is inverse to them. Where all members share one
    distribution, their preferences have one mean and are independent, given half A.
    """
    answered = trial.groups.inside[[one, other]].any(dim=0) & trial.answered
    preferences = bounded_claims((trial.group_losses[:, other] - trial.group_losses[:, one])[answered])
    weights = trial.samples[answered].double()
    # A client can claim any number of samples.
    weights = weights.clamp(max=2 * float(weights.quantile(0.5)))
    first = trial.groups.inside[one][answered]
    freedom = len(preferences) - 2
    if freedom < 1:
        return 1.0
    one_mean, other_mean = ((weights * preferences)[side].sum() / weights[side].sum() for side in (first, ~first))
    squares = (weights * (preferences - torch.where(first, one_mean, other_mean)).square()).sum()
    scale = (squares / freedom * (1 / weights[first].sum() + 1 / weights[~first].sum())).sqrt()
    return _upper_tail(freedom, (one_mean - other_mean) / scale)


def gain_p_value(gains: torch.Tensor) -> float:
    """The p-value of no gain, by the one-sided t-test of the gain of each client, (m,); 1 for a single client."""
    if len(gains) < 2:
        return 1.0
    return _upper_tail(len(gains) - 1, gains.mean() / (gains.std() / sqrt(len(gains))))


def _upper_tail(freedom: int, t: torch.Tensor) -> float:
    """The probability of at least so large a t; that of 0 where it is 0 / 0."""
    return float(stdtr(freedom, -float(t.nan_to_num(0.0, torch.inf, -torch.inf))))


def _gains(trial: Trial, node: int, leaves: Sequence[int]) -> torch.Tensor:
    """What the members of a group's leaves who have answered gain by a model for each leaf, as far as it counts."""
    before = trial.group_losses[:, node]
    inside = [trial.groups.inside[leaf] & trial.answered for leaf in leaves]
    gains = [before[members] - trial.group_losses[members, leaf] for leaf, members in zip(leaves, inside, strict=True)]
    return bounded_claims(torch.cat(gains))


def bounded_claims(claims: torch.Tensor) -> torch.Tensor:
    """Claims of clients, (m, ...), of which none is further than `_BOUND` from the median of its column.

    It treats all clients alike, so that a test of claims that are exchangeable stays one.
    """
    if not len(claims):
        return claims
    median = claims.quantile(0.5, dim=0)
    most = _BOUND * _DEVIATIONS_PER_MEDIAN * (claims - median).abs().quantile(0.5, dim=0)
    return torch.clamp(claims, min=median - most, max=median + most)
