"""Which modules fedstrata's own code looks for while something is read, and which of them nobody but the input names.

A module that was imported before runs no code of its own again; so what is looked for is all that an import can run.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import fedstrata

SOURCE = Path(fedstrata.__file__).parent


class Finder:
    """Finds no module, and writes down what fedstrata's own code looks for.

    Attributes:
        names: The names of the modules.
    """

    def __init__(self) -> None:
        self.names = list[str]()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        frame: Any = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("importlib", "_frozen_importlib"):
            frame = frame.f_back
        if frame and frame.f_globals.get("__name__", "").partition(".")[0] == "fedstrata":
            self.names.append(name)


@contextmanager
def looked_for() -> Iterator[list[str]]:
    """The names of modules that fedstrata's own code looks for meanwhile."""
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.names
    finally:
        sys.meta_path.remove(finder)


@cache
def written() -> frozenset[str]:
    """The packages that an import statement in fedstrata's source names."""
    found = {"fedstrata"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return frozenset(found)


def strangers(names: Iterable[str], allowed: Iterable[str] = ()) -> list[str]:
    """The modules that are neither in the package's source nor allowed, each once, in order.

    Args:
        names: The modules that were looked for.
        allowed: Those that a user names where ``package.module:name`` is expected.
    """
    # Arrow, which is compiled and has no frame of its own, looks whether there is a pandas.
    known = written() | {"pandas"} | {name.partition(".")[0] for name in allowed}
    return sorted({name for name in names if name.partition(".")[0] not in known})
