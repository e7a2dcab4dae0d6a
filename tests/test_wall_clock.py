"""A clock that is set forward or back while a run goes on changes nothing: what waits, waits by a monotonic clock."""

import ast
import time
from itertools import cycle
from pathlib import Path

import pytest

import fedstrata as fs
from builders import keys, left

pytestmark = pytest.mark.usefixtures("forked_workers")

SOURCE = Path(fs.__file__).parent
KEYS = keys(rounds=3, data={"clients": 20}, engine={"name": "processes", "workers": 2, "timeout": 600})
DAY = 86_400.0
STAMPS = {"flower/credentials.py", "records/tracking.py"}
"""Files that tell others the time of day, and wait for nothing."""


def test_nothing_waits_by_a_clock_that_can_be_set() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix() in STAMPS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "datetime.now")), path
            taken = node.names if isinstance(node, ast.ImportFrom) and node.module == "time" else []
            assert not any(alias.name == "time" for alias in taken), path


def test_a_clock_that_jumps_by_days_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fs.run(KEYS, tmp_path / "whole", quiet=True)
    jumps = cycle([0.0, 400 * DAY, -400 * DAY, 1.0, -DAY])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    jumped = fs.run(KEYS, tmp_path / "jumped", quiet=True)
    assert left(jumped.folder) == left(whole.folder)
