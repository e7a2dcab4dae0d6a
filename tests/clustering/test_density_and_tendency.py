import pytest
import torch
from torch import Tensor, tensor

from fedstrata.clustering import dbscan, hopkins, hopkins_ratio

SIX = torch.zeros(6, 6, dtype=torch.float64)
SIX[*torch.triu_indices(6, 6, offset=1)] = tensor(
    [0.10, 0.20, 0.60, 0.62, 0.90, 0.12, 0.61, 0.63, 0.91, 0.64, 0.65, 0.92, 0.15, 0.93, 0.94],
    dtype=torch.float64,
)  # 01, 02, 03, 04, 05, 12, 13, ...
SIX += SIX.T.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("radius", "least", "labels"),
    [
        (0.15, 2, [0, 0, 0, 1, 1, 2]),  # 3 and 4 are exactly .15 apart; 5 is noise, alone
        (0.15, 3, [0, 0, 0, 1, 2, 3]),  # a pair is not dense, so both of it are noise
        (0.149999, 2, [0, 0, 0, 1, 2, 3]),
        (0.15, 1, [0, 0, 0, 1, 1, 2]),
        (1.0, 2, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_clusters_by_density(radius: float, least: int, labels: list[int], dtype: torch.dtype) -> None:
    assert dbscan(SIX.to(dtype), radius, least).tolist() == labels


CORNERS = tensor([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0], [4.0, 1.0]])


def test_tendency_of_given_draws() -> None:
    # each member's nearest other is 1 away; sqrt(2^2 + .5^2) = 2.061553, and (1, 0) is 1 from (0, 0)
    for second, ratio in (([1.0, 0.0], 3.061553 / 5.061553), ([2.0, 0.5], 4.123106 / 6.123106)):
        assert hopkins_ratio(CORNERS, [0, 3], tensor([[2.0, 0.5], second])) == pytest.approx(ratio, abs=1e-6)


def test_identical_points_and_pairs_show_no_tendency() -> None:
    generator = torch.Generator().manual_seed(0)
    assert hopkins(torch.ones(8, 3), generator) == 0.5
    assert hopkins_ratio(CORNERS[:2], [0], tensor([[0.5, 9.0]])) == 0.5
    before = generator.get_state()
    assert hopkins(CORNERS[:2], generator) == 0.5
    assert torch.equal(generator.get_state(), before)


def by_hand(points: Tensor, count: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    members = torch.randperm(len(points), generator=generator)[:count]
    unit = torch.rand(count, points.shape[1], generator=generator, dtype=torch.float64)
    low, high = points.amin(dim=0), points.amax(dim=0)
    return hopkins_ratio(points, members, low + unit * (high - low))


@pytest.mark.parametrize(("m", "count"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_quarter_of_the_points_is_drawn_in_their_box(m: int, count: int) -> None:
    points = torch.randn(m, 3, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    assert hopkins(points, torch.Generator().manual_seed(5)) == by_hand(points, count, 5)
    assert hopkins(points, torch.Generator().manual_seed(5), sample=m) == by_hand(points, m, 5)


def test_tendency_is_high_for_clusters_and_middling_for_noise() -> None:
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(40, 5, 4, generator=generator)  # a batch of 5 and 4 classes, flattened inside
    clusters = noise / 100 + (torch.arange(40) % 2)[:, None, None]
    assert 0.35 < hopkins(noise, generator, sample=40) < 0.65
    assert hopkins(clusters, generator, sample=40) > 0.9
