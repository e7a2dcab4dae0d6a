import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import metrics_of, train
from experiments.papers.fedtsdp_variants import FirstStage, HalfLayers, SecondStage
from torch import nn

from builders import answer, layout_with
from fedstrata.algorithms.fedtsdp import (
    FedTSDP,
    FedTSDPState,
    Gain,
    amended_weights,
    continued_clusters,
    layer_tensors,
)
from fedstrata.build.build import build_run
from fedstrata.build.participation import Participation
from fedstrata.build.run_setup import RunSetup
from fedstrata.clustering import hopkins
from fedstrata.config import load_experiment
from fedstrata.core import (
    Layout,
    Problem,
    Report,
    weighted_mean,
)
from fedstrata.engine import Loop
from fedstrata.models import layout_of, make
from fedstrata.play.recorder import traffic
from fedstrata.testing import play, toy_problem
from recorded import decision_of

FOUR = layout_with(
    {f"{layer}.{tensor}": 1 for layer in ("conv1", "conv2", "fc1", "fc2") for tensor in ("weight", "bias")}
)
"""Four layers of a weight and a bias, as the paper's network."""

GOLDEN = torch.tensor([[[1, 0], [0.5, 0.5]], [[0, 1], [0.5, 0.5]], [[0.8, 0.2], [0.4, 0.6]]], dtype=torch.float64)
"""Predictions of three clients for two samples (semantics.md, golden case 9)."""

FAR = 1e6
"""A second radius within which all models lie, so that predictions alone decide."""

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def sides(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Models whose first number is positive predict class 0, the others class 1, surer the larger it is."""
    scores = torch.stack([models[:, 0], -models[:, 0]], dim=1)
    return scores.softmax(dim=1)[:, None].expand(-1, len(inputs), -1)


def problem_of(clients: int, layout: Layout | None = None, predict: Predict = sides, samples: int = 10) -> Problem:
    return replace(toy_problem(clients, layout), public=torch.zeros(samples, 1), predict=predict)


def ones(scales: list[float], p: int = 6) -> torch.Tensor:
    return torch.tensor(scales)[:, None] * torch.ones(1, p)


def setting_of(name: str = "fedtsdp", server: dict[str, Any] | None = None, groups: int = 1, **keys: Any) -> RunSetup:
    """Eight clients with digits, turned in so many ways, and a server with samples."""
    tables = {
        "data": {"name": "digits", "clients": 8, "samples": 60, "test": 0.2, "public": 40},
        "partition": {"scheme": "rotation", "groups": groups},
        "local": {"lr": 0.1, "batch": 20, "epochs": 1},
        "server": server or {},
        "algorithm": {"name": name, **keys},
    }
    return build_run(load_experiment(tables))


def test_the_first_stage_reproduces_golden_case_9() -> None:
    problem = problem_of(3, predict=lambda models, inputs: GOLDEN, samples=2)
    state, diagnostics = play(FedTSDP(threshold=0.0, radius2=FAR, batch=2), problem, [ones([1.0, 2.0, 3.0])])
    assert state.labels.tolist() == [0, 1, 0]
    matrix = diagnostics[0].matrices[0]
    assert (matrix.measure, matrix.layer, matrix.clients.tolist()) == ("js", "predictions", [0, 1, 2])
    found = [float(matrix.values[pair]) for pair in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx([0.346574, 0.039971, 0.213935], abs=1e-6)


def test_shared_layers_decay_as_in_golden_case_11() -> None:
    updates = [ones([3.0, 3.1, -3.0, -3.1], 8)] * 69
    state, diagnostics = play(FedTSDP(threshold=0.0), problem_of(4, FOUR), updates)
    shared = [metrics_of(note)["shared_layers"] for note in diagnostics]
    golden = {1: 3.92, 2: 3.8416, 3: 3.764768, 4: 3.689473, 7: 3.472502, 10: 3.268291}
    assert {after: round(shared[after - 1], 6) for after in golden} == golden
    tensors = [sum(not own for own in HalfLayers().personal(FOUR, count)) for count in shared]
    assert tensors[:14] == [7] * 6 + [6] * 8
    assert (tensors[14], tensors[34], tensors[68]) == (5, 3, 2)
    assert metrics_of(diagnostics[-1])["triggers"] == 69 and state.shared_layers == 1.0


def test_whole_layers_only_leave_three_of_four_after_the_first_clustering() -> None:
    algorithm, problem = FedTSDP(), problem_of(3, FOUR)
    assert sum(HalfLayers().personal(FOUR, 3.92)) == 1 and sum(algorithm.personal(FOUR, 3.92)) == 2
    task = algorithm.plan(problem, algorithm.init(problem), torch.arange(3)).tasks["train"]
    assert sum(task.load_local) == 0 and task.save_local == algorithm.personal(FOUR, 1.0)


@pytest.mark.parametrize(
    ("gain", "inside", "outside"),
    [("literal", 0.463636, 0.009091), ("inverse", 0.214286, 0.071429)],
)
def test_sampling_weights_are_amended_as_in_golden_case_11(gain: Gain, inside: float, outside: float) -> None:
    weights = amended_weights(torch.full((10,), 0.1).double(), torch.tensor([3, 7]), gain)
    assert weights[[3, 7]].tolist() == pytest.approx([inside] * 2, abs=1e-6)
    assert weights[[0, 1, 2, 4, 5, 6, 8, 9]].tolist() == pytest.approx([outside] * 8, abs=1e-6)


@pytest.mark.parametrize(("gain", "mass"), [("literal", 0.999901), ("inverse", 0.204)])
def test_one_batch_of_50_in_10000_gains_the_mass_of_golden_case_11(gain: Gain, mass: float) -> None:
    start = torch.full((10_000,), 1e-4, dtype=torch.float64)
    assert float(amended_weights(start, torch.arange(50), gain)[:50].sum()) == pytest.approx(mass, abs=1e-3)


@pytest.mark.parametrize(("share", "members"), [(0.25, 8), (0.1, 3), (1.0, 30), (1e-9, 1)])
def test_the_tendency_may_be_taken_from_any_share_of_the_clients(share: float, members: int) -> None:
    """0.1 * 30 is 3.0000000000000004: rounded up, it would be four of 30 clients."""
    problem = problem_of(30)
    updates = torch.randn(30, 6, generator=torch.Generator().manual_seed(5))
    _, diagnostics = play(FedTSDP(sample=share), problem, [updates])
    predictions = sides(updates, torch.empty(10, 1))
    value = hopkins(predictions, problem.generator("hopkins", 1), sample=members)
    assert metrics_of(diagnostics[0])["hopkins"] == pytest.approx(value, abs=1e-6)


def test_a_verdict_says_why_clients_were_or_were_not_clustered() -> None:
    updates = [ones([3.0, 3.1, -3.0, -3.1])]
    for threshold, kind in ((1.0, "hopkins_not_above_threshold"), (0.0, "hopkins_above_threshold")):
        state, diagnostics = play(FedTSDP(threshold=threshold), problem_of(4), updates)
        hopkins = metrics_of(diagnostics[0])["hopkins"]
        assert decision_of(state).kind == kind
        assert {"threshold": threshold, "hopkins": hopkins}.items() <= decision_of(state).values.items()
        assert len(diagnostics[0].matrices) == 2 * (threshold == 0.0)
        assert ("groups_first" in metrics_of(diagnostics[0])) == (threshold == 0.0)


def test_fewer_than_three_clients_are_never_clustered() -> None:
    state, diagnostics = play(FedTSDP(threshold=0.0), problem_of(4), [ones([3.0, 3.1, -3.0, -3.1])], cohorts=[[0, 3]])
    assert len(state.models) == 1 and metrics_of(diagnostics[0])["hopkins"] == 0.5


def test_a_model_that_overflows_predicts_every_class_alike() -> None:
    def predict(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return sides(models, inputs).index_fill(0, torch.tensor([2]), math.nan)

    state, diagnostics = play(
        FedTSDP(threshold=0.0, radius2=FAR), problem_of(3, predict=predict), [ones([3.0, 3.1, 3.0])]
    )
    assert state.labels.tolist() == [0, 0, 1] and 0 < metrics_of(diagnostics[0])["hopkins"] <= 1


def test_the_second_stage_separates_by_weights_what_predicts_alike() -> None:
    rows = ones([3.0] * 6)
    rows[:, 5] = torch.tensor([0.0, 0.1, 0.2, 9.0, 9.1, 9.2])
    rows[5, :1] = -3.0  # predicts otherwise
    stages = {"both": FedTSDP, "first": FirstStage, "second": SecondStage}
    found = {
        name: play(kind(threshold=0.0, radius2=1.0), problem_of(6), [rows])[0].labels.tolist()
        for name, kind in stages.items()
    }
    assert found == {"both": [0, 0, 0, 1, 1, 2], "first": [0, 0, 0, 0, 0, 1], "second": [0, 0, 0, 1, 1, 2]}
    rows[5, 5] = 0.0  # now only its prediction differs, by 6 in the first number
    assert play(SecondStage(threshold=0.0, radius2=7.0), problem_of(6), [rows])[0].labels[5] == 0
    assert play(FedTSDP(threshold=0.0, radius2=7.0), problem_of(6), [rows])[0].labels[5] == 2


def test_the_automatic_radius_is_twice_the_median_distance_to_the_nearest() -> None:
    positions = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [13.5]])
    stage = SecondStage()
    found = stage.decouple(torch.arange(6), torch.empty(6, 0), positions)
    assert found.groups.tolist() == [0, 0, 0, 1, 1, 2]  # nearest: 1 1 1 1 1 2.5, so the radius is 2
    assert [(matrix.measure, matrix.layer) for matrix in found.matrices] == [("l2", "all")]
    assert found.radii == {"radius2 around client 0": 2.0} and found.metrics == {"radius2": 2.0}
    alone = stage.decouple(torch.arange(1), torch.empty(1, 0), positions[:1])
    assert alone.groups.tolist() == [0] and alone.radii == {} and alone.metrics == {"radius2": 0.0}


def test_both_stages_are_recorded_the_second_inside_the_groups_of_the_first() -> None:
    """Clients 3 to 8 predict one class, 9 to 11 the other; 5 and 8 lie apart from the rest in weights."""
    predictions = torch.tensor([[[1.0, 0.0]]] * 6 + [[[0.0, 1.0]]] * 3, dtype=torch.float64)
    positions = torch.tensor([[0.0], [1.0], [9.0], [2.0], [3.0], [30.0], [0.0], [4.0], [8.0]])
    stage = FedTSDP()
    found = stage.decouple(torch.arange(3, 12), predictions, positions)
    assert found.groups.tolist() == [0, 0, 1, 0, 0, 2, 3, 3, 3]
    assert found.radii == {"radius1": 0.15, "radius2 around client 3": 2.0, "radius2 around client 9": 8.0}
    assert found.metrics == {"groups_first": 2.0, "radius2": 8.0}
    first, second = found.matrices
    assert (first.layer, first.measure, second.layer, second.measure) == ("predictions", "js", "all", "l2")
    assert second.values[0].tolist()[:6] == [0, 1, 9, 2, 3, 30] and second.values[7, 6:].tolist() == [4, 0, 4]
    assert bool(second.values[:6, 6:].isnan().all()) and bool(second.values[6:, :6].isnan().all())


def test_what_both_stages_found_stands_in_the_tree_and_among_the_figures() -> None:
    state, diagnostics = play(FedTSDP(threshold=0.0, radius2=5.0), problem_of(4), [ones([3.0, 3.1, -3.0, -3.1])])
    values = {"groups": 2.0, "groups_first": 2.0, "radius1": 0.15, "radius2 around client 0": 5.0}
    assert decision_of(state).layer == "predictions, all" and values.items() <= decision_of(state).values.items()
    assert (metrics_of(diagnostics[0])["groups_first"], metrics_of(diagnostics[0])["radius2"]) == (2.0, 5.0)


def test_a_new_cluster_is_the_weighted_mean_of_what_its_members_uploaded() -> None:
    """Line 30: not the mean of their updates, for they started from different models."""
    first, second = ones([3.0, 5.0, -3.0, -5.0]), ones([1.0, -9.0, 1.0, -1.0])
    problem, sizes = problem_of(4), torch.tensor([1, 3, 2, 2])
    algorithm = FedTSDP(threshold=0.0, radius2=FAR, radius1=0.2, shrink=1.0)
    state, _ = play(algorithm, problem, [first], sizes=sizes)
    assert state.labels.tolist() == [0, 0, 1, 1] and state.models[:, 0].tolist() == [4.5, -4.0]
    state, diagnostics = play(algorithm, problem, [first, second], sizes=sizes)
    assert state.labels.tolist() == [0, 1, 1, 1]  # uploads 5.5, -4.5, -3, -5
    assert state.models[:, 0].tolist() == pytest.approx([5.5, (3 * -4.5 + 2 * -3 + 2 * -5) / 7])
    assert [event["kind"] for event in diagnostics[1].events] == [] and state.nodes.tolist() == [1, 2]
    assert [node.members for node in state.tree] == [(0, 1, 2, 3), (0,), (1, 2, 3)]


def test_personal_tensors_of_a_cluster_are_the_mean_of_what_its_members_hold() -> None:
    problem = problem_of(4, FOUR)
    rows = ones([3.0, 3.1, 3.2, 3.3], 8)
    rows[:, 7] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    state, _ = play(FedTSDP(threshold=0.0, radius2=FAR), problem, [rows, rows])
    assert state.models[0, 7] == 3.0 and state.models[0, 0] == pytest.approx(6.3)  # sent as values, and as updates


def test_those_who_were_away_keep_their_cluster_wait_where_it_split_or_stay_by_themselves() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, -1])
    result = answer([0, 1, 3, 4, 6], torch.zeros(5, 6), [0, 0, 1, 1, 2])
    new, parents = continued_clusters(labels, result, torch.tensor([0, 0, 1, 2, 0]))
    assert parents.tolist() == [0, 1, 1, 2]
    assert new.tolist() == [0, 0, 0, 1, 2, -1, 0, 3, -1]


def test_a_cluster_that_nobody_is_left_in_is_no_parent_and_ties_go_to_the_lowest() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    result = answer([0, 1, 2, 3], torch.zeros(4, 6), [0, 0, 1, 1])
    new, parents = continued_clusters(labels, result, torch.tensor([0, 1, 0, 1]))
    assert new.tolist() == [0, 1, 0, 1] and parents.tolist() == [0, 0]


def test_absent_members_of_a_split_cluster_are_placed_when_they_return() -> None:
    updates = [ones([3.0, 3.1, -3.0, -3.1, 3.0])] * 3
    cohorts = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    algorithm, problem = FedTSDP(threshold=0.0, radius2=FAR), problem_of(5)
    state, _ = play(algorithm, problem, updates[:2], cohorts=cohorts[:2])
    assert state.labels.tolist() == [0, 0, 1, 1, -1] and state.waiting[4] == 0
    state, _ = play(algorithm, problem, updates, cohorts=cohorts)
    assert state.labels.tolist() == [0, 0, 1, 1, 0]


def test_a_newcomer_belongs_to_the_cluster_whose_model_it_chose() -> None:
    algorithm, problem = FedTSDP(threshold=0.0, radius2=FAR), problem_of(5)
    state, _ = play(algorithm, problem, [ones([3.0, 3.1, -3.0, -3.1, 3.0])], cohorts=[[0, 1, 2, 3]])
    assert algorithm.assign(problem, state, Report({"train": answer([4], torch.zeros(1, 6), [1])})).tolist() == [
        0,
        0,
        1,
        1,
        1,
    ]


def test_without_a_clustering_it_equals_fedavg_bit_for_bit_on_iid_data() -> None:
    ours, diagnostics, _ = train(setting_of(), 5)
    plain, _, _ = train(setting_of("fedavg"), 5)
    assert [metrics_of(note)["triggers"] for note in diagnostics] == [0.0] * 5
    assert max(metrics_of(note)["hopkins"] for note in diagnostics) < 0.65
    assert torch.equal(ours.models, plain.models) and torch.equal(ours.labels, plain.labels)


def test_a_statistic_that_misleads_changes_the_layers_that_are_shared() -> None:
    """Above a threshold of 0 in every round, though clients are alike: both stages find one group."""
    ours, diagnostics, _ = train(setting_of(threshold=0.0), 4)
    assert [metrics_of(note)["groups_first"] for note in diagnostics] == [1.0] * 4 and len(ours.models) == 1
    assert metrics_of(diagnostics[-1])["triggers"] == 4.0
    assert isinstance(ours, FedTSDPState) and ours.shared_layers == pytest.approx(2 * 0.98**4)


def test_one_group_after_several_clusters_is_a_change_that_counts() -> None:
    updates = [ones([3.0, 3.1, -3.0, -3.1]), ones([3.0, 3.1, 9.0, 9.1])]
    state, diagnostics = play(FedTSDP(threshold=0.0, radius2=FAR), problem_of(4), updates)
    assert len(state.models) == 1 and [metrics_of(note)["triggers"] for note in diagnostics] == [1.0, 2.0]
    assert decision_of(state, -1).layer == "predictions, all" and decision_of(state, -1).values["groups"] == 1.0


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_server_sees_the_personal_tensors_that_the_clients_hold(fraction: float) -> None:
    setup = setting_of(groups=2, threshold=0.0, shrink=0.75)
    engine, layout, seen = setup.clients, setup.server.problem.layout, list[torch.Tensor]()
    assert isinstance(engine, Loop)

    def predict(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        seen.append(models)
        return engine.outputs(models, inputs).softmax(dim=2)

    problem, algorithm = replace(setup.server.problem, predict=predict), setup.server.algorithm
    state = algorithm.init(problem)
    for round in range(1, 5):
        cohort, _ = Participation(len(setup.everyone), seed=0, fraction=fraction).sample(round)
        plan = algorithm.plan(problem, state, cohort)
        state, _ = algorithm.update(problem, state, engine.run(plan))
        for row, client in enumerate(cohort.tolist()):
            held = engine.store.read(client, before=round + 1)
            assert set(held) >= {tensor for tensor, personal in enumerate(plan.tasks["train"].load_local) if personal}
            for tensor, values in held.items():
                assert torch.allclose(seen[-1][row, layout.spans[tensor]], values, atol=1e-6)
    use = algorithm.evaluations(problem, state, setup.everyone)["client"]
    assert any(plan.tasks["train"].load_local) and any(use.load_local)


def test_a_tensor_that_becomes_personal_keeps_the_clients_own_last_values() -> None:
    setup = setting_of(groups=2, threshold=0.0, shrink=0.75)
    problem, algorithm, layout = setup.server.problem, setup.server.algorithm, setup.server.problem.layout
    state = algorithm.init(problem)
    plan = algorithm.plan(problem, state, setup.everyone)
    report, first = setup.clients.run(plan), plan.tasks["train"]
    trained = problem.fresh(0) + report.results["train"].updates.values
    state, _ = algorithm.update(problem, state, report)
    plan = algorithm.plan(problem, state, setup.everyone)
    later = plan.tasks["train"]
    assert not any(first.load_local) and later.load_local == first.save_local != layout.nothing
    still = replace(later, trainable=layout.nothing, upload_values=layout.everything)
    kept = setup.clients.run(replace(plan, tasks={"train": still})).results["train"].updates.values
    own = layout.columns(later.load_local)
    assert torch.allclose(kept[:, own], trained[:, own], atol=1e-6)
    shared = layout.columns(tuple(not keep for keep in later.load_local))
    assert torch.equal(kept[:, shared], state.models[state.labels][:, shared])


def test_a_client_that_is_absent_while_layers_become_personal_has_its_own_last_values_of_them() -> None:
    """It takes part in round 1. Two layers have become personal when it comes back."""
    algorithm = FedTSDP()
    problem = problem_of(3, FOUR)
    first = algorithm.init(problem)
    saved = algorithm.plan(problem, first, torch.arange(3)).tasks["train"].save_local
    later = replace(first, shared_layers=2.0, round=2)
    loaded = algorithm.plan(problem, later, torch.arange(3)).tasks["train"].load_local
    assert sum(loaded) == 4 and all(own for own, needed in zip(saved, loaded, strict=True) if needed)


@pytest.mark.parametrize("server", [{"optimizer": "momentum"}, {"optimizer": "adam", "lr": 0.1}, {"lr": 0.5}])
def test_the_optimiser_of_the_server_moves_shared_tensors_alone(server: dict[str, Any]) -> None:
    """The personal tensors of a cluster are the mean of those that its clients hold (line 30)."""
    # All stay in one cluster.
    setup = setting_of(server=server, threshold=0.0, shrink=0.75, radius2=FAR, radius1=1.0)
    problem, algorithm, layout = setup.server.problem, setup.server.algorithm, setup.server.problem.layout
    state = algorithm.init(problem)
    for _ in range(4):
        plan = algorithm.plan(problem, state, setup.everyone)
        report = setup.clients.run(plan)
        before = state
        state, _ = algorithm.update(problem, state, report)
    result, personal = report.results["train"], plan.tasks["train"].load_local
    mean = weighted_mean(result.updates, result.sizes, torch.zeros(8, dtype=torch.int64), 1)
    own = layout.columns(personal)
    assert len(state.models) == 1 and len(own)
    assert torch.allclose(state.models[:, own], mean[:, own], atol=1e-6)
    shared = layout.columns(tuple(not each for each in personal))
    assert not torch.allclose(state.models[:, shared], before.models[:, shared] + mean[:, shared], atol=1e-6)


def test_only_shared_tensors_travel_down_and_full_models_up() -> None:
    problem, algorithm = problem_of(4, FOUR), HalfLayers()
    state = replace(algorithm.init(problem), shared_layers=2.5)
    report = Report({"train": answer(range(4), torch.zeros(4, 8))})
    sent = traffic(FOUR, algorithm.plan(problem, state, torch.arange(4)), report)
    assert (sent.down, sent.up) == (4 * 4 * 5, 4 * 4 * 8)


def test_before_samples_are_read_a_first_plan_can_be_made() -> None:
    problem = replace(toy_problem(3), public=torch.empty(0))
    state = FedTSDP().init(problem)
    assert len(state.sampling_weights) == 0 and state.shared_layers == 2.0
    assert FedTSDP().plan(problem, state, torch.arange(3)).tasks["train"].load_local == problem.layout.nothing


def test_a_residual_block_is_one_layer_and_has_no_half() -> None:
    """semantics.md, A25: stem, eight blocks and linear layer are ten layers; only the last has half layers."""
    layout = layout_of(make("resnet18", (3, 8, 8), 10, 0, width=0.05))
    assert len(layer_tensors(layout)) == 10
    names = {
        shared: [layout.tensors[t].name for t, own in enumerate(HalfLayers().personal(layout, shared)) if own]
        for shared in (9.8, 9.0, 8.7)
    }
    assert names[9.8] == ["linear.bias"] and names[9.0] == ["linear.weight", "linear.bias"]
    assert {name.split(".")[0] for name in names[8.7]} == {"block8", "linear"}
    assert {"block8.norm2.running_var", "block8.norm1.weight"} < set(names[8.7])
    assert HalfLayers().personal(layout, 10.0) == layout.nothing


def test_the_modules_of_a_numbered_sequence_are_layers() -> None:
    features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
    layout = layout_of(nn.ModuleDict({"features": features, "head": nn.Linear(2, 2)}))
    assert [layout.tensors[first].layer for first, *_ in layer_tensors(layout)] == ["features.0", "features.1", "head"]


def test_groups_are_numbered_by_their_smallest_members() -> None:
    """The first stage finds {0, 3} and {1, 2}; weights tell 0 from 3."""
    predictions = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]], [[0.1, 0.9]], [[0.9, 0.1]]], dtype=torch.float64)
    models = torch.tensor([[0.0, 0], [5, 0], [5.1, 0], [100, 0]])
    assert FedTSDP(radius2=1.0).decouple(torch.arange(4), predictions, models).groups.tolist() == [0, 1, 1, 2]
