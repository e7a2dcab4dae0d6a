from pathlib import Path

import pytest

from fedstrata.base.errors import RecordError
from fedstrata.comparison.document import JobCount, JobLog


def test_a_job_log_goes_on_where_it_ends_and_counts_no_job_twice(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    job_log = JobLog(path)
    job_log.add(0, 1, {"fedavg": 5, "cfl": 5}, 5)
    job_log.add(0, 2, {"fedavg": 5, "cfl": 5}, 8)
    job_log.add(0, 3, {"fedavg": 0, "cfl": 0}, 0)
    assert job_log.jobs == JobCount(20, 13)
    with path.open("a") as file:
        file.write('{"seed": 0, "rou')
    again = JobLog(path)
    assert again.jobs == JobCount(20, 13)
    again.add(0, 2, {"cfl": 5}, 5)
    again.add(0, 2, {"hicfl": 5}, 5)
    again.add(1, 2, {"cfl": 5}, 5)
    assert again.jobs == JobLog(path).jobs == JobCount(30, 23)
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "line", [b"[]", b"{", b'{"seed": 0}', b'{"seed": 0, "round": 1, "asked": 5, "trained": 5}', b"\xff"]
)
def test_a_line_that_is_none_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b'{"seed": 0, "round": 1, "asked": {"cfl": 5}, "trained": 5}\n' + line + b"\n")
    with pytest.raises(RecordError, match=r"jobs\.jsonl': expected a seed, a round and their jobs in line 2"):
        JobLog(path)
