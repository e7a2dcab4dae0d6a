from dataclasses import replace

import pytest
import torch

from builders import answer
from fedstrata.base.errors import ContractError
from fedstrata.core import (
    LearningRateSchedule,
    LocalTraining,
    Node,
    Plan,
    Report,
    State,
    assign_pending,
    cluster_evaluation,
    descends,
    fedavg_plan,
    fixed_clusters,
    initial_state,
    members_in_cohort,
)
from fedstrata.testing import toy_problem

TREE = (
    Node(0, None, (0, 1, 2, 3, 4), born=0, split=1),
    Node(1, 0, (0, 1, 2), born=1, split=2),
    Node(2, 0, (3,), born=1),
    Node(3, 1, (0,), born=2),
    Node(4, 1, (1,), born=2),
)
"""Client 2 was away when node 1 was split; client 4 has never answered."""


def nested() -> State:
    return State(
        models=torch.zeros(3, 6),
        labels=torch.tensor([1, 2, -1, 0, -1]),
        nodes=torch.tensor([2, 3, 4]),
        waiting=torch.tensor([-1, -1, 1, -1, 0]),
        round=2,
        tree=TREE,
    )


def test_a_pending_client_is_offered_every_leaf_below_the_node_where_it_waits() -> None:
    plan = fedavg_plan(toy_problem(5), nested(), torch.arange(5))
    assert plan.tasks["train"].candidates.tolist() == [[1, -1, -1], [2, -1, -1], [1, 2, -1], [0, -1, -1], [0, 1, 2]]
    assert cluster_evaluation(toy_problem(5), nested(), torch.tensor([2]))["client"].candidates.tolist() == [[1, 2]]


def test_a_pending_client_that_answered_joins_the_leaf_that_it_chose() -> None:
    report = Report({"train": answer([2, 3], torch.zeros(2, 6), [2, 0])})
    assert assign_pending(nested(), report).tolist() == [1, 2, 2, 0, -1]


def test_descent_follows_parents() -> None:
    assert descends(TREE, 4, 0) and descends(TREE, 4, 1) and descends(TREE, 4, 4)
    assert not descends(TREE, 4, 2) and not descends(TREE, 0, 1)


def test_everyone_trains_everything_with_the_step_size_of_the_round() -> None:
    problem = replace(toy_problem(5), training=LocalTraining(lr=1.0), lr_factor=LearningRateSchedule(decay=0.5))
    task = fedavg_plan(problem, nested(), torch.arange(5)).tasks["train"]
    assert task.training.lr == 0.25  # round 3: twice halved
    assert task.trainable == task.upload == (True, True) and task.load_local == task.save_local == (False, False)


def test_a_plan_refuses_an_offer_of_a_model_that_it_does_not_carry() -> None:
    problem = toy_problem(2)
    plan = fedavg_plan(problem, initial_state(problem), torch.arange(2))
    wrong = replace(plan.tasks["train"], candidates=torch.tensor([[0], [1]]))
    with pytest.raises(ContractError, match="a candidate is model 1, but the plan carries 1"):
        replace(plan, tasks={"train": wrong})
    nobody = replace(wrong, candidates=torch.empty(0, 1))
    assert Plan(1, 0, torch.arange(0), torch.zeros(1, 6), {"train": nobody}).tasks


def test_a_plan_for_some_of_the_cohort_keeps_what_they_are_offered_and_asked() -> None:
    plan = fedavg_plan(toy_problem(5), nested(), torch.tensor([0, 2, 3]))
    plan = replace(plan, client_stats={"classes": torch.tensor([True, True, False])})
    some = plan.only(torch.tensor([False, True, True]))
    assert some.cohort.tolist() == [2, 3]
    assert some.tasks["train"].candidates.tolist() == [[1, 2], [0, -1]]
    assert {name: some.cohort[who].tolist() for name, who in some.client_stats.items()} == {"classes": [2]}


def test_who_was_not_drawn_was_not_asked() -> None:
    members = torch.tensor([True, False, True, True, False])
    report = Report(cohort=torch.tensor([1, 3, 4]))
    assert members_in_cohort(report, members).tolist() == [False, False, False, True, False]
    assert members_in_cohort(replace(report, cohort=None), members).tolist() == members.tolist()
    union = replace(report, cohort=torch.tensor([5]))  # the id of all data together
    assert not members_in_cohort(union, members).any()


def test_groups_that_are_given_are_children_of_the_first_node() -> None:
    state = fixed_clusters(toy_problem(4), torch.tensor([1, -1, 0, 1]), 2, "given")
    assert state.models.shape == (2, 6) and state.nodes.tolist() == [1, 2]
    assert state.waiting.tolist() == [-1, 0, -1, -1]
    assert [node.members for node in state.tree[1:]] == [(2,), (0, 3)]
    assert state.tree[0].decision and state.tree[0].decision.kind == "given"


def test_one_group_that_is_given_is_the_ordinary_start() -> None:
    state = fixed_clusters(toy_problem(3), torch.zeros(3, dtype=torch.int64), 1, "given")
    assert state.nodes.tolist() == [0] and [node.members for node in state.tree] == [(0, 1, 2)]


def test_random_numbers_of_the_server_depend_on_seed_stream_and_round() -> None:
    problem = toy_problem(2)
    draws = [problem.generator("a"), problem.generator("a"), problem.generator("b"), problem.generator("a", 1)]
    draws.append(replace(problem, seed=1).generator("a"))
    first, again, *others = [torch.rand(3, generator=draw).tolist() for draw in draws]
    assert first == again and all(other != first for other in others)
