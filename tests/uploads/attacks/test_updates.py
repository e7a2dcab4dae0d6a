"""What Byzantine clients send, with numbers that can be redone by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.base.randomness import generator
from fedstrata.core import Rows
from fedstrata.uploads.attacks.updates import ATTACKS, Knowledge

OWN = torch.tensor([[3.0, 4.0]])
HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 6.0]])  # mean (2, 2), deviations sqrt(2/3) and sqrt(8)


def knowledge(
    values: Sequence[Sequence[float]],
    byzantine: Sequence[int],
    groups: Sequence[int],
    models: Sequence[int] | None = None,
) -> Knowledge:
    """What the Byzantine clients with model 0 know in round 1, where client i has trained row i."""
    clients = torch.arange(len(values))
    theirs = torch.isin(clients, torch.tensor(byzantine))
    same_model = torch.tensor(models or [0] * len(values)) == 0
    return Knowledge(
        updates=Rows(clients, torch.tensor(values)),
        columns=torch.arange(len(values[0])),
        senders=theirs & same_model,
        known=~theirs,
        same_model=same_model,
        byzantine=torch.tensor(byzantine),
        groups=torch.tensor(groups),
        strength=None,
        round=1,
        from_round=1,
        seed=0,
        generator=generator(0, "test"),
    )


def sent(
    name: str, strength: float | None = None, own: torch.Tensor = OWN, honest: torch.Tensor = HONEST
) -> torch.Tensor:
    """What those send that have trained some updates, beside honest ones of the same model."""
    everyone = [*own.tolist(), *honest.tolist()]
    known = knowledge(everyone, list(range(len(own))), [0] * len(everyone))
    return ATTACKS[name](replace(known, strength=strength))


def test_simple_attacks_change_the_own_update() -> None:
    assert sent("sign_flip").tolist() == [[-3.0, -4.0]] and sent("sign_flip", 10.0).tolist() == [[-30.0, -40.0]]
    assert sent("scaling").tolist() == [[300.0, 400.0]] and sent("scaling", 2.0).tolist() == [[6.0, 8.0]]
    assert sent("zero").tolist() == [[0.0, 0.0]]


def test_noise_has_a_multiple_of_the_own_norm() -> None:
    own = torch.ones(1, 10_000)  # norm 100
    assert float(sent("noise", own=own, honest=own).norm()) == pytest.approx(1000, rel=0.05)
    assert float(sent("noise", 0.5, own=own, honest=own).norm()) == pytest.approx(50, rel=0.05)


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


@pytest.mark.parametrize(
    ("round", "strength", "sent"),
    [
        (3, None, 10.0),  # the first round of the attack: as trained
        (4, None, 8.0),  # 10 (1 - 2 / 10)
        (8, None, 0.0),
        (13, None, -10.0),  # after ten rounds, the sign is flipped
        (30, None, -10.0),
        (8, 3.0, -10.0),  # 10 (1 - 4 / 2)
    ],
)
def test_slow_poisoning_goes_from_the_trained_update_to_its_opposite(
    round: int, strength: float | None, sent: float
) -> None:
    known = replace(knowledge([[10.0], [1.0]], [0], [0, 0]), round=round, from_round=3, strength=strength)
    assert ATTACKS["slow_poisoning"](known)[0].tolist() == pytest.approx([sent])


TWO = [[3.0, 0.0, 0.0], [0.0, 5.0, 0.0]]  # the mean of their norms is 4


def test_a_split_is_made_up_of_a_direction_and_its_opposite() -> None:
    known = knowledge([*TWO, *[[9.0, 9.0, 9.0]] * 3], [2, 3, 4], [0] * 5)
    first, second, third = ATTACKS["split"](known)
    assert float(first.norm()) == pytest.approx(4.0)
    assert torch.equal(second, -first) and torch.equal(third, first)
    assert float(ATTACKS["split"](replace(known, strength=0.5))[0].norm()) == pytest.approx(2.0)


def test_a_split_has_the_same_sides_and_the_same_direction_in_all_tasks_and_rounds() -> None:
    known = knowledge([*TWO, *[[9.0, 9.0, 9.0]] * 2], [2, 3], [0] * 4)
    both = ATTACKS["split"](known)
    later = replace(known, round=7, generator=generator(0, "another task"))
    assert torch.equal(ATTACKS["split"](later), both)
    # The second one, alone with its model, stays on its side. Client 1 is the only honest one there, with norm 5.
    alone = ATTACKS["split"](
        replace(later, senders=later.updates.clients == 3, same_model=known.updates.clients % 2 == 1)
    )
    assert alone[0].tolist() == pytest.approx((both[1] * 5 / 4).tolist())
    assert not torch.equal(ATTACKS["split"](replace(known, seed=1)), both)


def test_a_bridge_lies_between_the_own_group_and_the_mean_of_all_others() -> None:
    # Group 0 has the mean 0. The others are at 6 and 18, with another model, and have the mean 12.
    known = knowledge([[0.0], [99.0], [99.0], [6.0], [18.0]], [1, 2], [0, 0, 0, 1, 2], [0, 0, 0, 1, 1])
    assert ATTACKS["merge"](known).flatten().tolist() == pytest.approx([4.0, 8.0])  # 1 / 3, 2 / 3 of the way
    halfway = replace(known, strength=0.5)
    assert ATTACKS["merge"](halfway).flatten().tolist() == pytest.approx([2.0, 4.0])


def test_a_bridge_begins_at_the_own_update_where_no_honest_client_is_of_the_own_group() -> None:
    known = knowledge([[30.0], [0.0]], [0], [0, 1])
    assert ATTACKS["merge"](known).tolist() == [[15.0]]


def test_cluster_hopping_sends_the_mean_of_another_group_each_round() -> None:
    # The attacker is of group 0. Group 1 has the mean 2, and group 2 has the mean 20.
    known = knowledge([[7.0], [0.0], [1.0], [3.0], [20.0]], [0], [0, 0, 1, 1, 2])
    sent = [float(ATTACKS["cluster_hopping"](replace(known, round=round))) for round in range(1, 21)]
    assert set(sent) == {2.0, 20.0}
    in_other_tasks = replace(known, generator=generator(0, "another task"))
    assert [float(ATTACKS["cluster_hopping"](replace(in_other_tasks, round=round))) for round in range(1, 21)] == sent
    assert float(ATTACKS["cluster_hopping"](replace(known, strength=-1.0))) == -sent[0]


def test_without_another_group_the_attackers_of_groups_have_nothing_to_send_but_what_they_know() -> None:
    known = knowledge([[7.0], [1.0], [3.0]], [0], [0, 0, 0])
    assert ATTACKS["cluster_hopping"](known).tolist() == [[7.0]]
    assert ATTACKS["merge"](known).tolist() == [[2.0]]


@pytest.mark.parametrize("name", ATTACKS)
@given(f=st.integers(1, 4), h=st.integers(0, 5), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_attack_sends_a_finite_update_for_every_attacker(
    name: str, f: int, h: int, groups: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(f + h, 3, generator=draw).tolist()
    known = knowledge(values, list(range(f)), [client % groups for client in range(f + h)])
    found = ATTACKS[name](replace(known, round=5))
    assert found.shape == (f, 3) and found.dtype == torch.float32 and bool(found.isfinite().all())
