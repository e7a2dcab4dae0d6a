"""What Byzantine clients send, with numbers that can be redone by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.base.randomness import generator
from fedstrata.uploads.attacks import ATTACKS

OWN = torch.tensor([[3.0, 4.0]])
HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 6.0]])  # mean (2, 2), deviations sqrt(2/3) and sqrt(8)


def sent(
    name: str, strength: float | None = None, own: torch.Tensor = OWN, honest: torch.Tensor = HONEST
) -> torch.Tensor:
    return ATTACKS[name](own, honest, strength, generator(0, "test"))


def test_simple_attacks_change_the_own_update() -> None:
    assert sent("sign_flip").tolist() == [[-3.0, -4.0]] and sent("sign_flip", 10.0).tolist() == [[-30.0, -40.0]]
    assert sent("scaling").tolist() == [[300.0, 400.0]] and sent("scaling", 2.0).tolist() == [[6.0, 8.0]]
    assert sent("zero").tolist() == [[0.0, 0.0]]


def test_noise_has_a_multiple_of_the_own_norm() -> None:
    own = torch.ones(1, 10_000)  # norm 100
    assert float(sent("noise", own=own).norm()) == pytest.approx(1000, rel=0.05)
    assert float(sent("noise", 0.5, own=own).norm()) == pytest.approx(50, rel=0.05)


def test_inner_product_manipulation_sends_the_honest_mean_backwards() -> None:
    assert sent("ipm").tolist() == [[-1.0, -1.0]] and sent("ipm", 1.1)[0].tolist() == pytest.approx([-2.2, -2.2])


def test_a_little_is_enough_is_some_deviations_from_the_honest_mean() -> None:
    honest = torch.tensor([[1.0], [5.0]])  # mean 3, deviation 2
    assert sent("alie", own=honest, honest=honest).tolist() == [[0.0], [0.0]]  # 3 - 1.5 * 2
    assert sent("alie", 0.5, own=honest[:1], honest=honest).tolist() == [[2.0]]


def test_min_max_is_as_far_from_the_honest_as_they_are_from_each_other() -> None:
    line = torch.tensor([[0.0], [1.0], [2.0]])
    # The mean is 1 and the farthest are 2 apart: from 2, that is 0.
    assert sent("min_max", own=line[:1], honest=line)[0].tolist() == pytest.approx([0.0], abs=1e-5)
    farthest = torch.cdist(HONEST, HONEST).max()
    assert float((HONEST - sent("min_max")).norm(dim=1).max()) == pytest.approx(float(farthest), abs=1e-3)


def test_sybils_all_send_the_honest_mean_backwards_with_the_norm_of_an_honest_update() -> None:
    honest = torch.tensor([[6.0, 8.0], [0.0, 0.0]])  # mean (3, 4) of norm 5, and so is the mean of the norms 10 and 0
    own = torch.zeros(3, 2)
    assert sent("sybil", own=own, honest=honest).tolist() == [[-3.0, -4.0]] * 3
    # Opposite updates have a mean without direction.
    assert sent("sybil", own=OWN, honest=torch.tensor([[2.0, 0.0], [-2.0, 0.0]])).tolist() == [[0.0, 0.0]]
    parallel = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert sent("sybil", 2.0, honest=parallel).tolist() == [[-4.0, 0.0]]


@pytest.mark.parametrize("name", ATTACKS)
@given(f=st.integers(1, 4), h=st.integers(0, 5), seed=st.integers(0, 99))
def test_every_attack_sends_a_finite_update_for_every_attacker(name: str, f: int, h: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, honest = torch.randn(f, 3, generator=draw), torch.randn(h, 3, generator=draw)
    found = sent(name, own=own, honest=honest)
    assert found.shape == own.shape and found.dtype == own.dtype and bool(found.isfinite().all())
