"""Where the experiments of these tests are read."""

from pathlib import Path

import pytest

from fedstrata.data import DATASETS, Location


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is empty, and no data are anywhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data are found, whatever they are called."""
    monkeypatch.setattr("fedstrata.config.reading.find", lambda name, root: Location(name, DATASETS.get(name)))
