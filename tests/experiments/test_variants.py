"""The variants of the papers' algorithms that experiments name by import path."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments.papers.variants import (
    MeanOfMembers,
    RandomReference,
    RetryingLayerCFL,
    StableCFL,
    WatchedHiCFL,
    bipartition_accuracy,
)

from fedstrata.algorithms.hicfl import HiCFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.core import Layout, TensorSpec
from fedstrata.testing import play, toy_problem
from recorded import decision_of, metric

PLANE = Layout((TensorSpec("conv.weight", "conv", "conv", (2,)),))
TORN = torch.tensor([[2.0, 0.0], [2.0, 0.2], [-2.0, 0.0], [-2.0, -0.2]])
"""docs/semantics.md, golden case 4b: two pairs that pull in opposite directions."""

FIVE = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [-1.0, -0.5]])
"""Golden case 6: the updates of five clients in round t."""

ALL_WEIGHTS = 1e9


def turning(updates: torch.Tensor, stability: list[float]) -> list[torch.Tensor]:
    """Three rounds that end with `updates`: turned away by a and back, S = |(cos a + cos a) / 2 - 1| = 1 - cos a."""
    cos = 1 - torch.tensor(stability)
    sin = (1 - cos.square()).sqrt()
    x, y = updates.T
    return [updates, torch.stack([cos * x - sin * y, sin * x + cos * y], dim=1), updates]


def test_after_theorem_1_refused_a_split_it_is_tried_again() -> None:
    alike = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [1.0, 0.05]])
    for kind, clusters in ((LayerCFL, 1), (RetryingLayerCFL, 2)):
        algorithm = kind(eps1=10.0, eps2=0.5, gamma=0.5, min_split=2)
        state, _ = play(algorithm, toy_problem(4, PLANE), [alike, TORN])
        assert len(state.models) == clusters
        converged, _ = play(algorithm, toy_problem(4, PLANE), [0.1 * TORN, TORN])
        assert len(converged.models) == 1


@pytest.mark.parametrize(
    ("kind", "epsilon", "clusters"),
    [(HiCFL, 0.041, 2), (HiCFL, 0.039, 1), (MeanOfMembers, 0.023, 2), (MeanOfMembers, 0.021, 1)],
)
def test_a_layer_is_stable_in_every_member_or_in_their_mean(kind: type[HiCFL], epsilon: float, clusters: int) -> None:
    """The stability is 0.04 at most, and 0.022 in the mean."""
    updates = turning(FIVE, [0.04, 0.01, 0.03, 0.02, 0.01])
    state, _ = play(kind(epsilon=epsilon, xi=ALL_WEIGHTS), toy_problem(5, PLANE), updates)
    assert len(state.models) == clusters
    assert decision_of(state).values["every_member"] == float(kind is HiCFL)


def test_a_random_reference_is_a_function_of_the_seed_and_not_of_the_order_of_rows() -> None:
    found = set()
    for seed in range(12):
        problem = replace(toy_problem(5, PLANE), seed=seed)
        algorithm = RandomReference(xi=ALL_WEIGHTS, epsilon=0.05)
        updates = turning(FIVE, [0.04, 0.01, 0.03, 0.02, 0.01])
        state, _ = play(algorithm, problem, updates)
        again, _ = play(algorithm, problem, updates, cohorts=[[4, 2, 0, 1, 3]] * 3)
        assert torch.equal(state.labels, again.labels)
        found.add(decision_of(state).values["reference"])
    assert len(found) > 2


@pytest.mark.parametrize(
    ("keys", "kind", "values"),
    [
        ({}, "split", {"stability": 0.04, "cross_max": -0.995037}),
        ({"epsilon": 0.03}, "no_stable_layer", {"stability": 0.04, "epsilon": 0.03, "every_member": 1.0}),
        ({"epsilon": 0.03, "members": "mean"}, "no_stable_layer", {"every_member": 0.0}),
        ({"window": 4}, "too_few_members", {"answered": 4, "asked": 4, "not_ready": 4}),
        ({"rho": 0.0}, "members_agree", {"ratio": 0.0, "rho": 0.0}),
        ({"gamma": 0.9999}, "theorem_1_not_met", {"first_part": 2, "bound": 0.998759}),
    ],
)
def test_cfl_with_model_stability_splits_as_soon_as_one_layer_is_stable(
    keys: dict[str, Any], kind: str, values: dict[str, float]
) -> None:
    algorithm = StableCFL(**{"epsilon": 0.05, **keys})
    state, diagnostics = play(algorithm, toy_problem(4, PLANE), turning(TORN, [0.04] * 4))
    assert state.labels.tolist() == ([0, 0, 1, 1] if kind == "split" else [0] * 4)
    assert decision_of(state).kind == kind
    assert {name: decision_of(state).values[name] for name in values} == pytest.approx(values, abs=1e-6)
    assert metric(diagnostics[1], "weights_used") == 1.0


PAIRS = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.1]])
"""Two pairs of clients that pull in opposite directions."""


@pytest.mark.parametrize(
    ("truth", "updates", "accuracy"),
    [
        ([0, 0, 1, 1], PAIRS, 1.0),
        ([0, 1, 1, 1], PAIRS, 0.75),  # client 1 is on the side of client 0
        ([0, 0, 0, 1], PAIRS.abs() + 1, 0.75),  # all point one way, and are on one side
        ([3, 3, 3, 3], PAIRS, None),
    ],
)
def test_a_bipartition_is_measured_where_none_is_due(
    truth: list[int], updates: torch.Tensor, accuracy: float | None
) -> None:
    """A window of three uploads is full in round 3; a threshold of 0 is never met, so that nothing is split."""
    state, rounds = play(WatchedHiCFL(epsilon=0.0), toy_problem(4, PLANE, truth=truth), [updates] * 3)
    assert len(state.models) == 1
    assert [metric(each, "bipartition_accuracy", node=0) for each in rounds] == [None, None, accuracy]


def test_the_overlap_is_that_of_the_weights_that_change_most_in_two_rounds() -> None:
    """Two of 40 weights are a twentieth. The first client's are 7 and 30, then 7 and 31, the second one's 0 and 1."""
    line = Layout((TensorSpec("fc.weight", "fc", "linear", (40,)),))
    uploads = torch.zeros(3, 2, 40)
    uploads[1, 0, [7, 30]] = torch.tensor([3.0, -5.0])
    uploads[1:, 1] = 1.0
    uploads[2, 0, [7, 30, 31]] = torch.tensor([9.0, -5.5, 2.0])
    uploads[2, 1] = 2.0
    _, rounds = play(WatchedHiCFL(epsilon=0.0), toy_problem(2, line), list(uploads))
    assert [metric(each, "overlap", layer="fc") for each in rounds] == [None, None, pytest.approx((1 / 3 + 1) / 2)]


@pytest.mark.parametrize(
    ("second", "truth", "share"),
    [
        ([0, 0, 1, 1], [5, 5, 2, 2], 1.0),
        ([1, 1, 0, 0], [5, 5, 2, 2], 1.0),  # whichever side is called the second
        ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1], 4 / 5),
        ([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], 3 / 5),  # one side: the larger group is right
        ([0, 1, 0, 1], [0, 0, 1, 1], 1 / 2),
        ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], 5 / 6),  # group 1 is on both sides
        ([0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 2, 2], 5 / 6),  # group 1 takes the second side and loses nothing
        ([0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1], 4 / 6),  # 3 + 2 on the first side; group 1 must take the second
    ],
)
def test_clients_are_on_the_right_side_of_a_bipartition(second: list[int], truth: list[int], share: float) -> None:
    assert bipartition_accuracy(np.array(second) == 1, np.array(truth)) == pytest.approx(share)


def test_one_group_has_no_right_bipartition() -> None:
    assert np.isnan(bipartition_accuracy(np.array([False, True, True]), np.array([4, 4, 4])))
