import pytest
import torch
from drawn import groups, noise, seeded

from fedstrata.clustering import centred, replication


def test_two_pairs_stand_two_thirds_above_their_levels_and_a_third_below_across() -> None:
    """Every row sums to 1 without its diagonal: level 1/2; overall 4/6; so 1 - 1/2 - 1/2 + 2/3, and 0 - 1 + 2/3."""
    left = centred(groups(2, 2)[0])
    assert left[0].tolist() == pytest.approx([0, 2 / 3, -1 / 3, -1 / 3])
    assert left.sum(dim=1).abs().max() < 1e-12


def test_what_a_client_has_in_common_with_all_others_is_taken_out() -> None:
    level, pattern = torch.randn(7, generator=seeded(), dtype=torch.float64), noise(7, seeded(1))[0]
    assert torch.allclose(centred(pattern + level[:, None] + level), centred(pattern))
    assert centred(groups(1, *[6])[0]).abs().max() < 1e-12  # a lone outlier
    assert centred(groups(2, 1)[0]).tolist() == [[0.0] * 3] * 3


def test_a_pattern_that_is_there_twice_replicates_fully() -> None:
    found = replication(groups(10, 10), groups(10, 10))
    assert found.correlation.tolist() == pytest.approx([1.0])
    four = replication(groups(2, 2), groups(2, 2))
    assert four.apart.tolist() == pytest.approx([(2 / 9) ** 0.5])  # 4 of 12 pairs at 2/3, 8 at -1/3
    opposed = replication(groups(10, 10), -groups(10, 10))
    assert opposed.correlation.tolist() == pytest.approx([-1.0]) and opposed.apart.tolist() == [0.0]


def test_a_pattern_is_found_in_noise_with_the_size_that_it_has_without() -> None:
    draw = seeded(4)
    first, second = (0.5 * groups(20, 20) + 0.3 * noise(40, draw) for _ in range(2))
    found = replication(first, second)
    clean = replication(0.5 * groups(20, 20), 0.5 * groups(20, 20))
    assert 0.3 < float(found.correlation) < 0.6
    assert float(found.apart) == pytest.approx(float(clean.apart), rel=0.1)


def test_similarities_without_a_pattern_replicate_nothing() -> None:
    flat = torch.ones(1, 8, 8)
    found = replication(flat, groups(4, 4))
    assert (found.correlation.tolist(), found.apart.tolist()) == ([0.0], [0.0])
    for m in (0, 1, 2, 3):
        assert replication(torch.ones(1, m, m), torch.ones(1, m, m)).correlation.tolist() == [0.0]


def test_the_order_of_clients_does_not_matter() -> None:
    first, second = noise(8, seeded(7), views=2), noise(8, seeded(8), views=2)
    order = torch.randperm(8, generator=seeded())
    once = replication(first, second)
    again = replication(first[:, order][:, :, order], second[:, order][:, :, order])
    assert torch.allclose(once.correlation, again.correlation)
