from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstrata.clustering import cosine
from fedstrata.clustering.similarity import products

few = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32 - 1).map(lambda seed: torch.Generator().manual_seed(seed))


def uneven(m: int, w: int, generator: torch.Generator) -> Tensor:
    """Rows whose numbers are of very different sizes, and some 0."""
    sizes = torch.randint(-40, 40, (m, w), generator=generator)
    numbers = torch.randn(m, w, generator=generator, dtype=torch.float64) * 2.0**sizes
    return numbers * (torch.rand(m, w, generator=generator) < 0.9)


@few
@given(st.integers(1, 6), st.integers(1, 30), seeds)
def test_products_of_few_columns_are_right_to_the_last_bits(m: int, w: int, generator: torch.Generator) -> None:
    block = uneven(m, w, generator)
    found = products(block, few=True)
    for i in range(m):
        for j in range(i, m):
            exact = sum(Fraction(a) * Fraction(b) for a, b in zip(block[i].tolist(), block[j].tolist(), strict=True))
            size = float(block[i].abs().max()) * float(block[j].abs().max()) * w
            assert abs(float(found[i, j]) - float(exact)) <= 2**-52 * size


@pytest.mark.slow
@few
@given(st.integers(2, 300), st.sampled_from([7, 4096]), seeds)
def test_a_cosine_of_few_columns_has_the_same_bits_whoever_stands_where(
    m: int, w: int, generator: torch.Generator
) -> None:
    rows = uneven(m, w, generator)
    some = torch.randperm(m, generator=generator)[: 1 + m // 2]
    assert torch.equal(cosine(rows[some]), cosine(rows)[some][:, some])


def test_a_cosine_of_few_columns_has_the_same_bits_with_any_number_of_threads() -> None:
    rows, found = torch.randn(200, 4096, generator=torch.Generator().manual_seed(0)), list[Tensor]()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(cosine(rows))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
