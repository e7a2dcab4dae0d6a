import logging
from pathlib import Path

import griffe
import pytest
from experiments.tools.docstring_links import DocstringLinks

CODE = '''
"""A package. It has `Thing` and `thing.lost`."""

from pydantic.dataclasses import dataclass

@dataclass
class Thing:
    """A thing; see `size`, `make`, ``make`` and `Thing`.

    Attributes:
        size: How large it is.
    """

    size: int = 3

def make(size: int) -> Thing:
    """Make a `Thing` of this `size`; `python` may do so too."""
'''


@pytest.fixture
def package(tmp_path: Path) -> griffe.Module:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "__init__.py").write_text(CODE)
    loaded = griffe.load("thing", search_paths=[tmp_path], extensions=griffe.load_extensions(DocstringLinks))
    assert isinstance(loaded, griffe.Module)
    return loaded


def text(thing: griffe.Object | griffe.Alias) -> str:
    assert thing.docstring
    return thing.docstring.value


def test_a_name_leads_to_its_object_and_other_words_stay(package: griffe.Module) -> None:
    assert 'identifier="thing.Thing" optional><code>Thing</code>' in text(package)
    assert 'identifier="thing.Thing.size"' in text(package["Thing"])
    assert text(package["Thing"]).endswith("``make`` and `Thing`.\n\nAttributes:\n    size: How large it is.")
    assert text(package["make"]).endswith("of this `size`; `python` may do so too.")


def test_a_path_of_the_package_that_leads_nowhere_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    with caplog.at_level(logging.WARNING):
        request.getfixturevalue("package")
    assert [record.name for record in caplog.records] == ["mkdocs.plugins.docstring_links"]
    assert "`thing.lost`" in caplog.text


def test_a_dataclass_of_pydantic_has_a_signature(package: griffe.Module) -> None:
    assert [parameter.name for parameter in package["Thing"].parameters] == ["self", "size"]
