"""AdaCFL, Mobile Networks and Applications 2022: Algorithms 1 and 2, equations 3 to 5.

Where the paper is silent, the numpy half reads it as follows. The gap of 10 % is to the lowest entropy of a
pre-cluster. The linkage is average. A newcomer trains the initial model. Clusters are compared as they are before the
round in which it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from builders import layout_with
from fedstrata.algorithms.adacfl import AdaCFL
from fedstrata.clustering import entropy
from fedstrata.core import State, make_pending
from fedstrata.testing import Scripted, toy_problem
from papers.scripts import FEW_AND_MANY, Floats, Ids, Partition, as_sent, partition

KEYS: dict[str, Any] = {"cut": 1.4, "compare": "current"}
"""What makes the library literal. 1.4 is the paper's lambda."""

CUT = 1.4

LAYERS = layout_with({"conv.weight": 2, "fc1.weight": 3, "fc1.bias": 2, "fc2.weight": 2, "fc2.bias": 1})

PARTIAL = [7, 8, 9]
"""The columns of the fully connected layer with the fewest weights, and of its bias (section 5.2)."""


@dataclass(frozen=True)
class Script:
    """What happens in a federation: ``arrivals`` has the newcomers of each round, ``away`` those who do not answer."""

    updates: Floats
    sizes: Ids
    counts: list[list[int]]
    clustering_round: int
    late: list[int]
    arrivals: list[list[int]]
    away: list[list[int]]
    epsilon: float | str


def shannon(counts: Sequence[int]) -> float:
    """Equation 4."""
    share = np.array(counts) / sum(counts)
    return float(-(share * np.log2(share)).sum())


def preclusters(clients: Ids, counts: list[list[int]]) -> list[Ids]:
    """Algorithm 1, line 6: the same number of classes, and entropies in a gap of 10 %."""
    groups = list[list[int]]()
    for client in sorted(clients.tolist(), key=lambda each: (len(counts[each]), shannon(counts[each]), each)):
        first = groups[-1][0] if groups else client
        same_classes = len(counts[first]) == len(counts[client])
        if groups and same_classes and shannon(counts[client]) <= 1.1 * shannon(counts[first]):
            groups[-1].append(client)
        else:
            groups.append([client])
    return [np.array(group) for group in groups]


def hierarchical(weights: Floats) -> list[list[int]]:
    """Algorithm 1, line 8: merge the two nearest clusters until the distance between them is greater than lambda."""
    between = np.linalg.norm(weights[:, None] - weights, axis=2)  # Eq. 3
    groups = [[row] for row in range(len(weights))]
    while len(groups) > 1:
        pairs = combinations(range(len(groups)), 2)
        height, one, two = min((np.mean(between[np.ix_(groups[i], groups[j])]), i, j) for i, j in pairs)
        if height > CUT:
            break
        groups[one] += groups.pop(two)
    return groups


def mean(model: Floats, updates: Floats, sizes: Ids, clients: Sequence[int]) -> Floats:
    """FedAvg of those who answered."""
    if not clients:
        return model
    ids = np.array(clients)
    moved: Floats = model + sizes[ids] @ updates[ids] / sizes[ids].sum()
    return moved


def largest_distance(models: list[Floats]) -> float:
    """Epsilon of section 5.4."""
    return max(float(np.linalg.norm(one[PARTIAL] - two[PARTIAL])) for one, two in combinations(models, 2))


def adacfl(script: Script) -> tuple[list[Partition], list[list[Floats]]]:
    """The clusters and their models after every round."""
    clusters = [[client for client in range(len(script.sizes)) if client not in script.late]]
    models = [np.zeros(LAYERS.p)]
    history = list[Partition]()
    trained = list[list[Floats]]()
    for round, updates in enumerate(script.updates, start=1):
        if round == script.clustering_round:
            members = np.array(clusters[0])
            clusters = []
            for group in preclusters(members, script.counts):
                weights = models[0] + updates[group]
                clusters += [group[found].tolist() for found in hierarchical(weights[:, PARTIAL])]
            models = models * len(clusters)
        coming = script.arrivals[round - 1]
        clusters = [[client for client in cluster if client not in coming] for cluster in clusters]
        before = list(models)
        for place, cluster in enumerate(clusters):
            present = [client for client in cluster if client not in script.away[round - 1]]
            models[place] = mean(models[place], updates, script.sizes, present)
        for client in coming:  # Algorithm 2
            weights = updates[client][PARTIAL]
            away = [float(np.linalg.norm(model[PARTIAL] - weights)) for model in before]
            nearest = int(np.argmin(away))  # Eq. 5
            epsilon = script.epsilon if isinstance(script.epsilon, float) else largest_distance(before)
            if away[nearest] <= epsilon:
                clusters[nearest].append(client)
            else:
                clusters.append([client])
                before.append(np.zeros(LAYERS.p))
                before[-1][PARTIAL] = weights
                models.append(before[-1])
        history.append({frozenset(cluster) for cluster in clusters if cluster})
        trained.append(list(models))
    return history, trained


def played(script: Script) -> tuple[list[Partition], list[State]]:
    """What the library makes of a script."""
    keys = KEYS | {"round": script.clustering_round, "epsilon": script.epsilon}
    algorithm = AdaCFL(**keys)
    problem = toy_problem(len(script.sizes), LAYERS)
    stats = {
        "classes": torch.tensor([[float(len(counts))] for counts in script.counts]),
        "entropy": torch.tensor([[entropy(torch.tensor(counts))] for counts in script.counts]),
    }
    clients = Scripted(list(torch.tensor(script.updates, dtype=torch.float32)), torch.tensor(script.sizes), stats)
    state = make_pending(algorithm.init(problem), script.late, node=0)
    unknown = set(script.late)
    history, states = list[Partition](), list[State]()
    for arrivals, away in zip(script.arrivals, script.away, strict=True):
        unknown -= set(arrivals)
        state = make_pending(state, arrivals, node=0)
        cohort = torch.tensor([client for client in range(problem.clients) if client not in unknown])
        plan = algorithm.plan(problem, state, cohort)
        report = clients.run(plan.only(~torch.isin(plan.cohort, torch.tensor(away, dtype=torch.int64))))
        state, _ = algorithm.update(problem, state, replace(report, cohort=cohort))
        history.append(partition(state.labels.tolist()))
        states.append(state)
    return history, states


def random_script(seed: int, epsilon: float | str, at_once: int) -> Script:
    """Three groups whose members are about lambda apart, newcomers to them and to a fourth, and data that change."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 13))
    length = int(rng.integers(6, 10))
    clustering_round = int(rng.integers(1, 4))
    late = sorted(rng.choice(n, size=rng.integers(0, n // 2), replace=False).tolist())
    centres = rng.normal(size=(4, LAYERS.p)) * 1.5
    group = np.where(np.isin(np.arange(n), late), rng.integers(0, 4, size=n), rng.integers(0, 3, size=n))
    updates = 0.2 * rng.normal(size=(length, n, LAYERS.p))
    updates[clustering_round - 1] = centres[group] + rng.uniform(0.1, 0.6) * rng.normal(size=(n, LAYERS.p))
    arrivals: list[list[int]] = [[] for _ in range(length)]
    away: list[list[int]] = [[] for _ in range(length)]
    coming = list(late)
    members = [client for client in range(n) if client not in late]
    for round in range(clustering_round, length):
        changed = rng.choice(members, size=1).tolist() if rng.random() < 0.3 else []
        arrivals[round] = sorted((coming + changed)[:at_once])
        for client in arrivals[round]:
            updates[round, client] = centres[rng.integers(0, 4)] + 0.4 * rng.normal(size=LAYERS.p)
        coming = [client for client in coming if client not in arrivals[round]]
        away[round] = [client for client in members if client not in arrivals[round] and rng.random() < 0.2]
        members = sorted({*members, *arrivals[round]})
    counts = [rng.integers(5, 40, size=rng.choice([3, 3, 3, 4])).tolist() for _ in range(n)]
    sizes = rng.integers(1, 50, size=n)
    return Script(as_sent(updates), sizes, counts, clustering_round, late, arrivals, away, epsilon)


def short_script(updates: Floats, counts: list[list[int]]) -> Script:
    """Clients with a sample each that are clustered in the first round, and all there in all rounds."""
    nobody: list[list[int]] = [[] for _ in updates]
    return Script(updates, np.ones(len(counts), dtype=np.int64), counts, 1, [], nobody, nobody, 1.8)


def check(script: Script, seed: int) -> tuple[int, int]:
    """Compare the library with the paper; the clusters after the clustering, and at the end."""
    clusters, models = adacfl(script)
    history, states = played(script)
    assert history == clusters, f"seed {seed}"
    for state, expected in zip(states, models, strict=True):
        found = sorted(state.models.tolist())
        assert np.array(found) == pytest.approx(np.array(sorted(model.tolist() for model in expected)), abs=1e-5)
    return len(clusters[script.clustering_round - 1]), len(clusters[-1])


@FEW_AND_MANY
def test_clusters_and_newcomers_are_those_of_algorithms_1_and_2_with_the_papers_thresholds(seeds: range) -> None:
    kinds = set[bool]()
    for seed in seeds:
        first, last = check(random_script(seed, epsilon=1.8, at_once=3), seed)
        kinds.add(last > first)
    assert kinds == {True, False}


def clusters_at_first(script: Script) -> int:
    """The number of clusters that Algorithm 1 makes."""
    quiet = replace(script, arrivals=[[]] * len(script.arrivals))
    return len(adacfl(quiet)[0][script.clustering_round - 1])


@FEW_AND_MANY
def test_epsilon_is_the_largest_distance_between_the_models_of_two_clusters(seeds: range) -> None:
    """Section 5.4; of a single cluster the paper says nothing."""
    kinds = set[bool]()
    for seed in seeds[: len(seeds) // 2]:
        script = random_script(seed, epsilon="auto", at_once=1)
        if clusters_at_first(script) > 1:
            first, last = check(script, seed)
            kinds.add(last > first)
    assert kinds == {True, False}


@pytest.mark.xfail(strict=True, reason="epsilon is taken once a round, before a newcomer of it founds a cluster")
def test_of_two_newcomers_in_one_round_the_second_is_compared_with_the_cluster_of_the_first() -> None:
    """Algorithm 2 takes one newcomer after the other; after the first, the largest distance is 10."""
    updates = np.zeros((2, 6, LAYERS.p))
    updates[0, :, PARTIAL[0]] = [0.0, 0.0, 2.0, 2.0, 0.0, 0.0]
    updates[1, :, PARTIAL[0]] = [0.0, 0.0, 0.0, 0.0, 10.0, 7.0]
    script = replace(short_script(updates, [[10, 10, 10]] * 6), late=[4, 5], arrivals=[[], [4, 5]], epsilon="auto")
    assert adacfl(script)[0][-1] == {frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5})}
    check(script, seed=0)


def test_clusters_never_cross_pre_clusters() -> None:
    """Algorithm 1, line 7: only the distances inside pre-clusters are computed."""
    script = short_script(np.zeros((1, 4, LAYERS.p)), [[10, 10], [30, 30], [11, 9, 10], [1, 20]])
    assert adacfl(script)[0] == [{frozenset({0, 1}), frozenset({2}), frozenset({3})}]
    check(script, seed=0)
