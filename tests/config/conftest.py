from pathlib import Path

import pytest

from fedstrata.data import DATASETS, Location


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data sets are found, and are read by nobody."""
    monkeypatch.setattr("fedstrata.config.reading.find", lambda name, root: Location(name, DATASETS.get(name)))
