"""Tables of the site that can be read on any screen: an extension of Python-Markdown that says what a table holds.

A stylesheet cannot know what is in a cell. So tables get attributes: ``data-kind`` is "numbers" or "prose",
``data-stack`` marks those whose rows become cards on a phone, and each cell has the name of its column, ``data-label``.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

NUMBER = re.compile(r"[-+±<>=~.,:;%/()\d\s]*")
WORDS_OF_NUMBERS = re.compile(r"\b(to|of|in|never|one seed|s|GB|MB)\b")
"""Words that stand in cells of numbers, such as "1 of 3"."""

NARROW_COLUMN = 24
"""The letters of a first column beside which a second one fits on a phone."""


class ReadableTables(Extension):
    """Adds the attributes to every table."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Look at tables once their cells are finished, which is at priority 20."""
        md.treeprocessors.register(_Tables(md), "readable_tables", 5)


class _Tables(Treeprocessor):
    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            describe(table)


def describe(table: Element) -> None:
    """Add the attributes to a table and its cells."""
    head, *body = [list(row) for row in table.iter("tr")]
    names = [_text(cell) for cell in head]
    columns = [[row[place] for row in body if place < len(row)] for place in range(len(head))]
    numbers = [_is_numbers([_text(cell) for cell in column]) for column in columns]
    kind = "numbers" if 2 * sum(numbers) >= len(head) and len(head) > 2 else "prose"
    table.set("data-kind", kind)
    first = max((len(_text(cell)) for cell in columns[0]), default=0)
    if kind == "prose" and (len(head) > 2 or first > NARROW_COLUMN):
        table.set("data-stack", "")
    for name, title, cells, is_number in zip(names, head, columns, numbers, strict=True):
        for cell in cells:
            cell.set("data-label", name)
        if is_number:
            for cell in (title, *cells):
                cell.set("data-number", "")


def _text(cell: Element) -> str:
    return "".join(cell.itertext()).strip()


def _is_numbers(texts: list[str]) -> bool:
    """Whether a column holds numbers, and at least one of them."""
    plain = [WORDS_OF_NUMBERS.sub("", text) for text in texts]
    return all(NUMBER.fullmatch(text) for text in plain) and any(re.search(r"\d", text) for text in plain)
