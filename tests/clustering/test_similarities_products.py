from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstrata.clustering import cosine, refreshed
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


@pytest.mark.parametrize("changed", [[], [3], [3, 290], range(300)])
@pytest.mark.parametrize("p", [50, 5000])
def test_cosines_of_which_few_rows_changed_have_the_bits_of_those_computed_anew(p: int, changed: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    before = torch.randn(300, p, generator=generator)
    mask = torch.zeros(300, dtype=torch.bool)
    mask[list(changed)] = True
    after = torch.where(mask[:, None], torch.randn(300, p, generator=generator), before)
    views = [torch.arange(p), torch.arange(10)]
    assert torch.equal(refreshed(cosine(before), after, mask), cosine(after))
    assert torch.equal(refreshed(cosine(before, views).numpy(), after, mask, views), cosine(after, views))


def test_cosines_of_rows_that_did_not_change_are_taken_as_they_were() -> None:
    rows, known = torch.eye(3), torch.full((3, 3), 0.25, dtype=torch.float64)
    found = refreshed(known, rows, torch.tensor([False, False, True]))
    assert found.tolist() == [[0.25, 0.25, 0], [0.25, 0.25, 0], [0, 0, 1]]


def test_a_tile_in_which_nothing_changed_is_not_multiplied() -> None:
    mask = torch.zeros(300, dtype=torch.bool)
    mask[140] = True
    found = products(torch.ones(300, 2, dtype=torch.float64), few=False, changed=mask)
    assert not found[:128, :128].any() and not found[256:, 256:].any()
    assert bool((found[:128, 128:256] == 2).all() and (found[128:256, 128:] == 2).all())


@pytest.mark.parametrize(
    "call",
    [
        lambda: refreshed(torch.eye(2), torch.eye(3), torch.ones(3, dtype=torch.bool)),
        lambda: refreshed(torch.eye(3), torch.eye(3), torch.ones(2, dtype=torch.bool)),
        lambda: refreshed(torch.eye(3), torch.eye(3), torch.ones(3, dtype=torch.bool), [torch.arange(2)]),
    ],
)
def test_cosines_of_other_rows_are_refused(call: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match=r"expected cosines \(.*3, 3\) and \(3,\), found"):
        call()
