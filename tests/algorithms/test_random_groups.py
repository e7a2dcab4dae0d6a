import pytest
import torch
from baseline_federation import federation, train

from fedstrata.algorithms.oracle import Oracle
from fedstrata.algorithms.random_groups import RandomGroups
from fedstrata.core import make_pending
from fedstrata.errors import ExperimentError
from fedstrata.testing import Scripted, play, toy_problem


def test_groups_are_equal_and_a_function_of_the_seed() -> None:
    labels = RandomGroups(groups=3).init(toy_problem(11)).labels
    assert sorted(labels.bincount().tolist()) == [3, 4, 4]
    again = RandomGroups(groups=3).init(toy_problem(11)).labels
    other = RandomGroups(groups=3).init(type(toy_problem(11))(**{**vars(toy_problem(11)), "seed": 1})).labels
    assert torch.equal(labels, again) and not torch.equal(labels, other)


def test_each_group_trains_its_own_model_and_the_tree_shows_them() -> None:
    updates = torch.arange(6.0)[:, None] * torch.ones(6, 6)
    state, _ = play(RandomGroups(groups=2), toy_problem(6), [updates])
    for cluster in range(2):
        members = (state.labels == cluster).nonzero().flatten()
        assert state.models[cluster, 0] == members.float().mean()
        assert state.tree[cluster + 1].members == tuple(members.tolist())
    assert state.tree[0].decision and state.tree[0].decision.why == "the groups were drawn at random"


def test_one_group_is_fedavg_and_groups_that_happen_to_be_true_are_the_oracle() -> None:
    ours, _, _ = train(federation("random_groups", groups=1), fraction=0.5)
    plain, _, _ = train(federation("fedavg"), fraction=0.5)
    assert torch.equal(ours.models, plain.models)
    updates = [torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    drawn = RandomGroups(groups=2)
    lucky = drawn.init(toy_problem(6)).labels.tolist()
    state, _ = play(drawn, toy_problem(6), updates)
    oracle, _ = play(Oracle(), toy_problem(6, truth=lucky), updates)
    assert torch.equal(state.models, oracle.models)


def test_a_client_that_joins_late_is_offered_all_groups() -> None:
    problem, algorithm = toy_problem(6), RandomGroups(groups=3)
    state = make_pending(algorithm.init(problem), [4], node=0)
    plan = algorithm.plan(problem, state, torch.arange(6))
    assert plan.tasks[0].candidates[4].tolist() == [0, 1, 2]
    state, _ = algorithm.update(problem, state, Scripted([torch.ones(6, 6)]).run(plan))
    assert state.labels[4] == 0  # scripted clients take the first offer


def test_there_are_at_most_as_many_groups_as_clients() -> None:
    with pytest.raises(ExperimentError, match=r"algorithm\.groups = 4: expected at most the 3 clients"):
        RandomGroups(groups=4).init(toy_problem(3))
