import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock

import pytest

import builders
import fedstrata
from fedstrata import cli
from fedstrata.base.errors import ContractError, EngineError, RecordError, ResourceError
from fedstrata.config import load_experiment
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.play.interrupt import Stopped
from fedstrata.report.comparison.folder import JobCount, Outcome

FIGURES = ("acc_client", "acc_worst", "clusters", "ari", "rounds_to_partition", "bytes_down", "bytes_up", "seconds")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty; nothing is downloaded, and no terminal is there."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("FEDSTRATA_DATA", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def finished(experiment: object, out: Path, **told: Any) -> SimpleNamespace:
    """What stands in for a run."""
    summary: dict[str, Any] = {
        "algorithm": "layercfl [bold]",
        "ari": None,
        "acc_client": 0.98765,
        "rounds": 3,
        "versions": {},
    }
    run = {"summary": summary, "diverged": False, "metric": ACCURACY, "tree": (), "names": (), "warnings": ()}
    return SimpleNamespace(folder=out, **{**run, **told})


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands in for `run_experiment`, and remembers what it was asked."""
    trainer = Mock(side_effect=finished)
    monkeypatch.setattr("fedstrata.play.run.run_experiment", trainer)
    return trainer


def status(*args: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code or 0


def test_run_trains_the_default_and_says_where_its_records_are(
    trainer: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run") == 0
    folder = Path(f"runs/default-{load_experiment().algorithm.name}-0")
    trainer.assert_called_once_with(load_experiment(), folder, resume=False, quiet=False, finished=ANY)
    assert capsys.readouterr().out.splitlines() == [
        "algorithm   layercfl [bold]",
        "ari         -",
        "acc_client  98.8 %           accuracy, mean over clients",
        "rounds      3",
        f"run folder: {folder}",
        f"report: {folder / 'report.html'}",
    ]


def test_a_run_that_diverged_in_every_round_says_what_to_do_and_has_failed(
    trainer: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run", "--quiet") == 0 and capsys.readouterr().err == ""
    summary = {"rounds": 3, "diverged": {"rounds": [1, 2, 3], "clients": 6}, "rejected": 18}
    trainer.side_effect = lambda *given, **options: finished(*given, summary=summary, diverged=True)
    assert status("run", "--quiet") == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "diverged in 3 of 3 rounds" in first and "local.lr" in first
    assert "18 answers were rejected" in second


def test_run_passes_its_options_on(trainer: Mock, empty_folder: Path) -> None:
    file = empty_folder.parent / "mine.toml"
    file.write_text("rounds = 7")
    assert status("run", str(file), "--set", "seed=3", "--set", "local.lr=0.5", "--out", "a", "--quiet") == 0
    experiment = load_experiment({"rounds": 7, "seed": 3, "local": {"lr": 0.5}})
    trainer.assert_called_once_with(experiment, Path("a"), resume=False, quiet=True, finished=ANY)


RUNS = (
    Outcome("fedavg", 0, Path("c/fedavg-0"), {**dict.fromkeys(FIGURES, 2), "ari": None}, {0: 0.5}),
    Outcome("strata", 0, Path("c/strata-0"), error="ZeroDivisionError: division by zero"),
)
WRITTEN = [f"comparison: {Path('c/comparison.md')}", f"page: {Path('c/comparison.html')}"]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands in for the comparison, and remembers what it was asked."""
    compare = Mock(return_value=builders.compared(RUNS, jobs=JobCount(4000, 1240)))
    monkeypatch.setattr(fedstrata, "compare", compare)
    return compare


def test_compare_prints_the_table_the_share_and_what_failed(compared: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seeds", "0, 3", "--set", "rounds=9", "--out", "c", "--resume", "--quiet"]
    assert status("compare", "mine.toml", "--algorithms", "fedavg, strata", *options) == 1
    compared.assert_called_once_with(
        "mine.toml", ["fedavg", "strata"], [0, 3], Path("c"), sets=["rounds=9"], resume=True, quiet=True
    )
    out, err = capsys.readouterr()
    head, fedavg, strata, *rest = out.splitlines()
    assert head.split()[:3] == ["algorithm", "seeds", "accuracy"]
    assert fedavg.split()[:3] == ["fedavg", "1", "200.0"]
    assert strata.split()[:4] == ["strata", "0", "of", "1,"]
    assert rest == ["trained 1,240 of 4,000 jobs; 31 %", *WRITTEN]
    assert err.startswith("fedstrata: strata with seed 0 failed: ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (["run", "mine.toml", "--set", "seed=3"], "run"),
        (["run", "--resume", "--out", "runs/my a"], "run"),
        (
            ["compare", "mine.toml", "--algorithms", "cfl, ifca", "--set", "seed=3", "--set", "data.name=a b"],
            "compare mine.toml '--algorithms=cfl, ifca' --set=seed=3 '--set=data.name=a b'",
        ),
        (
            ["compare", "--algorithms", "cfl", "--seeds", "0,1", "--resume", "--out", "runs/my a"],
            "compare --algorithms=cfl --seeds=0,1",
        ),
    ],
)
def test_what_is_stopped_names_the_command_that_goes_on(
    command: list[str], again: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on = f"go on with: fedstrata {again} --resume --out 'runs/my a'\n"
    full = ResourceError("expected free space, found none; free some")
    full.folder = Path("runs/my a")
    for error, code, said in (
        (Stopped("stopped after round 3", full.folder), 130, f"fedstrata: stopped after round 3; {goes_on}"),
        (full, 1, f"fedstrata: {full.reason}, then {goes_on}"),
        (KeyboardInterrupt(), 130, ""),
    ):
        monkeypatch.setattr(fedstrata, command[0], Mock(side_effect=error))
        assert (status(*command), capsys.readouterr().err) == (code, said)


def test_a_comparison_with_runs_that_failed_names_the_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = replace(RUNS[0], summary=None, clients=None, error="ResourceError: expected room")
    monkeypatch.setattr(fedstrata, "compare", Mock(return_value=builders.compared((RUNS[0], failed))))
    assert status("compare", "--algorithms", "fedavg") == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("failed: ResourceError: expected room")
    assert second.endswith("go on with: fedstrata compare --algorithms=fedavg --resume --out c")


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (["run"], "fedstrata.play.run.run_experiment"),
        (["report", "."], "fedstrata.report.build"),
        (["report", ".", "--figures", "png"], "fedstrata.report.figures.save_figures"),
        (["report", ".", "--follow"], "fedstrata.report.follow"),
        (["assign", ".", "new.npz"], "fedstrata.results.assign.assign"),
        (["scout"], "fedstrata.play.scan.scan_experiment"),
        (["deploy", "init", "new"], "fedstrata.flower.deploy.init"),
        (["deploy", "run", "mine.toml", "--federation", "."], "fedstrata.flower.deploy.run_on_federation"),
        (["deploy", "resume", "a", "--federation", "."], "fedstrata.flower.deploy.resume"),
    ],
)
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "", "report.html"), 1, "'report.html': expected free space on the disk, found: No"),
        (MemoryError(), 1, "expected enough memory, found: no memory left"),
        (EngineError("expected answers, found none"), 1, "expected answers, found none, then give the same command"),
        (RecordError("expected a run,\n  found  none"), 2, "expected a run, found none"),
        (ContractError("a bug"), 1, "a bug"),
    ],
)
def test_every_command_tells_in_one_line_what_the_machine_refuses(
    command: list[str],
    function: str,
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(function, Mock(side_effect=error))
    assert status(*command) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedstrata: {said}")


def printed(command: list[str], out: int) -> tuple[int, str]:
    """Status and errors of a command whose output goes into a file or a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "fedstrata", *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""},
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(out)
    return done.returncode, done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    for command in (["--version"], ["list", "datasets"]):
        reader, writer = os.pipe()
        os.close(reader)
        assert printed(command, writer) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="expected a device that is always full")
def test_output_onto_a_full_disk_is_told_in_one_line() -> None:
    code, said = printed(["list", "datasets"], os.open("/dev/full", os.O_WRONLY))
    assert code == 1 and said.startswith("fedstrata: 'standard output': expected free space on the disk, found: No ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_report_builds_the_page_of_a_run_or_a_comparison_again(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[Path] = []
    function = {"report": "fedstrata.report.build", "comparison": "fedstrata.report.comparison.page.build_comparison"}
    monkeypatch.setattr(function[kind], built.append)
    Path("a").mkdir()
    if kind == "comparison":
        Path("a/comparison.json").touch()
    assert status("report", "a") == 0 and built == [Path("a")]
    assert capsys.readouterr().out == f"{Path('a') / f'{kind}.html'}\n"


def test_report_follows_a_run_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path, wait: Callable[[], object], say: Callable[[str], object]) -> None:
        say(f"{folder}: 1 round")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedstrata.report.follow", interrupted)
    assert status("report", "a", "--follow") == 0
    assert capsys.readouterr() == (f"{Path('a/report.html')}\n", "a: 1 round\n")
    assert status("report", "a", "--follow", "--figures", "svg") == 2


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "partitions", "models", "personal"])
def test_list_has_a_line_about_everything(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("list", kind) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(getattr(fedstrata, kind.upper()))
    assert all(len(line.split()) > 4 for line in lines)


def test_a_terminal_gets_tables(
    trainer: Mock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert status("run") == 0
    assert "│ algorithm  │ layercfl [bold] │" in capsys.readouterr().out


@pytest.mark.parametrize("args", [[], ["--help"], ["sweep", "--help"], ["deploy", "init", "--help"]])
def test_help_names_the_commands_and_marks_what_is_required(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*args) == 0
    shown = capsys.readouterr().out
    named = [f"  {command}  " for command in ("run", "compare", "report", "runs", "list")]
    assert all(text in shown for text in (["  [required]"] if len(args) > 1 else named)) and "\\" not in shown


def test_a_run_from_start_to_report(empty_folder: Path) -> None:
    command = [sys.executable, "-m", "fedstrata", "run", "--set", "rounds=1", "--out", "a"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"run folder: a\nreport: {Path('a/report.html')}\n")
    assert Path("a/report.html").is_file()
