from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_federation import CLIENTS, SAMPLES, experiment, federation, recorded, train

import fedstrata as fs


def test_the_union_of_the_training_data_trains_one_model() -> None:
    setting = federation("centralized")
    problem, algorithm = setting.problem, setting.algorithm
    plan = algorithm.plan(problem, algorithm.init(problem), setting.everyone)
    assert plan.cohort.tolist() == [CLIENTS] and plan.tasks[0].candidates.tolist() == [[0]]
    report = setting.clients.run(plan)
    assert report.results[0].sizes.tolist() == [CLIENTS * SAMPLES]
    state, _ = algorithm.update(problem, algorithm.init(problem), report)
    assert torch.equal(state.models[0], problem.fresh(0) + report.results[0].updates.values[0])


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
    plan = setting.algorithm.plan(setting.problem, setting.algorithm.init(setting.problem), setting.everyone)
    assert plan.tasks[0].training.batch == batch


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
