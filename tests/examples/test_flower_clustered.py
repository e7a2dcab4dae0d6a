"""The Flower app of the examples, with its own server and clients, in this process."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fedstrata as fs

HERE = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of the app can be imported, and the grid of the tests of Flower."""
    monkeypatch.syspath_prepend(HERE / "examples" / "flower-clustered")
    monkeypatch.syspath_prepend(HERE / "tests" / "flower")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "clustered"]:
        del sys.modules[name]


def test_the_app_finds_the_groups_of_sites(example: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client_app = import_module("clustered.client_app").app
    server_app = import_module("clustered.server_app").app
    grid = import_module("app_grid").AppGrid(client_app, range(8))
    config: Any = {"num-server-rounds": 6, "fraction-train": 1.0, "learning-rate": 0.1, "out": str(tmp_path / "mine")}
    server_app(grid, Context(1, 0, {}, RecordDict(), config))
    labels = fs.load(tmp_path / "mine").labels
    assert len({labels["0"], labels["1"]}) == 2
    assert [labels[str(site)] for site in range(8)] == [labels["0"], labels["1"]] * 4
    assert "site 7 uses the model of cluster" in capsys.readouterr().out
