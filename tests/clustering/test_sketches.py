import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clustering import arrays, cosine, many, sketch

few = settings(deadline=None, max_examples=20)
seeds = st.integers(0, 2**31)


@few
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 9), seeds)
def test_every_column_is_in_one_bucket_with_a_sign(m: int, p: int, width: int, seed: int) -> None:
    buckets = sketch(torch.eye(p), width, seed)  # what becomes of each column alone
    assert buckets.abs().sum(dim=1).tolist() == [1] * p
    rows = torch.randint(-5, 6, (m, p), generator=torch.Generator().manual_seed(seed)).float()
    assert torch.equal(sketch(rows, width, seed), rows @ buckets)


@few
@given(st.integers(1, 4), st.integers(1, 30), st.floats(-4, 4), seeds)
def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches(m: int, p: int, factor: float, seed: int) -> None:
    one, other = torch.randn(2, m, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    together = sketch(one + factor * other, 8, seed)
    assert torch.allclose(together, sketch(one, 8, seed) + factor * sketch(other, 8, seed), rtol=0, atol=1e-4)


def test_blocks_and_who_else_is_there_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(50, 5000, generator=torch.Generator().manual_seed(0))
    whole = sketch(rows, 32, 5)
    assert torch.equal(sketch(rows[7:9], 32, 5), whole[7:9])
    monkeypatch.setattr(many, "BLOCK_NUMBERS", 3 * arrays.BLOCK_COLUMNS)  # three rows at a time
    assert torch.equal(sketch(rows.numpy(), 32, 5), whole)
    monkeypatch.setattr(arrays, "BLOCK_COLUMNS", 70)
    assert torch.equal(sketch(rows, 32, 5), whole)


def test_inner_products_err_no_more_often_than_the_bound_says() -> None:
    width, e = 256, 0.2
    rows = torch.randn(200, 3000, generator=torch.Generator().manual_seed(1)).double()
    rows[100:] = 0.7 * rows[:100] + 0.3 * rows[100:]
    rows /= rows.norm(dim=1, keepdim=True)
    short = sketch(rows, width, 3).double()
    pairs = torch.triu(torch.ones(200, 200, dtype=torch.bool))
    errors = (short @ short.T - rows @ rows.T)[pairs].abs()
    assert float((errors > e).double().mean()) <= 2 / (width * e**2)
    wrong = (cosine(short) - cosine(rows))[pairs].abs()
    assert float((wrong > 2 * e / (1 - e)).double().mean()) <= 6 / (width * e**2)
    apart = pairs.clone()
    apart[range(100), range(100, 200)] = False
    apart.fill_diagonal_(False)
    assert float((short @ short.T)[apart].square().mean().sqrt()) == pytest.approx(math.sqrt(1 / width), rel=0.2)
