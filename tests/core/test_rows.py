import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.base.errors import ResourceError
from fedstrata.core import Rows, aggregation, empty_rows, row_products, rows, weighted_mean


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No row fits into memory; where the files are that hold them."""
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def some_rows() -> Rows:
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    values[1, 3] = torch.inf
    return Rows(torch.tensor([9, 2, 5, 30, 4]), values)


def test_rows_that_do_not_fit_lie_in_a_file_without_a_name(cramped: Path) -> None:
    room = empty_rows(3, 4)
    assert room.shape == (3, 4) and room.dtype == torch.float32
    room.copy_(torch.arange(12.0).view(3, 4))
    assert room.sum() == 66
    assert list(cramped.iterdir()) == []
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        start = f"{room.data_ptr():x}-"
        assert any(line.startswith(start) and str(cramped) in line for line in mapped.read_text().splitlines())


def test_rows_that_fit_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "TemporaryFile", None)
    monkeypatch.setattr(rows, "IN_MEMORY", 4 * 3 * 4)
    assert empty_rows(3, 4).shape == (3, 4)
    with pytest.raises(TypeError):
        empty_rows(3, 5)


def test_a_full_disk_is_told_before_anything_is_written(cramped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    wanted = rf"expected 2\.0 GB free in {cramped} for rows of 5 clients, found: No space left on device; free some"
    with pytest.raises(ResourceError, match=wanted):
        empty_rows(5, 10**8)


def test_a_system_that_reserves_no_space_has_mapped_rows_too(cramped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    assert not empty_rows(3, 4).any()


def test_what_is_picked_from_rows_is_the_same_in_memory_and_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, columns = torch.tensor([4, 9]), torch.tensor([6, 0, 3])
    found = []
    for budget in (2**30, 0):
        monkeypatch.setattr(rows, "IN_MEMORY", budget)
        given = some_rows()
        found.append(
            [given.of(ids), given.at(~torch.isin(given.clients, ids)).values, given.take_columns(columns).values]
        )
        found[-1].append(given.at(torch.tensor([3, 0])).values)
        found[-1].append(given.at(torch.tensor([True, False, False, True, True])).values)
        found[-1].append(given.at(torch.zeros(5, dtype=torch.bool)).values)
    assert [each.shape for each in found[0]] == [(2, 7), (3, 7), (5, 3), (2, 7), (3, 7), (0, 7)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_rows_of_everyone_in_their_order_are_not_copied() -> None:
    given = some_rows()
    assert given.at(torch.ones(5, dtype=torch.bool)) is given.at(torch.arange(5)) is given


def test_rows_by_position_keep_their_owners() -> None:
    some = some_rows().at(torch.tensor([3, 0]))
    assert some.clients.tolist() == [30, 9]
    assert torch.equal(some.values, some_rows().values[[3, 0]])


SPANS = (slice(0, 2), slice(3, 7))
"""All columns of seven but the third."""


@pytest.mark.parametrize("few", [0, 32])
def test_norms_and_products_are_those_of_float64_sums(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows the norms are found with the products; of many there are none."""
    monkeypatch.setattr(row_products, "_FEW_ROWS", few)
    monkeypatch.setattr(row_products, "_PRODUCT_COLUMNS", 3)
    given = Rows(torch.arange(4), torch.randn(4, 7, generator=torch.Generator().manual_seed(0)))
    picked = given.values.double()[:, [0, 1, 3, 4, 5, 6]].numpy()
    assert row_products.norms_of(given, SPANS) == pytest.approx(np.linalg.norm(picked, axis=1), rel=1e-6)
    products = row_products.products_of(given, SPANS)
    if few:
        assert products == pytest.approx(picked @ picked.T, rel=1e-5, abs=1e-6)
    else:
        assert products is None
    assert row_products.norms_of(given, []).tolist() == [0, 0, 0, 0]
    assert row_products.norms_of(given, SPANS) is row_products.norms_of(given, list(SPANS))
    assert row_products.products_of(given, SPANS) is products


def test_products_are_computed_in_the_order_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of some processors give a row other bits at another place."""
    plain = row_products.row_products

    def by_place(values: torch.Tensor, spans: object) -> np.ndarray[Any, Any]:
        places = np.arange(len(values))
        return plain(values, SPANS) + 100 * places[:, None] + places

    monkeypatch.setattr(row_products, "row_products", by_place)
    given = some_rows()
    order = given.clients.argsort()
    ascending = Rows(given.clients[order], given.values[order])
    places = order.numpy()
    found, expected = row_products.products_of(given, SPANS), row_products.products_of(ascending, SPANS)
    assert found is not None and expected is not None
    assert np.array_equal(found[np.ix_(places, places)], expected, equal_nan=True)


def test_there_are_no_products_of_rows_that_lie_in_a_file(cramped: Path) -> None:
    assert row_products.products_of(Rows(torch.arange(2), torch.ones(2, 3)), [slice(0, 3)]) is None


@pytest.mark.parametrize("few", [0, 32])
def test_norms_of_numbers_whose_squares_are_no_float32_numbers_are_exact(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_products, "_FEW_ROWS", few)
    values = torch.tensor([3.0, 4.0, 0.0]) * torch.tensor([1.0, 0.0, 1e30, 1e-30])[:, None]
    values = torch.cat([values, torch.tensor([[torch.nan, 1.0, 1.0], [torch.inf, 1.0, 1.0]])])
    found = row_products.norms_of(Rows(torch.arange(6), values), [slice(0, 3)])
    assert found[:4] == pytest.approx([5.0, 0.0, 5e30, 5e-30], rel=1e-6, abs=0)
    assert not np.isfinite(found[4:]).any()


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10_000))
def test_how_many_columns_are_summed_at_a_time_does_not_matter(m: int, k: int, chunk: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    updates = Rows(torch.randperm(60, generator=draw)[:m], torch.randn(m, 9, generator=draw))
    weights, labels = torch.rand(m, generator=draw) + 0.1, torch.randint(0, k, (m,), generator=draw)
    whole = weighted_mean(updates, weights, labels, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "_CHUNK_COLUMNS", chunk)
        assert torch.equal(weighted_mean(updates, weights, labels, k), whole)


def test_rows_of_clients_that_send_nothing_take_no_memory() -> None:
    """A million rows of a million zeros would take 4 TB."""
    sent = Rows(torch.arange(1_000_000), rows.unsent_rows(1_000_000, 1_000_000))
    some = sent.at(torch.tensor([5, 3]))
    assert some.clients.tolist() == [5, 3] and some.values.shape == (2, 1_000_000) and not some.values.any()
    assert rows.are_unsent(some.values) and rows.are_unsent(sent.of(torch.arange(2, 900_000)))
    assert not rows.are_unsent(torch.zeros(3, 4))
    # Rows of equal numbers, which are stored once per row, or once for all of them, are updates.
    assert not rows.are_unsent(torch.arange(3.0)[:, None].expand(3, 4))
    assert not rows.are_unsent(torch.ones(1, 1).expand(3, 4))
