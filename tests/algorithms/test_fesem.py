import pytest
import torch
from baseline_federation import metrics_of
from scripted import next_round

from builders import layout_with
from fedstrata.algorithms.fesem import FeSEM
from fedstrata.core import make_pending, reassign
from fedstrata.testing import Scripted, play, toy_problem
from recorded import decision_of

LINE = layout_with({"fc.weight": 1, "norm.running_mean": 1})
FIRST = torch.tensor([[1.0, 0], [1.2, 0], [5.0, 0], [5.4, 0]])


def test_the_models_begin_as_the_means_of_the_groups_of_what_clients_made_of_one_start() -> None:
    state, notes = play(FeSEM(k=2), toy_problem(4, LINE), [FIRST])
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert state.models[:, 0].tolist() == pytest.approx([1.1, 5.2])
    assert notes[0].events[0]["into"] == [1, 2] and notes[0].matrices[0].values[0, 2] == pytest.approx(4)
    assert decision_of(state).kind == "k_means" and decision_of(state).values == {"clients": 4.0, "groups": 2.0}


def test_every_round_a_client_goes_to_the_nearest_model_and_the_model_to_the_mean() -> None:
    second = torch.tensor([[0.0, 0], [3.0, 0], [0.0, 0], [0.0, 0]])
    state, notes = play(FeSEM(k=2), toy_problem(4, LINE), [FIRST, second])
    assert state.labels.tolist() == [0, 1, 1, 1]  # client 1 made 4.1 of 1.1: nearer to 5.2
    assert state.models[:, 0].tolist() == pytest.approx([1.1, (4.1 + 5.2 + 5.2) / 3])
    assert metrics_of(notes[1]) == {"left_out": 0.0, "moved": 1.0}
    assert [node.members for node in state.tree if node.split is None] == [(0,), (1, 2, 3)]


def test_means_are_weighted_by_samples_only_where_asked() -> None:
    sizes = torch.tensor([3, 1, 1, 1])
    fair, _ = play(FeSEM(k=2), toy_problem(4, LINE), [FIRST], sizes=sizes)
    weighted, _ = play(FeSEM(k=2, weighted=True), toy_problem(4, LINE), [FIRST], sizes=sizes)
    assert fair.models[:, 0].tolist() == pytest.approx([1.1, 5.2])
    assert weighted.models[:, 0].tolist() == pytest.approx([(3 * 1.0 + 1.2) / 4, 5.2])


def test_statistics_of_normalisation_are_averaged_but_never_compared() -> None:
    loud = FIRST + torch.tensor([[0.0, 900], [0.0, 0], [0.0, 900], [0.0, 0]])
    state, _ = play(FeSEM(k=2), toy_problem(4, LINE), [loud, torch.zeros(4, 2)])
    assert state.labels.tolist() == [0, 0, 1, 1] and state.models[:, 1].tolist() == [450, 450]


def test_who_is_absent_keeps_the_cluster_and_moves_no_model() -> None:
    second = torch.tensor([[0.0, 0], [3.0, 0], [0.0, 0], [0.0, 0]])
    state, _ = play(FeSEM(k=2), toy_problem(4, LINE), [FIRST, second], cohorts=[[0, 1, 2, 3], [0, 2]])
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert state.models[:, 0].tolist() == pytest.approx([1.1, 5.2])


def test_a_model_to_which_nobody_came_stays() -> None:
    second = torch.tensor([[4.0, 0], [4.0, 0], [0.0, 0], [0.0, 0]])
    state, _ = play(FeSEM(k=2), toy_problem(4, LINE), [FIRST, second])
    assert state.labels.tolist() == [1, 1, 1, 1]
    assert state.models[0, 0] == pytest.approx(1.1)


def test_who_was_away_when_the_models_were_made_is_placed_on_return() -> None:
    problem, algorithm = toy_problem(4, LINE), FeSEM(k=2)
    state, _ = play(algorithm, problem, [FIRST], cohorts=[[0, 1, 2]])
    assert state.labels.tolist() == [0, 0, 1, -1]
    far = torch.tensor([[0.0, 0], [0.0, 0], [0.0, 0], [4.0, 0]])
    state, _ = play(algorithm, problem, [FIRST, far], cohorts=[[0, 1, 2], [3]])
    # It took the first offer, 1.1, and made 5.1 of it: nearer to 5.
    assert state.labels.tolist() == [0, 0, 1, 1] and state.models[1, 0] == pytest.approx(5.1)


def test_the_models_are_made_only_when_enough_clients_answer() -> None:
    problem = toy_problem(4, LINE)
    for algorithm in (FeSEM(k=3), FeSEM(k=2, quorum=0.75)):
        state, _ = play(algorithm, problem, [FIRST], absent=[[1, 3]])
        assert len(state.models) == 1 and state.models[0, 0] == pytest.approx(3)
        decision = decision_of(state)
        assert decision.kind == "too_few_answers"
        assert (decision.values["min_clients"], decision.values["quorum"]) == (float(algorithm.k), algorithm.quorum)
    drawn, _ = play(FeSEM(k=2, quorum=1.0), problem, [FIRST], cohorts=[[0, 2]])
    assert drawn.labels.tolist() == [0, -1, 1, -1]
    alike, _ = play(FeSEM(k=2), problem, [torch.ones(4, 2), FIRST])
    assert len(alike.models) == 2  # equal models make no groups; the next round's do


def test_a_misplaced_client_goes_back_by_itself() -> None:
    problem, algorithm = toy_problem(4, LINE), FeSEM(k=2)
    state, _ = play(algorithm, problem, [FIRST])
    back = torch.tensor([[-4.0, 0], [0.0, 0], [0.0, 0], [0.0, 0]])
    state, _ = next_round(algorithm, problem, reassign(state, {0: 1}), back)
    assert state.labels.tolist() == [0, 0, 1, 1]


def test_a_newcomer_takes_the_model_of_lowest_loss() -> None:
    problem, algorithm = toy_problem(4, LINE), FeSEM(k=2)
    state = make_pending(play(algorithm, problem, [FIRST])[0], [3], node=0)
    plan = algorithm.plan(problem, state, torch.tensor([3]))
    assert plan.tasks["train"].candidates.tolist() == [[0, 1]]
    assert algorithm.assign(problem, state, Scripted([FIRST]).run(plan)).tolist() == [0, 0, 1, 0]
