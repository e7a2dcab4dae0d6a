import math

import numpy as np
import pytest
import torch

from fedstrata.clustering import entropy

COUNTS = [[24, 76], [29, 71], [37, 63], [50, 50], [100], [7], [25, 25, 25, 25], [40, 30, 20, 10]]
BITS = [0.795040, 0.868721, 0.950672, 1, 0, 0, 2, 1.846439]


@pytest.mark.parametrize(("counts", "bits"), list(zip(COUNTS, BITS, strict=True)))
def test_entropy_in_bits(counts: list[int], bits: float) -> None:
    assert entropy(counts) == pytest.approx(bits, abs=1e-6)
    assert entropy(torch.tensor([0, *counts, 0])) == entropy(np.array(counts))


@pytest.mark.parametrize(
    ("share", "bits"),
    [(0.8, 1.355913), (0.5, 2.584963), (0.1, 3.321928)],  # one class has it, nine have the rest evenly
)
def test_entropy_of_the_published_skews(share: float, bits: float) -> None:
    assert entropy([share, *[(1 - share) / 9] * 9]) == pytest.approx(bits, abs=1e-6)


def test_entropy_of_one_class_or_no_sample_is_zero() -> None:
    for counts in ([7], [0, 7], [0, 0], []):
        assert math.copysign(1, entropy(np.array(counts))) == 1
        assert entropy(np.array(counts)) == 0
