"""Where warnings about the data are shown."""

from pathlib import Path

import pytest
import tomli_w
import torch

import fedstrata
from fedstrata import cli
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.play.run import run_experiment
from fedstrata.play.scan import scan_experiment
from fedstrata.report import build
from own_data import arrays, keys, save


def test_the_warning_is_in_the_run_on_the_page_in_the_folder_and_in_a_scan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.npz"
    save(file, arrays())
    experiment = load_experiment(keys(file))
    run = run_experiment(experiment, tmp_path / "run")
    build(tmp_path / "run")
    assert "data.unit = 'trial'" in capsys.readouterr().err.replace("\n", " ")
    assert "data.unit = &#39;trial&#39;" in (tmp_path / "run" / "report.html").read_text()
    assert "data.unit = 'trial'" in (tmp_path / "run" / "data.json").read_text()
    assert run.warnings == build_run(experiment).warnings
    lines: list[str] = []
    scan_experiment(experiment, 2, warn=lines.append)
    assert "data.unit = 'trial'" in lines[0]


def test_a_quiet_command_still_warns_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.npz"
    save(file, arrays())
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(tomli_w.dumps(keys(file)))
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(experiment), "--quiet", "--out", str(tmp_path / "run")])
    assert ended.value.code in (0, None)
    assert "data.unit = 'trial'" in capsys.readouterr().err


def test_a_comparison_warns_once_for_all_of_its_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    save(file, arrays())
    compared = fedstrata.compare(keys(file), ["fedavg", "local"], out=tmp_path / "both", quiet=True)
    assert len([line for line in compared.warnings if "data.unit = 'trial'" in line]) == 1
    assert "data.unit = &#39;trial&#39;" in (tmp_path / "both" / "comparison.html").read_text()


def test_a_metric_that_is_a_number_for_nobody_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float("nan")

    keys = {"rounds": 1, "data": {"clients": 2, "samples": 20}, "engine": {"name": "loop"}}
    run = fedstrata.run(keys, tmp_path / "run", metric=nothing)
    assert run.summary["acc_client"] is None
    assert "WARNING: the nothing of no client is a number after the last round" in capsys.readouterr().err
