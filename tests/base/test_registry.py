import logging
import sys
from importlib.metadata import EntryPoint
from math import sqrt

import pytest

from fedstrata.base.registry import Registry, load_object, load_users_object


def test_a_name_is_imported_at_its_first_use() -> None:
    registry: Registry[object] = Registry({"root": "math:sqrt", "broken": "not_there:anything"})
    assert registry["root"] is sqrt and list(registry) == ["root", "broken"] and len(registry) == 2
    assert load_object("os:path.join").__name__ == "join"
    with pytest.raises(KeyError):
        registry["other"]


def test_names_are_registered_from_outside() -> None:
    registry: Registry[object] = Registry({"root": "math:sqrt"})
    mine = object()
    registry.register("mine", mine)
    registry.register("floor", "math:floor")
    assert registry["mine"] is mine and registry["floor"](2.5) == 2  # type: ignore[operator]  # a function
    assert "mine" in registry and registry.name_of(mine) == "mine" and registry.name_of(object()) is None
    registry.register("mine", mine)
    registry.register("floor", "math:floor")
    with pytest.raises(ValueError, match=r"'root' stands for 'math:sqrt' already; choose another name"):
        registry.register("root", mine)


def test_installed_packages_add_names_and_replace_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [EntryPoint("floor", "math:floor", "ours"), EntryPoint("root", "math:ceil", "ours")]
    asked: list[str] = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return found

    monkeypatch.setattr("fedstrata.base.registry.entry_points", entry_points)
    registry: Registry[object] = Registry({"root": "math:sqrt"}, group="ours")
    assert "root" in registry and asked == []  # nobody is asked about a name of the library
    with caplog.at_level(logging.WARNING):
        assert "floor" in registry and list(registry) == ["root", "floor"]
    assert registry["root"] is sqrt and asked == ["ours"]
    assert "math:ceil" in caplog.text and "is not used: math:sqrt is its name already" in caplog.text


def test_a_package_adds_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstrata.data import DATASETS, load_dataset, registry

    ours = registry.DatasetInfo(
        name="ours", about="", origin="", classes=10, shape=(1, 8, 8), model="mlp", reader=DATASETS["digits"].reader
    )
    found = [EntryPoint("ours", "test_registry:OURS", "fedstrata.datasets")]
    monkeypatch.setattr("fedstrata.base.registry.entry_points", lambda group: found)
    monkeypatch.setattr(sys.modules[__name__], "OURS", ours, raising=False)
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    monkeypatch.setattr(DATASETS, "_group", "fedstrata.datasets")
    monkeypatch.setattr(DATASETS, "_targets", dict(DATASETS))
    assert DATASETS["ours"] is ours and "digits" in DATASETS
    assert len(load_dataset("ours")) == 1797


def test_what_cannot_be_imported_is_told_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^ModuleNotFoundError: No module named 'not_there'$"):
        load_users_object("not_there:thing")
    with pytest.raises(ValueError, match=r"AttributeError: .*; what a script or notebook defines is known there alone"):
        load_users_object("__main__:NotThere")
