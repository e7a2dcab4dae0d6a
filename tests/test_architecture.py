"""The rules of the house, read from the source: who imports whom, what the README shows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedstrata
from forked import run, script

SOURCE = Path(fedstrata.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parent.parent

FLOORS = (
    {"base"},
    {"core", "clustering"},
    {"algorithms", "uploads", "models", "objective", "partition", "data"},
    {"engine", "config", "personal", "records"},
    {"report", "results", "build", "play"},
    {"flower", "comparison"},
    {"cli", "__init__", "__main__", "testing", "tuning"},
)
"""The packages, from the ground up. Nothing imports anything above its floor."""

FLOOR = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}


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


NOT_YET = ("fedstrata.comparison.", "fedstrata.engine.")
"""Arrows upwards that a later change ends."""


def test_nothing_imports_anything_above_its_floor() -> None:
    found = set[str]()
    for path in FILES:
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imports(path):
            other = name.split(".")[1] if name.startswith("fedstrata.") else package
            other = other if other in FLOOR else "__init__"
            if FLOOR[other] > FLOOR[package] and not name.startswith(NOT_YET):
                found.add(f"{path.relative_to(SOURCE)} -> {name}")
    assert not found


MANY_FILES = 12
"""A package of more files says in its docstring what each is for. Those of `algorithms` are papers."""


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES} - {SOURCE, SOURCE / "algorithms"}), ids=str)
def test_a_large_package_says_what_its_files_are_for(folder: Path) -> None:
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    if len(files) <= MANY_FILES:
        return
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert files <= set(re.findall(r"`(\w+)", text)), files - set(re.findall(r"`(\w+)", text))


WITHOUT_TORCH = ("fedstrata.records.schema", "fedstrata.records.final_scores")
"""The records that reports read, which import no torch."""


def test_reports_need_no_torch() -> None:
    for path in sorted((SOURCE / "report").rglob("*.py")):
        found = imports(path)
        assert not any(name.split(".")[0] == "torch" for name in found), path.name
        records = {name for name in found if name.startswith("fedstrata.records")}
        assert all(name.startswith(WITHOUT_TORCH) for name in records), path.name


UNPICKLING = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "torch", "yaml", "ForkingPickler"}
"""Names whose functions load, loads and Unpickler run what they read."""

OWN_PROCESSES = {
    ("base/registry.py", "cloudpickle.loads"),
    ("engine/parallel/messages.py", "ForkingPickler.loads"),
    ("engine/parallel/processes.py", "ForkingPickler.loads"),
}
"""What is exchanged with worker processes that this process has started itself, by file and call."""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The calls in a file, with the dotted names of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def unsafe(name: str, call: ast.Call) -> bool:
    """Whether a call may run code that it reads."""
    first, _, last = name.partition(".")
    if name in ("eval", "exec", "compile", "__import__"):
        return True
    if (first, last) in (("np", "load"), ("numpy", "load")):
        return not any(word.arg == "allow_pickle" and ast.unparse(word.value) == "False" for word in call.keywords)
    if any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in call.keywords):
        return True
    return first in UNPICKLING and last in ("load", "loads", "Unpickler", "hub.load", "jit.load", "open")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pickle.loads(x)", True),
        ("torch.load(x, weights_only=True)", True),
        ("torch.jit.load(x)", True),
        ("np.load(x)", True),
        ("np.load(x, allow_pickle=True)", True),
        ("np.load(x, allow_pickle=False)", False),
        ("np.lib.format.read_array(x, allow_pickle=True)", True),
        ("eval(x)", True),
        ("module.eval()", False),
        ("json.loads(x)", False),
    ],
)
def test_calls_that_run_what_they_read_are_known(source: str, found: bool) -> None:
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert unsafe(ast.unparse(call.func), call) == found


def test_nothing_is_ever_unpickled() -> None:
    """But for what this process exchanges with the worker processes that it has started."""
    found = set[tuple[str, str]]()
    for path in FILES:
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "shelve", "marshal", "dill"}, path.name
        relative = path.relative_to(SOURCE).as_posix()
        found |= {(relative, name) for name, call in calls(path) if unsafe(name, call)}
    assert found == OWN_PROCESSES


def test_the_readmes_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example
    done = run(script, example[1])
    assert done.status == 0, done.err
    assert done.out.startswith("2 1.0 "), f"the example finds nothing: {done.out}"
