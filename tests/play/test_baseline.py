"""The reference beside a run: FedAvg on the same clients, with ``report.baseline = true``."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from builders import keys, left
from fedstrata.config import load_experiment
from fedstrata.play.interrupt import Stopped
from fedstrata.play.steps import run_steps
from fedstrata.report.reader import read

KEYS = keys(cohort={"fraction": 0.8}, algorithm={"name": "oracle"})
ASKED = {**KEYS, "report": {"baseline": True}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    return fs.run(ASKED, tmp_path_factory.mktemp("baseline") / "run", quiet=True)


def test_the_reference_is_the_run_of_fedavg_on_the_same_clients(done: fs.Run, tmp_path: Path) -> None:
    alone = fs.run({**KEYS, "algorithm": "fedavg"}, tmp_path / "alone", quiet=True)
    reference = fs.load(done.folder / "baseline")
    assert reference.experiment.algorithm.name == "fedavg"
    assert [each["acc_client"] for each in reference.rounds] == [each["acc_client"] for each in alone.rounds]
    assert left(done.folder / "baseline") == left(tmp_path / "alone")


def test_the_reference_changes_nothing_in_the_run(done: fs.Run, tmp_path: Path) -> None:
    fs.run(KEYS, tmp_path / "alone", quiet=True)
    assert left(done.folder) == left(tmp_path / "alone")


def test_the_summary_says_what_grouping_gained(done: fs.Run) -> None:
    reference = fs.load(done.folder / "baseline").summary
    assert done.summary == json.loads((done.folder / "summary.json").read_text())
    assert done.summary["baseline_acc_client"] == reference["acc_client"]
    assert done.summary["baseline_acc_worst"] == reference["acc_worst"]
    assert done.summary["baseline_seconds"] == reference["seconds"]
    gained = done.summary["acc_client"] - reference["acc_client"]
    assert done.summary["baseline_gain"] == pytest.approx(gained)
    assert 0 <= done.summary["baseline_better"] + done.summary["baseline_worse"] <= 6


def test_the_page_finds_the_reference_and_both_have_one(done: fs.Run) -> None:
    assert (done.folder / "report.html").exists() and (done.folder / "baseline" / "report.html").exists()
    found = read(done.folder).references
    assert found["fedavg"].mean == done.summary["baseline_acc_client"]
    assert set(found["fedavg"].by_client) == set(range(6))


def test_a_finished_run_gets_its_reference_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fs.run(KEYS, folder, quiet=True)
    before = left(folder)
    later = fs.run(None, folder, sets=["report.baseline=true"], resume=True, quiet=True)
    assert later.summary["baseline_acc_client"] == fs.load(folder / "baseline").summary["acc_client"]
    assert left(folder) == before
    assert load_experiment(folder / "experiment.toml").report.baseline


def test_a_stop_during_the_reference_is_resumed(done: fs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"

    def stopping(experiment: Any, setup: Any, out: Path, **options: Any) -> Any:
        if out.name != "baseline":
            return run_steps(experiment, setup, out, **options)
        rounds: list[Any] = []
        watched = {"on_round": lambda record, state: rounds.append(record), "stop": lambda: len(rounds) > 1}
        return run_steps(experiment, setup, out, **{**options, **watched})

    with monkeypatch.context() as patch:
        patch.setattr("fedstrata.play.run.run_steps", stopping)
        with pytest.raises(Stopped, match="fedavg baseline stopped after round 3 of 4") as stopped:
            fs.run(ASKED, folder, quiet=True)
    assert stopped.value.folder == folder
    assert (folder / "report.html").exists() and "baseline_gain" not in fs.load(folder).summary
    resumed = fs.run(None, folder, resume=True, quiet=True)
    assert left(folder) == left(done.folder)
    assert left(folder / "baseline") == left(done.folder / "baseline")
    assert resumed.summary["baseline_gain"] == done.summary["baseline_gain"]


def test_the_reference_has_the_personal_models_of_the_run(tmp_path: Path) -> None:
    """What differs is the grouping alone."""
    personal = {"personal": {"method": "finetune"}}
    run = fs.run({**ASKED, **personal, "rounds": 2}, tmp_path / "run", quiet=True)
    alone = fs.run({**KEYS, **personal, "rounds": 2, "algorithm": "fedavg"}, tmp_path / "alone", quiet=True)
    assert run.summary["baseline_acc_client"] == alone.summary["acc_client"]
    assert set(read(run.folder).references) == {"fedavg"}


def test_a_run_of_fedavg_is_its_own_reference(tmp_path: Path) -> None:
    run = fs.run({**ASKED, "rounds": 1, "algorithm": "fedavg"}, tmp_path / "run", quiet=True)
    assert not (run.folder / "baseline").exists() and "baseline_gain" not in run.summary


def test_the_progress_says_which_run_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fs.run({**ASKED, "rounds": 1}, tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("round 1/1") for line in lines)
    assert any(line.startswith("fedavg baseline  round 1/1") for line in lines)
    fs.run({**ASKED, "rounds": 1}, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().err == ""


def test_warnings_about_the_data_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = [[float(i % 7), float(i)] for i in range(40)], [i % 2 for i in range(40)]
    clients = {"1": (x, y), "2": (x, y)}  # the same samples twice
    tables = {"rounds": 1, "model": "mlp", "algorithm": "local", "report": {"baseline": True}}
    fs.run(tables, tmp_path / "run", clients=clients)
    told = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert told and len(told) == len(set(told))


def test_a_comparison_adds_fedavg_once(tmp_path: Path) -> None:
    compared = fs.compare({**ASKED, "rounds": 1}, ["oracle"], out=tmp_path / "one", quiet=True)
    assert [run.algorithm for run in compared.runs] == ["oracle", "fedavg"]
    compared = fs.compare({**ASKED, "rounds": 1}, ["fedavg", "oracle"], out=tmp_path / "two", quiet=True)
    assert [run.algorithm for run in compared.runs] == ["fedavg", "oracle"]
    assert not list(tmp_path.glob("*/*/baseline"))
