import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from torch import Tensor, tensor

from fedstrata.clustering import principal_angles

X, Y, Z, NOTHING = [1.0, 0, 0], [0.0, 1, 0], [0.0, 0, 1], [0.0, 0, 0]
SLOPE = [0.0, math.cos(math.pi / 6), math.sin(math.pi / 6)]  # 30 degrees out of the plane of X and Y, above Y


def test_two_planes_meet_in_a_line_and_open_by_an_angle() -> None:
    planes = tensor([[X, Y], [X, SLOPE]])
    assert principal_angles(planes)[0, 1] == pytest.approx(0, abs=1e-6)
    assert principal_angles(planes, "mean")[0, 1] == pytest.approx(15, abs=1e-5)  # 0 and 30


def test_only_what_is_spanned_counts_and_not_by_which_vectors() -> None:
    spans = tensor([[X, Y, NOTHING], [[2.0, 3, 0], [1.0, -1, 0], [5.0, 5, 0]]])
    assert principal_angles(spans, "mean")[0, 1] == pytest.approx(0, abs=1e-5)


def test_who_spans_nothing_is_at_a_right_angle_to_everybody() -> None:
    spans = tensor([[NOTHING], [X], [NOTHING]])
    assert principal_angles(spans).tolist() == [[0, 90, 90], [90, 0, 90], [90, 90, 0]]
    assert principal_angles(torch.zeros(2, 0, 3)).tolist() == [[0, 90], [90, 0]]
    assert principal_angles(torch.zeros(0, 2, 3)).shape == (0, 0)


def test_a_tiny_angle_keeps_its_digits() -> None:
    """The arc cosine of a float64 cannot tell angles below 1e-8 radians from 0."""
    lines = tensor([[[1.0, 0]], [[1.0, 1e-10]]], dtype=torch.float64)
    assert principal_angles(lines)[0, 1] == pytest.approx(math.degrees(1e-10), rel=1e-6)


def test_what_float32_cannot_tell_from_zero_is_zero() -> None:
    lines = tensor([[[1.0, 0]], [[1.0, 1e-7]], [[1.0, 1e-2]]], dtype=torch.float32)
    assert principal_angles(lines)[0, 1] == 0 and principal_angles(lines)[0, 2] > 0.5


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_angles_are_those_of_scipy_symmetric_and_blind_to_rotation(one: int, other: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    draw: Tensor = torch.randn(2, 4, 9, generator=generator, dtype=torch.float64)
    draw[0, one:], draw[1, other:] = 0, 0
    wanted = np.degrees(subspace_angles(draw[0, :one].numpy().T, draw[1, :other].numpy().T))
    assert principal_angles(draw)[0, 1] == pytest.approx(wanted.min(), abs=1e-8)
    assert principal_angles(draw.numpy(), "mean")[0, 1] == pytest.approx(wanted.mean(), abs=1e-8)
    turn = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64)).Q
    angles = principal_angles(draw @ turn)
    assert torch.allclose(angles, principal_angles(draw), atol=1e-8) and torch.equal(angles, angles.T)
