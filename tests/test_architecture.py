"""The rules of the house, read from the source: who imports whom, what the README shows."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fedstrata
from forked import run, script

SOURCE = Path(fedstrata.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parent.parent

FLOORS = (
    ("base",),
    ("clustering", "core"),
    ("data", "objective", "partition", "models", "algorithms", "uploads"),
    ("records", "engine", "personal", "config"),
    ("report", "build", "results", "play"),
    ("comparison", "flower"),
    ("testing", "__init__", "cli", "__main__"),
)
"""The packages, from the ground up. Each imports only those that stand before it."""

ORDER = [package for floor in FLOORS for package in floor]

FORBIDDEN = {
    "engine/": ("algorithms", "uploads"),
    "flower/client": ("algorithms",),
    "report/": ("engine",),
}
"""What files do not import either, by the beginning of their paths: whoever computes does not decide."""


def module_of(path: Path) -> str:
    """The full name of the module in a file."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def package_of(module: str) -> str:
    """The package of a module, or the file itself where it lies in none."""
    return [*module.split("."), "__init__"][1]


def imports(path: Path) -> set[str]:
    """Full names of what a file imports, wherever in it: in functions and for annotations alone, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@cache
def arrows() -> dict[str, set[str]]:
    """The modules of the library that each module imports. Names that are imported lazily stand in annotations, too."""
    found = dict[str, set[str]]()
    for module, path in MODULES.items():
        found[module] = set()
        for name in imports(path):
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name not in ("", module):
                found[module].add(name)
    return found


def test_every_package_imports_only_those_that_stand_before_it() -> None:
    assert {package_of(module) for module in MODULES} <= {*ORDER}
    upwards = [
        f"{module} -> {other}"
        for module, others in arrows().items()
        for other in others
        if ORDER.index(package_of(other)) > ORDER.index(package_of(module))
    ]
    assert not upwards


UPLOADS_ALONE = re.compile(r"privacy|private_aggregation|differential|byzantine|attack|compress|secure", re.I)
"""Words of what happens to updates on their way, which is the business of `uploads`."""

TITLES = ("under\nprivacy constraints",)
"""Where a paper's title has one of them."""


@pytest.mark.parametrize("package", ["algorithms", "core", "engine"])
def test_who_decides_and_who_computes_knows_of_nothing_that_happens_to_updates_on_their_way(package: str) -> None:
    found = set[str]()
    for path in sorted((SOURCE / package).rglob("*.py")):
        text = path.read_text()
        for title in TITLES:
            text = text.replace(title, "")
        found.update(f"{path.relative_to(SOURCE)}: {word}" for word in UPLOADS_ALONE.findall(text))
    assert not found


def test_no_files_import_each_other_in_a_circle() -> None:
    """The order of the packages rules out circles among them."""
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_who_computes_does_not_decide() -> None:
    found = [
        f"{module} -> {other}"
        for module, others in arrows().items()
        for beginning, packages in FORBIDDEN.items()
        if MODULES[module].relative_to(SOURCE).as_posix().startswith(beginning)
        for other in others
        if package_of(other) in packages
    ]
    assert not found


WITHOUT_TORCH = ("fedstrata.records.schema", "fedstrata.records.arrays")
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


@pytest.mark.slow
def test_nothing_is_ever_unpickled() -> None:
    """But for what this process exchanges with the worker processes that it has started."""
    found = set[tuple[str, str]]()
    for path in FILES:
        assert not {name.split(".")[0] for name in imports(path)} & {"pickle", "shelve", "marshal", "dill"}, path.name
        relative = path.relative_to(SOURCE).as_posix()
        found |= {(relative, name) for name, call in calls(path) if unsafe(name, call)}
    assert found == OWN_PROCESSES


@pytest.mark.slow
def test_the_readmes_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example
    done = run(script, example[1])
    assert done.status == 0, done.err
    (folder,) = (tmp_path / "runs").glob("*/report.html")
    summary = json.loads((folder.parent / "summary.json").read_text())
    assert (summary["clusters"], summary["ari"]) == (4, 1.0), "the example finds nothing"
