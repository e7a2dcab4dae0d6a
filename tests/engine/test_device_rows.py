"""Rows that stay on an accelerator, on a simulated one."""

from collections import Counter

import numpy as np
import pytest
import torch
from simulated_gpu import CUDA, SimulatedGPU
from small import fit_of, loop_of, plan_of
from torch import Tensor

from fedstrata.core import Rows, aggregation, row_products, weighted_mean
from fedstrata.core import rows as rows_in_memory
from fedstrata.engine.vectorized import Vectorized

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
        rows = Rows(CLIENTS, sent.to(CUDA))
        found = weighted_mean(rows, WEIGHTS, LABELS, 4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert found[:2].isfinite().all() and not found[3].any()
    assert copied(gpu)["to host"] == 1 and "values" not in vars(rows)


def test_the_mean_on_the_device_depends_on_no_order_of_rows() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    with SimulatedGPU():
        rows = Rows(CLIENTS, values().to(CUDA))
        mixed = Rows(CLIENTS[order], values()[order].to(CUDA))
        found = weighted_mean(rows, WEIGHTS, LABELS, 4)
        assert torch.equal(weighted_mean(mixed, WEIGHTS[order], LABELS[order], 4), found)


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a file"])
def test_values_are_copied_when_they_are_read_and_never_again(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr(rows_in_memory, "IN_MEMORY", 100)
    with SimulatedGPU() as gpu:
        rows = Rows(CLIENTS, values().to(CUDA))
        first = rows.values
        assert torch.equal(first, values()) and rows.values is first
    assert copied(gpu)["to host"] == 1


def test_norms_and_products_are_computed_on_the_device_in_any_order_and_rows_stay_there() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    spans = (slice(0, 2), slice(3, 7))
    expected = Rows(CLIENTS, values())
    with SimulatedGPU() as gpu:
        rows = Rows(CLIENTS[order], values()[order].to(CUDA))
        norms = row_products.norms_of(expected, spans)[order.numpy()]
        assert row_products.norms_of(rows, spans) == pytest.approx(norms, rel=1e-6)
        products = row_products.products_of(expected, spans)
        assert products is not None
        mixed = products[np.ix_(order.numpy(), order.numpy())]
        assert row_products.products_of(rows, spans) == pytest.approx(mixed, rel=1e-5, abs=1e-6)
        assert sum(note.bytes for note in gpu.notes if note.kind == "to host") == 8 * (5 + 5 * 5)
    assert "values" not in vars(rows)


def test_updates_that_would_take_too_much_of_the_device_go_to_the_computer_at_once() -> None:
    with SimulatedGPU() as gpu:
        loop, layout, start = loop_of([12, 9])
        data = loop._client_data
        few = Vectorized(loop._module, layout, data, device="cuda", memory=4 * 2 * len(start) * 2)
        none = Vectorized(loop._module, layout, data, device="cuda", memory=4 * 2 * len(start) * 2 - 1)
        plan = plan_of(start[None], fit_of(layout, [[0]] * 2))
        assert few.run(plan).results["train"].updates.on_device.device.type != "cpu"
        before = copied(gpu)["to host"]
        assert none.run(plan).results["train"].updates.on_device.device.type == "cpu"
        assert copied(gpu)["to host"] == before + 2
