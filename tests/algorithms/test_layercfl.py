import pickle
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import train
from scripted import next_round

import turns
from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.algorithms.layercfl import AutoLayerCFL, AutoLayerCFLState, LayerCFL, LayerCFLState
from fedstrata.base.errors import LayoutError
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.clustering import ari
from fedstrata.config import load_experiment
from fedstrata.config.hyperparameters import algorithm_table
from fedstrata.core import Algorithm, Diagnostics, make_pending, reassign
from fedstrata.records.checkpoint import Checkpoint, find_checkpoint, save
from fedstrata.testing import play, toy_problem
from fedstrata.uploads.disclosure import disclosure_of
from recorded import decision_of
from turns import same

CONV = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [-1.0, 0.0, 0.0], [-1.0, 0.1, 0.0]])
FC = torch.tensor([[0.0, 2.0, 0.0], [0.0, -2.0, 0.0], [0.0, 2.0, 0.1], [0.0, -2.0, 0.1]])
BOTH = torch.cat([CONV, FC], dim=1)
"""The convolution falls apart into {0, 1} and {2, 3}, the linear layer into {0, 2} and {1, 3}."""


def few(**keys: Any) -> LayerCFL:
    """LayerCFL that may split a few clients, with the gamma of the golden cases."""
    return LayerCFL(**{"min_split": 2, "gamma": 0.5, **keys})


def federation(algorithm: Algorithm[Any], groups: int = 3) -> RunSetup:
    """Twelve clients with digits, turned in so many ways."""
    tables = {
        "data": {"name": "digits", "clients": 12, "samples": 70},
        "partition": {"scheme": "rotation", "groups": groups},
        "local": {"lr": 0.2, "batch": 10},
    }
    setup = build_run(load_experiment(tables))
    return replace(setup, server=replace(setup.server, algorithm=algorithm))


def scouts(notes: list[Diagnostics]) -> list[tuple[int, Mapping[str, Any]]]:
    """The rounds in which layers were scouted, and what was found."""
    return [(round, event) for round, note in enumerate(notes, 1) for event in note.events if event["kind"] == "scout"]


@pytest.mark.parametrize(("layers", "truth"), [("conv", [0, 0, 1, 1]), ("first_linear", [0, 1, 0, 1])])
def test_the_layers_that_are_compared_decide_who_belongs_together(layers: str, truth: list[int]) -> None:
    state, _ = play(few(layers=layers, eps1=1.0, eps2=0.5), toy_problem(4), [BOTH])
    assert ari(state.labels, torch.tensor(truth)) == 1.0
    assert decision_of(state).layer == layers


def test_several_selectors_make_one_slice() -> None:
    state, _ = play(few(layers=["conv", "fc"], eps1=1.0, eps2=0.5), toy_problem(4), [BOTH])
    assert ari(state.labels, torch.tensor([0, 1, 0, 1])) == 1.0  # the linear layer is twice as long
    assert decision_of(state).layer == "conv, fc"


def test_a_slice_that_nobody_moves_has_not_converged() -> None:
    """The convolution is frozen, and the linear layer falls apart."""
    updates = torch.cat([torch.zeros(4, 3), FC], dim=1)
    state, _ = play(few(layers="conv", eps1=3.0, eps2=0.5), toy_problem(4), [updates])
    assert decision_of(state).kind == "layers_not_trained" and decision_of(state).layer == "conv"
    still, _ = play(few(layers="conv", eps1=3.0, eps2=0.5), toy_problem(4), [0 * updates])
    assert decision_of(still).kind == "members_converged"


def test_a_scan_goes_on_when_too_few_clients_move_every_layer() -> None:
    """The convolution of two of five clients is dead."""
    draw = torch.Generator().manual_seed(0)
    updates = [torch.randn(5, 6, generator=draw) for _ in range(4)]
    for each in updates:
        each[:2, :3] = 0.0
    state, _ = play(LayerCFL(layers="auto"), toy_problem(5), updates, sizes=torch.full((5,), 200))
    assert state.labels.tolist() == [0] * 5


@pytest.mark.parametrize("first", [0.1 * BOTH, torch.ones(4, 6) + 0.1 * BOTH])
def test_a_cluster_that_algorithm_2_returns_is_final_and_cfl_examines_it_again(first: torch.Tensor) -> None:
    """Its members have converged, or Theorem 1 refuses the split."""
    for algorithm, clusters in ((few(eps1=5.0, eps2=0.5), 1), (CFL(eps1=5.0, eps2=0.5, gamma=0.5, min_split=2), 2)):
        state, _ = play(algorithm, toy_problem(4), [first, BOTH])
        assert len(state.models) == clusters


def test_a_final_cluster_keeps_its_decision_when_few_members_answer_later() -> None:
    algorithm = few(layers="conv", eps1=1.0, eps2=0.5)
    state, _ = play(algorithm, toy_problem(4), [0.1 * BOTH] * 3, absent=[[], [0, 1, 2], []])
    assert bool(state.cluster_history.final[0]) and decision_of(state).kind == "members_converged"


@pytest.mark.parametrize("measure", ["dcos", "dl2", "dl1", "cos", "l2", "l1"])
def test_every_measure_proposes_the_clear_groups(measure: str) -> None:
    algorithm = few(layers="conv", eps1=1.0, eps2=0.5, measure=measure)
    state, diagnostics = play(algorithm, toy_problem(4), [BOTH])
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert diagnostics[0].matrices[0].measure == measure


def test_cosines_of_weights_and_of_updates_are_different_things() -> None:
    """Golden case 1: from theta = (1, 0, 0) the updates of clients 0 and 3 have cosine .48, the weights .5547."""
    problem = toy_problem(4)
    start = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    conv = torch.tensor([[3.0, 4, 0], [4, 3, 0], [0, 0, 5], [0, 3, 4]])
    updates = torch.cat([conv, torch.zeros(4, 3)], dim=1)
    problem = replace(problem, fresh=lambda i: start)
    for measure, value in (("dcos", 0.48), ("cos", 0.554700), ("dl2", 5.099020), ("l2", 5.099020)):
        algorithm = few(layers="conv", eps1=10.0, eps2=0.5, measure=measure)
        _, diagnostics = play(algorithm, problem, [updates])
        assert float(diagnostics[0].matrices[0].values[0, 3]) == pytest.approx(value, abs=1e-6)


def test_a_layer_that_does_not_exist_is_found_before_the_first_round() -> None:
    with pytest.raises(LayoutError, match="convv"):
        play(LayerCFL(layers="convv"), toy_problem(4), [BOTH])


def test_a_layer_that_the_server_has_scouted_is_compared_as_if_it_had_been_given() -> None:
    keys: dict[str, Any] = {"eps1": 10.0, "eps2": "auto", "gamma": 0.4}
    scouted, notes, _ = train(federation(LayerCFL(layers="auto", **keys)), 5)
    ((round, choice),) = scouts(notes)
    assert (round, choice["layer"], choice["why"]) == (3, "linear1", "layer_chosen")
    assert choice["values"]["agreement"] > 0.5
    assert isinstance(scouted, AutoLayerCFLState) and scouted.layer == "linear1" and scouted.evidence is None
    given, _, _ = train(federation(LayerCFL(layers="linear1", first=3, **keys)), 5)
    assert isinstance(given, LayerCFLState) and len(given.models) > 1
    assert all(same(getattr(scouted, field.name), getattr(given, field.name)) for field in fields(given))


def test_with_auto_layercfl_is_another_class_with_the_same_name_and_keys() -> None:
    algorithm = LayerCFL(layers="auto", eps1=1.0)
    assert isinstance(algorithm, AutoLayerCFL)
    assert algorithm_table(algorithm) == {**algorithm_table(LayerCFL(eps1=1.0)), "layers": "auto"}
    assert algorithm_table(algorithm)["name"] == "layercfl" and pickle.loads(pickle.dumps(algorithm)) == algorithm
    noise = disclosure_of(algorithm, 3)
    assert noise is not None and noise.no_local_noise.startswith("with algorithm.layers = 'auto'")


def test_where_no_layer_separates_the_clients_layercfl_with_auto_is_fedavg() -> None:
    scouted, notes, _ = train(federation(LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.0), groups=1), 6)
    assert [(round, event["layer"]) for round, event in scouts(notes)] == [(3, None), (6, None)]
    plain, _, _ = train(federation(FedAvg(), groups=1), 6)
    assert torch.equal(scouted.models, plain.models)
    assert isinstance(scouted, AutoLayerCFLState)
    assert scouted.layer == "" and scouted.evidence is not None and scouted.evidence.by_layer is None
    assert bool((scouted.evidence.max_norms > 0).all()) and decision_of(scouted).kind == "no_layer_found"


def test_folds_are_trained_while_the_layer_is_scouted() -> None:
    setup = federation(LayerCFL(layers="auto", eps1=10.0))
    plans = [turn.plan for turn in turns.play(setup, 4)]
    # In the first round nobody knows yet how many samples folds may have.
    assert ["".join(task.fold for task in list(plan.tasks.values())[1:]) for plan in plans] == ["", "AB", "AB", ""]
    fold = list(plans[1].tasks.values())[-1]
    assert fold.upload == setup.server.problem.layout.everything
    assert fold.max_samples is not None and fold.max_samples.tolist() == [35] * 12


def test_a_run_that_stopped_while_scouting_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    setup = federation(LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.4))
    half, *_, last = (turn.after for turn in turns.play(setup, 4)[1:])
    save(tmp_path, Checkpoint(half, {}, {}))
    found = find_checkpoint(tmp_path, AutoLayerCFLState)
    assert found is not None and same(found.state, half)
    resumed = turns.play(setup, 2, start=found.state)[-1].after
    assert isinstance(resumed, AutoLayerCFLState) and resumed.layer == "linear1" and same(resumed, last)


def test_scouting_with_part_of_the_clients_loses_none_and_looks_again() -> None:
    setup = federation(LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.4))
    played = turns.play(setup, 4, fraction=0.5)
    played += turns.play(setup, 4, start=played[-1].after)
    (_, first), (round, second) = scouts([turn.diagnostics for turn in played])
    assert first["layer"] is None and first["why"] == "scan_without_clients"
    assert round == 6 and second["layer"] == "linear1"
    assert bool((played[-1].after.labels >= 0).all())


def test_a_final_cluster_is_examined_again_when_somebody_joins_it() -> None:
    algorithm, problem = few(layers="conv", eps1=1.0, eps2=0.5), toy_problem(4)
    state = make_pending(algorithm.init(problem), [3], node=0)
    for updates, cohort in ((0.1 * BOTH, [0, 1, 2]), (BOTH, [0, 1, 2]), (BOTH, [0, 1, 2, 3])):
        state, _ = next_round(algorithm, problem, state, updates, cohort)
    assert len(state.models) == 2


def test_final_clusters_are_examined_again_when_clients_are_moved_to_them() -> None:
    """Both clusters were final by Theorem 1. Then clients 0 and 1 are misplaced among those that want the opposite."""
    algorithm, problem = few(layers="conv", eps1=10.0, eps2=0.5), toy_problem(8)
    directions = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]]).repeat(2, 1)
    updates = torch.nn.functional.pad(directions, (0, 4))
    state, _ = play(algorithm, problem, [updates] * 2)
    assert state.cluster_history.final.all() and len(state.models) == 2
    other = 1 - int(state.labels[0])
    after, _ = next_round(algorithm, problem, reassign(state, {0: other, 1: other}), updates)
    assert len(after.models) == 3 and int(after.labels[0]) != int(after.labels[2])
