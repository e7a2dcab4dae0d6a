import json
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from comparing import KEYS
from PIL import Image

import builders
import fedstrata
from builders import left
from fedstrata.algorithms.ifca import IFCA
from fedstrata.build.build import build_run
from fedstrata.cli import main
from fedstrata.comparison.sweep import choose_setting
from fedstrata.config import load_experiment
from fedstrata.config.grid import SWEPT_DATA_KEYS
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.report.comparison.folder import Outcome
from fedstrata.report.comparison.words import choice_text

GRID: dict[str, list[Any]] = {"local.lr": [0.05, 0.2], "algorithm.k": [2, 3]}
IFCA_KEYS = {**KEYS, "rounds": 2, "algorithm": {"name": "ifca"}, "algorithms": {}, "engine": {"name": "loop"}}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> fedstrata.Comparison:
    return fedstrata.sweep(IFCA_KEYS, GRID, out=tmp_path_factory.mktemp("sweep") / "sweep", quiet=True)


def test_every_setting_is_a_run_as_if_it_were_alone(swept: fedstrata.Comparison, tmp_path: Path) -> None:
    assert [row.algorithm for row in swept.table] == ["lr=0.05 k=2", "lr=0.05 k=3", "lr=0.2 k=2", "lr=0.2 k=3"]
    alone = tmp_path / "alone"
    fedstrata.run(IFCA_KEYS, alone, sets=["local.lr=0.2", "algorithm.k=3"], quiet=True)
    together = swept.folder / "lr=0.2_k=3-0"
    assert left(together) == left(alone)


def test_the_page_shows_the_grid_and_the_command_that_makes_the_sweep_again(
    swept: fedstrata.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = swept.folder
    page = unescape((folder / "comparison.html").read_text())
    for text in (page, (folder / "comparison.md").read_text()):
        assert "local.lr = 0.05, 0.2; algorithm.k = 2, 3" in text
    command = page.partition("<pre><code>")[2].partition("</code>")[0]
    monkeypatch.chdir(tmp_path)
    toml = page.partition('<pre class="file"><code>')[2].partition("</code>")[0]
    (tmp_path / "experiment.toml").write_text(toml)
    with pytest.raises(SystemExit) as end:
        main([*shlex.split(command)[1:], "--quiet"])
    assert not end.value.code
    again = json.loads((tmp_path / "again" / "comparison.json").read_text())
    before = json.loads((folder / "comparison.json").read_text())
    assert again["sweep"] == before["sweep"]
    for one, other in zip(again["runs"], before["runs"], strict=True):
        assert (one["algorithm"], one["summary"]["acc_client"]) == (other["algorithm"], other["summary"]["acc_client"])


def test_a_sweep_loads_and_draws_what_each_key_does(tmp_path: Path) -> None:
    """For each learning rate the best of the settings with it, on validation data."""
    keys = {**IFCA_KEYS, "data": {**KEYS["data"], "validation": 0.25}}
    swept = fedstrata.sweep(keys, GRID, out=tmp_path / "sweep", quiet=True)
    page = (tmp_path / "sweep" / "comparison.html").read_text()
    assert "fedstrata sweep" in page.partition("<h1>")[0] and ">validation</th>" in page
    loaded = fedstrata.load(swept.folder)
    assert loaded.table == swept.table and loaded.document.sweep == swept.choice
    (curve,) = loaded.plot("response-local-lr").data
    found = {row.algorithm: row.figures["acc_validation"] for row in swept.table}
    means = {label: number.mean for label, number in found.items() if number is not None}
    best = [max(means[f"lr={rate} k={k}"] for k in (2, 3)) for rate in (0.05, 0.2)]
    assert list(curve.x) == [0.05, 0.2] and list(curve.y) == pytest.approx(best, rel=1e-3)


def test_settings_with_other_networks_and_data_keys_are_runs_as_if_they_were_alone(tmp_path: Path) -> None:
    keys = {**IFCA_KEYS, "algorithm": {"name": "fedavg"}}
    grid: dict[str, list[Any]] = {
        "model.hidden": [[4], [16]],
        "data.scale": [True, False],
        "local.transform": ["none", "noise"],
    }
    swept = fedstrata.sweep(keys, grid, [0, 1], out=tmp_path / "sweep", quiet=True)
    assert len(swept.table) == 8 and len(swept.runs) == 16
    assert not any(row.failed for row in swept.table)
    sets = ["model.hidden=[4]", "data.scale=false", "local.transform=noise", "seed=1"]
    fedstrata.run(keys, tmp_path / "alone", sets=sets, quiet=True)
    folders = {(run.algorithm, run.seed): run.folder for run in swept.runs}
    assert left(folders["hidden=[4] scale=false transform=noise", 1]) == left(tmp_path / "alone")
    common = json.loads((tmp_path / "sweep/comparison.json").read_text())["experiment"]
    assert common["model"] == {"name": "mlp"} and "scale" not in common["data"] and common["data"]["clients"] == 8


def test_equal_work_of_settings_with_one_network_is_done_once(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 2, "engine": {"name": "loop"}}
    grid: dict[str, list[Any]] = {"algorithm": ["fedavg", "cfl"], "model.hidden": [[4], [16]]}
    jobs = fedstrata.sweep(keys, grid, out=tmp_path / "sweep", quiet=True).jobs
    alone = fedstrata.sweep(keys, {"algorithm": ["fedavg", "cfl"]}, out=tmp_path / "one", quiet=True).jobs
    assert jobs is not None and alone is not None
    assert jobs.asked == 2 * alone.asked and jobs.trained == 2 * alone.trained < jobs.asked


def test_a_network_that_does_not_fit_fails_alone_and_is_named(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 1}
    swept = fedstrata.sweep(keys, {"model.name": ["mlp", "har_cnn"]}, out=tmp_path / "sweep", quiet=True)
    assert [bool(run.summary) for run in swept.runs] == [True, False]
    (trouble,) = swept.troubles
    assert "name=har_cnn" in trouble and "har_cnn takes windows" in trouble


@pytest.mark.parametrize(("key", "value"), [("inputs", ["pulse"]), ("scale", False), ("public", 5), ("size", 6)])
def test_data_keys_that_may_be_varied_leave_every_client_its_samples(key: str, value: Any, tmp_path: Path) -> None:
    assert key in SWEPT_DATA_KEYS and len(SWEPT_DATA_KEYS) == 8
    rng = np.random.default_rng(0)
    if key == "size":
        for place in range(60):
            file = tmp_path / "photos" / "ab"[place % 2] / f"{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
        name = tmp_path / "photos"
    else:
        name = tmp_path / "visits.csv"
        rows = [f"{a},{b},{place % 2}" for place, (a, b) in enumerate(rng.normal(size=(60, 2)))]
        name.write_text("\n".join(["pulse,age,label", *rows]))
    data = {"name": str(name), "clients": 3, "samples": 10, "validation": 0.2}
    keys = {"data": data, "model": {"name": "mlp"}, "engine": {"name": "loop"}, "algorithm": {"name": "fedavg"}}

    def samples(**changed: Any) -> list[list[int]]:
        """The samples of each client for each purpose, and their labels."""
        own = build_run(load_experiment({**keys, "data": data | changed})).client_data
        parts = [part for id in range(3) for part in (own.train(id), own.test(id), own.held_out(id, "validation"))]
        return [each.tolist() for part in parts for each in (part, own.labels(part))]

    assert samples() == samples(**{key: value})


def test_a_sweep_without_validation_data_is_told_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedstrata.sweep({**IFCA_KEYS, "rounds": 1}, {"local.lr": [0.05]}, out=tmp_path / "none")
    told = capsys.readouterr().err
    assert told.index("no setting will be chosen") < told.index("round")
    data = {**IFCA_KEYS["data"], "validation": 0.2}
    fedstrata.sweep({**IFCA_KEYS, "rounds": 1, "data": data}, {"local.lr": [0.05]}, out=tmp_path / "some")
    assert "no setting will be chosen" not in capsys.readouterr().err


def test_scores_that_are_unknown_on_all_samples_end_no_sweep_and_are_named(tmp_path: Path) -> None:
    """R² is not defined of a single sample, and each client has one for validation."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "dose.npz", x=rng.random((30, 2), dtype=np.float32), y=rng.random(30))
    data = {"name": str(tmp_path / "dose.npz"), "clients": 3, "samples": 7, "test": 0.3, "validation": 0.1}
    keys = builders.keys(rounds=1, data=data, partition={"scheme": "iid"}, local={"loss": "mse"})
    swept = fedstrata.sweep(keys, {"local.lr": [0.01, 0.1]}, out=tmp_path / "sweep", quiet=True)
    assert swept.choice is not None
    assert swept.best is None and "none has the R² on validation data from all of its runs" in swept.choice.why


def test_a_setting_is_chosen_on_samples_for_validation(tmp_path: Path) -> None:
    keys = {**IFCA_KEYS, "data": {**KEYS["data"], "validation": 0.25}}
    swept = fedstrata.sweep(keys, {"local.lr": [0.001, 0.3]}, [0, 1], out=tmp_path / "sweep", quiet=True)
    means = {
        label: mean((run.summary or {})["acc_validation"] for run in swept.runs if run.algorithm == label)
        for label in ("lr=0.001", "lr=0.3")
    }
    assert swept.choice is not None
    assert swept.best == {"local.lr": 0.3} and swept.choice.value == pytest.approx(means["lr=0.3"])
    assert means["lr=0.3"] > means["lr=0.001"]
    page = (tmp_path / "sweep" / "comparison.html").read_text()
    assert "Chosen: lr=0.3, with" in page and "The table has test data" in page


def outcome(label: str, seed: int, value: float | None, **summary: Any) -> Outcome:
    found = {"acc_client": 0.5, "rounds": 2, **summary, **({} if value is None else {"acc_validation": value})}
    return Outcome(label, seed, Path("x"), found, {0: 0.5})


def test_the_setting_with_the_best_mean_on_validation_data_is_chosen() -> None:
    runs = [outcome("a", 0, 0.6), outcome("a", 1, 0.8), outcome("b", 0, 0.9), outcome("b", 1, 0.7)]
    choice = choose_setting(runs, ACCURACY, ["a", "b"])
    assert choice.label == "b" and choice.value == pytest.approx(0.8)
    assert choice_text(choice, ACCURACY).startswith("Chosen: b, with 80.0 %. Its accuracy on validation data")
    # A tie goes to the first.
    tie = (outcome("a", 0, 0.7), outcome("b", 0, 0.7))
    assert choose_setting(tie, ACCURACY, ["a", "b"]).label == "a"


def test_a_setting_whose_runs_failed_or_diverged_is_not_chosen() -> None:
    failed = replace(outcome("a", 1, None), summary=None, error="broken")
    wild = outcome("b", 0, 0.99, diverged={"rounds": [1, 2], "clients": 3})
    late = outcome("d", 0, 0.98, diverged={"rounds": [2], "clients": 3})
    early = outcome("e", 0, 0.2, diverged={"rounds": [1], "clients": 1})
    both = (outcome("a", 0, 0.9), failed, wild, outcome("c", 0, 0.3), late, early)
    assert choose_setting(both, ACCURACY, ["a", "b", "c", "d", "e"]).label == "c"
    assert choose_setting(both, ACCURACY, ["b", "d", "e"]).label == "e"
    nothing = choose_setting((wild, late), ACCURACY, ["b", "d"])
    assert nothing.label is None and "diverged in their last round" in nothing.why


def test_one_algorithm_takes_part_several_times(tmp_path: Path) -> None:
    tables = {"few": {"name": "ifca", "k": 2}, "many": {"name": "ifca", "k": 4}}
    keys = {**KEYS, "rounds": 1, "engine": {"name": "loop"}, "algorithms": tables}
    named = fedstrata.compare(keys, ["few", "many", "fedavg"], out=tmp_path / "named", quiet=True)
    assert [row.algorithm for row in named.table] == ["few", "many", "fedavg"]
    few, many, _ = [fedstrata.load(run.folder).experiment.algorithm_of() for run in named.runs]
    assert (few, many) == (IFCA(k=2), IFCA(k=4))
    assert (tmp_path / "named/few-0/report.html").exists()
    objects = fedstrata.compare(keys, [IFCA(k=2), IFCA(k=4)], out=tmp_path / "objects", quiet=True)
    assert [row.algorithm for row in objects.table] == ["ifca k=2", "ifca k=4"]
    with pytest.raises(fedstrata.InputError, match="which would have one folder"):
        fedstrata.compare(keys, [IFCA(k=2), IFCA(k=2)])


def test_a_sweep_that_was_stopped_goes_on(swept: fedstrata.Comparison, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    fedstrata.sweep(IFCA_KEYS, {"local.lr": [0.05]}, out=folder, quiet=True)
    done = fedstrata.sweep(IFCA_KEYS, {"local.lr": [0.05, 0.2]}, out=folder, resume=True, quiet=True)
    assert [row.algorithm for row in done.table] == ["lr=0.05", "lr=0.2"]


def test_the_command_prints_the_table_and_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('rounds = 1\n[data]\nclients = 4\nsamples = 20\n[engine]\nname = "loop"\n')
    with pytest.raises(SystemExit) as caught:
        main(["sweep", "mine.toml", "--grid", "local.lr=0.1,0.2", "--set", "algorithm=fedavg", "--out", "s", "--quiet"])
    assert not caught.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("lr=0.1 ") and lines[2].startswith("lr=0.2 ")
    assert any(line.startswith("No setting is chosen") for line in lines) and lines[-1] == "page: s/comparison.html"
