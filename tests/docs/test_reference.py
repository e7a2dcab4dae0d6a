"""The pages of the API reference: nothing public is left out, and the examples are right."""

import re
from importlib import import_module

import pytest

import fedstrata
from blocks import ROOT
from fedstrata.base import errors

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
SHOWN = {path for page in PAGES.values() for path in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


@pytest.mark.parametrize("module", ["clustering", "core", "testing"])
def test_every_public_name_of_a_module_is_shown(module: str) -> None:
    imported = import_module(f"fedstrata.{module}")
    own = [name for name, thing in vars(imported).items() if getattr(thing, "__module__", "") == imported.__name__]
    names = getattr(imported, "__all__", None) or [name for name in own if not name.startswith("_")]
    aliases = {"ClientMeasureName"}  # the type of a key; the table of measures is shown
    assert {f"fedstrata.{module}.{name}" for name in names} - {f"fedstrata.{module}.{a}" for a in aliases} <= SHOWN


def test_every_public_name_of_the_package_is_shown_or_named() -> None:
    for name in fedstrata.__all__:
        named = any(f"`{path}`" in page for page in PAGES.values() for path in (f"fs.{name}", name))
        assert f"fedstrata.{name}" in SHOWN or named or name == "__version__", name


def test_every_exception_is_shown_and_in_the_tree() -> None:
    tree = re.findall(r"\w+", PAGES["errors"].split("```")[1])
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.FedstrataError):
            assert f"fedstrata.base.errors.{name}" in SHOWN and name in tree, name
