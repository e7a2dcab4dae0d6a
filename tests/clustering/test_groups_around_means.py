import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from fedstrata.clustering import ari, euclidean, kmeans

few = settings(deadline=None, max_examples=40)


def line(*points: float) -> Tensor:
    return euclidean(tensor(points, dtype=torch.float64)[:, None])


def test_points_on_a_line_go_to_the_nearest_mean() -> None:
    assert kmeans(line(0, 10, 1, 11, 12), 2).tolist() == [0, 1, 0, 1, 1]
    assert kmeans(line(0, 10, 1, 11, 20), 3).tolist() == [0, 1, 0, 1, 2]
    assert kmeans(line(5, 6, 7), 1).tolist() == [0, 0, 0]


def test_a_weight_draws_the_mean() -> None:
    points = line(0, 2, 3.1, 6)
    assert kmeans(points, 2).tolist() == [0, 0, 0, 1]  # 3.1 is 1.4 from the mean 1.7, and 2.9 from 6
    assert kmeans(points, 2, [100, 1, 1, 1]).tolist() == [0, 0, 1, 1]  # 3.05 from the mean 5.1 / 102


def test_a_group_of_its_own_for_each_where_there_are_no_more_than_k() -> None:
    assert kmeans(line(3, 1), 5).tolist() == [0, 1]
    assert kmeans(torch.zeros(0, 0), 2).tolist() == []
    assert kmeans(torch.zeros(1, 1), 1).tolist() == [0]


def test_equal_rows_are_one_group_however_many_are_asked_for() -> None:
    assert kmeans(torch.zeros(4, 4), 2).tolist() == [0, 0, 0, 0]


def test_the_tighter_of_two_starts_counts() -> None:
    # Average linkage leaves the outlier 17 alone beside all others; complete linkage leaves halves that are tighter.
    points = (0.0, 1, 2, 3, 8, 9, 10, 11, 17)
    labels = kmeans(line(*points), 2)
    halves = tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    assert torch.equal(labels, halves)


def test_a_given_start_counts_where_it_is_tighter() -> None:
    points = line(6, 15, 16, 18, 19, 22)
    assert kmeans(points, 3).tolist() == [0, 1, 1, 1, 1, 2]  # squares around the means: 10
    assert kmeans(points, 3, start=[4, 2, 2, 0, 0, 0]).tolist() == [0, 1, 1, 2, 2, 2]  # 0.5 + 8.67


@few
@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_every_row_is_nearest_to_the_mean_of_its_own_group(m: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(m, 3, generator=generator, dtype=torch.float64)
    weights = 0.5 + torch.rand(m, generator=generator, dtype=torch.float64)
    labels = kmeans(euclidean(rows), k, weights)
    assert labels.unique().tolist() == list(range(int(labels.max()) + 1)) and int(labels.max()) < k
    groups = [labels == label for label in labels.unique()]
    means = torch.stack([(weights[own, None] * rows[own]).sum(0) / weights[own].sum() for own in groups])
    away = torch.cdist(rows, means)
    assert torch.allclose(away.gather(1, labels[:, None])[:, 0], away.amin(dim=1))
    order = torch.randperm(m, generator=generator)
    assert ari(kmeans(euclidean(rows[order]), k, weights[order]), labels[order]) == 1
