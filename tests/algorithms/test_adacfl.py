from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import metrics_of
from scripted import next_round

import fedstrata as fs
from builders import layout_with, with_tree_events
from fedstrata.algorithms.adacfl import AdaCFL, AdaCFLState, Snapshot, entropy_groups
from fedstrata.base.errors import LayoutError
from fedstrata.clustering import entropy
from fedstrata.core import Decision, LearningRateSchedule, LocalTraining, Metric, Problem, make_pending
from fedstrata.core.server import ServerOptimizer
from fedstrata.testing import Scripted, play, toy_problem
from recorded import decision_of

LINE = layout_with({"fc.weight": 1})
"""A network of one weight, so that distances are differences."""

POINTS = torch.tensor([[0.0], [1.0], [2.0], [3.5], [5.2]])
"""semantics.md, golden case 13."""

PAIRS = torch.tensor([[0.0], [0.2], [4.0], [4.2]])
"""Two clusters, around 0.1 and 4.1; each member is 0.2 away from the other one of its cluster."""

COUNTS = [[24, 76], [29, 71], [37, 63], [50, 50], [100], [7], [25, 25, 25, 25], [40, 30, 20, 10]]
"""Golden case 7: samples of each class of eight clients."""


def facts(classes: list[int], entropies: list[float]) -> dict[str, torch.Tensor]:
    return {"classes": torch.tensor(classes)[:, None].float(), "entropy": torch.tensor(entropies)[:, None]}


def alike(clients: int) -> dict[str, torch.Tensor]:
    return facts([10] * clients, [3.3] * clients)


def snapshot_of(state: AdaCFLState) -> Snapshot:
    assert state.snapshot is not None
    return state.snapshot


def clustered(points: torch.Tensor, waiting: list[int], **keys: Any) -> tuple[AdaCFL, Problem, AdaCFLState]:
    """The state after a clustering in which `waiting` took no part."""
    algorithm, problem = AdaCFL(precluster=False, **keys), toy_problem(len(points), LINE)
    members = [client for client in range(len(points)) if client not in waiting]
    state = make_pending(algorithm.init(problem), waiting, node=0)
    return algorithm, problem, next_round(algorithm, problem, state, points, members)[0]


def come(
    algorithm: AdaCFL, problem: Problem, state: AdaCFLState, updates: torch.Tensor, cohort: list[int]
) -> tuple[AdaCFLState, tuple[dict[str, Any], ...]]:
    report = Scripted([updates]).run(algorithm.plan(problem, state, torch.tensor(cohort)))
    placed, k = algorithm.assign(problem, state, report), len(state.models)
    state, diagnostics = with_tree_events(state, *algorithm.update(problem, state, report))
    assert torch.equal(placed, state.labels.clamp(max=k))  # founders belong to none that there was
    return state, tuple(dict(event) for event in diagnostics.events)


def test_the_cut_reproduces_golden_case_13() -> None:
    state, diagnostics = play(AdaCFL(cut=1.4), toy_problem(5, LINE), [POINTS], client_stats=alike(5))
    assert state.labels.tolist() == [0, 0, 1, 2, 3] and len(state.models) == 4
    assert diagnostics[0].matrices[0].values[0].tolist() == pytest.approx([0.0, 1.0, 2.0, 3.5, 5.2])
    values = {"clients": 5.0, "preclusters": 1.0, "groups": 4.0}
    assert decision_of(state) == Decision("clustering_in_preclusters", "smallest_linear", values)
    assert Metric("cut", 1.4, layer="smallest_linear of pre-cluster 0") in diagnostics[0].metrics


def test_clusters_never_cross_the_pre_clusters_of_golden_case_7() -> None:
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    told = facts([len(counts) for counts in COUNTS], [entropy(counts) for counts in COUNTS])
    algorithm, same = AdaCFL(cut=1.4), torch.zeros(8, 1)
    state, diagnostics = play(algorithm, toy_problem(8, LINE), [same], client_stats=told)
    assert [node.members for node in state.tree[1:]] == [tuple(group) for group in groups]
    assert [matrix.clients.tolist() for matrix in diagnostics[0].matrices] == groups
    free, _ = play(AdaCFL(cut=1.4, precluster=False), toy_problem(8, LINE), [same], client_stats=told)
    assert len(free.models) == 1


def test_pre_clusters_hold_clients_within_a_tenth_of_their_first() -> None:
    """Sorted: .795 and .869 <= 1.1 * .795; .951 opens a group, and 1 <= 1.1 * .951; 1.846 and 2 <= 1.1 * 1.846."""
    stats = torch.tensor([[float(len(counts)), entropy(counts)] for counts in COUNTS])
    assert entropy_groups(stats).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert entropy_groups(torch.tensor([[2, 0.0], [2, 1.0], [1, 1.0], [2, 1.05]])).tolist() == [0, 1, 2, 1]


def test_a_pre_cluster_is_cut_by_weights_too_and_clusters_are_numbered_by_smallest_member() -> None:
    told = facts([2, 3, 2, 3], [1.0] * 4)
    updates = torch.tensor([[0.0], [9.0], [5.0], [9.0]])
    state, _ = play(AdaCFL(cut=1.4), toy_problem(4, LINE), [updates], client_stats=told)
    assert state.labels.tolist() == [0, 1, 2, 1]


def test_the_smallest_linear_layer_is_compared() -> None:
    layout = layout_with({"conv.weight": 1, "wide.weight": 3, "small.weight": 2})
    updates = torch.zeros(4, 6)
    updates[:, :4] = 9 * torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]
    updates[:, 4] = torch.tensor([0.0, 9.0, 0.0, 9.0])
    state, _ = play(AdaCFL(cut=1.4, precluster=False), toy_problem(4, layout), [updates])
    assert state.labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(LayoutError, match="'nowhere' matches no layer"):
        AdaCFL(layers="nowhere").init(toy_problem(4))


@pytest.mark.parametrize("seed", range(5))
def test_the_automatic_cut_leaves_alike_clients_together_and_parts_clear_groups(seed: int) -> None:
    noise = torch.randn(12, 40, generator=torch.Generator().manual_seed(seed))
    wide = layout_with({"fc.weight": 40})
    state, diagnostics = play(AdaCFL(), toy_problem(12, wide), [noise], client_stats=alike(12))
    assert len(state.models) == 1 and "cut" not in {metric.name for metric in diagnostics[0].metrics}
    groups = torch.arange(12) % 3
    state, _ = play(AdaCFL(), toy_problem(12, wide), [noise + 20 * torch.eye(3, 40)[groups]], client_stats=alike(12))
    assert torch.equal(state.labels, groups)


def test_the_clients_are_clustered_once_and_the_new_clusters_average_at_once() -> None:
    sizes = torch.tensor([1, 3, 1, 1])
    state, diagnostics = play(
        AdaCFL(), toy_problem(4, LINE), [PAIRS, PAIRS.flip(0)], sizes=sizes, client_stats=alike(4)
    )
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert [[event["kind"] for event in note.events] for note in diagnostics] == [["split"], []]
    # (0 + 3 * 0.2) / 4, then (4.2 + 3 * 4) / 4 more
    assert state.models[:, 0].tolist() == pytest.approx([0.15 + 4.05, 4.1 + 0.1])
    assert snapshot_of(state).round == 1
    assert snapshot_of(state).centroids[:, 0].tolist() == pytest.approx([0.15, 4.1])  # as they were


def test_every_client_is_asked_once_and_only_before_the_clustering() -> None:
    algorithm, problem = AdaCFL(round=3), toy_problem(4, LINE)
    clients, state = Scripted([PAIRS], client_stats=alike(4)), algorithm.init(problem)
    told = []
    for cohort in ([0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]):
        report = clients.run(algorithm.plan(problem, state, torch.tensor(cohort)))
        told.append([rows.clients.tolist() for rows in report.client_stats.values()])
        state, _ = algorithm.update(problem, state, report)
    assert told == [[[0, 1, 2]] * 2, [[]] * 2, [[3]] * 2, []]
    assert state.client_stats.tolist() == [[10.0, pytest.approx(3.3)]] * 4 and snapshot_of(state).round == 3
    quiet = AdaCFL(precluster=False)
    assert quiet.plan(problem, quiet.init(problem), torch.arange(4)).client_stats == {}


def test_a_client_whose_data_changed_before_the_clustering_is_asked_again() -> None:
    algorithm, problem = AdaCFL(round=5), toy_problem(4, LINE)
    state, _ = play(algorithm, problem, [PAIRS], client_stats=alike(4))
    changed = make_pending(state, [2], node=0)
    plan = algorithm.plan(problem, changed, torch.arange(4))
    assert [plan.cohort[asked].tolist() for asked in plan.client_stats.values()] == [[2], [2]]
    report = Scripted([PAIRS], client_stats=facts([2] * 4, [1.0] * 4)).run(plan)
    assert algorithm.assign(problem, changed, report).tolist() == [0] * 4
    after, _ = algorithm.update(problem, changed, report)
    assert after.client_stats[:, 0].tolist() == [10.0, 10.0, 2.0, 10.0] and after.labels.tolist() == [0] * 4


def test_a_client_that_told_nothing_is_left_to_be_placed() -> None:
    algorithm, problem = AdaCFL(), toy_problem(4, LINE)
    state = algorithm.init(problem)
    report = Scripted([PAIRS], client_stats=alike(4)).run(algorithm.plan(problem, state, torch.arange(4)))
    silent = {name: rows.at(rows.clients != 3) for name, rows in report.client_stats.items()}
    state, diagnostics = algorithm.update(problem, state, replace(report, client_stats=silent))
    assert state.labels.tolist() == [0, 0, 1, -1] and state.waiting[3] == 0
    assert metrics_of(diagnostics)["left_out"] == 1.0


def test_the_clustering_waits_for_its_round_and_for_a_quorum() -> None:
    algorithm, problem = AdaCFL(round=2, quorum=0.75), toy_problem(4, LINE)
    absent = [[], [1, 3], [3]]
    state, diagnostics = play(algorithm, problem, [0 * PAIRS, PAIRS, PAIRS], client_stats=alike(4), absent=absent)
    assert [len(note.events) for note in diagnostics] == [0, 0, 1]
    assert state.labels.tolist() == [0, 0, 1, -1] and state.waiting.tolist() == [-1, -1, -1, 0]
    early, _ = play(algorithm, problem, [0 * PAIRS, PAIRS], client_stats=alike(4), absent=absent)
    expected = {"present": 2.0, "members": 4.0, "min_clients": 2.0, "quorum": 0.75, "first_round": 2.0}
    assert decision_of(early) == Decision("too_few_answers", None, expected)
    drawn, _ = play(AdaCFL(quorum=1.0), problem, [PAIRS], cohorts=[[0, 2, 3]], client_stats=alike(4))
    assert drawn.labels.tolist() == [0, -1, 1, 1]  # who was not drawn is not waited for


def test_a_newcomer_trains_the_initial_model_as_long_as_the_members_had_and_sends_one_layer() -> None:
    algorithm = AdaCFL(precluster=False, round=3)
    problem = replace(
        toy_problem(5), training=LocalTraining(epochs=2, lr=1.0), lr_factor=LearningRateSchedule(decay=0.5)
    )
    problem = replace(problem, fresh=lambda start: torch.full((6,), 7.0 + start))
    state, _ = play(algorithm, problem, [torch.randn(5, 6)] * 4)
    state = make_pending(state, [1, 4], node=0)
    plan = algorithm.plan(problem, state, torch.tensor([0, 1, 4]))
    staying, joining = plan.tasks["train"], plan.tasks["reference"]
    k = len(state.models)
    assert plan.models[k].tolist() == [7.0] * 6 and len(plan.models) == k + 1
    assert joining.candidates.tolist() == [[-1], [k], [k]]
    assert staying.candidates.tolist() == [[int(state.labels[0])], [-1], [-1]]
    assert joining.training == LocalTraining(epochs=6, lr=0.25) and joining.upload == (False, True)
    assert staying.training == LocalTraining(epochs=2, lr=0.0625) and staying.upload == (True, True)


def test_newcomers_are_compared_with_the_means_of_members_whatever_the_server_makes_of_them() -> None:
    """With a rate of a tenth, models lie a tenth of the way to the means, which are 0.1 and 4.1."""
    problem = replace(toy_problem(4, LINE), server=ServerOptimizer(lr=0.1))
    state, _ = play(AdaCFL(precluster=False), problem, [PAIRS], client_stats=alike(4))
    assert (snapshot_of(state).centroids - problem.fresh(0)).flatten().tolist() == pytest.approx([0.1, 4.1])


def test_newcomers_join_the_nearest_snapshot_and_move_nothing() -> None:
    points = torch.cat([PAIRS, torch.tensor([[1.0], [3.0]])])
    algorithm, problem, state = clustered(points, [4, 5])
    assert state.labels.tolist() == [0, 0, 1, 1, -1, -1]
    moved, events = come(algorithm, problem, state, points, [0, 4, 5])
    assert moved.labels.tolist() == [0, 0, 1, 1, 0, 1] and not bool((moved.waiting >= 0).any())
    assert torch.equal(moved.models, state.models + torch.tensor([[0.0], [0.0]]))  # client 0 moved by 0
    assert events == (
        {"kind": "place", "client": 4, "node": 1, "distance": pytest.approx(0.9)},
        {"kind": "place", "client": 5, "node": 2, "distance": pytest.approx(1.1)},
    )
    assert torch.equal(snapshot_of(moved).centroids, snapshot_of(state).centroids)
    plan = algorithm.plan(problem, moved, torch.tensor([4, 5]))
    assert len(plan.tasks) == 1 and plan.tasks["train"].candidates.tolist() == [[0], [1]]  # theta_g from now on


def test_members_that_were_absent_are_placed_like_newcomers_and_until_then_use_the_best_cluster() -> None:
    algorithm, problem = AdaCFL(), toy_problem(4, LINE)
    state, _ = play(algorithm, problem, [PAIRS] * 2, cohorts=[[0, 1, 2], [0, 1]], client_stats=alike(4))
    assert state.labels.tolist() == [0, 0, 1, -1]
    use = algorithm.evaluations(problem, state, torch.tensor([2, 3]))["client"]
    assert use.candidates.tolist() == [[1, -1], [0, 1]]
    state, _ = come(algorithm, problem, state, PAIRS, [0, 1, 2, 3])
    assert state.labels.tolist() == [0, 0, 1, 1]


def test_a_newcomer_beyond_epsilon_founds_a_cluster_that_later_ones_may_join() -> None:
    points = torch.cat([PAIRS, torch.tensor([[-6.0], [-5.5], [20.0]])])
    algorithm, problem, state = clustered(points, [4, 5, 6], epsilon=1.8)
    state, events = come(algorithm, problem, state, points, [0, 1, 2, 3, 4, 5])
    assert state.labels.tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert events[0] == {"kind": "found", "node": 3, "clients": [4, 5]}
    assert state.models[2].tolist() == [-6.0]  # the founder's; of client 5 only its place is used
    assert snapshot_of(state).centroids[:, 0].tolist() == pytest.approx([0.1, 4.1, -6.0])
    founded = state.tree[3]
    assert (founded.parent, founded.born, founded.members) == (0, 2, (4, 5))
    assert founded.decision and founded.decision.kind == "newcomer_beyond_epsilon"
    assert founded.decision.values == {"client": 4.0, "distance": pytest.approx(6.1), "epsilon": 1.8}
    state, _ = come(algorithm, problem, state, points, [6])
    assert state.labels.tolist() == [0, 0, 1, 1, 2, 2, 3] and state.nodes.tolist() == [1, 2, 3, 4]


def test_a_founder_beside_the_only_cluster_gives_both_a_node() -> None:
    points = torch.tensor([[0.0], [0.3], [5.0]])
    algorithm, problem, state = clustered(points, [2])
    assert len(state.models) == 1
    # Each member is 0.3 away from the other one, and 1.3 times that is a step.
    assert snapshot_of(state).single_epsilon == pytest.approx(1.3 * 0.3)
    state, events = come(algorithm, problem, state, points, [0, 1, 2])
    assert state.labels.tolist() == [0, 0, 1] and state.nodes.tolist() == [1, 2]
    assert [event["kind"] for event in events] == ["found", "place", "split"]
    assert decision_of(state).kind == "newcomer_beyond_epsilon"


def test_what_epsilon_is_by_itself() -> None:
    """The distance of the two clusters, or lambda where the cut leaves one."""
    points = torch.cat([PAIRS, torch.tensor([[20.0]])])
    for keys, epsilon in (({}, 4.0), ({"epsilon": 1.8}, 1.8), ({"cut": 1.4}, 4.0), ({"cut": 9.0}, 9.0)):
        state, _ = come(*clustered(points, [4], **keys), points, [4])
        founded = state.tree[-1].decision
        assert founded and founded.values["epsilon"] == pytest.approx(epsilon)


def test_the_automatic_epsilon_grows_with_the_clusters_that_newcomers_found() -> None:
    """The only cluster gives 1.3 times the distance of its members, 0.39. The first newcomer founds one, 5 away, whose
    distance is then the epsilon: the second newcomer is 4 from it, and joins."""
    points = torch.tensor([[0.0], [0.3], [5.15], [9.15]])
    algorithm, problem, state = clustered(points, [2, 3])
    state, _ = come(algorithm, problem, state, points, [0, 1, 2])
    assert state.labels.tolist() == [0, 0, 1, -1]
    state, _ = come(algorithm, problem, state, points, [0, 1, 2, 3])
    assert state.labels.tolist() == [0, 0, 1, 1]


def test_literally_newcomers_are_compared_with_the_clusters_as_they_are_now() -> None:
    points = torch.cat([PAIRS, torch.tensor([[1.0]])])
    for compare, label in (("snapshot", 0), ("current", 1)):
        algorithm, problem, state = clustered(points, [4], compare=compare)
        # Now they stand at 0.1 + 3.1 = 3.2 and at 4.1 - 4.1 = 0.
        crossing = torch.tensor([[3.1], [3.1], [-4.1], [-4.1], [1.0]])
        state, _ = come(algorithm, problem, state, crossing, [0, 1, 2, 3])
        assert state.models[:, 0].tolist() == pytest.approx([3.2, 0.0], abs=1e-6)
        state, events = come(algorithm, problem, state, crossing, [4])
        assert int(state.labels[4]) == label
        assert events[0]["distance"] == pytest.approx(0.9 if label == 0 else 1.0)
        far, _ = come(algorithm, problem, make_pending(state, [4], node=0), torch.full((5, 1), 8.0), [4])
        assert len(far.models) == (2 if compare == "snapshot" else 3)  # 3.9 is within 4.0, 4.8 beyond 3.2


def test_literally_a_given_epsilon_stays_what_it_is() -> None:
    points = torch.cat([PAIRS, torch.tensor([[2.0]])])
    algorithm, problem, state = clustered(points, [4], compare="current", epsilon=1.8)
    state, _ = come(algorithm, problem, state, points, [4])
    assert len(state.models) == 3


def test_a_cluster_that_everyone_left_is_kept_as_it_is() -> None:
    algorithm, problem, state = clustered(PAIRS, [])
    state = make_pending(state, [2, 3])
    after, _ = come(algorithm, problem, state, PAIRS + 1, [0, 1])
    assert torch.equal(after.models[1], state.models[1]) and after.labels.tolist() == [0, 0, -1, -1]
    back, _ = come(algorithm, problem, after, PAIRS, [2, 3])
    assert back.labels.tolist() == [0, 0, 1, 1]


def test_newcomers_of_a_real_federation_find_their_cluster_and_an_unseen_rotation_founds_its_own(
    tmp_path: Path,
) -> None:
    """Three groups of five digit writers; one more of each, and one of a fourth rotation, join in round 3."""
    tables = {
        "rounds": 4,
        "data": {"name": "digits", "clients": 16, "samples": 60, "test": 0.2},
        "partition": {"scheme": "rotation", "sizes": [5, 5, 5, 1]},
        "local": {"lr": 0.1, "batch": 10, "epochs": 2},
        # The network has only two layers, and the first one sees the rotation.
        "algorithm": {"name": "adacfl", "layers": "first_linear", "epsilon": 0.6, "precluster": False},
        "events": {"join": [{"round": 3, "clients": [4, 9, 14, 15]}]},
    }
    run = fs.run(tables, tmp_path / "run", quiet=True)
    assert [record["ari"] for record in run.rounds] == [1.0] * 4
    assert run.rounds[-1]["labels"] == [1] * 5 + [2] * 5 + [3] * 5 + [4]
    kinds = [[event["kind"] for event in record["events"]] for record in run.rounds]
    assert kinds == [["split"], [], ["join", "found", "place", "place", "place", "place"], []]
    assert run.tree[4].born == 3 and run.tree[4].members == (15,)
