"""LayerCFL, Cybersecurity 2023: Algorithms 1 and 2, equations 20 and 26 to 28."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from builders import layout_with
from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.testing import toy_problem
from papers.scripts import (
    FEW_AND_MANY,
    Floats,
    Ids,
    Partition,
    Split,
    Thresholds,
    as_sent,
    assert_same_values,
    clusters_and_splits,
    random_bipartitions,
    random_thresholds,
    rounds,
)

KEYS: dict[str, Any] = {"min_split": 2}
"""Scripts have clusters of two, which the default leaves whole. Every script has its own eps1, eps2 and gamma."""

LAYERS = layout_with(
    {"conv1.weight": 4, "conv1.bias": 1, "conv2.weight": 3, "norm.weight": 2, "fc1.weight": 5, "fc2.weight": 2}
)

STAR = {
    "conv2": [5, 6, 7],
    "conv": [0, 1, 2, 3, 4, 5, 6, 7],
    "first_linear": [10, 11, 12, 13, 14],
    "all": [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16],
}
"""The columns of the layers that Algorithm 2 selects: one convolution, all, the first linear layer, everything."""


def cosines(rows: Floats) -> Floats:
    """Equation 26."""
    length = np.linalg.norm(rows, axis=1)
    alpha: Floats = rows @ rows.T / np.outer(length, length)
    return alpha


def dichotomy(alpha: Floats) -> tuple[Ids, float]:
    """The two parts with the smallest largest similarity across, by trying all of them; second part as bools."""
    best = np.zeros(len(alpha), dtype=bool)
    cross_max = np.inf
    for rest in product([False, True], repeat=len(alpha) - 1):
        second = np.array([False, *rest])
        if second.any() and alpha[~second][:, second].max() < cross_max:
            cross_max = alpha[~second][:, second].max()
            best = second
    return best, float(cross_max)


def layer_cfl(
    updates: Floats, sizes: Ids, star: list[int], eps: Thresholds, group: Ids, start: int = 0
) -> dict[Split, dict[str, float]]:
    """Algorithm 2 for a group from a round on: every split below it, with the norms and the cosine that decided."""
    eps1, eps2, gamma = eps
    everything = STAR["all"]
    for round in range(start, len(updates)):  # Algorithm 1
        delta = updates[round, group]
        mean = np.linalg.norm(sizes[group] / sizes[group].sum() @ delta[:, everything])
        if mean < eps1:  # Eq. 27
            break
    else:
        return {}
    if len(group) < 2:
        return {}
    longest = np.linalg.norm(delta[:, star], axis=1).max()
    second, cross_max = dichotomy(cosines(delta[:, star]))
    if not (longest >= eps2 and np.sqrt((1 - cross_max) / 2) > gamma):  # Eq. 28 and Theorem 1 (Eq. 20)
        return {}
    parts = (group[~second], group[second])
    values = {"mean_norm": float(mean), "max_norm": float(longest), "cross_max": cross_max}
    found = {(round + 1, frozenset(parts[0].tolist())): values}
    for part in parts:
        found |= layer_cfl(updates, sizes, star, eps, part, round + 1)
    return found


def partitions(n: int, length: int, found: dict[Split, Any]) -> list[Partition]:
    """The clusters after every round."""
    clusters = {frozenset(range(n))}
    after = []
    for round in range(1, length + 1):
        for first in (first for when, first in found if when == round):
            whole = next(cluster for cluster in clusters if first < cluster)
            clusters = clusters - {whole} | {first, whole - first}
        after.append(clusters)
    return after


def check(updates: Floats, sizes: Ids, layers: str, eps: Thresholds, seed: int = 0) -> tuple[list[Partition], int]:
    """Compare the library with the paper; the clusters after every round, and how many splits there were."""
    eps1, eps2, gamma = eps
    expected = layer_cfl(updates, sizes, STAR[layers], eps, np.arange(len(sizes)))
    algorithm = LayerCFL(layers=layers, eps1=eps1, eps2=eps2, gamma=gamma, **KEYS)
    clusters, found = clusters_and_splits(algorithm, toy_problem(len(sizes), LAYERS), updates, sizes)
    assert clusters == partitions(len(sizes), len(updates), expected), f"seed {seed}"
    assert_same_values(found, expected, seed)
    return clusters, len(expected)


@FEW_AND_MANY
def test_labels_split_rounds_and_norms_are_those_of_algorithms_1_and_2(seeds: range) -> None:
    nested = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        updates, sizes = random_bipartitions(rng, LAYERS.p)
        layers = str(rng.choice(list(STAR)))
        _, count = check(updates, sizes, layers, random_thresholds(rng), seed)
        nested += count > 1
    assert nested > len(seeds) / 5  # a refused group is final, so few scripts split twice


def exact_script() -> tuple[Floats, Ids]:
    """A fading common move, then two pairs whose longest update is 5 in every layer."""
    moves = np.zeros((2, 4, LAYERS.p))
    moves[0] = 10.0
    moves[1, :, [10, 11]] = np.array([[3.0, 3.0, -3.0, -3.0], [4.0, 4.0, -4.0, -4.0]])
    return moves, np.ones(4, dtype=np.int64)


def test_a_mean_of_exactly_eps1_is_not_stationary() -> None:
    """Equation 27 is strict."""
    updates, sizes = exact_script()
    updates[1, :, 12] = 2.0
    for eps1, count in ((2.0, 1), (2.001, 2)):
        clusters, _ = check(updates, sizes, "all", (eps1, 1.0, 0.5))
        assert len(clusters[-1]) == count


def test_a_longest_update_of_exactly_eps2_is_long_enough() -> None:
    updates, sizes = exact_script()
    _, count = check(updates, sizes, "first_linear", (1.0, 5.0, 0.5))
    assert count == 1


def test_theorem_1_is_strict() -> None:
    """Two updates at 60 degrees have the bound 1/2, which gamma = 1/2 refuses; at 120 degrees it is sqrt(3)/2."""
    sizes = np.ones(2, dtype=np.int64)
    for sign, gamma, count in ((1.0, 0.5, 1), (1.0, 0.4, 2), (-1.0, 0.5, 2), (-1.0, 0.9, 1)):
        updates = np.zeros((1, 2, LAYERS.p))
        updates[0, 0, [10, 11]] = 1.0
        updates[0, 1, [11, 12]] = sign, 1.0
        clusters, _ = check(updates, sizes, "first_linear", (10.0, 0.5, gamma))
        assert len(clusters[-1]) == count


def test_a_refused_group_is_returned_as_it_is_and_never_split_later() -> None:
    """Algorithm 2 returns the group where equation 28 or Theorem 1 does not hold."""
    updates, sizes = exact_script()
    alike = updates[1:].copy()
    alike[0, :, 11] = 0.01
    alike[0, :, 10] = [0.01, 0.01, 0.02, 0.02]
    for first in (alike, 10 * alike):  # too short for equation 28, and long but in one direction
        clusters, count = check(np.concatenate([first, updates[1:]]), sizes, "all", (1.0, 0.1, 0.5))
        assert not count and clusters == [{frozenset(range(4))}] * 2


def automatic_thresholds(updates: Floats, layers: str) -> list[dict[str, float]]:
    """The thresholds that the library takes in each round of a script without a split."""
    algorithm = LayerCFL(layers=layers, **KEYS)
    history = rounds(algorithm, toy_problem(updates.shape[1], LAYERS), updates, np.ones(updates.shape[1], np.int64))
    return [dict(state.tree[0].decision.values) for state, _ in history if state.tree[0].decision]


def stationary_never(seed: int) -> Floats:
    """Updates that mostly agree, so that their mean is never small."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(5, 1, LAYERS.p)) * rng.uniform(1, 2, size=(5, 1, 1))
    return as_sent(common + rng.normal(size=(5, 4, LAYERS.p)))


@pytest.mark.xfail(strict=True, reason="a tenth of the longest mean update is out of reach: alike clients leave more")
def test_the_automatic_eps1_is_a_tenth_of_the_maximum_average_update_norm() -> None:
    for seed in range(5):
        updates = stationary_never(seed)
        means = np.linalg.norm(updates[:, :, STAR["all"]].mean(axis=1), axis=1)
        found = [values["eps1"] for values in automatic_thresholds(updates, "all")]
        assert found == pytest.approx(np.maximum.accumulate(means) / 10, rel=1e-5)


def test_the_automatic_eps1_is_of_the_whole_update_and_eps2_of_the_compared_layer() -> None:
    """Updates of the lengths 5, 5 and 10, which are 3, 4 and 6 in conv2, for 20, 10 and 10 samples.

    eps1 is 1.5 sqrt((1/2)^2 25 + (1/4)^2 25 + (1/4)^2 100) = 1.5 x 3.75 of this round, and eps2 0.35 x 6 of the longest
    so far. In round 2 updates are half as long. Normalisation is in neither.
    """
    updates = np.zeros((2, 3, LAYERS.p))
    updates[0, :, 5], updates[0, :, 10], updates[0, :, 8] = [3, 4, 6], [4, 3, 8], 100.0
    updates[1] = updates[0] / 2
    algorithm = LayerCFL(layers="conv2", **KEYS)
    history = list(rounds(algorithm, toy_problem(3, LAYERS), updates, np.array([20, 10, 10])))
    found = [state.tree[0].decision for state, _ in history]
    values = [each.values[key] for key in ("eps1", "eps2") for each in found if each]
    assert values == pytest.approx([5.625, 5.625 / 2, 2.1, 2.1])


@pytest.mark.parametrize("kind", [CFL, LayerCFL])
@pytest.mark.parametrize(("length", "count"), [(3.5, 4), (3.25, 2)])
def test_the_automatic_eps2_remembers_the_longest_update_of_a_cluster_before_it_was_split(
    kind: type[CFL] | type[LayerCFL], length: float, count: int
) -> None:
    """0.35 of 10 is 3.5, which is long enough."""
    updates = np.zeros((2, 4, LAYERS.p))
    updates[0, :, 10] = [10, 10, -10, -10]
    updates[1, :, 11] = np.array([1, -1, 1, -1]) * length
    state, _ = list(rounds(kind(**KEYS), toy_problem(4, LAYERS), updates, np.ones(4, dtype=np.int64)))[-1]
    assert len(state.models) == count


@pytest.mark.parametrize("kind", [CFL, LayerCFL])
@pytest.mark.parametrize(("n", "count"), [(7, 1), (8, 2)])
def test_fewer_than_eight_answers_are_not_split_by_default(
    kind: type[CFL] | type[LayerCFL], n: int, count: int
) -> None:
    updates = np.zeros((1, n, LAYERS.p))
    updates[0, :, 10] = [1, -1, 1, -1, 1, -1, 1, -1][:n]
    state, _ = list(rounds(kind(), toy_problem(n, LAYERS), updates, np.ones(n, dtype=np.int64)))[-1]
    assert len(state.models) == count


@pytest.mark.xfail(strict=True, reason="the automatic eps2 follows the compared layer and eps1 the whole update")
def test_the_automatic_eps2_is_between_eps1_and_ten_times_eps1() -> None:
    for seed in range(5):
        updates = stationary_never(seed)
        updates[:, :, STAR["conv2"]] /= 100
        for values in automatic_thresholds(updates, "conv2"):
            assert values["eps1"] <= values["eps2"] <= 10 * values["eps1"]


@pytest.mark.xfail(strict=True, reason="a child starts from the model before the round in which its parent was split")
def test_both_children_start_from_the_model_that_algorithm_1_returns() -> None:
    """Algorithm 1 returns the model after the mean of the last round; Algorithm 2 hands that to both children."""
    updates, sizes = exact_script()
    updates[1, :, 12] = 0.5
    algorithm = LayerCFL(layers="all", eps1=1.0, eps2=1.0, gamma=0.5, **KEYS)
    state, _ = list(rounds(algorithm, toy_problem(4, LAYERS), updates, sizes))[-1]
    returned = updates.mean(axis=1).sum(axis=0)
    assert len(state.models) == 2
    assert state.models.double().numpy() == pytest.approx(np.stack([returned, returned]))
