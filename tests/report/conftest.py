from pathlib import Path

import pytest
from synthetic_run import write

from fedstrata.report.reader import RunRecords, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of twelve rounds, to be changed."""
    return write(tmp_path / "run", count=12)


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    """The same run, which nobody changes."""
    return read(write(tmp_path_factory.mktemp("records") / "run", count=12))
