import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clustering.arrays import FloatMatrix
from fedstrata.clustering.hierarchy import Linkage, merges, splits


def by_reading_everything(distance: FloatMatrix, linkage: Linkage) -> list[tuple[float, int, int]]:
    """The merges by their definition: of the whole matrix, the first of the least entries."""
    members = [[row] for row in range(len(distance))]
    between, done = distance.copy(), []
    np.fill_diagonal(between, np.inf)
    for _ in range(len(distance) - 1):
        kept, joined = divmod(int(between.argmin()), len(distance))
        done.append((float(between[kept, joined]), kept, joined))
        for other in range(len(distance)):
            if other not in (kept, joined) and members[other]:
                one, two = between[kept, other], between[joined, other]
                share = len(members[joined]) / (len(members[kept]) + len(members[joined]))
                far = {"single": min(one, two), "complete": max(one, two), "average": one + (two - one) * share}
                between[kept, other] = between[other, kept] = far[linkage]
        between[joined] = between[:, joined] = np.inf
        members[kept], members[joined] = members[kept] + members[joined], []
    return done


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 14), st.sampled_from([1, 2, 4, 1000]), st.integers(0, 2**32 - 1))
def test_groups_merge_in_the_order_of_the_definition_also_between_equals(
    linkage: Linkage, m: int, values: int, seed: int
) -> None:
    upper = np.triu(np.random.default_rng(seed).integers(0, values, (m, m)) / 7, 1)
    distance: FloatMatrix = upper + upper.T
    assert merges(distance, linkage) == by_reading_everything(distance, linkage)


def test_splits_come_from_the_top_the_highest_next() -> None:
    """Rows at 0, 1, 5, 7 of a line, and twins at 20: 0-1 merge at 1, 5-7 at 2, the twins at 0."""
    place = np.array([0.0, 1.0, 5.0, 7.0, 20.0, 20.0])
    found = splits(np.abs(place[:, None] - place))
    assert [height for height, _, _ in found] == [16.75, 5.5, 2.0, 1.0, 0.0]
    assert [one for _, one, _ in found] == [(0, 1, 2, 3), (0, 1), (2,), (0,), (4,)]
    assert [other for _, _, other in found] == [(4, 5), (2, 3), (3,), (1,), (5,)]


@given(st.integers(1, 9), st.integers(0, 2), st.integers(0, 10**6))
def test_no_split_comes_before_the_one_that_made_its_group(m: int, kinds: int, seed: int) -> None:
    """With few kinds of distances there are many ties."""
    drawn = np.random.default_rng(seed).integers(0, kinds + 1, (m, m)).astype(float)
    known = {tuple(range(m))}
    for _, one, other in splits(np.triu(drawn, 1) + np.triu(drawn, 1).T):
        assert tuple(sorted(one + other)) in known
        known |= {one, other}
    assert len(known) == 2 * m - 1
