"""Lines of code and files of each package, beside the most that it should have: ``make size``.

A line of code holds a token of the language. Lines of docstrings, comments and imports, and blank ones, are none. A
docstring is any text that stands as a statement by itself. The files are those that git knows.

Rows with ``!`` are over their budget. ``--check`` makes that the exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/fedstrata"

BUDGETS: dict[tuple[str, ...], int] = {
    ("core", "clustering"): 1_700,
    ("algorithms",): 3_400,
    ("uploads",): 1_300,
    ("engine",): 2_500,
    ("models", "objective", "partition", "personal"): 1_500,
    ("data",): 2_000,
    ("config", "base"): 1_600,
    ("build", "play", "results", "comparison"): 2_600,
    ("records",): 900,
    ("report",): 2_300,
    ("flower",): 1_900,
    ("cli", "top"): 600,
}
"""The most lines of code of packages that belong together; `top` are the files beside the packages."""

SRC_LINES, SRC_AIM, SRC_FILES, TEST_LINES = 26_000, 20_000, 260, 29_000
"""The most lines and files of the library, the lines that it is to come to, and the most lines of the tests."""

_QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Return the number of lines of code of a Python file."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _QUIET:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and _is_text(node.value)):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression is a text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sizes(folder: str) -> tuple[Counter[str], Counter[str]]:
    """Return the lines of code and the files below a folder of the project, by package or folder in it."""
    known = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    lines, files = Counter[str](), Counter[str]()
    for name in known.stdout.split("\n"):
        path = ROOT / name
        if path.suffix != ".py" or not path.is_file():
            continue
        inside = Path(name).relative_to(folder).parts
        room = inside[0] if len(inside) > 1 else "top"
        lines[room] += code_lines(path.read_text(encoding="utf-8"))
        files[room] += 1
    return lines, files


def row(name: str, lines: int, files: int, most: int | None = None) -> str:
    """Return a row of the table."""
    over = "" if most is None else f"{most:9,}{' !' if lines > most else ''}"
    return f"{name:48}{lines:9,}{files:8,}{over}"


def table(lines: Counter[str], files: Counter[str]) -> Iterable[str]:
    """Yield the rows of the library: packages with a budget, and then those without."""
    for rooms, most in BUDGETS.items():
        yield row(", ".join(rooms), sum(lines[room] for room in rooms), sum(files[room] for room in rooms), most)
    named = {room for rooms in BUDGETS for room in rooms}
    for room in sorted(set(lines) - named):
        yield row(f"{room} (no budget)", lines[room], files[room])


def main(args: Sequence[str] | None = None) -> int:
    """Print the tables of the library and of the tests, and return the exit status."""
    parser = argparse.ArgumentParser(description="Lines of code and files, beside their budgets.")
    parser.add_argument("--check", action="store_true", help="Exit with status 1 where something is over its budget.")
    given = parser.parse_args(args)
    lines, files = sizes(PACKAGE)
    shown = [f"{PACKAGE:48}{'lines':>9}{'files':>8}{'budget':>9}", *table(lines, files)]
    shown.append(row(f"all (the aim is {SRC_AIM:,})", lines.total(), files.total(), SRC_LINES))
    shown.append(row("all files", files.total(), files.total(), SRC_FILES))
    lines, files = sizes("tests")
    shown += ["", f"{'tests':48}{'lines':>9}{'files':>8}{'budget':>9}"]
    shown += [row(folder, count, files[folder]) for folder, count in lines.most_common()]
    shown.append(row("all", lines.total(), files.total(), TEST_LINES))
    print("\n".join(shown))
    return int(given.check and any(line.endswith("!") for line in shown))


if __name__ == "__main__":
    sys.exit(main())
