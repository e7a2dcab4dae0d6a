"""The robust rules, with numbers that can be redone by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core import Rows
from fedstrata.core.aggregation import Rule
from fedstrata.uploads import rules as robust

RULES = {name: rule for name, rule in robust.AGGREGATIONS.items() if name not in robust.MEANS}


def rows_of(values: list[list[float]], clients: list[int] | None = None) -> Rows:
    ids = torch.arange(len(values)) if clients is None else torch.tensor(clients)
    return Rows(ids, torch.tensor(values))


def in_one(rule: Rule, values: list[list[float]], weights: list[float] | None = None, **keys: float) -> list[float]:
    """What a rule makes of a single cluster."""
    given_weights = torch.ones(len(values)) if weights is None else torch.tensor(weights)
    everyone = torch.zeros(len(values), dtype=torch.int64)
    found: list[float] = rule(rows_of(values), given_weights, everyone, 1, **keys)[0].tolist()
    return found


def test_the_median_is_that_of_each_column() -> None:
    assert in_one(robust.median, [[1.0, 5.0], [2.0, -9.0], [100.0, 6.0]]) == [2.0, 5.0]
    assert in_one(robust.median, [[1.0], [2.0], [4.0], [100.0]]) == [3.0]  # (2 + 4) / 2


def test_the_trimmed_mean_leaves_out_as_many_at_each_end() -> None:
    column = [[-100.0], [1.0], [2.0], [6.0], [100.0]]
    assert in_one(robust.trimmed_mean, column, byzantine_share=0.2) == [3.0]  # one at each end: (1 + 2 + 6) / 3
    assert in_one(robust.trimmed_mean, column, byzantine_share=0.4) == [2.0]  # two at each end
    assert in_one(robust.trimmed_mean, column, byzantine_share=0.19) == pytest.approx([9 / 5])  # 0.95 is none


def test_krum_takes_the_update_that_is_nearest_to_its_neighbours() -> None:
    # Of five, one may be Byzantine: the two nearest others count. Squared distances within 0, 1, 3:
    # 0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 4 + 9 = 13; 10: 49 + 81; 11 from 10: 1, from 3: 64.
    line = [[0.0], [1.0], [3.0], [10.0], [11.0]]
    assert in_one(robust.krum, line, byzantine_share=0.2) == [1.0]
    # The four lowest scores are 5, 10, 13 and 65 (of 11); 10 has 1 + 49 = 50, so the mean is of 1, 0, 3 and 10.
    assert in_one(robust.multi_krum, line, byzantine_share=0.2) == [3.5]

    # Two members have the first update by Krum, and their mean by multi-Krum.
    assert in_one(robust.krum, [[4.0], [8.0]]) == [4.0]
    assert in_one(robust.multi_krum, [[4.0], [8.0]]) == [6.0]
    # With two Byzantine of five, only one neighbour would count, and two equal updates would be nearest of all.
    for rule in (robust.krum, robust.multi_krum):
        assert in_one(rule, [[0.0], [1.0], [2.0], [30.0], [30.0]], byzantine_share=0.4)[0] <= 9


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    """From the middle of an equilateral triangle, all corners are seen under 120 degrees."""
    height = 3**0.5
    found = in_one(robust.geometric_median, [[-1.0, 0.0], [1.0, 0.0], [0.0, height]])
    assert found == pytest.approx([0.0, height / 3], abs=1e-6)


def test_the_geometric_median_on_a_line_is_the_weighted_median() -> None:
    assert in_one(robust.geometric_median, [[0.0], [1.0], [50.0]]) == pytest.approx([1.0], abs=1e-3)
    # More than half of the weight is in one place.
    assert in_one(robust.geometric_median, [[0.0, 0.0], [1.0, 1.0], [50.0, 3.0]], [1.0, 1.0, 2.5]) == pytest.approx(
        [50.0, 3.0], abs=0.1
    )
    assert in_one(robust.geometric_median, [[0.0], [1.0], [50.0]], [1.0, 1.0, 3.0]) == pytest.approx([50.0], abs=1e-3)


def test_the_geometric_median_leaves_equal_updates_that_do_not_hold_it() -> None:
    """Each column's median is 0, of three equal updates. The other two have more samples together: 340 against 300."""
    rows = [[0.0, 0.0]] * 3 + [[3.0, 4.0]] * 2
    assert in_one(robust.geometric_median, rows, [100.0] * 3 + [170.0] * 2) == pytest.approx([3.0, 4.0], abs=1e-3)
    assert in_one(robust.geometric_median, rows, [100.0] * 3 + [140.0] * 2) == pytest.approx([0.0, 0.0], abs=1e-4)
    # Of three at right angles, one of 1.3 at 0 is pulled by the square root of 2, the length of (1, 1).
    corner = in_one(robust.geometric_median, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1.3, 1.0, 1.0])
    assert corner[0] == pytest.approx(corner[1], abs=1e-6) and 0.01 < corner[0] < 0.1


@pytest.mark.parametrize("far", [10.0, 1e6, 1e18])
def test_less_than_half_of_the_weight_moves_the_geometric_median_no_further_however_far_it_is(far: float) -> None:
    equal = [[0.0, 0.0]] * 7 + [[far, far]]
    assert in_one(robust.geometric_median, equal) == [0.0, 0.0]
    # Two of 40 each, at a distance of 0.2, and three of 5 each at one place.
    light = [[1.0, 1.0], [1.2, 1.0]] + [[far, far]] * 3
    assert in_one(robust.geometric_median, light, [40.0] * 2 + [5.0] * 3) == pytest.approx([1.1, 1.0], abs=0.1)


@pytest.mark.parametrize("others", [45.0, 49.0, 49.9])
def test_an_update_with_just_over_half_of_the_weight_is_the_geometric_median(others: float) -> None:
    weights = [100 - others, others / 2, others / 2]
    assert in_one(robust.geometric_median, [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], weights) == [0.0, 0.0]


def test_norms_are_clipped_to_a_number_or_to_a_quantile() -> None:
    updates = [[3.0, 4.0], [0.0, 1.0]]  # norms 5 and 1
    # (3, 4) becomes (1.5, 2); the mean with weights 1 and 3: (1.5, 2 + 3) / 4.
    assert in_one(robust.norm_clip, updates, [1.0, 3.0], clip_norm=2.5) == pytest.approx([0.375, 1.25])
    assert in_one(robust.norm_clip, updates, clip_norm=9.0) == pytest.approx([1.5, 2.5])  # nothing is clipped
    # The median norm is 3: (3, 4) becomes (1.8, 2.4).
    assert in_one(robust.norm_clip, updates) == pytest.approx([0.9, 1.7])
    assert in_one(robust.norm_clip, updates, clip_quantile=0.0) == pytest.approx([0.3, 0.9])  # the smallest norm is 1


def test_centred_clipping_moves_its_centre_by_clipped_differences() -> None:
    # The centre begins at the median, 1. With tau = 3: 1 + (-1 + 0 + 3) / 3 = 5/3, then
    # 5/3 + (-5/3 - 2/3 + 3) / 3 = 17/9, then 17/9 + (-17/9 - 8/9 + 3) / 3 = 53/27.
    assert in_one(robust.centered_clip, [[0.0], [1.0], [13.0]], clip_norm=3.0) == pytest.approx([53 / 27])
    # The distances from the first centre are 1, 0 and 12. Their median is 1: 1 + (-1 + 0 + 1) / 3 = 1 again.
    assert in_one(robust.centered_clip, [[0.0], [1.0], [13.0]]) == pytest.approx([1.0])


@pytest.mark.parametrize("name", RULES)
def test_each_cluster_is_by_itself_and_one_without_rows_gets_zeros(name: str) -> None:
    updates = rows_of([[5.0, 1.0], [1.0, 7.0], [5.0, 1.0], [5.0, 1.0]], clients=[8, 2, 5, 3])
    found = RULES[name](updates, torch.ones(4), torch.tensor([2, 0, 2, 2]), 3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[1.0, 7.0], [0.0, 0.0], [5.0, 1.0]]))


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_updates_that_are_all_equal_are_their_aggregate(name: str, data: st.DataObject) -> None:
    row = data.draw(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=4))
    m = data.draw(st.integers(1, 9))
    found = torch.tensor(in_one(RULES[name], [row] * m))
    torch.testing.assert_close(found, torch.tensor(row, dtype=torch.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 999), m=st.integers(1, 12))
def test_the_order_of_the_rows_changes_no_bit(name: str, seed: int, m: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    values, weights = torch.randn(m, 7, generator=draw), torch.rand(m, generator=draw) + 0.1
    labels, ids = torch.randint(0, 2, (m,), generator=draw), torch.randperm(40, generator=draw)[:m]
    mixed = torch.randperm(m, generator=draw)
    one = RULES[name](Rows(ids, values), weights, labels, 2)
    other = RULES[name](Rows(ids[mixed], values[mixed]), weights[mixed], labels[mixed], 2)
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", [name for name in RULES if name != "norm_clip"])
@pytest.mark.parametrize("times", [-10.0, 1e4, 1e18])
def test_two_of_ten_that_send_anything_move_it_no_further_than_the_honest_are_apart(name: str, times: float) -> None:
    draw = torch.Generator().manual_seed(1)
    honest = 1 + 0.1 * torch.randn(8, 50, generator=draw)
    found = torch.tensor(in_one(RULES[name], torch.cat([honest, times * honest[:2]]).tolist()))
    assert float((found - honest.mean(dim=0)).norm()) < float(torch.cdist(honest, honest).max())


def test_a_clipped_norm_bounds_what_a_client_can_do() -> None:
    assert in_one(robust.norm_clip, [*[[1.0, 0.0]] * 9, [0.0, 1e18]]) == pytest.approx([0.9, 0.1])


def test_memory_is_bounded_by_chunks_and_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(6, 41, generator=torch.Generator().manual_seed(3)).tolist()
    whole = {name: in_one(rule, values) for name, rule in RULES.items()}
    monkeypatch.setattr(robust, "_CHUNK_VALUES", 30)  # five columns of six clients
    for name, rule in RULES.items():
        assert in_one(rule, values) == pytest.approx(whole[name], rel=1e-5)
