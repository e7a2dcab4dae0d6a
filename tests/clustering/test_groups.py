"""Statistics of clients by group."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.clustering.groups import GroupIndex, groups_of

NAN = float("nan")


def test_clients_of_equal_labels_are_a_group_and_small_groups_are_left_out() -> None:
    places, groups = groups_of(np.array([7, -1, 3, 7, 5, 3, 3, -1]), least=2)
    assert places.tolist() == [0, 2, 3, 5, 6]
    assert (groups.of.tolist(), groups.count, groups.sizes.tolist()) == ([1, 0, 1, 0, 0], 2, [3, 2])


@pytest.mark.parametrize("labels", [[], [-1, -1], [0, 1]])
def test_there_may_be_no_group(labels: list[int]) -> None:
    places, groups = groups_of(np.array(labels, dtype=np.int64), least=2)
    assert (len(places), groups.count) == (0, 0)
    assert groups.medians(np.zeros(0, np.float32)).shape == (0,)


def test_the_median_is_the_lower_one_of_two_and_of_those_that_count() -> None:
    groups = GroupIndex(np.array([0, 1, 0, 1, 0, 0, 2]), 3)
    values = np.array([4.0, 9.0, 1.0, 8.0, 3.0, 2.0, NAN], np.float32)
    assert groups.medians(values)[:2].tolist() == [2.0, 8.0] and np.isnan(groups.medians(values)[2])
    counted = np.array([True, False, False, True, True, False, True])
    assert groups.medians(values, counted)[:2].tolist() == [3.0, 8.0]
    assert groups.medians(values).dtype == np.float32


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1))
def test_a_median_is_that_of_the_group_by_itself(clients: list[tuple[int, int]]) -> None:
    _, groups = groups_of(np.array([label for label, _ in clients]), least=1)
    values = np.array([float(value) for _, value in clients])
    for group, median in enumerate(groups.medians(values)):
        alone = sorted(values[groups.of == group])
        assert median == alone[(len(alone) - 1) // 2]


def test_whoever_is_half_of_a_group_is_dropped() -> None:
    """Two of four, and one of three."""
    groups = GroupIndex(np.array([0, 0, 0, 0, 1, 1, 1]), 2)
    found = groups.without_halves(np.array([True, True, False, False, True, False, False]))
    assert found.tolist() == [False] * 4 + [True, False, False]
    assert groups.counts(found).tolist() == [0, 1]
