import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.base.errors import ContractError
from fedstrata.core import Rows, weighted_mean
from fedstrata.core.aggregation import plain_mean


def rows_of(clients: list[int], values: list[list[float]]) -> Rows:
    return Rows(torch.tensor(clients), torch.tensor(values))


def test_mix_weights_clients_by_their_samples_inside_each_cluster_and_the_plain_mean_does_not() -> None:
    updates, sizes, labels = (
        rows_of([4, 7, 9], [[1.0], [4.0], [10.0]]),
        torch.tensor([1.0, 2, 5]),
        torch.tensor([0, 0, 1]),
    )
    assert weighted_mean(updates, sizes, labels, k=2).tolist() == [[3.0], [10.0]]  # (1*1 + 2*4) / 3, and 10 alone
    assert plain_mean(updates, sizes, labels, 2).tolist() == [[2.5], [10.0]]


def test_mix_reproduces_golden_case_12() -> None:
    updates = rows_of([0, 1, 2], [[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    everyone = torch.zeros(3, dtype=torch.int64)
    assert weighted_mean(updates, torch.tensor([1, 2, 5]), everyone, 1).tolist() == [[4.0, 1.25]]
    assert weighted_mean(updates, torch.ones(3), everyone, 1).tolist() == [[3.0, 2.0]]
    present = rows_of([0, 2], [[1.0, 2.0], [5.0, 0.0]])
    mean = weighted_mean(present, torch.tensor([1, 5]), everyone[:2], 1)
    assert mean[0].tolist() == pytest.approx([4.333333, 0.333333], abs=1e-6)  # (1 + 25) / 6, 2 / 6


def test_a_cluster_without_rows_gets_zeros() -> None:
    means = weighted_mean(rows_of([3], [[2.0]]), torch.ones(1), torch.tensor([1]), k=3)
    assert means.tolist() == [[0.0], [2.0], [0.0]]


def test_rows_are_looked_up_by_client_id() -> None:
    rows = rows_of([9, 2, 5], [[9.0, 0.9], [2.0, 0.2], [5.0, 0.5]])
    assert rows.of(torch.tensor([2, 9])).tolist() == torch.tensor([[2.0, 0.2], [9.0, 0.9]]).tolist()
    assert rows.take_columns(torch.tensor([1])).values.tolist() == torch.tensor([[0.9], [0.2], [0.5]]).tolist()
    assert rows.of(torch.tensor([], dtype=torch.int64)).shape == (0, 2)


@pytest.mark.parametrize("wanted", [[4], [2, 10], [0]])
def test_a_missing_client_is_never_answered_with_somebody_elses_row(wanted: list[int]) -> None:
    rows = rows_of([9, 2, 5], [[9.0], [2.0], [5.0]])
    for each in (rows, rows.at(torch.arange(0))):
        with pytest.raises(ContractError, match="expected rows of"):
            each.of(torch.tensor(wanted))


def test_rows_need_exactly_one_owner_each() -> None:
    with pytest.raises(ContractError, match="one row for each"):
        rows_of([1, 1], [[0.0], [0.0]])
    with pytest.raises(ContractError, match="one row for each"):
        rows_of([1, 2], [[0.0]])


@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 10_000))
def test_mix_gives_the_same_bits_in_any_order_and_for_whole_blocks_summed_elsewhere(m: int, k: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    clients = torch.randperm(100, generator=draw)[:m]
    values = torch.randn(m, 5, generator=draw)
    weights = torch.randint(1, 1000, (m,), generator=draw)
    labels = torch.randint(0, k, (m,), generator=draw)
    order = torch.randperm(m, generator=draw)
    once = weighted_mean(Rows(clients, values), weights, labels, k)
    again = weighted_mean(Rows(clients[order], values[order]), weights[order], labels[order], k)
    assert torch.equal(once, again)
    assert once.dtype == torch.float32


@given(st.integers(1, 40), st.floats(-1e3, 1e3, width=32), st.integers(0, 10_000))
def test_the_mean_of_equal_rows_is_that_row(m: int, value: float, seed: int) -> None:
    weights = torch.randint(1, 1000, (m,), generator=torch.Generator().manual_seed(seed))
    rows = Rows(torch.arange(m), torch.full((m, 2), value))
    assert torch.equal(weighted_mean(rows, weights, torch.zeros(m, dtype=torch.int64), 1), rows.values[:1])
