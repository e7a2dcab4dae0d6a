import math
from typing import Literal

import pytest
import torch
from torch import tensor

from fedstrata.clustering import cosine, euclidean, gap, theorem_1_bound

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


@pytest.mark.parametrize(
    ("cross_max", "limit"),
    [(-1, 1), (-0.5, 0.866025), (-1 / 3, 0.816497), (0, 0.707107), (0.28, 0.6), (0.6, 0.447214), (1, 0)],
)
def test_the_bound_of_theorem_1(cross_max: float, limit: float) -> None:
    assert theorem_1_bound(cross_max) == pytest.approx(limit, abs=1e-5)


def test_a_cosine_above_1_by_rounding_has_the_bound_0() -> None:
    assert theorem_1_bound(1 + 1e-15) == 0.0
