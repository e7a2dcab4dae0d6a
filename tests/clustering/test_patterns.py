import pytest
import torch
from drawn import groups, noise, seeded

from fedstrata.clustering import centred, contrast, likeness, propose
from fedstrata.clustering.patterns import sharpened, unit, z_of_patterns


def test_likeness_is_not_moved_by_what_all_have_in_common_nor_by_scale() -> None:
    rows = torch.randn(7, 5000, generator=seeded(), dtype=torch.float64)
    common = torch.randn(5000, generator=seeded(1), dtype=torch.float64)
    assert torch.allclose(likeness(rows + 3 * common), likeness(rows), atol=1e-12)
    assert torch.allclose(likeness(rows * 1e-4), likeness(rows), atol=1e-12)
    assert torch.equal(likeness(rows.numpy()), likeness(rows))


def test_likeness_of_independent_noise_is_0_in_the_mean_however_unequal_the_noise() -> None:
    sizes, draw = torch.tensor([1.0, 1, 1, 1, 3, 3, 3, 3]), seeded()
    drawn = [likeness(1 + sizes[:, None] * torch.randn(8, 200, generator=draw)) for _ in range(400)]
    mean = torch.stack(drawn).mean(dim=0)
    assert float(mean.abs().max()) < 4 * 200**-0.5 * 400**-0.5  # four standard errors of an entry


def test_rows_that_differ_by_rounding_are_alike_in_nothing() -> None:
    row = torch.randn(50, generator=seeded())
    assert not likeness(row.expand(6, 50)).any()
    assert not likeness(row * (1 + 1e-8 * torch.randn(6, 50, generator=seeded(1)))).any()
    assert likeness(torch.zeros(0, 5)).shape == (0, 0) and not likeness(torch.randn(3, 5)).any()
    with pytest.raises(ValueError, match="finite"):
        likeness(torch.full((5, 3), torch.nan))


def test_two_pairs_are_as_sharp_as_they_can_be() -> None:
    """Strengths of the pattern: 4/3 along (1, 1, -1, -1), and -2/3 twice; the latter go, and centring restores it."""
    pattern = centred(groups(2, 2)[0])
    assert torch.allclose(unit(sharpened(pattern)), unit(pattern))
    assert float(z_of_patterns(unit(pattern), unit(pattern))) == pytest.approx(2**0.5)


def test_sharpening_fades_noise() -> None:
    clean = unit(centred(groups(10, 10)[0]))
    noisy = unit(centred(groups(10, 10)[0] + noise(20, seeded(0))[0]))
    assert float((unit(sharpened(noisy)) * clean).sum()) > float((noisy * clean).sum()) + 0.1


def test_contrast_is_the_mean_within_minus_the_mean_across() -> None:
    similarity = torch.tensor([[9, 3, 1, 0], [3, 9, 0, 1], [1, 0, 9, 5], [0, 1, 5, 9.0]])
    assert contrast(similarity, torch.tensor([False, False, True, True])) == (3 + 5) / 2 - (1 + 0 + 0 + 1) / 4


@pytest.mark.parametrize("sizes", [(10, 10), (17, 3), (12, 5, 3), (5, 5, 5, 5), (2, 2)])
def test_a_proposal_tears_no_clear_group(sizes: tuple[int, ...]) -> None:
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    order = torch.randperm(len(truth), generator=seeded(2))
    sides = propose((groups(*sizes)[0] + 0.1 * noise(len(truth), seeded(3))[0])[order][:, order])
    assert not sides[0] and bool(sides.any())
    for group in range(len(sizes)):
        assert len(sides[truth[order] == group].unique()) == 1


def test_large_groups_are_proposed_in_noise_where_average_linkage_puts_one_client_apart() -> None:
    sides = propose(groups(20, 20)[0] + 1.5 * noise(40, seeded(5))[0])
    assert 15 < int(sides.sum()) < 25
    assert int(sides[:20].sum()) <= 3 and int(sides[20:].sum()) >= 17
