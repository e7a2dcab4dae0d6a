import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clustering.arrays import Matrix
from fedstrata.clustering.hierarchy import Linkage, merges


def by_reading_everything(distance: Matrix, linkage: Linkage) -> list[tuple[float, int, int]]:
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
    distance: Matrix = upper + upper.T
    assert merges(distance, linkage) == by_reading_everything(distance, linkage)
