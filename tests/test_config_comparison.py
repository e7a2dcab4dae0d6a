from pathlib import Path
from typing import Any

import pytest

from fedstrata.config import choose_all, dumps, folder_of, load
from fedstrata.errors import ExperimentError, RecordError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)


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
    assert (cfl.algorithm.options["eps1"], cfl.algorithm.options["eps2"], cfl.algorithm.options["first"]) == (
        0.5,
        0.9,
        3,
    )
    assert hicfl.algorithm.options["epsilon"] == 0.02 and {e.local.lr for e in experiments} == {0.3}
    assert hicfl == load(file(), ["local.lr=0.3", "algorithm.name=hicfl", "seed=0"])
    assert folder_of(folder, fedavg) == Path("runs/mine-compare/fedavg-0")


def test_without_seeds_the_seed_is_that_of_the_experiment() -> None:
    assert [experiment.seed for experiment in choose_all(file(), ["fedavg"])[0]] == [4]


@pytest.mark.parametrize(
    ("algorithms", "seeds", "message"),
    [
        (["fedavgg"], None, "--algorithms = 'fedavgg': unknown algorithm; .* did you mean fedavg?"),
        (["cfl", "cfl"], None, "--algorithms: expected .* each once, found cfl more than once"),
        ([], None, "--algorithms: expected .* found nothing"),
        (["cfl"], [1, 1], "--seeds: .* found 1 more than once"),
        (["cfl"], [], "--seeds: .* found nothing"),
        (["cfl"], [-1], "--seeds = -1: expected a number of at least 0"),
    ],
)
def test_names_and_seeds_that_are_wrong_are_refused(algorithms: list[str], seeds: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        choose_all(file(), algorithms, seeds)


def test_a_folder_that_holds_something_is_not_overwritten() -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(RecordError, match="expected a new or empty run folder"):
        choose_all(file(), ["cfl"], out="full")
    with pytest.raises(RecordError, match="'full': expected a comparison, found none of its runs in it"):
        choose_all(file(), ["cfl"], out="full", resume=True)


def test_a_comparison_goes_on_with_the_experiments_that_it_was_begun_with() -> None:
    """What "auto" turned out to be holds for the runs that are added as well."""
    (cfl,), folder = choose_all(file(), ["cfl"])
    begun = load(file(), ["engine.name=loop", "engine.device=cpu"])
    folder_of(folder, cfl).mkdir(parents=True)
    (folder_of(folder, cfl) / "experiment.toml").write_text(dumps(begun))
    (own, added), again = choose_all(file(), ["cfl", "fedavg"], resume=True)
    assert again == folder and own == begun and added.engine == begun.engine
    assert choose_all(file(), ["cfl"])[1] == Path("runs/mine-compare-2")
    with pytest.raises(ExperimentError, match=r"rounds = 9: expected 50, as in"):
        choose_all(file(), ["cfl"], sets=["rounds=9"], resume=True)
