"""Rows that stay on an accelerator, on a simulated one."""

from collections import Counter

import pytest
import torch
from simulated_gpu import CUDA, SimulatedGPU
from torch import Tensor

from fedstrata.core import Rows, aggregation, weighted_mean
from fedstrata.core import rows as rows_in_memory
from fedstrata.engine.device_rows import DeviceRows

CLIENTS = torch.tensor([40, 3, 7, 21, 22])
WEIGHTS = torch.tensor([3, 1, 4, 1, 5])
LABELS = torch.tensor([0, 1, 0, 2, 1])


def values() -> Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def copied(gpu: SimulatedGPU) -> Counter[str]:
    return Counter(note.kind for note in gpu.notes if note.kind in ("to host", "to device"))


@pytest.mark.parametrize("together", [5, 2**24])
def test_the_mean_of_each_cluster_is_computed_on_the_device(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "_CHUNK_NUMBERS_ON_DEVICE", together)
    sent = values()
    sent[3, 2] = torch.nan  # of a cluster of its own
    expected = weighted_mean(Rows(CLIENTS, sent), WEIGHTS, LABELS, 4)
    with SimulatedGPU() as gpu:
        rows = DeviceRows(CLIENTS, sent.to(CUDA))
        found = weighted_mean(rows, WEIGHTS, LABELS, 4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert found[:2].isfinite().all() and not found[3].any()
    assert copied(gpu)["to host"] == 1 and "values" not in vars(rows)


def test_the_mean_on_the_device_hangs_on_no_order_of_rows() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    with SimulatedGPU():
        rows = DeviceRows(CLIENTS, values().to(CUDA))
        mixed = DeviceRows(CLIENTS[order], values()[order].to(CUDA))
        found = weighted_mean(rows, WEIGHTS, LABELS, 4)
        assert torch.equal(weighted_mean(mixed, WEIGHTS[order], LABELS[order], 4), found)


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a file"])
def test_values_are_copied_when_they_are_read_and_never_again(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr(rows_in_memory, "IN_MEMORY", 100)
    with SimulatedGPU() as gpu:
        rows = DeviceRows(CLIENTS, values().to(CUDA))
        first = rows.values
        assert torch.equal(first, values()) and rows.values is first
    assert copied(gpu)["to host"] == (1 if in_memory else len(CLIENTS))


@pytest.mark.parametrize("read", [True, False])
def test_some_rows_are_those_of_the_same_clients(read: bool) -> None:
    some = torch.tensor([True, False, False, True, False])
    with SimulatedGPU() as gpu:
        rows = DeviceRows(CLIENTS, values().to(CUDA))
        assert not read or torch.equal(rows.values, values())
        before = copied(gpu)["to host"]
        found, whole = rows.at(some), rows.at(torch.arange(5))
        assert copied(gpu)["to host"] == before
        assert torch.equal(found.values, values()[some])
    assert found.clients.tolist() == [40, 21] and whole is rows


def test_what_rows_do_not_have_is_told() -> None:
    with SimulatedGPU(), pytest.raises(AttributeError, match="'DeviceRows' object has no attribute 'weights'"):
        DeviceRows(CLIENTS, values().to(CUDA)).weights  # noqa: B018
