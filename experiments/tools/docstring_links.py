"""What Griffe, which reads the docstrings for the API reference, does not know about this library.

A name in single backticks in a docstring leads to the object that it names. Text in double backticks, such as
``data.name``, is code and no name of an object. mkdocstrings loads this file as an extension of Griffe.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import griffe

LOGGER = logging.getLogger("mkdocs.plugins.docstring_links")
NAME = re.compile(r"(?<![`\w])`([A-Za-z_][\w.]*)`(?!`)")


class DocstringLinks(griffe.Extension):
    """Make links of the names in all docstrings of a package, and signatures of its dataclasses."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings once the whole package is known, so that every name can be resolved."""
        for thing in (pkg, *_members(pkg)):
            if thing.docstring is not None:
                thing.docstring.value = linked(thing, pkg)
            # Griffe, which comes after this, makes signatures for the standard library's dataclasses alone.
            maker = thing.members.get("dataclass")
            if isinstance(maker, griffe.Alias) and maker.target_path == "pydantic.dataclasses.dataclass":
                maker.target_path = "dataclasses.dataclass"


def linked(thing: griffe.Object, package: griffe.Module) -> str:
    """The docstring of an object with a link for each name that leads to an object of the package."""
    assert thing.docstring is not None

    def link(found: re.Match[str]) -> str:
        path = resolved(found[1], thing, package)
        if path is None:
            return found[0]
        # Optional: not every object that a docstring names is on a page of the reference.
        return f'<autoref identifier="{path}" optional><code>{found[1]}</code></autoref>'

    return NAME.sub(link, thing.docstring.value)


def resolved(name: str, thing: griffe.Object, package: griffe.Module) -> str | None:
    """The full path of the object that a docstring names; None for an argument, a command or another word."""
    if name.split(".")[0] == package.path:
        if _exists(name, package):
            return name
        LOGGER.warning("%s: the docstring names `%s`, which does not exist", thing.path, name)
        return None
    if isinstance(thing, griffe.Function) and name in thing.parameters:
        return None
    first, _, rest = name.partition(".")
    try:
        path = f"{thing.resolve(first)}.{rest}".removesuffix(".")
    except griffe.NameResolutionError:
        return None
    if path == thing.path or path.split(".")[0] != package.path:
        return None
    return path if _exists(path, package) else None


def _exists(path: str, package: griffe.Module) -> bool:
    """Whether the package has an object of this path."""
    inside = path.removeprefix(package.path).removeprefix(".")
    try:
        found = package[inside] if inside else package
    except (KeyError, griffe.AliasResolutionError):
        return False
    return found is not None


def _members(thing: griffe.Object) -> Iterator[griffe.Object]:
    """The objects that are defined in a module or a class, and not imported there."""
    for member in thing.members.values():
        if isinstance(member, griffe.Alias):
            continue
        yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _members(member)
