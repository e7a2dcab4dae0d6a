"""What Byzantine clients send who know the round, each other and the true groups, with numbers to redo by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.base.randomness import generator
from fedstrata.core import Rows
from fedstrata.uploads.attacks import INFORMED_ATTACKS, Knowledge


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
    assert INFORMED_ATTACKS["slow_poisoning"](known)[0].tolist() == pytest.approx([sent])


HONEST = [[3.0, 0.0, 0.0], [0.0, 5.0, 0.0]]  # the mean of their norms is 4


def test_a_split_is_made_up_of_a_direction_and_its_opposite() -> None:
    known = knowledge([*HONEST, *[[9.0, 9.0, 9.0]] * 3], [2, 3, 4], [0] * 5)
    first, second, third = INFORMED_ATTACKS["split"](known)
    assert float(first.norm()) == pytest.approx(4.0)
    assert torch.equal(second, -first) and torch.equal(third, first)
    assert float(INFORMED_ATTACKS["split"](replace(known, strength=0.5))[0].norm()) == pytest.approx(2.0)


def test_a_split_has_the_same_sides_and_the_same_direction_in_all_tasks_and_rounds() -> None:
    known = knowledge([*HONEST, *[[9.0, 9.0, 9.0]] * 2], [2, 3], [0] * 4)
    both = INFORMED_ATTACKS["split"](known)
    later = replace(known, round=7, generator=generator(0, "another task"))
    assert torch.equal(INFORMED_ATTACKS["split"](later), both)
    # The second one, alone with its model, stays on its side. Client 1 is the only honest one there, with norm 5.
    alone = INFORMED_ATTACKS["split"](
        replace(later, senders=later.updates.clients == 3, same_model=known.updates.clients % 2 == 1)
    )
    assert alone[0].tolist() == pytest.approx((both[1] * 5 / 4).tolist())
    assert not torch.equal(INFORMED_ATTACKS["split"](replace(known, seed=1)), both)


def test_a_bridge_lies_between_the_own_group_and_the_mean_of_all_others() -> None:
    # Group 0 has the mean 0. The others are at 6 and 18, with another model, and have the mean 12.
    known = knowledge([[0.0], [99.0], [99.0], [6.0], [18.0]], [1, 2], [0, 0, 0, 1, 2], [0, 0, 0, 1, 1])
    assert INFORMED_ATTACKS["merge"](known).flatten().tolist() == pytest.approx([4.0, 8.0])  # 1 / 3, 2 / 3 of the way
    halfway = replace(known, strength=0.5)
    assert INFORMED_ATTACKS["merge"](halfway).flatten().tolist() == pytest.approx([2.0, 4.0])


def test_a_bridge_begins_at_the_own_update_where_no_honest_client_is_of_the_own_group() -> None:
    known = knowledge([[30.0], [0.0]], [0], [0, 1])
    assert INFORMED_ATTACKS["merge"](known).tolist() == [[15.0]]


def test_cluster_hopping_sends_the_mean_of_another_group_each_round() -> None:
    # The attacker is of group 0. Group 1 has the mean 2, and group 2 has the mean 20.
    known = knowledge([[7.0], [0.0], [1.0], [3.0], [20.0]], [0], [0, 0, 1, 1, 2])
    sent = [float(INFORMED_ATTACKS["cluster_hopping"](replace(known, round=round))) for round in range(1, 21)]
    assert set(sent) == {2.0, 20.0}
    in_other_tasks = replace(known, generator=generator(0, "another task"))
    assert [
        float(INFORMED_ATTACKS["cluster_hopping"](replace(in_other_tasks, round=round))) for round in range(1, 21)
    ] == sent
    assert float(INFORMED_ATTACKS["cluster_hopping"](replace(known, strength=-1.0))) == -sent[0]


def test_without_another_group_the_attackers_of_groups_have_nothing_to_send_but_what_they_know() -> None:
    known = knowledge([[7.0], [1.0], [3.0]], [0], [0, 0, 0])
    assert INFORMED_ATTACKS["cluster_hopping"](known).tolist() == [[7.0]]
    assert INFORMED_ATTACKS["merge"](known).tolist() == [[2.0]]


@pytest.mark.parametrize("name", INFORMED_ATTACKS)
@given(f=st.integers(1, 4), h=st.integers(0, 5), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_attack_sends_a_finite_update_for_every_attacker(
    name: str, f: int, h: int, groups: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(f + h, 3, generator=draw).tolist()
    known = knowledge(values, list(range(f)), [client % groups for client in range(f + h)])
    sent = INFORMED_ATTACKS[name](replace(known, round=5))
    assert sent.shape == (f, 3) and sent.dtype == torch.float32 and bool(sent.isfinite().all())
