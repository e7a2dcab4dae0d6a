import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedstrata
from fedstrata.base import errors


def test_the_public_names_are_sorted_complete_and_there() -> None:
    names = fedstrata.__all__
    # Constants, classes, then the rest, as ruff sorts them.
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert dir(fedstrata) == sorted(names)
    for name in names:
        assert getattr(fedstrata, name) is not None
    lazy = set(fedstrata._HOMES) | {"__version__"}
    eager = {"FedstrataError", "InputError", "compare", "iterate", "run", "sweep"}
    assert set(names) == lazy | eager
    assert fedstrata.InputError is errors.InputError


def test_registries_lead_from_names_to_things() -> None:
    assert "layercfl" in fedstrata.ALGORITHMS
    assert "digits" in fedstrata.DATASETS
    assert "rotation" in fedstrata.PARTITIONS
    assert "best" in fedstrata.PERSONAL
    assert "mlp" in fedstrata.MODELS


def test_importing_imports_neither_torch_nor_pydantic() -> None:
    code = """
import sys
import fedstrata
heavy = {"torch", "pydantic", "numpy", "typer", "rich", "sklearn", "pyarrow"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
list(fedstrata.ALGORITHMS), list(fedstrata.DATASETS), list(fedstrata.PARTITIONS), list(fedstrata.MODELS)
fedstrata.__version__
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compare_checks_runs_and_reports_what_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []
    runs = [SimpleNamespace(folder=name, summary=summary) for name, summary in (("a", {"ari": 1.0}), ("b", None))]

    def compare(experiments: object, out: Path, *, resume: bool, quiet: bool) -> SimpleNamespace:
        asked.extend([experiments, out, resume, quiet])
        return SimpleNamespace(runs=runs)

    monkeypatch.setattr(fedstrata, "comparison", SimpleNamespace(compare_experiments=compare), raising=False)
    monkeypatch.setattr(fedstrata, "report", SimpleNamespace(build=asked.append), raising=False)
    compared: object = fedstrata.compare({"rounds": 2}, ["cfl", "fedavg"], [3], sets=["local.lr=0.2"], quiet=True)
    assert compared == SimpleNamespace(runs=runs)
    experiments, *rest = asked
    assert [each.algorithm.name for each in experiments] == ["cfl", "fedavg"]  # type: ignore[attr-defined]  # Experiments
    assert rest == [Path("runs/default-compare"), False, True, "a"]
    with pytest.raises(fedstrata.InputError):
        fedstrata.compare(None, ["cfll"])


def test_run_checks_trains_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[object] = []

    def train(experiment: object, out: Path, *, resume: bool, quiet: bool, finished: Callable[[Path], object]) -> str:
        asked.extend([experiment, out, resume, quiet])
        finished(out)
        return "finished"

    monkeypatch.setattr("fedstrata.play.run.run_experiment", train)
    monkeypatch.setattr(fedstrata, "report", SimpleNamespace(build=asked.append), raising=False)
    finished: object = fedstrata.run({"seed": 2}, "a", sets=["rounds=3"], quiet=True)
    assert finished == "finished"
    experiment, *rest = asked
    assert (experiment.seed, experiment.rounds) == (2, 3)  # type: ignore[attr-defined]  # an Experiment
    assert rest == [Path("a"), False, True, Path("a")]
    with pytest.raises(fedstrata.InputError):
        fedstrata.run({"seed": -2})


def test_the_help_of_the_command_imports_nothing_heavy() -> None:
    code = """
import sys
from fedstrata.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
heavy = {"torch", "pydantic", "numpy", "rich", "sklearn", "scipy", "pyarrow", "flwr", "ray"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "compare" in told.stdout
