import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedstrata.base.errors import ExperimentError, RecordError
from fedstrata.config import choose, choose_all, dumps, folder_of, load_experiment

LONG = "x" * 5000
"""A name that no file can have."""


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
    assert choose(out="empty") == (load_experiment(), Path("empty"))
    assert choose(out=tmp_path / "a" / "b" / "c")[1] == tmp_path / "a" / "b" / "c"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for out in ("full", "full/file"):
        with pytest.raises(RecordError, match=f"'{out}': expected a new or empty folder.*give another.*--resume"):
            choose(out=out)
    for out in ("full/file/run", LONG):
        with pytest.raises(RecordError, match="expected a folder that can be made"):
            choose(out=out)


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A run folder, in which `auto` has been resolved."""
    folder = tmp_path / "started"
    folder.mkdir()
    experiment = load_experiment(None, ["engine.name=loop", "engine.device=cpu", "seed=4"])
    (folder / "experiment.toml").write_text(dumps(experiment))
    return folder


@pytest.mark.parametrize(
    ("sets", "first"),
    [
        (["seed=5"], "seed was 4, is 5; resume with the keys of its experiment"),
        (["algorithm.name=cfl"], 'algorithm.name was "strata", is "cfl"'),
        (["partition.groups=2"], "partition.groups was 4, is 2"),
        (["data.unit=x"], 'data.unit was not set, is "x"'),
        (["probe.gap=['cos']"], r'probe.gap was \[\], is \["cos"\]'),
    ],
)
def test_another_experiment_is_not_resumed(sets: list[str], first: str, started: Path) -> None:
    with pytest.raises(RecordError, match=first):
        choose(out=started, sets=sets, resume=True)


KEYS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [8]},
    "server": {"aggregation": "norm_clip", "clip_norm": 0.5},
    "probe": {"gap": ["cos"]},
    "data": {"unit": "none"},
}


@pytest.mark.parametrize(
    ("table", "key", "first"),
    [
        ("model", "hidden", r"model.hidden was \[8\], is not set; resume with"),
        ("server", "clip_norm", "server.clip_norm was 0.5, is not set"),
        ("probe", "gap", r'probe.gap was \["cos"\], is \[\]'),
        ("data", "unit", 'data.unit was "none", is not set'),
    ],
)
def test_an_experiment_without_a_key_of_the_run_is_not_resumed(
    table: str, key: str, first: str, tmp_path: Path
) -> None:
    """A key without a default was ignored: the run went on with the value that the file no longer has."""
    own = load_experiment(KEYS)
    (tmp_path / "experiment.toml").write_text(dumps(own))
    assert choose(KEYS, out=tmp_path, resume=True) == choose(out=tmp_path, resume=True) == (own, tmp_path)
    fewer = {**KEYS, table: {name: value for name, value in KEYS[table].items() if name != key}}
    with pytest.raises(RecordError, match=first):
        choose(fewer, out=tmp_path, resume=True)


NO_RESULT_DEPENDS_ON = ["data.root=elsewhere", "label=mine", "algorithms.cfl.first=3"]


@pytest.mark.parametrize("sets", [[], ["data.unit=trial"], NO_RESULT_DEPENDS_ON])
def test_resuming_takes_the_experiment_of_the_folder(sets: list[str], started: Path) -> None:
    """The run has written the unit down that its recordings have of their own; the file never had it."""
    own = load_experiment(started / "experiment.toml", sets)
    (started / "experiment.toml").write_text(dumps(own))
    given = {**tomllib.loads(dumps(load_experiment())), "seed": 4}
    assert choose(out=started, resume=True) == choose(given, out=started, resume=True) == (own, started)
    assert choose(sets=["seed=4"], out=started, resume=True) == (own, started)


def test_a_run_is_resumed_with_other_workers_and_another_data_folder_which_are_used(started: Path) -> None:
    resumed, _ = choose(sets=["seed=4", "engine.workers=3", "data.root=elsewhere"], out=started, resume=True)
    assert resumed.engine.workers == 3 and resumed.data.root == "elsewhere"
    assert load_experiment(started / "experiment.toml").engine.workers == 0


def test_the_latest_numbered_folder_is_resumed(started: Path) -> None:
    with pytest.raises(RecordError, match="'runs/default-strata-4': expected a run folder, found no experiment"):
        choose(sets=["seed=4"], resume=True)
    Path("runs/default-strata-4").mkdir(parents=True)
    started.rename("runs/default-strata-4-2")
    assert choose(sets=["seed=4"], resume=True)[1] == Path("runs/default-strata-4-2")


FILE = """
seed = 4
[algorithm]
name = "cfl"
eps1 = 0.5
[algorithms.hicfl]
epsilon = 0.02
[algorithms.cfl]
first = 3
"""


def file() -> Path:
    Path("mine.toml").write_text(FILE)
    return Path("mine.toml")


def test_every_algorithm_and_seed_is_an_experiment_as_if_it_were_run_alone() -> None:
    experiments, folder = choose_all(file(), ["cfl", "hicfl", "fedavg"], [0, 7], ["local.lr=0.3", "algorithm.eps2=0.9"])
    assert folder == Path("runs/mine-compare") and not folder.exists()
    assert [(e.algorithm.name, e.seed) for e in experiments] == [
        (name, seed) for seed in (0, 7) for name in ("cfl", "hicfl", "fedavg")
    ]
    cfl, hicfl, fedavg = experiments[:3]
    assert [cfl.algorithm.options[key] for key in ("eps1", "eps2", "first")] == [0.5, 0.9, 3]
    assert hicfl.algorithm.options["epsilon"] == 0.02 and {e.local.lr for e in experiments} == {0.3}
    assert hicfl == load_experiment(file(), ["local.lr=0.3", "algorithm.name=hicfl", "seed=0"])
    assert folder_of(folder, fedavg) == Path("runs/mine-compare/fedavg-0")


def test_names_tell_personal_methods_apart_where_runs_differ_in_them() -> None:
    """FedAvg whose clients make personal models is not the one model for all that others are compared with."""
    personal = {"personal": {"method": "finetune"}}
    keys = {**personal, "algorithms": {"plain": {"name": "ifca", "personal": {"method": "none"}}}}
    titles = [each.title for each in choose_all(keys, ["fedavg", "plain"], out="out")[0]]
    assert titles == ["fedavg personal.method=finetune", "plain"]
    assert [each.title for each in choose_all(personal, ["fedavg", "ifca"], out="out")[0]] == ["fedavg", "ifca"]


def test_algorithms_whose_runs_would_have_one_folder_are_refused() -> None:
    """The second run failed with a message about another process that works in the folder."""
    tables = {"few a": {"name": "ifca", "k": 2}, "few_a": {"name": "ifca", "k": 3}}
    with pytest.raises(ExperimentError, match=r"found 'few a' and 'few_a', which would have one folder"):
        choose_all({"algorithms": tables}, ["few a", "few_a"])
    with pytest.raises(ExperimentError, match=r"found 'mine' and 'mine', which would have one folder; .* no label"):
        choose_all({"label": "mine"}, ["cfl", "ifca"])


def test_a_comparison_goes_on_with_the_experiments_that_it_was_begun_with() -> None:
    """What "auto" turned out to be holds for the runs that are added as well."""
    (cfl,), folder = choose_all(file(), ["cfl"])
    begun = load_experiment(file(), ["engine.name=loop", "engine.device=cpu"])
    folder_of(folder, cfl).mkdir(parents=True)
    (folder_of(folder, cfl) / "experiment.toml").write_text(dumps(begun))
    (own, added), again = choose_all(file(), ["cfl", "fedavg"], resume=True)
    assert again == folder and own == begun and added.engine == begun.engine
    assert choose_all(file(), ["cfl"])[1] == Path("runs/mine-compare-2")
    with pytest.raises(RecordError, match="rounds was 50, is 9"):
        choose_all(file(), ["cfl"], sets=["rounds=9"], resume=True)
