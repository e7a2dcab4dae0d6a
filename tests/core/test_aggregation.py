from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import answer
from fedstrata.base.errors import ContractError
from fedstrata.core import (
    Decision,
    Metric,
    Node,
    Report,
    RuleAggregation,
    State,
    aggregate,
    candidate_models,
    initial_state,
    make_pending,
    tree_events,
)
from fedstrata.core.server import ServerOptimizer, ServerOptimizerName
from fedstrata.testing import toy_problem


def report_of(clients: list[int], given: list[int], values: torch.Tensor) -> Report:
    return Report({"train": answer(clients, values, given)})


def ones(scales: list[float]) -> torch.Tensor:
    return torch.tensor(scales)[:, None] * torch.ones(1, 6)


def test_a_split_moves_each_half_by_its_own_members_and_grows_the_tree() -> None:
    problem = toy_problem(4)
    report = report_of([0, 1, 2, 3], [0, 0, 0, 0], ones([1.0, 3.0, 10.0, 20.0]))
    labels, why = torch.tensor([0, 0, 1, 1]), Decision("torn", "conv", {"cross_max": -0.5})
    before = initial_state(problem)
    state, _ = aggregate(problem, before, report, labels, torch.tensor([0, 0]), {0: why})
    assert state.models[:, 0].tolist() == [2.0, 15.0]
    assert state.nodes.tolist() == [1, 2]
    whole = Node(0, None, (0, 1, 2, 3), born=0, split=1, decision=why)
    assert state.tree == (whole, Node(1, 0, (0, 1), born=1), Node(2, 0, (2, 3), born=1))
    split = {"kind": "split", "node": 0, "into": [1, 2], "layer": "conv", "why": "torn", "values": {"cross_max": -0.5}}
    assert tree_events(before, state) == [split]


def test_a_row_trained_from_another_model_is_left_out_and_counted() -> None:
    problem = toy_problem(3)
    split = report_of([0, 1, 2], [0, 0, 0], ones([1.0, 1.0, 5.0]))
    state, _ = aggregate(problem, initial_state(problem), split, torch.tensor([0, 0, 1]), torch.tensor([0, 0]))
    stray = report_of([0, 1, 2], [0, 1, 1], ones([1.0, 100.0, 1.0]))  # client 1 trained from the other model
    state, diagnostics = aggregate(problem, state, stray, state.labels, torch.tensor([0, 1]))
    assert state.models[:, 0].tolist() == [2.0, 6.0]
    assert diagnostics.metrics == (Metric("left_out", 1.0),)


@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_a_cluster_of_too_few_clients_keeps_its_model(optimizer: ServerOptimizerName) -> None:
    plain = replace(toy_problem(5), server=ServerOptimizer(optimizer))
    problem = replace(plain, aggregation=RuleAggregation(least_clients=3))
    report = report_of([0, 1, 2, 3, 4], [0] * 5, ones([1.0, 2.0, 6.0, 50.0, 70.0]))
    labels, parents = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0])
    state, diagnostics = aggregate(problem, initial_state(problem), report, labels, parents)
    large, _ = aggregate(plain, initial_state(plain), report, labels, parents)
    assert torch.equal(state.models[0], large.models[0]) and torch.equal(state.models[1], problem.fresh(0))
    assert diagnostics.metrics == (Metric("left_out", 2.0),)
    absent = report_of([0, 1, 3, 4], [0, 0, 1, 1], ones([1.0, 1.0, 5.0, 5.0]))
    later, diagnostics = aggregate(problem, state, absent, state.labels, torch.tensor([0, 1]))
    assert torch.equal(later.models, state.models) and diagnostics.metrics == (Metric("left_out", 4.0),)


def test_members_that_are_not_placed_wait_at_the_node_that_was_split() -> None:
    problem = toy_problem(4)
    report = report_of([0, 1, 2], [0, 0, 0], ones([1.0, 1.0, 5.0]))
    state, _ = aggregate(problem, initial_state(problem), report, torch.tensor([0, 0, 1, -1]), torch.tensor([0, 0]))
    assert state.waiting.tolist() == [-1, -1, -1, 0]
    later = report_of([0, 1, 2], [0, 0, 1], ones([1.0, 1.0, 1.0]))
    state, _ = aggregate(problem, state, later, state.labels, torch.tensor([0, 1]))
    assert state.waiting.tolist() == [-1, -1, -1, 0]


def test_an_empty_report_changes_no_model() -> None:
    problem = toy_problem(4)
    state = initial_state(problem)
    nothing = report_of([], [], torch.empty(0, 6))
    moved, diagnostics = aggregate(problem, state, nothing, state.labels, torch.tensor([0]))
    assert torch.equal(moved.models, state.models) and moved.round == 1
    assert diagnostics.events == () and tree_events(state, moved) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=9, max_size=9), st.lists(st.integers(0, 1), min_size=9, max_size=9))
def test_after_nested_splits_every_client_is_in_exactly_one_leaf(first: list[int], second: list[int]) -> None:
    problem = toy_problem(9)
    state = initial_state(problem)
    for halves in (first, second):
        report = report_of(list(range(9)), state.labels.tolist(), ones([1.0] * 9))
        pairs = [(label, half) for label, half in zip(state.labels.tolist(), halves, strict=True)]
        names = sorted(set(pairs))
        labels, parents = torch.tensor([names.index(pair) for pair in pairs]), [name[0] for name in names]
        state, _ = aggregate(problem, state, report, labels, torch.tensor(parents))
    leaves = [node.members for node in state.tree if node.split is None]
    assert sorted(client for members in leaves for client in members) == list(range(9))
    for cluster, node in enumerate(state.nodes.tolist()):
        assert state.tree[node].members == tuple((state.labels == cluster).nonzero().flatten().tolist())


def test_a_state_refuses_labels_without_a_model_and_pending_clients_without_a_place() -> None:
    state = initial_state(toy_problem(3))
    with pytest.raises(ContractError, match=r"labels in -1\.\.0"):
        replace(state, labels=torch.tensor([0, 0, 1]))
    with pytest.raises(ContractError, match="pending clients to wait"):
        replace(state, labels=torch.tensor([0, 0, -1]))
    with pytest.raises(ContractError, match="expected 1 nodes"):
        replace(state, nodes=torch.tensor([0, 1]))
    assert isinstance(state, State)


def test_a_regrouping_that_is_no_recursive_split_keeps_every_client_in_one_leaf() -> None:
    """Clusters are drawn anew: one keeps its node, one is split, one dissolves into the others."""
    problem = toy_problem(6)
    first = report_of(list(range(6)), [0] * 6, ones([1.0, 1.0, 5.0, 5.0, 9.0, 9.0]))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    state, _ = aggregate(problem, initial_state(problem), first, labels, torch.tensor([0, 0, 0]))
    again = report_of(list(range(6)), [1] * 6, ones([1.0] * 6))
    before = state
    state, _ = aggregate(problem, before, again, torch.tensor([1, 1, 2, 0, 0, 2]), torch.tensor([1, 0, 1]))
    assert state.nodes.tolist() == [4, 1, 5]
    assert [node.parent for node in state.tree[1:]] == [0, 0, 0, 2, 2]
    assert [node.members for node in state.tree[1:]] == [(0, 1), (2, 3), (4, 5), (3, 4), (2, 5)]
    assert [node.split for node in state.tree[1:]] == [None, 2, 2, None, None]
    kinds = [(event["kind"], event["node"], event["into"]) for event in tree_events(before, state)]
    assert kinds == [("split", 2, [4, 5]), ("dissolve", 3, [4, 5])]


def test_a_client_that_waits_at_a_cluster_that_dissolved_waits_at_the_nearest_one_that_did_not() -> None:
    problem = toy_problem(5)
    first = report_of(list(range(5)), [0] * 5, ones([1.0] * 5))
    state, _ = aggregate(problem, initial_state(problem), first, torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0]))
    state = make_pending(state, [4])
    assert state.waiting.tolist() == [-1, -1, -1, -1, 2]
    second = report_of([0, 1, 2, 3], [0, 0, 1, 1], ones([1.0] * 4))
    before = state
    state, _ = aggregate(problem, before, second, torch.tensor([0, 0, 0, 0, -1]), torch.tensor([0]))
    assert state.nodes.tolist() == [1] and state.waiting.tolist() == [-1, -1, -1, -1, 0]
    assert tree_events(before, state) == [{"kind": "dissolve", "node": 2, "into": [1]}]
    assert candidate_models(state, torch.tensor([4])).tolist() == [[0]]


def test_newcomers_found_a_cluster_below_the_first_node() -> None:
    problem = toy_problem(4)
    halves = report_of([0, 1], [0, 0], ones([1.0, 5.0]))
    state = make_pending(initial_state(problem), [2, 3], node=0)
    state, _ = aggregate(problem, state, halves, torch.tensor([0, 1, -1, -1]), torch.tensor([0, 0]))
    later = report_of([0, 1, 2], [0, 1, 0], ones([1.0, 1.0, 100.0]))  # the founder's row is of another model
    labels, parents = torch.tensor([0, 1, 2, -1]), torch.tensor([0, 1, -1])
    state, diagnostics = aggregate(problem, state, later, labels, parents, founded=ones([7.0]))
    assert state.models[:, 0].tolist() == [2.0, 6.0, 7.0] and state.nodes.tolist() == [1, 2, 3]
    assert (state.tree[3].parent, state.tree[3].members, state.tree[3].born) == (0, (2,), 2)
    assert state.tree[0].split == 1
    assert diagnostics.metrics == (Metric("left_out", 1.0),)
    assert candidate_models(state, torch.tensor([3])).tolist() == [[0, 1, 2]]


def test_founding_beside_the_only_cluster_splits_the_first_node() -> None:
    """Only leaves hold clients: the one cluster goes on as a child, with its model and its members."""
    problem = toy_problem(3)
    state = make_pending(initial_state(problem), [2], node=0)
    report = report_of([0, 1], [0, 0], ones([1.0, 3.0]))
    why = {0: Decision("too far away")}
    labels, parents = torch.tensor([0, 0, 1]), torch.tensor([0, -1])
    before = state
    state, _ = aggregate(problem, before, report, labels, parents, why, founded=ones([7.0]))
    assert state.models[:, 0].tolist() == [2.0, 7.0] and state.nodes.tolist() == [1, 2]
    assert [(node.parent, node.members, node.split) for node in state.tree[1:]] == [(0, (0, 1), None), (0, (2,), None)]
    (event,) = tree_events(before, state)
    assert event["kind"] == "split" and event["why"] == "too far away"


def test_a_cluster_cannot_be_founded_without_a_model() -> None:
    problem = toy_problem(2)
    report = report_of([0, 1], [0, 0], ones([1.0, 3.0]))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        aggregate(problem, initial_state(problem), report, torch.tensor([0, 1]), torch.tensor([0, -1]))
