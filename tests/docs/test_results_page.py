"""The page on taking the result home, as somebody would follow it: every block in order, in an empty folder."""

import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from blocks import follow, run


@pytest.mark.pages
def test_every_block_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    follow("start/results.md", tmp_path, capsys)
    _, printed = run("python elsewhere.py", capsys)
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


def test_the_process_of_torch_alone_has_no_numpy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nfor name in ('numpy', 'fedstrata', 'sklearn'):\n")
    with script.open("a") as file:
        file.write("    try:\n        __import__(name)\n    except ImportError:\n        print(name)\n")
    assert with_torch_alone(str(script)) == ["numpy", "fedstrata", "sklearn"]
