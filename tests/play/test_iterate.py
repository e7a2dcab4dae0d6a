import gc
import itertools
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedstrata as fs
from builders import keys, left
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.results.run import Run

KEYS = keys(rounds=3, data={"clients": 8}, algorithm={"name": "oracle"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that is not looked at in between."""
    return fs.run(KEYS, tmp_path_factory.mktemp("iterate") / "whole", quiet=True)


def finished(step: fs.Step) -> Run:
    """The run of the last step."""
    assert step.run is not None
    return step.run


def test_the_steps_are_the_rounds_of_a_run_bit_for_bit(whole: Run, tmp_path: Path) -> None:
    steps = list(fs.iterate(KEYS, tmp_path / "run", quiet=True))
    assert [step.round for step in steps] == [1, 2, 3]
    assert [step.run is None for step in steps] == [True, True, False]
    run = finished(steps[-1])
    assert [dict(step.record) for step in steps] == run.rounds
    assert left(run.folder) == left(whole.folder) and run.tree == whole.tree == steps[-1].tree
    assert torch.equal(run.state.models, whole.state.models)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_step_has_the_clusters_after_the_round(whole: Run, tmp_path: Path) -> None:
    first, *_, last = fs.iterate(KEYS, tmp_path / "run", quiet=True)
    assert last.labels == whole.labels and set(first.labels.values()) == {1, 2}


def test_a_step_that_is_kept_does_not_keep_the_data_and_the_engine(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[weakref.ref[object]]()

    def build(experiment: Any) -> RunSetup:
        setup = build_run(experiment)
        made.extend(weakref.ref(each) for each in (setup.clients, setup.client_data))
        return setup

    monkeypatch.setattr("fedstrata.play.run.build_run", build)
    steps = list(fs.iterate(KEYS, tmp_path / "run", quiet=True))
    gc.collect()
    assert len(made) == 2 and all(each() is None for each in made)
    assert steps[-1].labels == whole.labels


def test_whoever_leaves_the_loop_leaves_a_run_that_goes_on(whole: Run, tmp_path: Path) -> None:
    steps = fs.iterate(KEYS, tmp_path / "run", quiet=True)
    assert [step.round for step in itertools.islice(steps, 1)] == [1]
    del steps
    later = list(fs.iterate(None, tmp_path / "run", resume=True, quiet=True))
    assert [step.round for step in later] == [2, 3]
    run = finished(later[-1])
    # That a run was resumed is an event of its next round.
    assert [each["acc_client"] for each in run.rounds] == [each["acc_client"] for each in whole.rounds]
    assert torch.equal(run.state.models, whole.state.models)


def test_the_last_step_has_the_gain_over_the_reference(tmp_path: Path) -> None:
    last = list(fs.iterate({**KEYS, "report": {"baseline": True}}, tmp_path / "run", quiet=True))[-1]
    assert "baseline_gain" in finished(last).summary


def test_functions_of_the_objective_are_given_themselves(whole: Run, tmp_path: Path) -> None:
    def error_rate(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs.argmax(1) != targets).float().mean())

    given: dict[str, Any] = {
        "loss": lambda outputs, targets: cross_entropy(outputs, targets),
        "metric": error_rate,
        "transform": torch.clone,
    }
    run = fs.run(KEYS, tmp_path / "run", quiet=True, **given)
    local = run.experiment.local
    assert local.loss.endswith(":loss") and str(local.metric).endswith(":error_rate")
    assert run.metric.name == "error rate"
    # The same training, but for the rounding of a loss that is left to autograd, and another score of it.
    torch.testing.assert_close(run.state.models, whole.state.models)
    assert run.summary["acc_client"] == pytest.approx(1 - whole.summary["acc_client"])
    again = fs.run({**KEYS, "local": {**KEYS["local"], "metric": error_rate}}, tmp_path / "again", quiet=True)
    assert again.experiment.local.metric == local.metric
    assert fs.load(run.folder).metric == run.metric
