from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedstrata.base.errors import PartitionError
from fedstrata.partition import Scheme, hold_out
from fedstrata.partition.grouped import Majority, client_quotas, equal_shares, largest_client_size
from fedstrata.partition.partitioning import samples_to_draw
from fedstrata.partition.scheme import (
    IntArray,
    Pool,
    apportion,
    class_counts,
    draw_by_class,
    renumber,
)
from fedstrata.partition.ungrouped import Natural, Quantity, Shards, dirichlet_mixes


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pool(labels: IntArray, clients: int, size: int = 0, **columns: Any) -> Pool:
    return Pool(labels, int(labels.max()) + 1, clients, size, seed=0, columns=columns)


def samples_of(scheme: Scheme, given: Pool) -> tuple[IntArray, ...]:
    return scheme.allocate(given).samples


def test_apportion_gives_the_largest_remainders_first_and_ties_to_the_lowest_part() -> None:
    assert apportion(10, np.array([1.0, 1.0, 1.0, 1.0])).tolist() == [3, 3, 2, 2]  # 2.5 each
    assert apportion(10, np.array([1.0, 2.0, 4.0])).tolist() == [1, 3, 6]  # 1.43, 2.86, 5.71
    assert apportion(0, np.array([1.0, 2.0])).tolist() == [0, 0]


def test_draw_by_class_gives_the_quota_and_nothing_twice() -> None:
    labels = np.array([0, 1, 0, 1, 0, 2])
    first, second = draw_by_class(labels, np.array([[2, 0, 1], [1, 2, 0]]), rng())
    assert sorted(labels[first]) == [0, 0, 2] and sorted(labels[second]) == [0, 1, 1]
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4, 5]


def test_renumber_counts_keys_in_the_order_of_their_first_appearance() -> None:
    assert renumber(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


def test_majority_gives_a_group_its_class_and_the_rest_to_the_others() -> None:
    mixes = Majority(groups=2, share=0.8).mixes(classes=5)
    np.testing.assert_allclose(mixes, [[0.8, 0.05, 0.05, 0.05, 0.05], [0.05, 0.8, 0.05, 0.05, 0.05]])
    assert client_quotas(mixes, 625).tolist() == [[500, 32, 31, 31, 31], [32, 500, 31, 31, 31]]  # 31.25 each
    assert Majority(groups=1, share=1.0).mixes(classes=1).tolist() == [[1.0]]


def test_label_sets_share_their_classes_equally() -> None:
    np.testing.assert_allclose(equal_shares([[0, 1], [3]], 4), np.array([[0.5, 0.5, 0, 0], [0, 0, 0, 1]]))


def test_largest_is_bound_by_the_class_that_runs_out_first() -> None:
    # Two clients hold class 0 by half and one holds it whole: 2 * size / 2 + size <= 100.
    mixes = equal_shares([[0, 1], [0]], 3)
    assert largest_client_size(np.array([100, 500, 0]), mixes, np.array([2, 1])) == 50


def test_largest_steps_down_where_rounding_asks_for_too_many() -> None:
    # Shares allow 3 each, but 1.5 of class 0 rounds up to 2 for both clients.
    assert largest_client_size(np.array([3, 3]), equal_shares([[0, 1]], 2), np.array([2])) == 2


def test_dirichlet_mixes_give_equal_sizes_and_few_classes_for_small_alpha() -> None:
    labels = np.repeat(np.arange(10), 200)
    shares = dirichlet_mixes(labels, clients=10, size=100, alpha=1e-2, rng=rng())
    assert [len(share) for share in shares] == [100] * 10
    assert np.mean([len(np.unique(labels[share])) for share in shares]) < 3


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1.0, 1e6])
def test_dirichlet_mixes_give_everything_when_all_is_asked_for(alpha: float) -> None:
    labels = np.repeat([0, 3, 4], [30, 5, 16])
    shares = dirichlet_mixes(labels, clients=50, size=0, alpha=alpha, rng=rng())
    assert sorted(map(len, shares)) == [1] * 49 + [2]
    assert len(np.unique(np.concatenate(shares))) == 51


def test_shards_of_one_class_each_give_a_client_two_classes() -> None:
    labels = np.tile(np.arange(10), 20)
    shares = samples_of(Shards(per_client=2), pool(labels, clients=5))
    assert all((class_counts(labels[share], 10)[np.unique(labels[share])] == 20).all() for share in shares)
    assert all(len(np.unique(labels[share])) == 2 for share in shares)
    with pytest.raises(PartitionError, match="5 clients of 41 shards need 205 samples at least, but 200 are allocated"):
        Shards(per_client=41).allocate(pool(labels, clients=5))


def test_quantity_skews_sizes_but_allocates_all() -> None:
    labels = np.arange(1000) % 10
    sizes = [len(share) for share in samples_of(Quantity(alpha=0.5), pool(labels, clients=5))]
    assert sum(sizes) == 1000 and min(sizes) >= 2 and max(sizes) > 300


def test_natural_gives_each_client_one_value_and_the_same_share_of_its_samples() -> None:
    column = np.array(["b"] * 8 + ["a"] * 4 + ["c"] * 2)
    natural = Natural(column="site")

    def given(clients: int, size: int) -> Pool:
        return pool(np.zeros(14, dtype=np.int64), clients, size, site=column)

    assert [share.tolist() for share in samples_of(natural, given(2, 0))] == [[8, 9, 10, 11], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert [len(share) for share in samples_of(natural, given(2, 3))] == [2, 4]  # half of 4 and of 8, mean 3
    with pytest.raises(PartitionError, match="4 clients need as many different values, but the column has 3"):
        natural.allocate(given(4, 0))
    with pytest.raises(PartitionError, match=r"2 clients of 7 samples.*need 14, but there are 12"):
        natural.allocate(given(2, 7))


@pytest.mark.parametrize(("samples", "test", "total"), [(500, 0.2, 625), (0, 0.2, 0), (1, 0.2, 2), (10, 0.01, 11)])
def test_a_client_draws_its_test_split_on_top(samples: int, test: float, total: int) -> None:
    assert samples_to_draw(samples, test) == total


def test_hold_out_keeps_one_sample_on_each_side() -> None:
    assert hold_out(zeros(10), 0.2, rng()).sum() == 2
    assert hold_out(zeros(2), 0.01, rng()).sum() == 1 and hold_out(zeros(2), 0.99, rng()).sum() == 1


def test_both_splits_have_the_mix_of_classes_of_the_client() -> None:
    """Of 40, 6, 3 and 1 samples a fifth is 8, 1.2, 0.6 and 0.2; the sample that is left over is from the 0.6."""
    labels = np.repeat([3, 0, 7, 5], [40, 6, 3, 1])
    held = hold_out(labels, 0.2, rng())
    assert {label: int((labels[held] == label).sum()) for label in (3, 0, 7, 5)} == {3: 8, 0: 1, 7: 1, 5: 0}


def test_the_test_split_does_not_depend_on_the_numbers_of_the_classes() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 50)
    other = np.array([2, 3, 1, 0])[labels]
    assert np.array_equal(hold_out(labels, 0.3, rng()), hold_out(other, 0.3, rng()))


def zeros(samples: int) -> NDArray[np.int64]:
    return np.zeros(samples, dtype=np.int64)


def test_one_unit_is_left_on_each_side() -> None:
    units = np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    ten = zeros(10)
    assert hold_out(ten, 0.5, rng(), units).sum() in (1, 9)
    assert hold_out(ten, 0.001, rng(), units).sum() == 1 and hold_out(ten, 0.999, rng(), units).sum() == 9
