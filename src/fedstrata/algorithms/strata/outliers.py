"""Outliers: the few clients of a cluster that differ from all others, which no permutation test can find.

A single client among m can reach no smaller p than 1 / m by permutations of the clients, two clients none below
2 / (m (m - 1)). But their own samples can tell. The members whose updates of half A point least in the direction of the
others' updates are the candidates. They train longer on half A, from the cluster's model. Then a hold-out comparison
asks on half B whether the model that they make serves them better than the cluster's, and the others worse. The
candidates and their model come from half A alone, so the error-rate test of half B holds whoever they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from fedstrata.algorithms.evidence.fold_similarity import compared_views
from fedstrata.algorithms.evidence.split_half import is_split_half_round
from fedstrata.algorithms.strata.groups import GroupTree, candidate_groups, mean_update, single_group
from fedstrata.algorithms.strata.holdout import HoldoutComparison, comparison_of
from fedstrata.algorithms.strata.split_decision import ClusterSplit, two_groups_p
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.groups import GroupIndex
from fedstrata.core import TRAIN, Decision, Layout, Plan, Problem, Report, Rows

_RATE = 0.05
"""About the rate at which somebody stands out in a view of clients that are all alike. It decides how often outliers
train for nothing, and about no split."""

_MAD_EFFICIENCY = 0.37
"""The efficiency of the median absolute deviation as a scale of normal values. It says how uncertain scores are."""

_MIN_CLIENTS = 8
"""The fewest members among whom outliers are sought. Of fewer, most would stand out from the others by chance."""

_MAX_SHARE = 0.25
"""The largest share of a cluster that can be outliers. Of more clients, a permutation test finds the groups."""

_STEPS = 50
"""The number of steps that outliers train. After fewer, their model is still much like that of the cluster."""

_MAX_SEARCH_ROUNDS = 10
"""The number of rounds after which a search is given up if no outlier has answered."""

OUTLIER_TASK = "outlier training"
"""The task in which outliers train."""

_EVERYONE = 0
"""The group of everyone in a comparison."""

_OUTLIERS = 1
"""The group of all outliers in a comparison."""


@dataclass(frozen=True)
class OutlierSearch:
    """Clients of one cluster that may be outliers, and that are to train a model of their own on half A.

    Attributes:
        clients: Who was compared, ids (m,).
        outliers: Who of them stood out, bool (m,).
        round: The round in which they did.
    """

    clients: torch.Tensor
    outliers: torch.Tensor
    round: int

    @property
    def ids(self) -> torch.Tensor:
        """The clients that stood out."""
        return self.clients[self.outliers]

    def only(self, kept: torch.Tensor) -> OutlierSearch | None:
        """The search among some of the clients, by a bool (m,); None where no outlier is left, or nobody else."""
        outliers = self.outliers[kept]
        if not bool(outliers.any()) or bool(outliers.all()):
            return None
        return replace(self, clients=self.clients[kept], outliers=outliers)

    def is_given_up(self, round: int) -> bool:
        """Whether the search ends in a round in which no outlier has trained."""
        return round >= self.round + _MAX_SEARCH_ROUNDS


def outlier_training_rounds(rounds: int) -> int:
    """The number of rounds of a run in which outliers may train: after a test, until one of them has answered.

    An update that came too late was seen, and the client is asked again.
    """
    return sum(
        any(map(is_split_half_round, range(max(1, round - _MAX_SEARCH_ROUNDS), round)))
        for round in range(1, rounds + 1)
    )


def start_search(layout: Layout, updates: Rows, round: int) -> OutlierSearch | None:
    """A search for outliers among the members of a cluster; None where nobody stands out, or too many do.

    Args:
        layout: The layout of the network.
        updates: The updates of the members by half A, (m, p).
        round: The round in which they were made.
    """
    if len(updates.clients) < _MIN_CLIENTS:
        return None
    layers = compared_views(layout)
    scores = outlier_scores(updates.values, layers)
    most = int(_MAX_SHARE * len(updates.clients))
    threshold = _threshold(len(updates.clients))
    found = [score > threshold for score in scores]
    views = [view for view, outliers in enumerate(found) if 0 < int(outliers.sum()) <= most]
    if not views:
        return None
    clearest = max(views, key=lambda view: float(scores[view].max()))
    return OutlierSearch(updates.clients, found[clearest], round)


def _threshold(m: int) -> float:
    """The score from which on one of m clients stands out: a quantile of Student's t, with Bonferroni's correction."""
    return float(stdtrit(_MAD_EFFICIENCY * (m - 1), 1 - _RATE / m))


def outlier_scores(values: torch.Tensor, layers: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """How far each client stands out in each view, by modified z-scores of its distance from the others, (v, m).

    The distance of a client is one minus the cosine of its update and the mean update of all others.

    Args:
        values: The updates, (m, p).
        layers: The columns of each view.
    """
    everyone = GroupIndex(np.zeros(len(values), np.int64), 1)
    scores = list[torch.Tensor]()
    for columns in layers.values():
        rows = values[:, columns].double()
        others = (rows.sum(dim=0) - rows) / (len(rows) - 1)
        distance = 1 - torch.nn.functional.cosine_similarity(rows, others, dim=1)
        scores.append(torch.from_numpy(everyone.modified_z_scores(distance.numpy())))
    return torch.stack(scores)


def add_outlier_training(plan: Plan, searches: Mapping[int, OutlierSearch]) -> Plan:
    """The plan in which the outliers of each cluster also train longer on half A, from the model of the cluster."""
    if not searches:
        return plan
    normal = plan.tasks[TRAIN]
    candidates = torch.full((len(plan.cohort), 1), -1)
    for cluster, search in searches.items():
        candidates[torch.isin(plan.cohort, search.ids)] = cluster
    training = replace(normal.training, steps=_STEPS)
    task = replace(normal, candidates=candidates, training=training, fold="A", stream="outlier")
    return replace(plan, tasks={**plan.tasks, OUTLIER_TASK: task})


def compare_outliers(
    problem: Problem, start: torch.Tensor, search: OutlierSearch, report: Report, *, level: float, round: int
) -> HoldoutComparison | None:
    """A comparison of the models of those outliers that have trained; None where nobody has.

    Of its groups, 0 is everyone with the model of the cluster, and 1 the outliers with that which they have trained.
    All others are inside that of the outliers.

    Args:
        problem: What is fixed for the run.
        start: The model of the cluster from which the outliers trained, (p,).
        search: The search.
        report: The report of the plan of `add_outlier_training`.
        level: The level of the error-rate tests, together.
        round: The round of the report.
    """
    updates = report.results[OUTLIER_TASK].updates
    updates = updates.at(updates.clients.argsort())  # The groups are made of places among ascending ids.
    updates = updates.at(torch.isin(updates.clients, search.ids))
    if not len(updates.clients):
        return None
    groups = _outlier_groups(search, updates)
    places = torch.searchsorted(search.clients, updates.clients)
    own = [mean_update(problem, updates.at(members)) for members in groups.inside[1:, places]]
    models = torch.cat([start[None], *(start + update for update in own)])
    decision = Decision("outliers_differ")
    return comparison_of(search.clients, groups, models, level=level, decision=decision, round=round, of_outliers=True)


def _outlier_groups(search: OutlierSearch, updates: Rows) -> GroupTree:
    """The tree of those outliers that have trained, by average linkage of their updates, below everyone."""
    outliers = torch.isin(search.clients, updates.clients)
    everyone = torch.ones_like(outliers)
    among = candidate_groups(single_group(len(updates.clients)), updates.clients, updates)
    if among is None:
        return GroupTree(torch.stack([everyone, outliers]), torch.tensor([-1, _EVERYONE]), confirmed=0)
    inside = torch.zeros(len(among), len(outliers), dtype=torch.bool)
    inside[:, outliers] = among.inside
    # Below everyone, each place in the tree among outliers is one further.
    parents = torch.cat([torch.tensor([-1, _EVERYONE]), among.parents[1:] + 1])
    return GroupTree(torch.cat([everyone[None], inside]), parents, confirmed=0)


def outlier_decision(comparison: HoldoutComparison, round: int) -> ClusterSplit | None:
    """Decide by a comparison which outliers get a cluster of their own; None if none does. All others stay together.

    A group is separated if it differs from all but the outliers, and if its model lowers its loss. Its two sides are
    looked at instead where they differ from each other.

    Args:
        comparison: One in which enough have answered.
        round: The round of the last answers.
    """
    separated = _separated_groups(comparison, _OUTLIERS)
    if not separated:
        return None
    labels = torch.zeros(len(comparison.clients), dtype=torch.int64)
    for label, group in enumerate(separated, start=1):
        labels[comparison.groups.inside[group]] = label
    gain = sum(_loss_lowered(comparison, group) for group in separated) / int(comparison.answered.sum())
    values = {
        "p": max(_p(comparison, group) for group in separated),
        "level": comparison.level,
        "round": float(round),
        "gain": gain,
        "groups": float(len(separated) + 1),
    }
    decision = replace(comparison.decision, values=values)
    return ClusterSplit(comparison.clients, labels, len(separated) + 1, decision)


def _separated_groups(comparison: HoldoutComparison, group: int) -> list[int]:
    """The groups inside a group of outliers, or itself, that get a cluster of their own."""
    if not bool((comparison.groups.inside[group] & comparison.answered).any()):
        return []
    sides = comparison.groups.children(group)
    if sides and _p(comparison, *sides) <= comparison.level:
        return [found for side in sides for found in _separated_groups(comparison, side)]
    if _p(comparison, group) <= comparison.level and _loss_lowered(comparison, group) > 0:
        return [group]
    return [found for side in sides for found in _separated_groups(comparison, side)]


def _p(comparison: HoldoutComparison, group: int, other: int | None = None) -> float:
    """The p of the error-rate test of a group and another, by default all but the outliers, times the number of tests.

    The number is that of all tests that may be made (Bonferroni): of each group of outliers, and of each two sides.
    """
    groups = len(comparison.groups) - 1
    tests = groups + groups // 2
    inside = comparison.groups.inside
    if other is None:
        return min(1.0, tests * two_groups_p(comparison, group, _EVERYONE, inside[group], ~inside[_OUTLIERS]))
    return min(1.0, tests * two_groups_p(comparison, group, other, inside[group], inside[other]))


def _loss_lowered(comparison: HoldoutComparison, group: int) -> float:
    """By how much a group's own model lowers the loss of its members, in nats, in sum."""
    here = comparison.groups.inside[group] & comparison.answered
    return float((comparison.losses[here, _EVERYONE] - comparison.losses[here, group]).double().sum())
