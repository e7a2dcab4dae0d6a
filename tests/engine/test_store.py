import torch

from fedstrata.engine import ClientStore


def test_a_round_reads_only_what_earlier_rounds_wrote() -> None:
    store = ClientStore()
    store.write(3, 1, {0: torch.tensor([1.0])})
    store.write(3, 2, {0: torch.tensor([2.0])})
    assert store.read(3, before=3)[0].tolist() == [2.0]
    assert store.read(3, before=2)[0].tolist() == [1.0]
    assert store.read(3, before=1) == {} and store.read(4, before=9) == {}


def test_only_the_last_two_versions_stay() -> None:
    store = ClientStore()
    for round in range(1, 5):
        store.write(0, round, {7: torch.tensor([float(round)])})
    assert sorted(store.tensors()) == ["0/7/3", "0/7/4"]


def test_running_a_round_again_forgets_what_came_of_it_the_first_time() -> None:
    store = ClientStore()
    for round in (1, 2, 3):
        store.write(0, round, {0: torch.tensor([float(round)])})
    store.write(0, 2, {0: torch.tensor([20.0])})
    assert {name: values.tolist() for name, values in store.tensors().items()} == {"0/0/2": [20.0]}


def test_a_store_comes_back_from_its_tensors() -> None:
    store, other = ClientStore(), ClientStore()
    store.write(12, 5, {1: torch.tensor([1.0]), 0: torch.tensor([0.0])})
    other.write(1, 1, {0: torch.tensor([9.0])})
    other.restore(store.tensors())
    assert other.tensors().keys() == store.tensors().keys()


def test_what_is_kept_does_not_change_with_the_row_that_it_was_cut_from() -> None:
    store, row = ClientStore(), torch.zeros(4)
    store.write(0, 1, {0: row[:2]})
    row += 1
    assert store.read(0, before=2)[0].tolist() == [0.0, 0.0]


def test_a_client_with_a_tensor_that_is_not_finite_has_none_until_it_stores_finite_ones() -> None:
    store = ClientStore()
    for client, bad in ((0, torch.nan), (1, 0.0), (2, torch.inf)):
        store.write(client, 1, {0: torch.tensor([1.0]), 1: torch.tensor([2.0])})
        store.write(client, 2, {0: torch.tensor([3.0]), 1: torch.tensor([4.0, bad])})
    assert store.not_finite_clients(2) == (0, 2) and store.not_finite_clients(1) == store.not_finite_clients(3) == ()
    assert [len(store.read(client, before=3)) for client in range(3)] == [0, 2, 0]
    assert store.read(0, before=2)[1].tolist() == [2.0]  # round 2, run again, starts as it did
    store.write(0, 3, {0: torch.tensor([5.0]), 1: torch.tensor([6.0])})
    assert [values.tolist() for values in store.read(0, before=4).values()] == [[5.0], [6.0]]
