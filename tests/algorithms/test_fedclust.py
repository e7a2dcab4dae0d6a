from dataclasses import replace

import pytest
import torch
from scripted import next_round

from fedstrata.algorithms.fedclust import FedClust
from fedstrata.base.errors import LayoutError
from fedstrata.core import Decision, make_pending
from fedstrata.play.recorder import traffic
from fedstrata.testing import Scripted, play, toy_problem
from fedstrata.uploads.noise import CentralNoise
from recorded import decision_of


def updates(*heads: float) -> torch.Tensor:
    """One column of the last layer each; the other layer moves by as much as it likes."""
    rows = torch.zeros(len(heads), 6)
    rows[:, 0] = torch.arange(len(heads)) * 100.0
    rows[:, 3] = torch.tensor(heads)
    return rows


FOUR = updates(0.0, 0.1, 5.0, 5.2)


def test_clients_are_grouped_by_the_last_layer_alone_before_any_model_moves() -> None:
    state, notes = play(FedClust(), toy_problem(4), [FOUR])
    assert state.labels.tolist() == [0, 0, 1, 1] and [len(note.events) for note in notes] == [1]
    assert not state.models.any()
    matrix = notes[0].matrices[0]
    assert (matrix.layer, matrix.measure) == ("head", "l2") and matrix.values[0, 2] == pytest.approx(5)
    state, _ = play(FedClust(), toy_problem(4), [FOUR, FOUR])
    assert state.models[:, 3].tolist() == pytest.approx([0.05, 5.1])
    assert state.models[:, 0].tolist() == [50, 250]


def test_only_the_compared_layer_is_uploaded_for_the_clustering() -> None:
    problem, algorithm = toy_problem(4), FedClust()
    state = algorithm.init(problem)
    plan = algorithm.plan(problem, state, torch.arange(4))
    assert plan.tasks["signature"].upload == (False, True) and plan.tasks["signature"].trainable == (True, True)
    sent = traffic(problem.layout, plan, Scripted([FOUR]).run(plan))
    assert (sent.down, sent.up) == (4 * 6 * 4, 4 * 3 * 4)
    after, _ = algorithm.update(problem, state, Scripted([FOUR]).run(plan))
    plan = algorithm.plan(problem, after, torch.arange(4))
    sent = traffic(problem.layout, plan, Scripted([FOUR]).run(plan))
    assert (sent.down, sent.up) == (4 * 6 * 4, 4 * 6 * 4)


def test_layers_are_gathered_until_enough_clients_have_sent_theirs() -> None:
    problem, algorithm = toy_problem(4), FedClust(quorum=1.0)
    state, _ = play(algorithm, problem, [FOUR], cohorts=[[0, 2]])
    assert state.clustered == 0 and not state.models.any()
    values = {"present": 2.0, "members": 4.0, "min_clients": 2.0, "quorum": 1.0}
    assert decision_of(state) == Decision("too_few_signatures", None, values)
    plan = algorithm.plan(problem, state, torch.arange(4))
    assert [fit.candidates[:, 0].tolist() for fit in plan.tasks.values()] == [[-1] * 4, [-1, 1, -1, 1]]
    # In round 2 clients 0 and 2 would say something else; they are not asked again.
    state, _ = play(algorithm, problem, [FOUR, updates(9.0, 0.1, 9.0, 5.2)], cohorts=[[0, 2], [0, 1, 2, 3]])
    assert state.labels.tolist() == [0, 0, 1, 1] and state.clustered == 2


def test_with_central_noise_no_model_moves_before_anybody_is_asked_for_an_update_of_it() -> None:
    problem = toy_problem(4)
    noisy = CentralNoise(problem.layout, problem.layout.everything, clip_norm=1.0, noise_multiplier=1.0)
    private = replace(problem, aggregation=noisy)
    state, _ = play(FedClust(quorum=1.0), private, [FOUR] * 3, cohorts=[[0, 2], [0, 2], [0, 1, 2, 3]])
    assert state.clustered == 3 and len(state.models) == 2
    assert state.models.equal(problem.fresh(0).expand(2, -1))
    moved, _ = play(FedClust(quorum=1.0), private, [FOUR] * 2)
    assert not moved.models.equal(problem.fresh(0).expand(2, -1))


def test_who_comes_later_trains_the_start_once_and_joins_the_nearest_members() -> None:
    problem, algorithm = toy_problem(4), FedClust(cut=1.0)
    state, _ = play(algorithm, problem, [FOUR], cohorts=[[0, 1, 2]])
    assert state.labels.tolist() == [0, 0, 1, -1]
    plan = algorithm.plan(problem, state, torch.arange(4))
    assert [fit.candidates[:, 0].tolist() for fit in plan.tasks.values()] == [[0, 0, 1, -1], [-1, -1, -1, 2]]
    assert torch.equal(plan.models[2], problem.fresh(0))
    assert plan.tasks["signature"].training == problem.training_of(1)
    after, _ = next_round(algorithm, problem, state, FOUR, [0, 1, 2, 3])
    assert after.labels.tolist() == [0, 0, 1, 1]
    assert after.models[1, 3] == pytest.approx(5.0)  # what it sent was not trained from the cluster's model


@pytest.mark.parametrize(("linkage", "joins"), [("single", 1), ("average", 0), ("complete", 0)])
def test_the_linkage_says_which_members_a_newcomer_is_compared_with(linkage: str, joins: int) -> None:
    # From 2.6: the low ones are 2.6 and 1.6 away (average 2.1), the high ones 1.4, 3.4 and 3.4.
    rows = updates(0.0, 1.0, 4.0, 6.0, 6.0, 2.6)
    algorithm = FedClust(cut=2.0, linkage=linkage)  # type: ignore[arg-type]  # parametrised over its literals
    problem = toy_problem(6)
    state, _ = play(algorithm, problem, [rows], cohorts=[[0, 1, 2, 3, 4]])
    assert state.labels.tolist() == [0, 0, 1, 1, 1, -1]
    assert next_round(algorithm, problem, state, rows, [5])[0].labels.tolist() == [0, 0, 1, 1, 1, joins]


def test_a_client_whose_data_changed_sends_its_layer_again_and_the_old_one_counts_where_nobody_is_left() -> None:
    problem, algorithm = toy_problem(4), FedClust(cut=1.0)
    state = make_pending(play(algorithm, problem, [FOUR])[0], [1], node=0)
    changed = updates(0.0, 4.9, 5.0, 5.2)
    assert next_round(algorithm, problem, state, changed, [1])[0].labels.tolist() == [0, 1, 1, 1]
    # While client 0 is gone and 1 waits, the first cluster is where their layers were.
    state = make_pending(state, [0])
    assert next_round(algorithm, problem, state, FOUR, [1])[0].labels.tolist() == [-1, 0, 1, 1]
    state = make_pending(state, [2, 3])
    assert next_round(algorithm, problem, state, FOUR, [1])[0].labels.tolist() == [-1, 0, -1, -1]


def test_who_joins_before_the_clustering_is_grouped_with_the_others() -> None:
    problem, algorithm = toy_problem(4), FedClust(cut=1.0, quorum=1.0)
    state = make_pending(algorithm.init(problem), [3], node=0)
    state, _ = next_round(algorithm, problem, state, FOUR, [0, 3])
    assert state.labels.tolist() == [0, 0, 0, 0] and state.clustered == 0
    after, _ = next_round(algorithm, problem, state, FOUR, [1, 2])
    assert after.labels.tolist() == [0, 0, 1, 1]


def test_where_all_are_alike_one_cluster_trains_on_and_latecomers_join_it() -> None:
    problem, algorithm = toy_problem(4), FedClust(cut=100.0)
    state, _ = play(algorithm, problem, [FOUR], cohorts=[[0, 2]])
    assert state.labels.tolist() == [0, 0, 0, 0] and state.clustered == 1 and len(state.tree) == 1
    plan = algorithm.plan(problem, state, torch.arange(4))
    assert [fit.candidates[:, 0].tolist() for fit in plan.tasks.values()] == [[0] * 4, [-1] * 4]


def test_a_wrong_layer_is_named() -> None:
    with pytest.raises(LayoutError, match="'conv9' matches no layer"):
        play(FedClust(layers="conv9"), toy_problem(4), [FOUR])


def test_a_cluster_that_has_lost_its_only_member_is_found_again_by_its_old_layer() -> None:
    problem = toy_problem(3)
    algorithm = FedClust(cut=0.5)
    rows = updates(0.0, 0.1, 5.0)
    state, _ = next_round(algorithm, problem, algorithm.init(problem), rows, [0, 1, 2])
    assert state.labels.tolist() == [0, 0, 1]
    changed = make_pending(state, [2], node=0)
    assert next_round(algorithm, problem, changed, rows, [0, 1, 2])[0].labels.tolist() == [0, 0, 1]
    other = updates(0.0, 0.1, 0.2)
    moved, _ = next_round(algorithm, problem, changed, other, [0, 1, 2])
    assert moved.labels.tolist() == [0, 0, 0]
    # Its old layer is gone with its new one, and so is the way to the empty cluster.
    assert next_round(algorithm, problem, make_pending(moved, [2], node=0), rows, [0, 1, 2])[0].labels.tolist() == [
        0,
        0,
        0,
    ]
