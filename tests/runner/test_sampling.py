import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.runner.sampling import draw


@given(st.integers(0, 99), st.integers(1, 50), st.integers(1, 40), st.floats(0.01, 1.0), st.floats(0.0, 0.99))
def test_a_cohort_is_ascending_and_its_absent_clients_are_part_of_it(
    seed: int, round: int, n: int, fraction: float, dropout: float
) -> None:
    cohort, absent = draw(seed, round, torch.arange(n), fraction, dropout)
    assert cohort.tolist() == sorted(set(cohort.tolist())) and set(cohort.tolist()) <= set(range(n))
    assert set(absent.tolist()) <= set(cohort.tolist())
    assert len(cohort) == max(1, int(fraction * n + 0.5)) and len(absent) == int(dropout * len(cohort) + 0.5)
    again = draw(seed, round, torch.arange(n), fraction, dropout)
    assert torch.equal(cohort, again[0]) and torch.equal(absent, again[1])


def test_everyone_takes_part_in_every_round_unless_told_otherwise() -> None:
    for round in (1, 2, 3):
        cohort, absent = draw(0, round, torch.arange(5), 1.0, 0.0)
        assert cohort.tolist() == [0, 1, 2, 3, 4] and absent.tolist() == []


def test_other_rounds_draw_other_cohorts() -> None:
    drawn = {tuple(draw(0, round, torch.arange(20), 0.25, 0.2)[0].tolist()) for round in range(1, 9)}
    assert len(drawn) == 8
