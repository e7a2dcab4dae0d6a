from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedstrata.algorithms.cfl import CFL, CFLState
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.algorithms.layercfl import HALVES, LayerCFL, LayerCFLState, measured_gamma, with_halves
from fedstrata.algorithms.shared.model_stability import UpdateWindow
from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.build.build import build_run
from fedstrata.build.participation import sample_cohort
from fedstrata.build.run_setup import RunSetup
from fedstrata.clustering import ari
from fedstrata.config import load_experiment
from fedstrata.core import (
    Diagnostics,
    Layout,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    TensorSpec,
    fedavg_plan,
    initial_state,
    make_pending,
    reassign,
)
from fedstrata.records.checkpoint import find_checkpoint, save
from fedstrata.testing import Scripted, toy_problem
from fedstrata.testing import play as play_any
from recorded import decision_of, metric

CONV = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [-1.0, 0.0, 0.0], [-1.0, 0.1, 0.0]])
FC = torch.tensor([[0.0, 2.0, 0.0], [0.0, -2.0, 0.0], [0.0, 2.0, 0.1], [0.0, -2.0, 0.1]])
BOTH = torch.cat([CONV, FC], dim=1)
"""The convolution falls apart into {0, 1} and {2, 3}, the linear layer into {0, 2} and {1, 3}."""


def play(
    algorithm: LayerCFL,
    problem: Problem,
    updates: Sequence[torch.Tensor],
    absent: Sequence[Sequence[int]] | None = None,
) -> tuple[LayerCFLState, list[Diagnostics]]:
    state, diagnostics = play_any(algorithm, problem, updates, absent=absent)
    assert isinstance(state, LayerCFLState)
    return state, diagnostics


def sums_of(state: LayerCFLState) -> torch.Tensor:
    assert state.accumulated is not None
    return state.accumulated.sums


def window_of(state: LayerCFLState | CFLState) -> UpdateWindow:
    assert state.window is not None
    return state.window


@pytest.mark.parametrize(("layers", "truth"), [("conv", [0, 0, 1, 1]), ("first_linear", [0, 1, 0, 1])])
def test_the_layers_that_are_compared_decide_who_belongs_together(layers: str, truth: list[int]) -> None:
    state, _ = play(LayerCFL(layers=layers, eps1=1.0, eps2=0.5), toy_problem(4), [BOTH])
    assert ari(state.labels, torch.tensor(truth)) == 1.0
    assert decision_of(state).layer == layers


def test_several_selectors_make_one_slice() -> None:
    state, _ = play(LayerCFL(layers=["conv", "fc"], eps1=1.0, eps2=0.5), toy_problem(4), [BOTH])
    assert ari(state.labels, torch.tensor([0, 1, 0, 1])) == 1.0  # the linear layer is twice as long
    assert decision_of(state).layer == "conv, fc"


def test_the_second_threshold_looks_at_the_slice_unless_told_otherwise() -> None:
    scope: Literal["slice", "full"]
    for scope, clusters in (("slice", 1), ("full", 2)):
        algorithm = LayerCFL(layers="conv", eps1=1.0, eps2=1.5, norm_scope=scope)
        state, _ = play(algorithm, toy_problem(4), [BOTH])
        assert len(state.models) == clusters  # slice norms are about 1, full norms above 2


@pytest.mark.parametrize("keys", [{"norm_scope": "full"}, {"trigger": "stability", "epsilon": 0.05}])
def test_a_slice_that_nobody_moves_parts_nobody(keys: dict[str, Any]) -> None:
    """The convolution is frozen, and the linear layer falls apart."""
    updates = torch.cat([torch.zeros(4, 3), FC], dim=1)
    state, _ = play(LayerCFL(layers="conv", **keys), toy_problem(4), [updates] * 6)
    assert state.labels.tolist() == [0] * 4


@pytest.mark.parametrize("scope", ["slice", "full"])
def test_a_slice_that_nobody_moves_has_not_converged(scope: Literal["slice", "full"]) -> None:
    updates = torch.cat([torch.zeros(4, 3), FC], dim=1)
    state, _ = play(LayerCFL(layers="conv", eps1=3.0, eps2=0.5, norm_scope=scope), toy_problem(4), [updates])
    assert decision_of(state).kind == "layers_not_trained" and decision_of(state).layer == "conv"
    still, _ = play(LayerCFL(layers="conv", eps1=3.0, eps2=0.5, norm_scope=scope), toy_problem(4), [0 * updates])
    assert decision_of(still).kind == "members_converged"


def test_a_scan_goes_on_when_too_few_clients_move_every_layer() -> None:
    """The convolution of two of five clients is dead."""
    draw = torch.Generator().manual_seed(0)
    updates = [torch.randn(5, 6, generator=draw) for _ in range(4)]
    for each in updates:
        each[:2, :3] = 0.0
    state, _ = play_any(LayerCFL(layers="auto"), toy_problem(5), updates, sizes=torch.full((5,), 200))
    assert state.labels.tolist() == [0] * 5


def test_a_cluster_that_converged_is_final_unless_it_is_to_be_rechecked() -> None:
    for recheck, clusters in ((False, 1), (True, 2)):
        algorithm = LayerCFL(layers="conv", eps1=1.0, eps2=0.5, recheck=recheck)
        state, _ = play(algorithm, toy_problem(4), [0.1 * BOTH, BOTH])
        assert len(state.models) == clusters


def test_a_final_cluster_keeps_its_decision_when_few_members_answer_later() -> None:
    algorithm = LayerCFL(layers="conv", eps1=1.0, eps2=0.5)
    state, _ = play(algorithm, toy_problem(4), [0.1 * BOTH] * 3, absent=[[], [0, 1, 2], []])
    assert bool(state.bipartition.final[0]) and decision_of(state).kind == "members_converged"


def test_only_accumulated_updates_take_memory_for_sums() -> None:
    """With 50 clients and 5 million parameters the sums take 1 GB."""
    assert LayerCFL().init(toy_problem(4)).accumulated is None
    accumulated = LayerCFL(delta="accumulated").init(toy_problem(4)).accumulated
    assert accumulated is not None and accumulated.sums.shape == (4, 6)


def test_a_refused_split_may_be_proposed_again_unless_it_freezes_the_cluster() -> None:
    alike = torch.ones(4, 6) + 0.1 * BOTH
    for on_reject, clusters in (("continue", 2), ("freeze", 1)):
        algorithm = LayerCFL(layers="conv", eps1=5.0, eps2=0.5, on_reject=on_reject)  # type: ignore[arg-type]  # str for a Literal
        state, _ = play(algorithm, toy_problem(4), [alike, BOTH])
        assert len(state.models) == clusters


@pytest.mark.parametrize("measure", ["dcos", "dl2", "dl1", "cos", "l2", "l1"])
def test_every_measure_proposes_the_clear_groups(measure: str) -> None:
    algorithm = LayerCFL(layers="conv", eps1=1.0, eps2=0.5, measure=measure)
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
        algorithm = LayerCFL(layers="conv", eps1=10.0, eps2=0.5, measure=measure)
        _, diagnostics = play(algorithm, problem, [updates])
        assert float(diagnostics[0].matrices[0].values[0, 3]) == pytest.approx(value, abs=1e-6)


def test_accumulated_updates_average_out_noise_and_start_anew_in_a_new_cluster() -> None:
    noise = torch.tensor([[0.0, 3, 0, 0, 0, 0], [0.0, -3, 0, 0, 0, 0]]).repeat(2, 1)
    updates = [BOTH + noise, BOTH - noise]
    algorithm = LayerCFL(layers="conv", eps1=1.0, eps2=0.5, first=2, delta="accumulated")
    state, _notes = play(algorithm, toy_problem(4), updates)
    assert state.labels.tolist() == [0, 0, 1, 1]
    later, _ = play(algorithm, toy_problem(4), [*updates, 5 * BOTH])
    assert sums_of(later)[:, 0].tolist() == [5.0, 5.0, -5.0, -5.0]
    last, _ = play(LayerCFL(layers="conv", eps1=1.0, eps2=0.5, first=2), toy_problem(4), updates)
    assert last.labels.tolist() != [0, 0, 1, 1]


@pytest.mark.parametrize("measure", ["cos", "l2"])
def test_weights_cannot_be_compared_by_sums_of_updates(measure: str) -> None:
    """The model of a cluster has moved by the mean of the sums: added to it, they would count that mean twice."""
    with pytest.raises(ExperimentError, match=rf"algorithm.measure = '{measure}': compares weights, .* 'dl2'"):
        LayerCFL(measure=measure, delta="accumulated").init(toy_problem(4))


class Halves:
    """Answers with `updates`; those on halves A and B of the data differ from it by plus and minus `noise`."""

    def __init__(self, updates: torch.Tensor, noise: float) -> None:
        self.updates, self.noise = updates, noise

    def run(self, plan: Plan) -> Report:
        results = dict[str, Result]()
        for name, sign in {"train": 0.0, "half A": 1.0, "half B": -1.0}.items():
            values = self.updates + sign * self.noise * torch.ones(4, 6)
            rows = Rows(plan.cohort, values)
            chosen = plan.tasks[name].candidates[:, 0]
            results[name] = Result(rows, chosen, torch.ones(4), torch.full((4, 1), torch.nan))
        return Report(results)


@pytest.mark.parametrize(("noise", "clusters"), [(0.1, 2), (0.9, 1)])
def test_gamma_is_measured_on_two_halves_of_the_data(noise: float, clusters: int) -> None:
    """|a - b| / |a + b| = 2 * noise * sqrt(3) / (2 * 1.0) on the convolution: 0.17, or 1.56."""
    problem, algorithm = toy_problem(4), LayerCFL(layers="conv", eps1=1.0, eps2=0.5, gamma="halves")
    state = algorithm.init(problem)
    plan = algorithm.plan(problem, state, torch.arange(4))
    assert [task.fold for task in plan.tasks.values()] == ["all", "A", "B"]
    assert plan.tasks["half A"].upload == (True, False)
    state, _ = algorithm.update(problem, state, Halves(BOTH, noise).run(plan))
    assert len(state.models) == clusters
    assert decision_of(state).values["gamma"] == pytest.approx(noise * 3**0.5, rel=0.02)


def test_a_layer_that_does_not_exist_is_found_before_the_first_round() -> None:
    with pytest.raises(LayoutError, match="convv"):
        play(LayerCFL(layers="convv"), toy_problem(4), [BOTH])


def test_the_full_norm_does_not_see_statistics_of_normalisation_layers() -> None:
    slots = (*toy_problem(4).layout.tensors, TensorSpec("norm.running_mean", "norm", "buffer", (1,)))
    updates = torch.cat([0.2 * BOTH, torch.full((4, 1), 50.0)], dim=1)
    algorithm = LayerCFL(layers="conv", eps1=100.0, eps2=1.0, norm_scope="full")
    state, _ = play(algorithm, toy_problem(4, Layout(slots)), [updates])
    assert len(state.models) == 1


def federation(scheme: str, **keys: Any) -> RunSetup:
    return build_run(
        load_experiment(
            {
                "data": {"name": "digits", "clients": 12, "samples": 70},
                "partition": {"scheme": scheme, **keys},
                "local": {"lr": 0.2, "batch": 10},
            }
        )
    )


def train(setup: RunSetup, algorithm: Any, rounds: int, state: Any = None, fraction: float = 1.0) -> tuple[Any, Any]:
    """Play some rounds for real; the last state and all events."""
    state, events = algorithm.init(setup.server.problem) if state is None else state, []
    for _ in range(rounds):
        cohort, _ = sample_cohort(0, state.round + 1, setup.everyone, fraction, 0.0)
        report = setup.clients.run(algorithm.plan(setup.server.problem, state, cohort))
        state, diagnostics = algorithm.update(setup.server.problem, state, report)
        events += [{"round": state.round, **event} for event in diagnostics.events]
    return state, events


@pytest.mark.parametrize("delta", ["last", "accumulated"])
def test_from_the_choice_on_a_scouted_layer_is_as_good_as_given(delta: Literal["last", "accumulated"]) -> None:
    """Bit for bit what LayerCFL does that is given the layer, and told to split nothing before the look."""
    setup = federation("rotation", groups=3)
    keys: dict[str, Any] = {"eps1": 10.0, "eps2": "auto", "gamma": 0.4, "delta": delta}
    scouted, events = train(setup, LayerCFL(layers="auto", **keys), 5)
    choice = events[0]
    assert (choice["kind"], choice["round"], choice["layer"]) == ("scout", 3, "linear1")
    assert choice["why"] == "layer_chosen" and choice["values"]["agreement"] > 0.5
    assert scouted.selectors == ("linear1",) and scouted.evidence is None
    given, _ = train(setup, LayerCFL(layers="linear1", first=3, **keys), 5)
    assert len(given.models) > 1
    for name in ("models", "labels", "nodes", "waiting"):
        assert torch.equal(getattr(scouted, name), getattr(given, name)), name
    for name, tensor in vars(given.bipartition).items():
        assert torch.equal(getattr(scouted.bipartition, name), tensor), name
    assert delta == "last" or torch.equal(sums_of(scouted), sums_of(given))
    assert scouted.tree == given.tree


def test_where_no_layer_separates_the_clients_layercfl_with_auto_is_fedavg() -> None:
    setup = federation("iid")
    scouted, events = train(setup, LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.0), 6)
    assert [(event["kind"], event["round"], event["layer"]) for event in events] == [
        ("scout", 3, None),
        ("scout", 6, None),
    ]
    plain, _ = train(setup, FedAvg(), 6)
    assert torch.equal(scouted.models, plain.models)
    assert scouted.selectors is None and scouted.evidence is not None and scouted.evidence.by_layer is None
    assert bool((scouted.evidence.max_norms > 0).all()) and decision_of(scouted).kind == "no_layer_found"


def test_folds_are_trained_while_the_layer_is_scouted_and_halves_for_gamma() -> None:
    setup, everyone = federation("rotation", groups=3), torch.arange(12)
    gamma: Any
    for gamma, parts in ((0.5, ["", "AB", "AB", ""]), ("halves", ["AB", "ABAB", "ABAB", "AB"])):
        algorithm = LayerCFL(layers="auto", eps1=10.0, gamma=gamma)
        state, plans = algorithm.init(setup.server.problem), []
        for _ in range(4):
            plans.append(algorithm.plan(setup.server.problem, state, everyone))
            state, _ = algorithm.update(setup.server.problem, state, setup.clients.run(plans[-1]))
        # In the first round nobody knows yet how many samples folds may have.
        assert ["".join(task.fold for task in list(plan.tasks.values())[1:]) for plan in plans] == parts
        layout = setup.server.problem.layout
        fold = list(plans[1].tasks.values())[-1]
        assert (
            fold.upload == layout.everything and fold.max_samples is not None and fold.max_samples.tolist() == [35] * 12
        )
        assert gamma == 0.5 or plans[1].tasks["half A"].upload == layout.select("all")
        assert gamma == 0.5 or plans[3].tasks["half A"].upload == layout.select("linear1")


def test_a_run_that_stopped_while_scouting_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    setup, algorithm = federation("rotation", groups=3), LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.4)
    half, _ = train(setup, algorithm, 2)
    save(tmp_path, half, {}, {})
    found = find_checkpoint(tmp_path, type(half))
    assert found is not None and torch.equal(
        found.state.evidence.by_layer.similarity, half.evidence.by_layer.similarity
    )
    unbroken, resumed = (train(setup, algorithm, 2, state)[0] for state in (half, found.state))
    assert unbroken.selectors == resumed.selectors == ("linear1",) and torch.equal(unbroken.models, resumed.models)
    assert torch.equal(unbroken.labels, resumed.labels)


def test_scouting_with_part_of_the_clients_loses_none_and_looks_again() -> None:
    setup, algorithm = federation("rotation", groups=3), LayerCFL(layers="auto", eps1=10.0, eps2=0.0, gamma=0.4)
    state, events = train(setup, algorithm, 4, fraction=0.5)
    assert events[0]["layer"] is None and events[0]["why"] == "scan_without_clients"
    state, events = train(setup, algorithm, 4, state)
    assert events[0]["round"] == 6 and events[0]["layer"] == "linear1"
    assert bool((state.labels >= 0).all())


def test_an_empty_report_while_scouting_changes_nothing_but_the_round() -> None:
    setup, algorithm = federation("rotation", groups=3), LayerCFL(layers="auto")
    state = algorithm.init(setup.server.problem)
    for round in (1, 2, 3):
        report = setup.clients.run(algorithm.plan(setup.server.problem, state, torch.arange(0)))
        state, _ = algorithm.update(setup.server.problem, state, report)
        assert state.round == round and state.evidence is not None and state.evidence.by_layer is None
    assert torch.equal(state.models, algorithm.init(setup.server.problem).models)


def test_a_path_of_another_cluster_or_of_old_data_is_not_accumulated() -> None:
    algorithm, problem = LayerCFL(layers="conv", first=99, delta="accumulated"), toy_problem(4)
    state, _ = play(algorithm, problem, [BOTH])
    report = Scripted([BOTH]).run(algorithm.plan(problem, state, torch.arange(4)))
    changed = make_pending(state, [2], node=0)
    after, _ = algorithm.update(problem, changed, report)
    assert sums_of(after)[:, 0].tolist() == [2.0, 2.0, -1.0, -2.0]  # client 2 began anew
    two = algorithm.update(problem, after, report)[0]
    assert sums_of(two)[:, 0].tolist() == [3.0, 3.0, -2.0, -3.0]


def test_a_member_whose_data_cannot_be_halved_prevents_splits_by_a_measured_gamma() -> None:
    problem, algorithm = toy_problem(4), LayerCFL(layers="conv", eps1=1.0, eps2=0.5, gamma="halves")
    state = algorithm.init(problem)
    report = Halves(BOTH, 0.1).run(algorithm.plan(problem, state, torch.arange(4)))
    some = torch.tensor([True, True, True, False])
    fewer = Report({**report.results, "half A": report.results["half A"].only(some)})
    after, _ = algorithm.update(problem, state, fewer)
    assert len(after.models) == 1 and decision_of(after).kind == "theorem_1_not_met"
    assert decision_of(after).values["gamma"] == 1.0


def test_a_final_cluster_is_examined_again_when_somebody_joins_it() -> None:
    algorithm, problem = LayerCFL(layers="conv", eps1=1.0, eps2=0.5), toy_problem(4)
    updates = [0.1 * BOTH, BOTH, BOTH]
    clients, state = Scripted(updates), make_pending(algorithm.init(problem), [3], node=0)
    for cohort in ([0, 1, 2], [0, 1, 2], [0, 1, 2, 3]):
        state, _ = algorithm.update(problem, state, clients.run(algorithm.plan(problem, state, torch.tensor(cohort))))
    assert len(state.models) == 2


def test_final_clusters_are_examined_again_when_clients_are_moved_to_them() -> None:
    """Both clusters were final by Theorem 1. Then clients 0 and 1 are misplaced among those that want the opposite."""
    algorithm, problem = LayerCFL(layers="conv", eps1=10.0, eps2=0.5), toy_problem(8)
    directions = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]]).repeat(2, 1)
    clients = Scripted([torch.nn.functional.pad(directions, (0, 4))] * 3)
    state = algorithm.init(problem)
    for _ in range(2):
        state, _ = algorithm.update(problem, state, clients.run(algorithm.plan(problem, state, torch.arange(8))))
    assert state.bipartition.final.all() and len(state.models) == 2
    other = 1 - int(state.labels[0])
    moved = reassign(state, {0: other, 1: other})
    after, _ = algorithm.update(problem, moved, clients.run(algorithm.plan(problem, moved, torch.arange(8))))
    assert len(after.models) == 3 and int(after.labels[0]) != int(after.labels[2])


def turning(stability: dict[str, float]) -> list[torch.Tensor]:
    """Three rounds that end with BOTH; each layer turns away by a and back, S = |(cos a + cos a) / 2 - 1| = 1 - cos a.

    It turns towards its third column, which the first two of a convolution's updates and fc's hardly use.
    """
    away = BOTH.clone()
    for layer, columns in (("conv", slice(0, 3)), ("fc", slice(3, 6))):
        cos = 1 - stability[layer]
        rows = BOTH[:, columns]
        across = torch.linalg.cross(rows, torch.tensor([[1.0, 1.0, 1.0]]).expand(4, -1))
        across *= rows.norm(dim=1, keepdim=True) / across.norm(dim=1, keepdim=True)
        away[:, columns] = cos * rows + (1 - cos**2) ** 0.5 * across
    return [BOTH, away, BOTH]


@pytest.mark.parametrize(
    ("layers", "labels", "kind"),
    [
        ("conv", [0, 0, 0, 0], "no_stable_layer"),
        ("fc", [0, 1, 0, 1], "split"),
        ("all", [0, 1, 0, 1], "split"),
    ],
)
def test_stability_is_watched_in_the_compared_layers_only(layers: str, labels: list[int], kind: str) -> None:
    """The norms would forbid any split: nothing is stationary below eps1 = 0."""
    algorithm = LayerCFL(layers=layers, trigger="stability", eps1=0.0, epsilon=0.05)
    state, diagnostics = play(algorithm, toy_problem(4), turning({"conv": 0.3, "fc": 0.04}))
    assert state.labels.tolist() == labels
    decision = decision_of(state)
    assert decision.kind == kind
    assert decision.values["max_stability"] == pytest.approx(0.3 if layers == "conv" else 0.04, abs=1e-6)
    assert metric(diagnostics[2], "stability", layer="conv") == pytest.approx(0.3, abs=1e-6)
    assert metric(diagnostics[2], "stability", layer="fc") == pytest.approx(0.04, abs=1e-6)


def test_one_compared_layer_must_be_stable_in_each_of_the_members_or_in_their_mean() -> None:
    """Two members are stable in the convolution, the two others in the linear layer: (0.3 + 0.01) / 2 in both."""
    one, other = turning({"conv": 0.3, "fc": 0.01}), turning({"conv": 0.01, "fc": 0.3})
    updates = [torch.cat([first[:2], second[2:]]) for first, second in zip(one, other, strict=True)]
    state, _ = play(LayerCFL(trigger="stability", epsilon=0.05), toy_problem(4), updates)
    assert len(state.models) == 1 and decision_of(state).kind == "no_stable_layer"
    assert decision_of(state).values["stability"] == pytest.approx(0.155, abs=1e-6)
    expected: dict[Literal["each", "mean"], int] = {"each": 1, "mean": 2}
    for members, clusters in expected.items():
        state, _ = play(LayerCFL(trigger="stability", epsilon=0.16, members=members), toy_problem(4), updates)
        assert len(state.models) == clusters


def test_a_tensor_that_is_compared_stands_for_its_layer() -> None:
    algorithm = LayerCFL(layers="fc.weight", trigger="stability", epsilon=0.05)
    state, _ = play(algorithm, toy_problem(4), turning({"conv": 0.3, "fc": 0.04}))
    assert state.labels.tolist() == [0, 1, 0, 1] and decision_of(state).layer == "fc.weight"


def test_members_that_agree_are_not_split_however_stable() -> None:
    algorithm = LayerCFL(layers="fc", trigger="stability", epsilon=0.05, rho=0.0)
    state, _ = play(algorithm, toy_problem(4), turning({"conv": 0.3, "fc": 0.04}))
    assert len(state.models) == 1 and decision_of(state).kind == "members_agree"


def test_with_stability_sums_of_updates_are_compared_and_the_updates_themselves_are_watched() -> None:
    algorithm = LayerCFL(layers="fc", trigger="stability", epsilon=0.05, delta="accumulated")
    updates = turning({"conv": 0.3, "fc": 0.04})
    state, diagnostics = play(algorithm, toy_problem(4), updates)
    sums = torch.stack(updates).sum(dim=0)[:, 3:]
    assert torch.allclose(sums_of(state), sums)
    expected = torch.nn.functional.cosine_similarity(sums[0], sums[1], dim=0)
    assert float(diagnostics[2].matrices[0].values[0, 1]) == pytest.approx(float(expected), abs=1e-6)


def test_with_all_layers_it_is_cfl_timed_by_stability() -> None:
    setup = federation("rotation", groups=3)
    keys: dict[str, Any] = {"trigger": "stability", "epsilon": 1.0, "rho": 1.0, "gamma": 0.4}
    ours, _ = train(setup, LayerCFL(layers="all", **keys), 5)
    cfl, _ = train(setup, CFL(**keys), 5)
    assert len(cfl.models) > 1 and ours.tree == cfl.tree
    assert torch.equal(ours.models, cfl.models) and torch.equal(ours.labels, cfl.labels)
    for name, tensor in vars(window_of(cfl)).items():
        assert torch.equal(getattr(window_of(ours), name), tensor), name


def test_a_scouted_layer_is_watched_as_if_it_had_been_given() -> None:
    setup = federation("rotation", groups=3)
    keys: dict[str, Any] = {"trigger": "stability", "epsilon": 1.0, "rho": 1.0, "gamma": 0.4}
    scouted, _ = train(setup, LayerCFL(layers="auto", **keys), 4)
    given, _ = train(setup, LayerCFL(layers="linear1", first=3, **keys), 4)
    assert scouted.selectors == ("linear1",) and len(given.models) > 1 and scouted.tree == given.tree
    assert torch.equal(scouted.models, given.models) and torch.equal(
        window_of(scouted).uploads, window_of(given).uploads
    )


def test_windows_and_paths_come_back_to_the_last_bit(tmp_path: Path) -> None:
    algorithm = LayerCFL(layers="fc", trigger="stability", delta="accumulated")
    state, _ = play(algorithm, toy_problem(4), [BOTH, 2 * BOTH])
    save(tmp_path, state, {}, {})
    found = find_checkpoint(tmp_path, type(state))
    assert found is not None and found.state.selectors == ("fc",) and torch.equal(sums_of(found.state), sums_of(state))
    for name, tensor in vars(state.bipartition).items():
        assert torch.equal(getattr(found.state.bipartition, name), tensor), name
    for name, tensor in vars(window_of(state)).items():
        assert torch.equal(getattr(window_of(found.state), name), tensor), name


def test_a_member_that_was_away_uses_any_leaf_until_it_is_placed_in_the_one_it_chose() -> None:
    algorithm, problem = LayerCFL(layers="conv", eps1=1.0, eps2=0.5), toy_problem(4)
    state, _ = play(algorithm, problem, [BOTH], absent=[[3]])
    assert state.labels.tolist() == [0, 0, 1, -1]
    assert algorithm.evaluations(problem, state, torch.tensor([2, 3]))["client"].candidates.tolist() == [
        [1, -1],
        [0, 1],
    ]
    report = Scripted([BOTH]).run(algorithm.plan(problem, state, torch.arange(4)))
    assert algorithm.assign(problem, state, report).tolist() == [0, 0, 1, 0]  # scripted clients take the first offer


def test_halves_train_from_the_model_that_the_client_was_given() -> None:
    problem = toy_problem(4)
    plan = with_halves(fedavg_plan(problem, initial_state(problem), torch.arange(4)), (True, False))
    assert [(task.fold, task.stream) for task in plan.tasks.values()] == [("all", "train"), ("A", "A"), ("B", "B")]
    half = plan.tasks["half A"]
    assert half.upload == (True, False) and half.trainable == problem.layout.everything
    assert all(torch.equal(task.candidates, plan.tasks["train"].candidates) for task in plan.tasks.values())


def test_halves_that_disagree_say_how_far_a_client_stands_from_its_distribution() -> None:
    updates = {"A": torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "B": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}
    ids, nothing = torch.arange(2), torch.zeros(2, dtype=torch.int64)
    results = {
        HALVES[half]: Result(Rows(ids, rows), nothing, nothing + 1, torch.full((2, 1), torch.nan))
        for half, rows in updates.items()
    }
    # |(1, -1)| / |(1, 1)|, and |(0, 1)| / |(2, 1)|
    assert measured_gamma(Report(results), ids, torch.arange(2)) == pytest.approx(1.0)
