import json
from pathlib import Path

import pytest
from synthetic_run import write

from fedstrata.report import runs
from fedstrata.report.runs import find_runs


def test_a_last_line_longer_than_what_is_looked_at_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of a hundred thousand clients has a megabyte."""
    folder = write(tmp_path / "run", count=12)
    (known,) = find_runs(tmp_path)
    file = folder / "rounds.jsonl"
    *_, last = file.read_text().splitlines()
    long = json.dumps({**json.loads(last), "round": 13, "further": [0] * 100_000})
    file.write_text(f"{file.read_text()}{long}\n" + '{"round": 14')
    (found,) = find_runs(tmp_path)
    assert (found.state, found.round, found.acc_client) == (known.state, 13, known.acc_client)
    monkeypatch.setattr(runs, "_MOST_TAIL_BYTES", len(long) // 2)
    assert [each.state for each in find_runs(tmp_path)] == ["damaged"]
