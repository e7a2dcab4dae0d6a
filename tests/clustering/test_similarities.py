import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, tensor

from fedstrata.clustering import cosine, euclidean, jensen_shannon

BASE = tensor([1.0, 0, 0, 0, 1, 0])
UPDATES = tensor([[3.0, 4, 0, 1, 0, 0], [4.0, 3, 0, 0, 1, 0], [0.0, 0, 5, 0, 2, 0], [0.0, 3, 4, 0, 1, 1]])
SLICES = {"conv": slice(0, 3), "fc": slice(3, 6), "full": slice(0, 6)}


def upper(matrix: Tensor) -> list[float]:
    assert torch.equal(matrix, matrix.T)
    left, right = torch.triu_indices(len(matrix), len(matrix), offset=1)
    values: list[float] = matrix[left, right].tolist()
    return values


@pytest.mark.parametrize(
    ("columns", "pairs"),
    [
        ("conv", [0.96, 0, 0.48, 0, 0.36, 0.8]),  # (3*4 + 4*3) / 25, ..., 4*3/25, ..., 3*3/25, 5*4/25
        ("fc", [0, 0, 0, 1, 0.707107, 0.707107]),
        ("full", [0.923077, 0, 0.452911, 0.072836, 0.377426, 0.786216]),
    ],
)
def test_cosines_of_updates_in_a_slice(columns: str, pairs: list[float]) -> None:
    assert upper(cosine(UPDATES[:, SLICES[columns]])) == pytest.approx(pairs, abs=1e-6)


def test_rows_that_did_not_move_are_similar_to_nobody_but_themselves() -> None:
    rows = tensor([[0.0, 0.0], [1e-12, 0.0], [3e-12, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert cosine(rows).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


@pytest.mark.parametrize("columns", [3, 5000])
@pytest.mark.parametrize("scale", [1e-10, 1e20])
def test_cosines_of_tiny_and_huge_rows_are_finite(columns: int, scale: float) -> None:
    rows = torch.ones(3, columns)
    rows[1] = -1
    rows[2, 0] = -1
    wanted = [-1, (columns - 2) / columns, -(columns - 2) / columns]
    assert upper(cosine(rows * scale)) == pytest.approx(wanted, abs=1e-6)


def test_two_rows_are_compared_alike_whoever_stands_beside_them() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 1000, generator=generator)
    for count in (2, 3, 9, 40):
        some = torch.randperm(40, generator=generator)[:count]
        assert torch.equal(cosine(rows[some]), cosine(rows)[some][:, some])
        assert torch.equal(euclidean(rows[some]), euclidean(rows)[some][:, some])


def test_distances_of_nearly_equal_models_keep_their_digits() -> None:
    base = 1000 * torch.ones(1, 6, dtype=torch.float64)
    apart = euclidean(base + 1e-6 * UPDATES.double())
    assert torch.allclose(apart, 1e-6 * euclidean(UPDATES), rtol=1e-6, atol=0)


@pytest.mark.parametrize("measure", [cosine, euclidean])
def test_broken_rows_are_named(measure: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="expected finite norms, found nan or infinity in row 2"):
        measure(tensor([[0.0], [1.0], [math.nan]]))
    with pytest.raises(ValueError, match=r"expected rows of shape \(m, p\), found \(2, 3, 4\)"):
        measure(torch.zeros(2, 3, 4))


def test_no_client_and_one_client_have_matrices_too() -> None:
    for m in (0, 1):
        assert cosine(torch.zeros(m, 3)).shape == euclidean(torch.zeros(m, 3)).shape == (m, m)
        assert jensen_shannon(torch.ones(m, 2, 1)).shape == (m, m)


PREDICTIONS = tensor(
    [[[1, 0], [0.5, 0.5]], [[0, 1], [0.5, 0.5]], [[0.8, 0.2], [0.4, 0.6]]], dtype=torch.float64
)  # 3 clients, 2 samples, 2 classes


def test_jensen_shannon_is_the_mean_over_the_batch_in_nats() -> None:
    # 0 and 1 differ in the first sample alone, and there entirely: ln 2 / 2
    assert upper(jensen_shannon(PREDICTIONS)) == pytest.approx([0.346574, 0.039971, 0.213935], abs=1e-6)
