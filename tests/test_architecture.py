"""The rules of the house, read from the source: who imports whom, what the README shows."""

import ast
import re
from pathlib import Path

import pytest

import fedstrata
from forked import run, script

SOURCE = Path(fedstrata.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parent.parent

ALLOWED = {
    "algorithms": {"algorithms", "clustering", "core", "errors", "lazy_torch", "limits", "registry"},
    "clustering": {"clustering", "lazy_torch"},
    "core": {"core", "errors", "lazy_torch", "randomness"},
    "data": {"data", "errors", "lazy_torch", "limits", "quoting", "registry"},
    "engine": {
        "engine",
        "clustering",
        "core",
        "data",
        "errors",
        "models",
        "objective",
        "partition",
        "randomness",
        "registry",
    },
    "flower": {
        "flower",
        "files",
        "folder_lock",
        "config",
        "core",
        "data",
        "engine",
        "errors",
        "key_errors",
        "models",
        "objective",
        "partition",
        "privacy",
        "quoting",
        "records",
        "registry",
        "report",
        "runner",
    },
    "models": {"models", "core", "data", "errors", "key_errors", "lazy_torch", "limits", "quoting", "registry"},
    "objective": {"objective", "errors", "key_errors", "lazy_torch", "metric_info", "quoting", "registry", "resources"},
    "privacy": {"privacy", "algorithms", "core", "errors", "lazy_torch", "randomness"},
    "partition": {"partition", "errors", "key_errors", "limits", "quoting", "registry"},
    "records": {"records", "files", "clustering", "core", "errors", "limits", "metric_info"},
    "report": {"report", "clustering", "files", "folder_lock", "limits", "metric_info", "quoting", "records", "errors"},
}
"""What the files of a folder may import of fedstrata: data flows one way."""


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_a_folder_imports_only_what_its_place_allows(folder: str) -> None:
    for path in sorted((SOURCE / folder).rglob("*.py")):
        own = {name.split(".")[1] for name in imports(path) if name.startswith("fedstrata.")}
        assert own <= ALLOWED[folder], f"{path.name} imports {sorted(own - ALLOWED[folder])}"


def test_reports_need_no_torch() -> None:
    for path in sorted((SOURCE / "report").rglob("*.py")):
        found = imports(path)
        assert not any(name.split(".")[0] == "torch" for name in found), path.name
        records = {name for name in found if name.startswith("fedstrata.records")}
        assert all(name.startswith("fedstrata.records.schema") for name in records), path.name


def test_nothing_is_ever_unpickled() -> None:
    for path in FILES:
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "shelve", "marshal"}, path.name
        assert "allow_pickle=True" not in path.read_text() and "torch.load" not in path.read_text(), path.name


def test_the_readmes_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example
    done = run(script, example[1])
    assert done.status == 0, done.err
    assert done.out.startswith("2 1.0 "), f"the example finds nothing: {done.out}"
