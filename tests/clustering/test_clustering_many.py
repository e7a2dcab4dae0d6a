from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import seeded
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstrata.clustering import agglomerate, ari, cluster_many, euclidean, kmeans, many, natural_cut

few = settings(deadline=None, max_examples=15)
seeds = st.integers(0, 2**32 - 1)


def blobs(m: int, k: int, seed: int, d: int = 8) -> tuple[Tensor, Tensor]:
    """Points around k centres far from each other, and whose each is."""
    generator = seeded(seed)
    truth = torch.randint(0, k, (m,), generator=generator)
    centres = 100 + 10 * torch.randn(k, d, generator=generator)
    return centres[truth] + 0.3 * torch.randn(m, d, generator=generator), truth


@few
@given(st.integers(1, 5), seeds, st.booleans(), st.integers(300, 600))
def test_separate_groups_are_found_from_a_sample_in_any_order_of_points(k: int, seed: int, told: bool, m: int) -> None:
    assume(told or k > 1)  # where a lone group has no step between its merge heights is chance
    points, truth = blobs(m, k, seed, d=20)
    given_k = k if told else None
    labels = cluster_many(points, seeded(seed), given_k, sample=100)
    assert ari(labels, truth) == 1
    assert list(dict.fromkeys(labels.tolist())) == list(range(k))  # numbered by the smallest member
    order = torch.randperm(m, generator=seeded(seed))
    assert ari(cluster_many(points[order], seeded(seed), given_k, sample=100), truth[order]) == 1


@few
@given(st.integers(0, 30), seeds)
def test_no_more_points_than_the_sample_are_clustered_exactly(m: int, seed: int) -> None:
    points = torch.randn(m, 2, generator=seeded(seed))
    distance = euclidean(points)
    assert torch.equal(cluster_many(points, seeded(0)), agglomerate(distance, natural_cut(distance)))
    assert torch.equal(cluster_many(points.numpy(), seeded(0), 3, sample=max(m, 1)), kmeans(distance, 3))


def test_the_means_of_a_sample_are_improved_by_all_points() -> None:
    """Sampled are 4 points of 60, so their means lie off; only with all points is the border in the middle."""
    line = torch.cat([torch.linspace(0, 1, 30), torch.linspace(1.5, 2.5, 30)])[:, None]
    for seed in range(5):
        assert ari(cluster_many(line, seeded(seed), 2, sample=4), torch.arange(60) // 30) == 1


def test_how_many_points_are_read_at_a_time_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points, _ = blobs(500, 6, 0, d=2)
    whole = cluster_many(points, seeded(1), 4, sample=50)
    np.save(tmp_path / "points.npy", points.numpy())
    monkeypatch.setattr(many, "_NUMBERS_READ", 26)  # 13 points
    assert torch.equal(cluster_many(np.load(tmp_path / "points.npy", mmap_mode="r"), seeded(1), 4, sample=50), whole)
