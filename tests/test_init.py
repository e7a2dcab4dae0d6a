import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedstrata


def test_the_public_names_are_there() -> None:
    assert dir(fedstrata) == sorted(fedstrata.__all__)
    for name in fedstrata.__all__:
        assert getattr(fedstrata, name) is not None


HEAVY = {"torch", "pydantic", "numpy", "rich", "sklearn", "scipy", "pyarrow", "flwr", "ray"}
RUNS = Path(__file__).parent / "report" / "runs"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import fedstrata", HEAVY | {"typer"}),
        ("import fedstrata as fs; fs.__version__, *fs.ALGORITHMS, *fs.DATASETS, *fs.PARTITIONS, *fs.MODELS", {"torch"}),
        ("from fedstrata.cli import main; main(['--help'])", HEAVY),
        (f"from fedstrata.cli import main; main(['runs', {str(RUNS)!r}])", {"torch"}),
        ("from fedstrata.data import find; find('digits'); find('nowhere')", {"torch", "pyarrow", "sklearn"}),
    ],
)
def test_what_is_quick_imports_nothing_heavy(code: str, heavy: set[str]) -> None:
    """Ends of commands and errors are no matter."""
    program = f"import sys\ntry:\n    {code}\nexcept (SystemExit, Exception):\n    pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "fedstrata" in done.stdout and not heavy & set(done.stdout.split())


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
