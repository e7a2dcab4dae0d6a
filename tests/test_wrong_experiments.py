"""Bad input on the command line: one line that names what is wrong, status 2, and nothing is made."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bad_inputs import EXPERIMENTS, bad_inputs
from fedstrata.base.errors import DataError

INPUTS = {name: give for name, give in bad_inputs() if not name.startswith("bad call")}
TEXTS = dict(zip([name for name in INPUTS if name.startswith("bad experiment")], EXPERIMENTS, strict=True))

SOUND = (
    "attack = {kind = 'merge'}\\npartition.scheme = 'iid'",  # all clients are one group then
    "algorithm = 'pacfl'",
    "'report ../damaged'",
    "'report ../strange-tree'",
    "--port 99999999",
)
"""Parts of the names of inputs that look bad and are not refused."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded, and no terminal is there."""

    def refuse(name: str, info: object, repository: str) -> None:
        raise DataError(f"the hub's {repository} was not asked")

    monkeypatch.setattr("fedstrata.data.locate._hub_location", refuse)
    for name in ("FEDSTRATA_DATA", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def named_in(text: str) -> list[str]:
    """What an experiment names as a message may write it: its dotted keys and their values, or the file."""
    try:
        text.encode()
        found = below(tomllib.loads(text), "")
        return [ascii(name)[1:-1][:50] for name in found]
    except (ValueError, RecursionError):
        return ["wrong.toml: "]


def below(table: Mapping[str, Any], above: str) -> Iterator[str]:
    """The dotted keys of a table and its texts."""
    for key, value in table.items():
        yield above + key
        if isinstance(value, Mapping):
            yield from below(value, f"{above}{key}.")
        elif isinstance(value, str):
            yield value


@pytest.mark.parametrize("name", [name for name in INPUTS if not any(part in name for part in SOUND)])
def test_a_wrong_input_is_told_in_one_line_that_names_it_and_makes_nothing(name: str, tmp_path: Path) -> None:
    told = INPUTS[name](tmp_path)
    assert (told["status"], told["left"]) == ("2", [])
    line = told["stderr"]
    assert line.startswith("fedstrata: ") and len(line.splitlines()) == 1
    assert name not in TEXTS or any(each in line for each in named_in(TEXTS[name]))


def test_a_wrong_experiment_ends_the_process_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedstrata", "run", "--set", "local.lr=-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert list(tmp_path.iterdir()) == []
