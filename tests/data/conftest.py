import sys
from pathlib import Path

import pytest


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty data root. There are no data but the test's own, no hub, and a cache that goes with the test."""
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSTRATA_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = tmp_path / "root"
    folder.mkdir()
    return folder
