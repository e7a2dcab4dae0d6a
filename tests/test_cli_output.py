"""What the commands print for programs and for those who look closer: JSON, logs, completion, the list of runs."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bad_inputs import GOOD
from fedstrata import cli
from fedstrata.base.errors import RecordError
from fedstrata.report.runs import find_runs

RUN = Path(__file__).parent / "report/runs/fedavg"
"""A finished run."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment, a run of it, and a comparison."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mine.toml").write_text(GOOD)
    experiment = str(folder / "mine.toml")
    for arguments in (
        ["run", experiment, "--out", str(folder / "runs/one"), "--quiet"],
        ["compare", experiment, "--algorithms=fedavg,oracle", "--out", str(folder / "runs/two"), "--quiet"],
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert not caught.value.code
    return folder


@pytest.fixture
def said(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs a command in that folder and returns what it printed."""
    monkeypatch.chdir(here)

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert (caught.value.code or 0) == status
        return capsys.readouterr().out

    return run


def test_runs_are_listed_with_those_of_comparisons(said: Any, here: Path) -> None:
    titles, *rows = said("runs").splitlines()
    assert titles.split()[:6] == ["run", "state", "algorithm", "data", "seed", "round"]
    assert [row.split()[:6] for row in rows] == [
        ["one", "finished", "fedavg", "digits", "0", "2/2"],
        ["two/fedavg-0", "finished", "fedavg", "digits", "0", "2/2"],
        ["two/oracle-0", "finished", "oracle", "digits", "0", "2/2"],
    ]
    assert [run.folder for run in find_runs(here / "runs" / "one")] == [str(here / "runs" / "one")]


def test_a_run_that_is_not_finished_or_damaged_is_listed_as_such(tmp_path: Path) -> None:
    first, *_ = (RUN / "rounds.jsonl").read_text().splitlines()
    rounds = f'{json.dumps(json.loads(first) | {"acc_client": 0.5})}\n{{"round": 2, "acc'
    for name, experiment, records in (("begun", GOOD, ""), ("odd", "rounds =", ""), ("torn", GOOD, rounds)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(experiment)
        (tmp_path / name / "metric.json").write_bytes((RUN / "metric.json").read_bytes())
        if records:
            (tmp_path / name / "rounds.jsonl").write_text(records)
    (tmp_path / "notes.txt").write_text("no run")
    found = {Path(run.folder).name: run for run in find_runs(tmp_path)}
    states = {name: run.state for name, run in found.items()}
    assert states == {"begun": "unfinished", "odd": "damaged", "torn": "unfinished"}
    assert found["begun"].round == 0 and found["begun"].acc_client is None
    assert found["torn"].round == 1 and found["torn"].acc_client == 0.5
    with pytest.raises(RecordError, match=r"expected a folder of runs, found none"):
        find_runs(tmp_path / "nothing")


def test_verbose_shows_what_the_library_notes_and_where_an_error_came_from(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    # Both are put back after the test.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("fedstrata"), "level", logging.NOTSET)
    for extra in ([], ["--verbose", "--set", "seed=1"]):
        with pytest.raises(SystemExit):
            cli.main(["run", "mine.toml", "--out", str(tmp_path / f"run-{len(extra)}"), "--quiet", *extra])
        notes = capsys.readouterr().err
        assert ("data digits: 1797 samples" in notes) is bool(extra)
        assert ("the run is finished after round 2" in notes) is bool(extra)
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", "gone.toml", *extra])
        assert caught.value.code == 2
        notes = capsys.readouterr().err
        assert ("Traceback" in notes) is bool(extra) and "fedstrata: 'gone.toml'" in notes


def test_the_shell_completes_commands(here: Path) -> None:
    words = {"COMP_WORDS": "fedstrata ru", "COMP_CWORD": "1", "_FEDSTRATA_COMPLETE": "complete_bash"}
    code = "from fedstrata.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["run", "runs"]
