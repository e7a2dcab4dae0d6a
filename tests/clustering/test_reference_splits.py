import pytest
import torch
from torch import tensor

from fedstrata.clustering import reference_split, stability

UPDATES = tensor([[1, 0], [1, 1], [0, 1], [0, 2], [0.1, 2], [0.2, 2]], dtype=torch.float64)


def test_stability_of_six_rounds() -> None:
    # round 3: (cos 45 + cos 45) / 2 - cos 90; round 4: (1 + cos 45) / 2 - cos 45
    wanted = [0.707107, 0.146447, 0.000624, 0.003721]
    assert stability(UPDATES).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_stability_needs_three_rounds(rounds: int) -> None:
    assert stability(UPDATES[:rounds]).shape == (0,)


def test_stability_of_updates_that_stand_still_is_that_of_right_angles() -> None:
    assert stability(tensor([[1.0], [0.0], [1.0]])).tolist() == [1]  # |(0 + 0) / 2 - 1|


CLIENTS = tensor([[1, 1], [2, 0], [0, 1], [-1, 1], [-1, -0.5]])  # sims to 1: .707107, 1, 0, -.707107, -.894427


def test_clients_split_by_the_sign_of_their_cosine_to_the_steadiest() -> None:
    reference, together = reference_split(CLIENTS, tensor([0.04, 0.01, 0.03, 0.02, 0.01]))
    assert reference == 1  # as steady as 4, and lower
    assert together.tolist() == [True, True, False, False, False]


def test_a_right_angle_is_not_together_whatever_the_rounding_of_unit_vectors() -> None:
    assert reference_split(tensor([[1, 2, 3], [-3, 0, 1]]), tensor([0, 1]))[1].tolist() == [True, False]


def test_clients_that_did_not_move_are_no_reference() -> None:
    rows = tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    reference, together = reference_split(rows, tensor([0.0, 0.2, 0.1]))
    assert reference == 2
    assert together.tolist() == [False, True, True]
    reference, together = reference_split(0 * rows, tensor([0.2, 0.1, 0.1]))
    assert (reference, together.tolist()) == (0, [True, False, False])


def test_the_split_depends_on_no_scale() -> None:
    steadiness = tensor([0.04, 0.01, 0.03, 0.02, 0.01])
    scaled = CLIENTS * torch.tensor([1e10, 1e-6, 3, 1e20, 0.1])[:, None]
    assert torch.equal(reference_split(scaled, steadiness)[1], reference_split(CLIENTS, steadiness)[1])
