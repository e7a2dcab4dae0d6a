"""Pages as somebody would follow them: every file written, every command run, in order, in an empty folder."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from blocks import ROOT, agree, blocks, follow, run


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("network", None)


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("page", ["tutorial", "results", "sweeps"])
def test_every_block_does_what_it_says(page: str, desk: Path) -> None:
    follow(f"start/{page}.md", desk, but="nothing" if find_spec("optuna") else "tune.py")
    if page == "results":
        _, printed = run("python elsewhere.py")
        assert with_torch_alone("elsewhere.py") == printed


def with_torch_alone(script: str) -> list[str]:
    """What a script prints in a process in which torch and what it requires can be imported, and nothing else."""
    needed = requirements_of("torch")
    hidden = {
        module
        for module, distributions in packages_distributions().items()
        if not needed & {canonical(each) for each in distributions}
    }
    hidden.add("fedstrata")
    hide = f"import sys; sys.modules.update(dict.fromkeys({sorted(hidden)!r})); exec(open({script!r}).read())"
    done = subprocess.run([sys.executable, "-I", "-c", hide], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def requirements_of(distribution: str) -> set[str]:
    """The canonical names of a distribution and of all that it requires without extras."""
    found = set[str]()
    ahead = [distribution]
    while ahead:
        name = canonical(ahead.pop())
        if name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                ahead += [re.split(r"[^\w.-]", each)[0] for each in requires(name) or () if "extra ==" not in each]
    return found


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_the_process_of_torch_alone_has_no_numpy(desk: Path) -> None:
    script = desk / "script.py"
    script.write_text("import torch\nfor name in ('numpy', 'fedstrata', 'sklearn'):\n")
    with script.open("a") as file:
        file.write("    try:\n        __import__(name)\n    except ImportError:\n        print(name)\n")
    assert with_torch_alone(str(script)) == ["numpy", "fedstrata", "sklearn"]


def test_the_demo_is_the_run_without_a_file() -> None:
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe and recipe[1].strip() == "$(BIN)/fedstrata run"


def test_a_file_of_the_tutorial_is_used_by_a_command_or_another_file() -> None:
    tutorial = blocks("start/tutorial.md")
    assert all(block.file for block in tutorial if block.language != "console")
    rest = "\n".join(line for block in tutorial for line in block.text.splitlines() if not line.startswith("# "))
    files = [block.file for block in tutorial if block.file]
    assert all(name in rest or f'"{name.removesuffix(".py")}:' in rest for name in files)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        (["a 0.50"], ["a   0.52"], True),
        (["a 0.50"], ["a 0.60"], False),
        (["a 3"], ["a 4"], False),
        (["...", "b"], ["a", "a", "b"], True),
        (["a", "..."], ["a"], True),
        (["a"], ["a", "b"], False),
        (["round 1 clusters 2 ..."], ["round 1 clusters 2 accuracy 0.3"], True),
        (["round 1 clusters 2 ..."], ["round 1 clusters 3 accuracy 0.3"], False),
        (["took 0.6 s"], ["took 9.7 s"], True),
    ],
)
def test_shown_lines_are_held_against_printed_ones(shown: list[str], printed: list[str], expected: bool) -> None:
    assert agree(shown, printed) == expected
