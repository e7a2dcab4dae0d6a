from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import experiment, federation, metrics_of, train

from builders import report_of, with_tree_events
from fedstrata.algorithms.ifca import IFCA, IFCAState
from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run
from fedstrata.clustering import ari
from fedstrata.config import load_experiment
from fedstrata.core import (
    Diagnostics,
    Layout,
    LocalTraining,
    Plan,
    Problem,
    Report,
    TensorSpec,
    make_pending,
)
from fedstrata.core.server import ServerOptimizer
from fedstrata.testing import play, toy_problem
from fedstrata.uploads.rules import aggregation_of


class Choosing:
    """Clients that take the offers they are told to, and answer with given updates (n, p)."""

    def __init__(self, choices: Sequence[int], updates: torch.Tensor, sizes: Sequence[int] = ()) -> None:
        self.choices, self.updates = torch.tensor(choices), updates
        self.sizes = torch.tensor(sizes) if sizes else torch.ones(len(choices), dtype=torch.int64)

    def run(self, plan: Plan) -> Report:
        candidates = plan.tasks["train"].candidates
        free = (candidates >= 0).sum(dim=1) > 1
        chosen = torch.where(free, self.choices[plan.cohort], candidates[:, 0])
        losses = torch.zeros(candidates.shape)
        return report_of(plan, self.updates[plan.cohort], self.sizes[plan.cohort], chosen=chosen, losses=losses)


def step(
    algorithm: IFCA, problem: Problem, state: IFCAState, clients: Choosing, cohort: Sequence[int] | None = None
) -> tuple[IFCAState, Diagnostics]:
    ids = torch.arange(problem.clients) if cohort is None else torch.tensor(cohort, dtype=torch.int64)
    return with_tree_events(state, *algorithm.update(problem, state, clients.run(algorithm.plan(problem, state, ids))))


def test_one_model_and_gradients_are_fedavg_with_one_full_batch_step_bit_for_bit() -> None:
    """All clients have as many samples, so that dividing by their number is weighting by samples."""
    local = {"epochs": 3, "batch": 10, "momentum": 0.9}
    ours, _, _ = train(federation("ifca", local, k=1, average="gradient"), fraction=0.5)
    plain, _, _ = train(federation("fedavg", {"epochs": 1, "batch": 0}), fraction=0.5)
    assert torch.equal(ours.models, plain.models)


def test_models_are_averaged_by_samples_inside_the_choice_and_an_empty_cluster_stays() -> None:
    problem, algorithm = toy_problem(3), IFCA(k=3)
    updates = torch.tensor([1.0, 4.0, 10.0])[:, None] * torch.ones(3, 6)
    state = algorithm.init(problem)
    assert state.models[:, 0].tolist() == [0.0, 1.0, 2.0]
    state, diagnostics = step(algorithm, problem, state, Choosing([1, 1, 2], updates, sizes=[1, 2, 5]))
    assert state.models[:, 0].tolist() == [0.0, 1.0 + 3.0, 2.0 + 10.0]  # (1 * 1 + 2 * 4) / 3, and 10 alone
    assert state.labels.tolist() == [1, 1, 2] and metrics_of(diagnostics) == {"left_out": 0.0, "chosen": 2.0}
    assert [node.members for node in state.tree[1:]] == [(), (0, 1), (2,)]


@pytest.mark.parametrize(("average", "expected"), [("gradient", 0.833333), ("model", 0.75)])
def test_gradients_are_divided_by_the_number_of_all_participants(average: Any, expected: float) -> None:
    """semantics.md, golden case 12: model (1, 1), gradients (1, 0), (0, 1), (2, 2); two chose it, step .5."""
    problem = replace(toy_problem(3), fresh=lambda start: torch.ones(6), training=LocalTraining(lr=0.5))
    algorithm = IFCA(k=2, average=average)
    gradients = torch.tensor([[1.0, 0], [0, 1], [2, 2]]).repeat(1, 3)
    state, _ = step(algorithm, problem, algorithm.init(problem), Choosing([0, 0, 1], -0.5 * gradients))
    assert state.models[0, :2].tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_a_gradient_is_one_full_batch_step_and_statistics_are_averaged_as_they_are() -> None:
    layout = Layout((*toy_problem(2).layout.tensors, TensorSpec("norm.running_mean", "norm", "buffer", (1,))))
    problem, algorithm = toy_problem(2, layout), IFCA(k=2, average="gradient")
    training = LocalTraining(epochs=5, batch=10, optimizer="adam", momentum=0.9, lr=0.1, weight_decay=0.2, clip_norm=3)
    problem = replace(problem, training=training)
    plan = algorithm.plan(problem, algorithm.init(problem), torch.arange(2))
    # What belongs to the gradient stays.
    step_of_sgd = LocalTraining(epochs=1, batch=0, lr=0.1, weight_decay=0.2, clip_norm=3)
    assert plan.tasks["train"].training == step_of_sgd
    state, _ = step(algorithm, problem, algorithm.init(problem), Choosing([0, 1], torch.ones(2, 7)))
    assert state.models[0].tolist() == [0.5] * 6 + [1.0]


def test_a_shared_body_is_averaged_over_everybody_and_heads_inside_the_choice() -> None:
    problem = toy_problem(4)
    updates = torch.tensor([1.0, 2.0, 3.0, 6.0])[:, None] * torch.ones(4, 6)
    for average, head in (("model", 1.5), ("gradient", 0.75)):
        algorithm = IFCA(k=2, share_body=True, average=average)  # type: ignore[arg-type]  # one of the two
        state = algorithm.init(problem)
        assert state.models.tolist() == [[0.0] * 6, [0.0] * 3 + [1.0] * 3]  # one body, two heads
        state, _ = step(algorithm, problem, state, Choosing([0, 0, 1, 1], updates))
        assert state.models[:, :3].tolist() == [[3.0] * 3] * 2  # the mean of 1, 2, 3, 6
        assert state.models[0, 3:].tolist() == [head] * 3


def test_a_shared_body_needs_a_server_that_takes_the_mean_as_it_is() -> None:
    problem = replace(toy_problem(2), server=ServerOptimizer(lr=0.5))
    with pytest.raises(ExperimentError, match=r"share_body = true: expected false with server.optimizer or server.lr"):
        IFCA(k=2, share_body=True).init(problem)


def test_the_absent_stay_where_they_were_and_everybody_chooses_anew() -> None:
    problem, algorithm, updates = toy_problem(4), IFCA(k=2), torch.zeros(4, 6)
    state, _ = step(algorithm, problem, algorithm.init(problem), Choosing([0, 1, 0, 1], updates), cohort=[0, 1, 2])
    assert state.labels.tolist() == [0, 1, 0, -1] and state.waiting.tolist() == [-1, -1, -1, 0]
    state, _ = step(algorithm, problem, state, Choosing([1, 0, 1, 0], updates), cohort=[0, 3])
    assert state.labels.tolist() == [1, 1, 0, 0]
    changed = make_pending(state, [1], node=0)
    evaluation = algorithm.evaluations(problem, changed, torch.arange(4))["client"]
    assert evaluation.candidates.tolist() == [[1, -1], [0, 1], [0, -1], [0, -1]]


def test_a_lopsided_start_is_drawn_anew_until_every_model_is_chosen_by_enough() -> None:
    problem, algorithm, updates = toy_problem(10), IFCA(k=2, init="restart"), torch.ones(10, 6)
    lopsided = Choosing([0] * 7 + [1] * 3, updates)  # 0.3 is less than 0.35
    state, diagnostics = step(algorithm, problem, algorithm.init(problem), lopsided)
    assert diagnostics.events == ({"kind": "restart", "chosen": [7, 3]},)
    assert state.models[:, 0].tolist() == [2.0, 3.0] and bool((state.labels < 0).all()) and state.round == 1
    state, diagnostics = step(algorithm, problem, state, Choosing([0] * 6 + [1] * 4, updates))
    assert diagnostics.events == () and state.models[:, 0].tolist() == [3.0, 4.0] and state.redraws == 1
    state, diagnostics = step(algorithm, problem, state, lopsided)  # once it has begun, it goes on
    assert diagnostics.events == () and state.models[:, 0].tolist() == [4.0, 5.0]


def test_restarts_end_and_are_as_strict_as_they_are_told() -> None:
    problem, updates = toy_problem(10), torch.ones(10, 6)
    lopsided = Choosing([0] * 7 + [1] * 3, updates)
    for algorithm, redraws in (
        (IFCA(k=2, init="restart", max_restarts=2), 2),
        (IFCA(k=2, init="restart", min_share=0.3), 0),
    ):
        state = algorithm.init(problem)
        for _ in range(4):
            state, _ = step(algorithm, problem, state, lopsided)
        assert state.redraws == redraws and bool((state.labels >= 0).all())
    four = IFCA(k=4, init="restart")  # one of ten is enough for each of four
    state, diagnostics = step(four, problem, four.init(problem), Choosing([0] * 7 + [1, 2, 3], updates))
    assert diagnostics.events == ()


def test_a_warm_start_trains_heads_by_random_groups_of_equal_size() -> None:
    problem, algorithm = toy_problem(6), IFCA(k=2, init="warm", warm_rounds=2)
    state = algorithm.init(problem)
    assert state.models.tolist() == [[0.0] * 6, [0.0] * 3 + [1.0] * 3]
    clients, groups = Choosing([0] * 6, torch.ones(6, 6)), []
    for _ in range(3):
        state, _ = step(algorithm, problem, state, clients)
        groups.append(state.labels.tolist())
    assert groups[0] == groups[1] and sorted(groups[0]) == [0, 0, 0, 1, 1, 1] and groups[2] == [0] * 6
    assert not torch.equal(state.models[0, :3], state.models[1, :3])  # only the start of the body was shared


def test_a_warm_start_must_be_over_before_the_run_is() -> None:
    message = r"algorithm\.warm_rounds = 3: expected fewer than rounds = 3: until they are over, the groups"
    with pytest.raises(ExperimentError, match=message):
        build_run(load_experiment({**experiment("ifca", k=2, init="warm", warm_rounds=3), "rounds": 3}))
    build_run(load_experiment({**experiment("ifca", k=2, init="warm", warm_rounds=3), "rounds": 4}))
    build_run(load_experiment({**experiment("ifca", k=2, warm_rounds=3), "rounds": 2}))


def test_a_model_that_nobody_chooses_for_long_is_reported_once() -> None:
    problem, algorithm = toy_problem(4), IFCA(k=3, patience=2)
    state, events = algorithm.init(problem), []
    for choices in ([0, 0, 1, 1], [0, 0, 0, 0], None, [0, 0, 0, 0], [0, 0, 0, 0]):
        clients = Choosing(choices or [0] * 4, torch.zeros(4, 6))
        state, diagnostics = step(algorithm, problem, state, clients, cohort=None if choices else [])
        events.append(list(diagnostics.events))
    first, second = {"kind": "collapse", "nodes": [3], "rounds": 2}, {"kind": "collapse", "nodes": [2], "rounds": 2}
    assert events == [[], [first], [], [second], []]  # a round without answers says nothing
    assert state.rounds_unchosen.tolist() == [0, 3, 4]


def test_clients_find_the_true_groups_by_their_training_loss_unless_the_start_collapses() -> None:
    found = []
    for seed in range(3):
        setup = build_run(load_experiment({**experiment("ifca", {"epochs": 3}, k=2), "seed": seed}))
        state, diagnostics, _ = train(setup, rounds=8)
        assert setup.server.problem.truth is not None
        found.append(ari(state.labels, setup.server.problem.truth))
        collapsed = any(event["kind"] == "collapse" for note in diagnostics for event in note.events)
        assert collapsed == (len(state.labels.unique()) == 1)
    assert found.count(1.0) == 2  # the third start led astray, as k-means can be


def test_a_share_that_is_just_the_least_one_is_enough() -> None:
    """15 of 50 are 0.3, which is more in float32."""
    algorithm = IFCA(k=3, init="restart", min_share=0.3)
    problem = toy_problem(50)
    clients = Choosing([0] * 15 + [1] * 15 + [2] * 20, torch.ones(50, 6))
    assert step(algorithm, problem, algorithm.init(problem), clients)[1].events == ()


def test_a_shared_body_is_averaged_by_the_rule_as_the_heads_are() -> None:
    problem = replace(toy_problem(9), aggregation=aggregation_of("median", {}, least_clients=1))
    updates = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    heads, body = (play(IFCA(k=1, share_body=each), problem, [updates])[0] for each in (False, True))
    assert torch.equal(heads.models, body.models)
