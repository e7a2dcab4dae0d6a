import math
from typing import Literal

import pytest
import torch
from torch import Tensor, tensor

from fedstrata.clustering import cosine, euclidean, gap, intra_bound, separable

UPDATES = tensor([[3.0, 4, 0, 1, 0, 0], [4.0, 3, 0, 0, 1, 0], [0.0, 0, 5, 0, 2, 0], [0.0, 3, 4, 0, 1, 1]])
CONV, FC, FULL = slice(0, 3), slice(3, 6), slice(0, 6)


@pytest.mark.parametrize(
    ("columns", "similar", "distant"),
    [
        (CONV, 0.32, 1.936742),  # .8 - .48 and 5.099020 - 3.162278
        (FC, -1, -0.414214),  # 0 - 1 and 1 - 1.414214
        (FULL, 0.333305, 1.921063),  # .786216 - .452911
    ],
)
def test_gaps_of_two_groups(columns: slice, similar: float, distant: float) -> None:
    truth = tensor([0, 0, 1, 1])
    assert gap(cosine(UPDATES[:, columns]), truth, "similarity") == pytest.approx(similar, abs=1e-6)
    assert gap(euclidean(UPDATES[:, columns]), truth, "distance") == pytest.approx(distant, abs=1e-6)


MATRIX = tensor([[9.0, 0.2, 0.5], [0.2, 9.0, 0.4], [0.5, 0.4, 9.0]])


@pytest.mark.parametrize(
    ("truth", "kind", "wanted"),
    [
        ([7, 7, 3], "similarity", 0.2 - 0.5),
        ([7, 7, 3], "distance", 0.4 - 0.2),
        ([0, 1, 2], "similarity", 1 - 0.5),  # no pair within a group
        ([0, 1, 2], "distance", 0.2 - 0),
        ([-1, -1, 0], "distance", 0.2 - 0),  # pending clients share no group
        ([4, 4, 4], "similarity", math.nan),  # no pair across groups
        ([4, 4, 4], "distance", math.nan),
    ],
)
def test_gaps_of_small_groups(truth: list[int], kind: Literal["similarity", "distance"], wanted: float) -> None:
    assert gap(MATRIX, truth, kind) == pytest.approx(wanted, nan_ok=True)


def test_gaps_of_no_and_one_client_are_undefined() -> None:
    assert math.isnan(gap(torch.zeros(0, 0), [], "similarity"))
    assert math.isnan(gap(torch.ones(1, 1), [0], "distance"))


def test_least_cosine_within_a_distribution() -> None:
    bound = intra_bound(tensor([0.1, 0.3, 0.6]))
    wanted = [[0.98, 0.919158, 0.735990], [0.919158, 0.82, 0.583151], [0.735990, 0.583151, 0.28]]
    assert torch.allclose(bound, tensor(wanted, dtype=torch.float64), atol=1e-6)
    assert float(bound.min()) == pytest.approx(1 - 2 * 0.6**2)


@pytest.mark.parametrize(
    ("gamma", "message"),
    [
        (tensor([0.5, 1.5]), r"expected gamma in \[0, 1\], found 0.5 to 1.5"),
        (tensor([-0.5, 0.5]), r"expected gamma in \[0, 1\], found -0.5 to 0.5"),
        (tensor([math.nan]), "expected finite gamma"),
        (tensor(0.5), r"expected gamma of shape \(m,\), found \(\)"),
    ],
)
def test_the_bound_knows_where_the_theorem_ends(gamma: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        intra_bound(gamma)


@pytest.mark.parametrize(
    ("cross_max", "limit"),
    [(-1, 1), (-0.5, 0.866025), (-1 / 3, 0.816497), (0, 0.707107), (0.28, 0.6), (0.6, 0.447214), (1, 0)],
)
def test_theorem_1_separates_up_to_its_limit(cross_max: float, limit: float) -> None:
    assert separable(cross_max, limit - 1e-5)
    assert not separable(cross_max, limit + 1e-5)


def test_theorem_1_is_strict() -> None:
    assert not separable(0.5, 0.5)  # sqrt((1 - .5) / 2) = .5
    assert not separable(1 + 1e-15, 0.0)
