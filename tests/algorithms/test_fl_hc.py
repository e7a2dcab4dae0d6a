import pytest
import torch
from baseline_federation import metrics_of

from builders import layout_with
from fedstrata.algorithms.fl_hc import FLHC
from fedstrata.core import Decision
from fedstrata.testing import play, toy_problem
from recorded import decision_of

PLANE = layout_with({"fc.weight": 2})
PAIRS = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, -1.0], [0.0, -2.0]])
"""Two clients that pull up, two that pull down; l2 between them 0, sqrt(34), sqrt(45), 1."""


def test_clients_are_grouped_once_in_the_given_round_and_averaged_in_their_groups() -> None:
    calm = torch.full((4, 2), 0.5)
    state, notes = play(FLHC(round=2, cut=2.0), toy_problem(4, PLANE), [calm, PAIRS, PAIRS.flip(0)])
    assert state.labels.tolist() == [0, 0, 1, 1] and state.clustered == 2
    assert [len(note.events) for note in notes] == [0, 1, 0]
    # 0.5, then (3, 4) and (0, -1.5), then the other way round.
    assert state.models.tolist() == [[3.5, 3.0], [3.5, 3.0]]
    values = {"groups": 2.0, "clients": 4.0, "cut": 2.0}
    assert decision_of(state) == Decision("agglomerative_clustering", "all", values)
    assert notes[1].matrices[0].clients.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("measure", "between"),
    [("dl2", [0, 34**0.5, 45**0.5, 1]), ("dl1", [0, 8, 9, 1]), ("dcos", [1, -0.8, -0.8, 1])],
)
def test_updates_are_compared_by_the_measure(measure: str, between: list[float]) -> None:
    algorithm = FLHC(round=1, cut=0.5, measure=measure)
    state, notes = play(algorithm, toy_problem(4, PLANE), [PAIRS])
    matrix = notes[0].matrices[0]
    assert matrix.measure == measure
    assert state.labels.tolist() == ([0, 0, 1, 1] if measure == "dcos" else [0, 0, 1, 2])  # 1 is further than the cut
    found = [float(matrix.values[pair]) for pair in ((0, 1), (0, 2), (0, 3), (2, 3))]
    assert found == pytest.approx(between, abs=1e-6)


def test_the_automatic_cut_finds_the_pairs_and_leaves_alike_clients_together() -> None:
    apart = PAIRS + torch.tensor([[0.0, 0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    state, _ = play(FLHC(round=1), toy_problem(4, PLANE), [apart])
    assert state.labels.tolist() == [0, 0, 1, 1]
    corners = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    state, _ = play(FLHC(round=1), toy_problem(4, PLANE), [corners, PAIRS])
    assert state.labels.tolist() == [0, 0, 0, 0] and state.clustered == 1
    assert decision_of(state).values == {"groups": 1.0, "clients": 4.0}


@pytest.mark.parametrize("seed", range(4))
def test_two_equal_updates_are_no_step_of_the_cosines(seed: int) -> None:
    """Eight clients of one group, of whom the first two send the same: their distance is rounding."""
    problem = toy_problem(8)
    updates = 1 + 0.3 * torch.randn(8, problem.layout.p, generator=torch.Generator().manual_seed(seed))
    updates[1] = updates[0]
    state, _ = play(FLHC(round=1, measure="dcos"), problem, [updates])
    assert len(set(state.labels.tolist())) < 7


def test_linkage_decides_whether_a_chain_is_one_group() -> None:
    chain = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    groups = {}
    for linkage in ("single", "average", "complete"):
        algorithm = FLHC(round=1, cut=1.0, linkage=linkage)
        groups[linkage] = len(play(algorithm, toy_problem(4, PLANE), [chain])[0].models)
    assert groups == {"single": 1, "average": 2, "complete": 2}


def test_who_was_away_waits_and_is_placed_on_return_without_a_stale_update() -> None:
    problem, algorithm = toy_problem(4, PLANE), FLHC(round=2, cut=2.0)
    state, _ = play(algorithm, problem, [PAIRS, PAIRS], cohorts=[[0, 1, 2, 3], [0, 2, 3]])
    assert state.labels.tolist() == [0, -1, 1, 1] and state.waiting.tolist() == [-1, 0, -1, -1]
    state, notes = play(algorithm, problem, [PAIRS] * 3, cohorts=[[0, 1, 2, 3], [0, 2, 3], [1]])
    assert state.labels.tolist() == [0, 0, 1, 1]  # a scripted client takes the first offer
    assert metrics_of(notes[2])["left_out"] == 0


def test_the_clustering_is_put_off_until_enough_answer() -> None:
    algorithm = FLHC(round=1, cut=2.0, quorum=0.75)
    problem = toy_problem(4, PLANE)
    state, _ = play(algorithm, problem, [PAIRS], absent=[[1, 3]])
    assert len(state.models) == 1
    expected = {"present": 2.0, "members": 4.0, "min_clients": 2.0, "quorum": 0.75, "first_round": 1.0}
    assert decision_of(state) == Decision("too_few_answers", None, expected)
    state, _ = play(algorithm, problem, [PAIRS] * 2, absent=[[1, 3], [3]])
    assert state.labels.tolist() == [0, 0, 1, -1] and state.clustered == 2
    drawn, _ = play(algorithm, problem, [PAIRS], cohorts=[[0, 2, 3]])
    assert drawn.labels.tolist() == [0, -1, 1, 1]  # client 1 was not drawn, so nobody waits for it
    lonely, _ = play(FLHC(round=1, quorum=0.0), problem, [PAIRS], cohorts=[[0]])
    assert lonely.clustered == 0  # one client is no group, whatever the quorum


def test_small_angles_are_distances_like_others() -> None:
    """Angles of 1e-5 inside two groups and 1e-4 between them: cosines differ from 1 by 5e-11 and 5e-9."""
    angles = torch.tensor([0.0, 1e-5, 1e-4, 1.1e-4], dtype=torch.float64)
    updates = torch.zeros(4, 6, dtype=torch.float64)
    updates[:, 2] = 1.0
    updates[:, 3] = angles
    state, _ = play(FLHC(round=1, measure="dcos"), toy_problem(4), [updates.float()])
    assert state.labels.tolist() == [0, 0, 1, 1]
