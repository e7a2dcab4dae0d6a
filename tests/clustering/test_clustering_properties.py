"""What holds for every matrix, and for the package as a whole."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage as reference_linkage
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score
from torch import Tensor

import fedstrata.clustering
from fedstrata.clustering import (
    agglomerate,
    ari,
    bipartition,
    cosine,
    dbscan,
    euclidean,
    gap,
    hopkins,
    jensen_shannon,
    reference_split,
    silhouette_cut,
    stability,
)
from fedstrata.clustering.hierarchy import Linkage

LINKAGES: tuple[Linkage, ...] = ("single", "complete", "average")

few = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32 - 1).map(lambda seed: torch.Generator().manual_seed(seed))
sizes = st.integers(2, 8)


def random_matrix(m: int, generator: torch.Generator) -> Tensor:
    upper = torch.rand(m, m, generator=generator, dtype=torch.float64).triu(1)
    return upper + upper.T


def splits(m: int) -> list[Tensor]:
    return [torch.tensor([0, *rest]) for rest in itertools.product([0, 1], repeat=m - 1) if any(rest)]


def cross_max(similarity: Tensor, labels: Tensor) -> float:
    return float(similarity[labels == 0][:, labels == 1].max())


CLUSTERINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "bipartition single": lambda rows: bipartition(cosine(rows), "single"),
    "bipartition complete": lambda rows: bipartition(cosine(rows), "complete"),
    "bipartition average": lambda rows: bipartition(cosine(rows), "average"),
    "agglomerate single": lambda rows: agglomerate(euclidean(rows), 2, "single"),
    "agglomerate complete": lambda rows: agglomerate(euclidean(rows), 2, "complete"),
    "agglomerate average": lambda rows: agglomerate(euclidean(rows), 2, "average"),
    "silhouette cut": lambda rows: agglomerate(euclidean(rows), silhouette_cut(euclidean(rows))),
    "dbscan": lambda rows: dbscan(euclidean(rows), 1.5, 2),
    "reference split": lambda rows: reference_split(rows, rows[:, 0].abs())[1].long(),
}


@pytest.mark.parametrize("name", CLUSTERINGS)
@few
@given(sizes, seeds)
def test_reordered_clients_keep_their_clusters(name: str, m: int, generator: torch.Generator) -> None:
    rows = torch.randn(m, 3, generator=generator, dtype=torch.float64)
    order = torch.randperm(m, generator=generator)
    assert ari(CLUSTERINGS[name](rows[order]), CLUSTERINGS[name](rows)[order]) == 1


@pytest.mark.parametrize("name", CLUSTERINGS)
@few
@given(sizes, seeds)
def test_every_client_is_in_exactly_one_cluster_numbered_by_its_smallest_member(
    name: str, m: int, generator: torch.Generator
) -> None:
    labels = CLUSTERINGS[name](torch.randn(m, 3, generator=generator, dtype=torch.float64))
    assert labels.shape == (m,)
    assert labels.dtype == torch.int64
    found = list(dict.fromkeys(labels.tolist()))
    if name == "reference split":
        assert set(found) <= {0, 1}
    else:
        assert found == list(range(len(found)))


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_repeated_splits_lose_no_client(name: str) -> None:
    rows = torch.randn(30, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    groups = [torch.arange(30)]
    for _ in range(3):
        parts = []
        for ids in groups:
            labels = CLUSTERINGS[name](rows[ids]) if len(ids) > 1 else torch.zeros(1, dtype=torch.int64)
            parts += [ids[labels == label] for label in labels.unique()]
        groups = parts
    assert sorted(torch.cat(groups).tolist()) == list(range(30))


@few
@given(sizes, seeds)
def test_distances_of_models_are_those_of_their_updates(m: int, generator: torch.Generator) -> None:
    updates = torch.randn(m, 20, generator=generator, dtype=torch.float64)
    base = 100 * torch.randn(20, generator=generator, dtype=torch.float64)
    assert torch.allclose(euclidean(base + updates), euclidean(updates), rtol=1e-10, atol=0)


@few
@given(sizes, seeds, st.sampled_from([4, 5000]), st.floats(1e-9, 1e9))
def test_cosines_depend_on_no_scale(m: int, generator: torch.Generator, p: int, scale: float) -> None:
    rows = torch.randn(m, p, generator=generator)
    scales = scale * (1 + torch.rand(m, 1, generator=generator))
    assert torch.allclose(cosine(rows * scales), cosine(rows), rtol=0, atol=1e-6)


@few
@given(sizes, seeds)
def test_single_linkage_is_the_exhaustive_search(m: int, generator: torch.Generator) -> None:
    similarity = random_matrix(m, generator)
    best = min(splits(m), key=lambda split: cross_max(similarity, split))
    assert cross_max(similarity, bipartition(similarity)) == cross_max(similarity, best)


@few
@given(st.integers(2, 6), seeds, st.data())
def test_every_search_finds_a_split_whose_gap_is_positive(
    m: int, generator: torch.Generator, data: st.DataObject
) -> None:
    truth = data.draw(st.sampled_from(splits(m)))
    same = truth[:, None] == truth
    similarity = random_matrix(m, generator) / 2 + same / 2  # within at least .5, across at most .5
    assert gap(similarity, truth, "similarity") > 0
    for linkage in LINKAGES:
        assert torch.equal(bipartition(similarity, linkage), truth)
    assert torch.equal(min(splits(m), key=lambda split: cross_max(similarity, split)), truth)
    others = [split for split in splits(m) if not torch.equal(split, truth)]
    if m > 2:  # with singletons alone every gap is counted from 1
        assert all(gap(similarity, split, "similarity") < 0 for split in others)


@few
@given(seeds, st.integers(2, 4), st.integers(2, 4))
def test_both_gaps_are_positive_on_separate_blobs_and_negative_on_mixed_ones(
    generator: torch.Generator, k: int, each: int
) -> None:
    truth = torch.arange(k).repeat_interleave(each)
    noise = 0.05 * torch.randn(k * each, 6, generator=generator, dtype=torch.float64)
    rows = torch.eye(6, dtype=torch.float64)[truth] + noise
    for labels, separate in ((truth, True), (truth.roll(1), False)):
        assert (gap(cosine(rows), labels, "similarity") > 0) == separate
        assert (gap(euclidean(rows), labels, "distance") > 0) == separate


@pytest.mark.parametrize("linkage", LINKAGES)
@few
@given(st.integers(3, 12), seeds)
def test_hierarchies_merge_as_scipy_s_do(linkage: Linkage, m: int, generator: torch.Generator) -> None:
    distance = random_matrix(m, generator)
    heights = reference_linkage(squareform(distance.numpy()), linkage)[:, 2]
    for below, above in itertools.pairwise([0.0, *heights, 2.0]):
        cut = (below + above) / 2
        assert len(agglomerate(distance, cut, linkage).unique()) == m - (heights <= cut).sum()
    cuts = np.sqrt(heights[:-1] * heights[1:])
    groups = [agglomerate(distance, cut, linkage) for cut in cuts]
    scores = [silhouette_score(distance, labels, metric="precomputed") for labels in groups]
    best = int(np.argmax(scores))
    wanted = cuts[best] if scores[best] > 0.25 else math.inf
    assert silhouette_cut(distance, linkage) == pytest.approx(wanted)


@few
@given(sizes, seeds, st.integers(1, 4), st.integers(1, 5), st.sampled_from([1.0, 30.0]))
def test_jensen_shannon_is_symmetric_and_at_most_ln_2(
    m: int, generator: torch.Generator, b: int, c: int, sharpness: float
) -> None:
    matrix = jensen_shannon((sharpness * torch.randn(m, b, c, generator=generator)).softmax(dim=2))
    assert torch.equal(matrix, matrix.T)
    assert float(matrix.min()) >= 0
    assert float(matrix.max()) <= math.log(2)
    assert not matrix.diagonal().any()


@few
@given(sizes, seeds, st.floats(0, 1))
def test_density_with_pairs_is_connected_components(m: int, generator: torch.Generator, radius: float) -> None:
    distance = random_matrix(m, generator)
    labels = connected_components((distance <= radius).numpy())[1]
    assert dbscan(distance, radius, 2).tolist() == labels.tolist()


@few
@given(st.integers(3, 9), seeds)
def test_tendency_is_a_share(m: int, generator: torch.Generator) -> None:
    assert 0 <= hopkins(torch.randn(m, 2, generator=generator), generator) <= 1


@few
@given(sizes, seeds)
def test_arrays_give_what_tensors_give(m: int, generator: torch.Generator) -> None:
    rows = torch.randn(m, 3, generator=generator)
    shares = rows.softmax(dim=1)[:, None]
    distance, labels = euclidean(rows), torch.arange(m) % 2
    flat = distance.numpy()
    assert torch.equal(cosine(rows), cosine(rows.numpy()))
    assert torch.equal(distance, euclidean(rows.numpy()))
    assert torch.equal(jensen_shannon(shares), jensen_shannon(shares.numpy()))
    assert torch.equal(stability(rows), stability(rows.numpy()))
    assert torch.equal(bipartition(-distance), bipartition(-flat))
    assert torch.equal(agglomerate(distance, 1), agglomerate(flat, 1))
    assert torch.equal(dbscan(distance, 1, 2), dbscan(flat, 1, 2))
    assert silhouette_cut(distance) == silhouette_cut(flat)
    assert gap(distance, labels, "distance") == gap(flat, labels.numpy(), "distance")
    split, same = reference_split(rows, rows[:, 0]), reference_split(rows.numpy(), rows[:, 0].numpy())
    assert split[0] == same[0]
    assert torch.equal(split[1], same[1])


def test_what_is_given_is_never_changed() -> None:
    distance = np.full((4, 4), 0.5)
    for call in (
        lambda: dbscan(distance, 0.1, 2),
        lambda: agglomerate(distance, 0.1),
        lambda: bipartition(distance),
        lambda: silhouette_cut(distance),
        lambda: cosine(distance),
    ):
        call()
        assert (distance == 0.5).all()


def test_importing_the_package_imports_neither_torch_nor_scipy_nor_scikit_learn() -> None:
    code = "import sys, fedstrata.clustering; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "sklearn"} & set(loaded)


def test_the_package_exports_what_exists_sorted() -> None:
    names = fedstrata.clustering.__all__
    assert names == sorted(names)
    assert all(hasattr(fedstrata.clustering, name) for name in names)
