"""Print what somebody must read to understand an algorithm: files, and lines of definitions.

python experiments/tools/reading_cost.py [NAME ...] [--files] [--definitions]

Without a name it prints the algorithms for which there is a goal. With ``--files`` it lists the files, with
``--definitions`` each function, class and constant.

It counts the definitions at the top level of the library's modules that the class of the algorithm reaches by name:
the class itself, what its lines name, what the lines of that name, and so on. A function, a class or a constant counts
as a whole, with its docstring, and once. A name counts wherever it stands, in annotations too. ``core.Plan`` is the
name ``Plan`` of `fedstrata.core`. A method is found by the class that holds it. An import counts nothing by itself, and
neither do the lines of imports.

The methods of the class, and of the classes that it inherits from, that ``init``, ``plan`` and ``update`` do not reach
are left out, and so is all that only they name. Types and limits of keys, errors, and the way to import torch are left
out: nobody reads them to understand an algorithm.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

LEFT_OUT = (
    "fedstrata.base.errors",
    "fedstrata.base.limits",
    "fedstrata.base.lazy_torch",
    "fedstrata.algorithms.keys",
)
"""The modules of which nothing counts."""

BEGIN = ("init", "plan", "update")
"""The methods by which an algorithm is understood."""

GOALS = {"layercfl": (15, 1900), "hicfl": (15, 1800), "adacfl": (14, 1700), "fedtsdp": (14, 1700)}
"""The most files, and the most lines, that these algorithms should take."""


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a module.

    Attributes:
        module: The name of the module.
        name: Its name.
        node: Its syntax.
        last: The last line of it, with the docstring of a constant.
    """

    module: str
    name: str
    node: ast.stmt
    last: int

    @property
    def first(self) -> int:
        """The first line of it, decorators included."""
        decorators = self.node.decorator_list if isinstance(self.node, ast.FunctionDef | ast.ClassDef) else []
        return min([self.node.lineno, *[each.lineno for each in decorators]])

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.last - self.first + 1


@dataclass
class Module:
    """The top level of a module.

    Attributes:
        definitions: What it defines, by name.
        imported: The module and the name that each imported name stands for; the name is "" for a module.
    """

    definitions: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


def path_of(module: str) -> Path | None:
    """The file of a module; None where there is none."""
    base = SRC.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def read(module: str) -> Module:
    """Read the top level of a module."""
    path = path_of(module)
    found = Module()
    if path is None:
        return found
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for place, node in enumerate(body):
        docstring = body[place + 1] if place + 1 < len(body) else None
        for name in names_bound_by(node):
            last = node.end_lineno or node.lineno
            if isinstance(docstring, ast.Expr) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
                last = docstring.end_lineno or last
            found.definitions[name] = Definition(module, name, node, last)
    # Imports stand anywhere: some are made inside of a function.
    for part in ast.walk(ast.Module(body, [])):
        found.imported |= dict(names_imported_by(part))
    return found


def names_bound_by(node: ast.stmt) -> list[str]:
    """The names that a statement at the top level defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_imported_by(node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that an import brings, each with the module and the name that it stands for."""
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            whole = path_of(f"{node.module}.{alias.name}")
            target = (f"{node.module}.{alias.name}", "") if whole else (node.module, alias.name)
            yield alias.asname or alias.name, target


def look_up(module: str, name: str) -> Definition | str | None:
    """What a name stands for in a module: a definition, the name of a module, or nothing of the library."""
    found = read(module)
    if name in found.definitions:
        return found.definitions[name]
    if name not in found.imported:
        return None
    source, original = found.imported[name]
    if not source.startswith("fedstrata"):
        return None
    return look_up(source, original) if original else source


def named_in(node: ast.AST, module: str) -> Iterator[Definition]:
    """The definitions of the library that some syntax names."""
    for each in ast.walk(node):
        found: Definition | str | None = None
        if isinstance(each, ast.Name):
            found = look_up(module, each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            holder = look_up(module, each.value.id)
            found = look_up(holder, each.attr) if isinstance(holder, str) else None
        if isinstance(found, Definition):
            yield found


def ancestry(start: Definition) -> list[Definition]:
    """The class of an algorithm, then the library's classes that it inherits from, nearest first."""
    assert isinstance(start.node, ast.ClassDef)
    found = [start]
    for base in start.node.bases:
        above = next(named_in(base, start.module), None)
        if above is not None and isinstance(above.node, ast.ClassDef):
            found += ancestry(above)
    return found


def methods_of(definition: Definition) -> dict[str, ast.FunctionDef]:
    """The methods that a class has in its own body, by name."""
    assert isinstance(definition.node, ast.ClassDef)
    return {each.name: each for each in definition.node.body if isinstance(each, ast.FunctionDef)}


def methods_left_out(start: Definition) -> dict[tuple[str, str], list[ast.FunctionDef]]:
    """The methods of an algorithm and of what it inherits from that `init`, `plan` and `update` do not reach, by class.

    A method that is written anew lower down is left out too.
    """
    classes = ancestry(start)
    lowest = {name: each for cls in reversed(classes) for name, each in methods_of(cls).items()}
    reached = [name for name in BEGIN if name in lowest]
    for name in reached:
        for each in ast.walk(lowest[name]):
            own = each.attr if isinstance(each, ast.Attribute) else ""
            if own in lowest and own not in reached:
                reached.append(own)
    kept = [lowest[name] for name in reached]
    return {(cls.module, cls.name): [each for each in methods_of(cls).values() if each not in kept] for cls in classes}


def definitions_of(name: str) -> dict[Definition, int]:
    """All definitions that an algorithm reaches, its own class first, each with the lines that are read of it."""
    module, _, attribute = targets()[name].partition(":")
    start = look_up(module, attribute)
    assert isinstance(start, Definition)
    left_out = methods_left_out(start)
    lines = dict[Definition, int]()
    waiting = [start]
    while waiting:
        found = waiting.pop(0)
        if found in lines or found.module in LEFT_OUT:
            continue
        skipped = left_out.get((found.module, found.name), [])
        lines[found] = found.lines - sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in skipped)
        for part in ast.iter_child_nodes(found.node):
            if part not in skipped:
                waiting += named_in(part, found.module)
    return lines


def targets() -> dict[str, str]:
    """The class of each algorithm, as ``"module:Class"``, by the name that an experiment gives."""
    node = read("fedstrata.algorithms").definitions["CLASSES"].node
    table = next(each for each in ast.walk(node) if isinstance(each, ast.Dict))
    return dict(ast.literal_eval(table))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="algorithms, as experiments name them")
    parser.add_argument("--files", action="store_true", help="list the files")
    parser.add_argument("--definitions", action="store_true", help="list each definition")
    options = parser.parse_args(arguments)
    for name in options.names or [*GOALS, "fedavg"]:
        found = definitions_of(name)
        by_file = defaultdict[str, dict[str, int]](dict)
        for each, lines_read in found.items():
            by_file[each.module][each.name] = lines_read
        total = sum(sum(lines.values()) for lines in by_file.values())
        files, most = GOALS.get(name, (0, 0))
        goal = f"   goal: {files} files, {most:,} lines" if files else ""
        print(f"{name:16} {len(by_file):3} files {total:6,} lines{goal}")
        for module, lines in sorted(by_file.items(), key=lambda one: -sum(one[1].values())):
            if options.files or options.definitions:
                print(f"    {sum(lines.values()):5}  {module}")
            if options.definitions:
                print("\n".join(f"           {count:5}  {part}" for part, count in lines.items()))


if __name__ == "__main__":
    main()
