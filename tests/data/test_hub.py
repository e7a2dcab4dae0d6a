"""Data sets of the hub that the library ``datasets`` reads. The library itself is not needed here."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fedstrata.base.errors import DataError
from fedstrata.data import client_values, find, has_own_test, load_dataset
from fedstrata.data.libraries import hub_tables


class Loader:
    """Stands for the library ``datasets``: two splits of a table, and how often they were asked for."""

    def __init__(self, *splits: str) -> None:
        self.splits = splits
        self.asked: list[str] = []

    def load_dataset(self, repository: str) -> dict[str, Any]:
        self.asked.append(repository)
        if not self.splits:
            raise RuntimeError("no such set\nsecond line")
        rows = pa.table({"age": [1.0, 2.0, 3.0], "site": ["a", "b", "b"], "label": ["x", "y", "x"]})
        return {split: SimpleNamespace(with_format=lambda kind: rows) for split in self.splits}


@pytest.fixture
def library(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Loader]:
    """A hub whose copy of a repository holds no Parquet, and a library that reads it."""
    empty = SimpleNamespace(snapshot_download=lambda **options: str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", empty)
    hub_tables.cache_clear()

    def serve(*splits: str) -> Loader:
        loader = Loader(*splits)
        monkeypatch.setitem(sys.modules, "datasets", loader)
        return loader

    return serve


def test_a_hub_id_without_parquet_is_read_by_the_library_of_the_hub(library: Callable[..., Loader]) -> None:
    loader = library("train", "test", "extra")
    location = find("someone/visits")
    assert client_values(location, "site").tolist() == ["a", "b"] and has_own_test(location)
    train, test = load_dataset("someone/visits"), load_dataset("someone/visits", split="test")
    assert train.feature_names == ("age",) and train.class_names == ("x", "y") and len(train) == len(test) == 3
    assert loader.asked == ["someone/visits"]


def test_a_hub_id_that_cannot_be_read_says_why(library: Callable[..., Loader], monkeypatch: pytest.MonkeyPatch) -> None:
    library()
    with pytest.raises(DataError, match=r"someone/visits could not be read \(no such set\)"):
        find("someone/visits")
    library("test")
    with pytest.raises(DataError, match="has the splits test; expected train"):
        find("someone/visits")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"install fedstrata\[datasets\]"):
        find("someone/visits")
