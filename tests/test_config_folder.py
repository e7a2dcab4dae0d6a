import os
import tomllib
from pathlib import Path

import pytest

from fedstrata.config import choose, dumps, load
from fedstrata.errors import ExperimentError, RecordError

LONG = "x" * 5000
"""A name that no file can have."""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)


def test_a_run_folder_is_named_after_file_algorithm_and_seed_and_numbered(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 3\nalgorithm.name = 'cfl'")
    assert choose(file)[1] == Path("runs/mine-cfl-3")
    assert choose({"seed": 5})[1] == choose(None, ["seed=5"])[1] == Path("runs/default-strata-5")
    assert not Path("runs").exists()
    Path("runs/mine-cfl-3").mkdir(parents=True)
    assert choose(file)[1] == Path("runs/mine-cfl-3-2")
    Path("runs/mine-cfl-3-2").mkdir()
    assert choose(file)[1] == Path("runs/mine-cfl-3-3")


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert choose(out="empty") == (load(), Path("empty"))
    assert choose(out=tmp_path / "a" / "b" / "c")[1] == tmp_path / "a" / "b" / "c"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for out in ("full", "full/file"):
        with pytest.raises(RecordError, match=f"'{out}': expected a new or empty run folder.*--resume.*--out"):
            choose(out=out)
    for out in ("full/file/run", LONG):
        with pytest.raises(RecordError, match="expected a run folder that can be made"):
            choose(out=out)


def test_a_folder_that_may_not_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RecordError, match="cannot hold it"):
        choose(out="a")


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A run folder, in which `auto` has been resolved."""
    folder = tmp_path / "started"
    folder.mkdir()
    experiment = load(None, ["engine.name=loop", "engine.device=cpu", "seed=4"])
    (folder / "experiment.toml").write_text(dumps(experiment))
    return folder


def test_resuming_takes_the_experiment_of_the_folder(started: Path) -> None:
    own = load(started / "experiment.toml")
    assert choose(out=started, resume=True) == (own, started)
    assert choose({**tomllib.loads(dumps(load())), "seed": 4}, out=started, resume=True) == (own, started)
    assert choose(sets=["seed=4"], out=started, resume=True) == (own, started)


@pytest.mark.parametrize(
    ("sets", "first"),
    [
        (["seed=5"], "seed = 5: expected 4, as in"),
        (["algorithm.name=cfl"], "algorithm.name = 'cfl': expected 'strata'"),
        (["partition.groups=2"], "partition.groups = 2: expected 4"),
        (["data.unit=x"], "data.unit = 'x': expected nothing"),
        (["probe.gap=['cos']"], r"probe.gap = \('cos',\): expected \(\)"),
    ],
)
def test_another_experiment_is_not_resumed(sets: list[str], first: str, started: Path) -> None:
    with pytest.raises(ExperimentError, match=first):
        choose(out=started, sets=sets, resume=True)


def test_a_run_is_resumed_with_other_workers(started: Path) -> None:
    resumed, _ = choose(sets=["seed=4", "engine.workers=3"], out=started, resume=True)
    assert resumed.engine.workers == 3 and load(started / "experiment.toml").engine.workers == 0


def test_a_run_is_resumed_with_another_timeout_of_its_workers(started: Path) -> None:
    resumed, _ = choose(sets=["seed=4", "engine.timeout=3"], out=started, resume=True)
    assert resumed.engine.timeout == 3 and load(started / "experiment.toml").engine.timeout == 600


def test_a_run_is_resumed_with_another_data_folder_which_is_used(started: Path) -> None:
    resumed, _ = choose(sets=["seed=4", "data.root=elsewhere"], out=started, resume=True)
    assert resumed.data.root == "elsewhere"


def test_the_latest_numbered_folder_is_resumed(started: Path) -> None:
    with pytest.raises(RecordError, match="'runs/default-strata-4': expected a run folder, found no experiment"):
        choose(sets=["seed=4"], resume=True)
    Path("runs/default-strata-4").mkdir(parents=True)
    started.rename("runs/default-strata-4-2")
    assert choose(sets=["seed=4"], resume=True)[1] == Path("runs/default-strata-4-2")


@pytest.mark.parametrize("out", ["nowhere", LONG], ids=["missing", "too long"])
def test_a_folder_without_a_run_is_not_resumed(out: str) -> None:
    with pytest.raises(RecordError, match="expected a run folder, found no"):
        choose(out=out, resume=True)
