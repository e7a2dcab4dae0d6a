import math

import numpy as np
import pytest
import torch

from fedstrata.clustering import entropy, entropy_groups

COUNTS = [[24, 76], [29, 71], [37, 63], [50, 50], [100], [7], [25, 25, 25, 25], [40, 30, 20, 10]]
BITS = [0.795040, 0.868721, 0.950672, 1, 0, 0, 2, 1.846439]
CLASSES = [set(range(len(counts))) for counts in COUNTS]


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


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, -1], r"expected counts \(c,\) of at least 0, found \[3.0, -1.0\]"),
        ([[3, 1]], r"expected counts \(c,\) of at least 0, found \[\[3.0, 1.0\]\]"),
        ([3, math.inf], "expected finite counts"),
    ],
)
def test_entropy_refuses_what_it_cannot_mean(counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entropy(np.array(counts))


def test_groups_hold_clients_within_a_tenth_of_their_first() -> None:
    # sorted: .795 and .869 <= 1.1 * .795; .951 opens a group, and 1 <= 1.1 * .951; 1.846 and 2 <= 1.1 * 1.846
    bits = [entropy(counts) for counts in COUNTS]
    assert entropy_groups(CLASSES, bits).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_groups_compare_how_many_classes_not_which() -> None:
    named = [{0, 1}, (8, 9, 9), frozenset({3}), [3, 4, 5]]
    for classes in (named, [2, 2, 1, 3], np.array([2, 2, 1, 3]), torch.tensor([2, 2, 1, 3])):
        assert entropy_groups(classes, [1.0, 1.0, 1.0, 1.0]).tolist() == [0, 0, 1, 2]


def test_width_is_inclusive_and_zero_groups_equals() -> None:
    assert entropy_groups([2, 2, 2], [0.0, 1.0, 1.5], width=0.5).tolist() == [0, 1, 1]
    assert entropy_groups([2, 2, 2], [1.0, 1.0, 1.1], width=0.0).tolist() == [0, 0, 1]
    assert entropy_groups([], []).tolist() == []


@pytest.mark.parametrize(("bits", "width"), [([1.0], 0.1), ([1.0, -1.0], 0.1), ([1.0, 1.0], -0.1)])
def test_groups_refuse_what_they_cannot_mean(bits: list[float], width: float) -> None:
    with pytest.raises(ValueError, match="expected an entropy of at least 0 for each of 2 clients and a width"):
        entropy_groups([1, 1], bits, width)
    with pytest.raises(ValueError, match=r"expected numbers of classes \(m,\) or m collections, found shape"):
        entropy_groups(np.ones((2, 5), dtype=np.bool_), [1.0, 1.0])
