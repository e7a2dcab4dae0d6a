from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import CLIENTS, PARAMETERS, SAMPLES, device, experiment, federation, recorded, train
from scripted import next_round

import fedstrata as fs
from fedstrata.algorithms.baselines import Oracle, RandomGroups
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.algorithms.fedtsdp import FedTSDP
from fedstrata.algorithms.flis import FLIS
from fedstrata.algorithms.ifca import IFCA
from fedstrata.base.errors import ExperimentError
from fedstrata.core import Algorithm, make_pending
from fedstrata.testing import play, toy_problem
from turns import first_plan_of


def test_a_client_alone_is_a_federation_of_one() -> None:
    """Client 3 trained alone equals FedAvg whose cohort is client 3 in every round."""
    alone, shared = federation("local"), federation("fedavg")
    train(alone)
    state = shared.server.algorithm.init(shared.server.problem)
    for _ in range(3):
        report = shared.clients.run(shared.server.algorithm.plan(shared.server.problem, state, torch.tensor([3])))
        state, _ = shared.server.algorithm.update(shared.server.problem, state, report)
    assert torch.allclose(device(alone, 3), state.models[0], atol=1e-6)


def test_who_is_absent_rests_and_who_never_took_part_has_the_start() -> None:
    setting = federation("local")
    state, _, _ = train(setting, rounds=1, fraction=0.5)
    rested = [client for client in range(CLIENTS) if not len(device(setting, client))]
    assert len(rested) == 3
    own = setting.server.algorithm.evaluations(setting.server.problem, state, torch.tensor(rested))["client"]
    plan = setting.server.algorithm.plan(setting.server.problem, state, setting.everyone[:0])
    shared = replace(own, load_local=setting.server.problem.layout.nothing)
    asked = replace(plan, tasks={}, evaluations={"own": own, "start": shared})
    scores = setting.clients.run(asked).scores
    assert torch.equal(scores["own"].loss, scores["start"].loss)


def test_nothing_travels_but_the_start_and_a_probe_finds_nothing_to_measure(tmp_path: Path) -> None:
    run = fs.run({**experiment("local"), "probe": {"gap": ["dcos"]}}, tmp_path / "run", quiet=True)
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, 0, 0]
    assert [record["bytes_up"] for record in run.rounds] == [0, 0, 0]
    assert run.rounds[-1]["acc_client"] > run.rounds[0]["acc_client"]
    assert not (tmp_path / "run" / "gaps").exists()


def test_the_union_of_the_training_data_trains_one_model() -> None:
    setting = federation("centralized")
    problem, algorithm = setting.server.problem, setting.server.algorithm
    plan = algorithm.plan(problem, algorithm.init(problem), setting.everyone)
    assert plan.cohort.tolist() == [CLIENTS] and plan.tasks["train"].candidates.tolist() == [[0]]
    report = setting.clients.run(plan)
    assert report.results["train"].sizes.tolist() == [CLIENTS * SAMPLES]
    state, _ = algorithm.update(problem, algorithm.init(problem), report)
    assert torch.equal(state.models[0], problem.fresh(0) + report.results["train"].updates.values[0])


def test_one_full_batch_step_on_the_union_is_one_of_fedavg() -> None:
    """The mean of the clients' gradients, weighted by samples, is the gradient on all samples."""
    keys = {"batch": 0, "epochs": 1}
    union, _, _ = train(federation("centralized", keys), rounds=2)
    mean, _, _ = train(federation("fedavg", keys), rounds=2)
    assert torch.allclose(union.models, mean.models, atol=1e-6)


def test_the_cohort_does_not_matter() -> None:
    some, _, _ = train(federation("centralized"), fraction=0.5)
    everyone, _, _ = train(federation("centralized"))
    assert torch.equal(some.models, everyone.models)


@pytest.mark.parametrize(("steps", "batch"), [("epoch", 10), ("equal", 10 * CLIENTS)])
def test_a_round_is_an_epoch_over_the_union_or_as_many_steps_as_one_client_makes(steps: str, batch: int) -> None:
    setting = federation("centralized", steps=steps)
    plan = first_plan_of(setting)
    assert plan.tasks["train"].training.batch == batch


def test_no_model_travels_and_the_raw_data_are_counted_apart_once(tmp_path: Path) -> None:
    """64 pixels of a byte and a label of eight, for 6 * 40 samples."""
    run = recorded(tmp_path / "run", "centralized")
    keys = ("bytes_down", "bytes_up", "bytes_buffers", "bytes_data")
    assert [[record[key] for key in keys] for record in run.rounds] == [[0, 0, 0, 240 * 72], [0] * 4, [0] * 4]
    assert run.summary["bytes_data"] == 240 * 72 and run.summary["bytes_up"] == 0


def test_a_whole_run_copes_with_absence_probes_and_newcomers(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "cohort": {"fraction": 0.8, "dropout": 0.4},
        "probe": {"gap": ["dcos"]},
        "events": {"join": [{"round": 2, "clients": [0]}]},
    }
    run = fs.run({**experiment("centralized"), **changes}, tmp_path / "run", quiet=True)
    assert run.rounds[0]["labels"] == [-1, 0, 0, 0, 0, 0] and run.rounds[1]["labels"] == [0] * 6
    assert not (tmp_path / "run" / "gaps").exists() and run.rounds[1]["pending"] == []
    assert run.tree[0].members == tuple(range(6))


def test_the_oracle_trains_one_model_per_true_group_from_the_first_round() -> None:
    updates = torch.arange(4.0)[:, None] * torch.ones(4, 6)
    state, _ = play(Oracle(), toy_problem(4, truth=[7, 3, 7, 3]), [updates])
    assert state.labels.tolist() == [1, 0, 1, 0]
    assert state.models[:, 0].tolist() == [2.0, 1.0]
    assert [node.members for node in state.tree] == [(0, 1, 2, 3), (1, 3), (0, 2)]


def test_one_true_group_makes_the_oracle_equal_to_fedavg() -> None:
    updates = [torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    ours, _ = play(Oracle(), toy_problem(4, truth=[0] * 4), updates)
    plain, _ = play(FedAvg(), toy_problem(4), updates)
    assert torch.equal(ours.models, plain.models)


def test_groups_are_equal_and_a_function_of_the_seed() -> None:
    labels = RandomGroups(groups=3).init(toy_problem(11)).labels
    assert sorted(labels.bincount().tolist()) == [3, 4, 4]
    again = RandomGroups(groups=3).init(toy_problem(11)).labels
    other = RandomGroups(groups=3).init(replace(toy_problem(11), seed=1)).labels
    assert torch.equal(labels, again) and not torch.equal(labels, other)


def test_each_group_trains_its_own_model_and_the_tree_shows_them() -> None:
    updates = torch.arange(6.0)[:, None] * torch.ones(6, 6)
    state, _ = play(RandomGroups(groups=2), toy_problem(6), [updates])
    for cluster in range(2):
        members = (state.labels == cluster).nonzero().flatten()
        assert state.models[cluster, 0] == members.float().mean()
        assert state.tree[cluster + 1].members == tuple(members.tolist())


def test_groups_that_happen_to_be_true_are_the_oracle() -> None:
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
    assert plan.tasks["train"].candidates[4].tolist() == [0, 1, 2]
    state, _ = next_round(algorithm, problem, state, torch.ones(6, 6))
    assert state.labels[4] == 0  # scripted clients take the first offer


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Oracle(), "needs a partition with true groups"),
        (RandomGroups(groups=4), r"algorithm\.groups = 4: expected at most the 3 clients"),
        (IFCA(k=4), r"algorithm\.k = 4: expected at most the 3 clients"),
        (FedTSDP(), r"data.public = 0: .* needs samples on the server"),
        (FLIS(), r"data\.public = 0: .* set data\.public to some hundreds"),
    ],
)
def test_what_a_federation_lacks_is_said_before_the_first_round(algorithm: Algorithm[Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        algorithm.init(toy_problem(3))
