"""What the pages of the Python API say to a reader of the files: a sentence below each object that the site describes.

A line ``::: fedstrata.core.Plan`` becomes the whole docstring on the site. In an editor it is a name alone, so the
first sentence of the docstring stands below it as a quotation, which the site leaves out.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from textwrap import fill

import griffe

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"

OBJECT = re.compile(r"(^::: (\S+)\n(?:    .*\n)*)(?:\n(?:> .*\n)+)?", re.MULTILINE)
"""An object with its options, and the sentence below."""


def described(text: str) -> str:
    """A page with the sentence of each object made anew."""
    return OBJECT.sub(lambda found: f"{found[1]}\n{_quotation(found[2])}", text)


def undescribed(text: str) -> str:
    """A page without these sentences."""
    return OBJECT.sub(r"\1", text)


def pages() -> dict[Path, str]:
    """Each page of the API with its sentences, by where it is."""
    return {path: described(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.md"))}


def _quotation(path: str) -> str:
    """The first sentence about an object."""
    docstring = _library()[path.removeprefix("fedstrata.")].docstring
    if docstring is None:
        raise ValueError(f"expected a docstring of {path}, found none")
    sentence = first_sentence(docstring.value.replace("``", "`"))
    return fill(sentence, 118, initial_indent="> ", subsequent_indent="> ", break_on_hyphens=False) + "\n"


def first_sentence(text: str) -> str:
    """The first sentence of a text, in one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"""(?<=[.]) (?=[A-Z`"[*])""", paragraph, maxsplit=1)[0]


@cache
def _library() -> griffe.Object | griffe.Alias:
    """The package as its sources have it."""
    return griffe.load("fedstrata", search_paths=[ROOT / "src"], resolve_aliases=True)
