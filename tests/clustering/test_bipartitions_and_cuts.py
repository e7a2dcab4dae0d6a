import math
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from fedstrata.clustering import (
    agglomerate,
    bipartition,
    euclidean,
    gap,
    silhouette_cut,
)
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.clustering.separation import theorem_1_bound


def symmetric(m: int, pairs: str) -> Tensor:
    """Of ``"01 .9, 12 .8"``: 0.9 between rows 0 and 1, and so on; the diagonal 1."""
    matrix = torch.eye(m, dtype=torch.float64)
    for ids, value in (pair.split() for pair in pairs.split(",")):
        matrix[int(ids[0]), int(ids[1])] = matrix[int(ids[1]), int(ids[0])] = float(value)
    return matrix


def cross_max(similarity: Tensor, labels: Tensor) -> float:
    return float(similarity[labels == 0][:, labels == 1].max())


FOUR = symmetric(4, "01 .9, 12 .8, 23 .6, 02 .1, 13 0, 03 -.5")
FIVE = symmetric(5, "01 .9, 12 .8, 02 .1, 23 .5, 34 .7, 03 0, 04 -.2, 13 .2, 14 -.1, 24 .05")


@pytest.mark.parametrize(
    ("linkage", "labels", "cross", "spread"),
    [
        ("single", [0, 0, 0, 1], 0.6, 0.1 - 0.6),
        ("complete", [0, 0, 1, 1], 0.8, 0.6 - 0.8),
        ("average", [0, 0, 1, 1], 0.8, 0.6 - 0.8),
    ],
)
def test_only_single_linkage_minimises_the_largest_cross_similarity(
    linkage: Linkage, labels: list[int], cross: float, spread: float
) -> None:
    split = bipartition(FOUR, linkage)
    assert split.tolist() == labels
    assert cross_max(FOUR, split) == cross
    assert gap(FOUR, split, "similarity") == pytest.approx(spread)
    assert theorem_1_bound(cross) < 0.5  # sqrt((1 - cross) / 2) is .447214 or .316228


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_equal_similarities_merge_lowest_ids_first_and_still_make_two_groups(linkage: Linkage) -> None:
    assert bipartition(torch.full((3, 3), 0.3), linkage).tolist() == [0, 0, 1]
    assert bipartition(torch.full((2, 2), 0.3), linkage).tolist() == [0, 1]
    assert bipartition(torch.full((5, 5), -0.3), linkage).tolist() == [0, 0, 0, 0, 1]


LINE = euclidean(tensor([[0], [1], [2], [3.5], [5.2]]))


@pytest.mark.parametrize(
    ("linkage", "labels"),
    [
        ("single", [0, 0, 0, 1, 2]),  # heights 1, 1, 1.5, 1.7
        ("average", [0, 0, 1, 2, 3]),  # heights 1, 1.5, 1.7, 3.35
        ("complete", [0, 0, 1, 2, 3]),  # heights 1, 1.5, 3.2, 5.2
    ],
)
def test_merging_stops_above_the_cut(linkage: Linkage, labels: list[int]) -> None:
    assert agglomerate(LINE, 1.4, linkage).tolist() == labels


def test_the_cut_is_where_the_mean_silhouette_is_highest() -> None:
    """Of two pairs, 1 and 2 apart: (1 - 1/11) + (1 - 1/10) + (1 - 2/9.5) + (1 - 2/11.5) = 4 (1 - 0.1439)."""
    points = tensor([[0.0], [1.0], [10.0], [12.0]], dtype=torch.float64)
    # average linkage: 1, 2, then (10 + 12 + 9 + 11) / 4 = 10.5
    assert silhouette_cut(euclidean(points)) == pytest.approx(math.sqrt(2 * 10.5))
    assert agglomerate(euclidean(points), silhouette_cut(euclidean(points))).tolist() == [0, 0, 1, 1]
    # single linkage: 1, 2, 9
    assert silhouette_cut(euclidean(points), "single") == pytest.approx(math.sqrt(2 * 9))


def test_groups_that_do_not_stand_out_are_one_cluster() -> None:
    """Two pairs whose members are 1 apart and 1.4 from the others: 1 - 1/1.4 = 0.286; 1.3 from them: 0.231."""
    for between, found in ((1.4, [0, 0, 1, 1]), (1.3, [0, 0, 0, 0])):
        pairs = symmetric(4, f"01 1, 23 1, 02 {between}, 03 {between}, 12 {between}, 13 {between}")
        assert agglomerate(pairs, silhouette_cut(pairs)).tolist() == found


@pytest.mark.parametrize("m", [0, 1, 2, 3, 5])
def test_fewer_than_three_rows_or_equal_rows_are_one_cluster(m: int) -> None:
    assert silhouette_cut(torch.zeros(m, m)) == math.inf
    if m < 3:
        assert silhouette_cut(1 - torch.eye(m)) == math.inf


def test_two_clients_that_are_the_same_do_not_leave_all_others_alone() -> None:
    points = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    assert silhouette_cut(euclidean(points)) == math.inf
    twins = torch.cat([points, points[:1]])  # the mean silhouette is about 2/9
    assert silhouette_cut(euclidean(twins)) == math.inf


def test_a_resolution_keeps_small_distances_from_making_groups() -> None:
    """Two pairs of copies, 2 apart: silhouettes of 1, and with a resolution of 8 of 1 - 8/10."""
    pairs = symmetric(4, "01 0, 23 0, 02 2, 03 2, 12 2, 13 2")
    assert agglomerate(pairs, silhouette_cut(pairs)).tolist() == [0, 0, 1, 1]
    assert silhouette_cut(pairs, resolution=8.0) == math.inf


def test_hierarchies_refuse_what_they_cannot_mean() -> None:
    wrong: Any = "ward"
    for m in (1, 2, 3):
        with pytest.raises(ValueError, match="expected linkage single, complete, average, found 'ward'"):
            agglomerate(torch.ones(m, m), 0.5, wrong)
    with pytest.raises(ValueError, match="expected linkage single, complete, average, found 'ward'"):
        bipartition(torch.ones(2, 2), wrong)
    with pytest.raises(ValueError, match=r"expected distances of at least 0, found -0.5; is this a similarity\?"):
        agglomerate(FOUR, 0.5)
    with pytest.raises(ValueError, match="expected a resolution of at least 0, found nan"):
        silhouette_cut(LINE, resolution=math.nan)
    with pytest.raises(ValueError, match="expected a cut, found nan"):
        agglomerate(LINE, math.nan)


def test_groups_of_copies_are_clusters() -> None:
    points = torch.eye(3).repeat_interleave(2, dim=0)
    assert agglomerate(euclidean(points), silhouette_cut(euclidean(points))).tolist() == [0, 0, 1, 1, 2, 2]
