"""The code blocks of a page, and a small shell that runs them in this process."""

import re
import runpy
import shlex
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fedstrata.cli import main

ROOT = Path(__file__).parents[1]
CLOSE = 0.05
"""By how much numbers with a decimal point may differ between processors."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: behind the fence.
        text: inside it.
    """

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that its first line names in a comment."""
        found = re.match(r"# (\S+\.\w+)\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Of a console: each command, and the lines that are shown below it."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        assert not parts[0], "a console begins with a command"
        return [(command, shown.splitlines()) for command, shown in zip(parts[1::2], parts[2::2], strict=True)]


def blocks(page: str) -> list[Block]:
    """All blocks of a page of ``docs``, in order."""
    (path,) = (ROOT / "docs").rglob(page)
    text = path.read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def run(command: str) -> tuple[int, list[str]]:
    """The exit status of a command of this library or of a script, and the lines that it printed."""
    program, *arguments = shlex.split(command)
    status = 0
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        if program == "python":
            (script,) = arguments
            runpy.run_path(script, run_name="__main__")
        else:
            assert program == "fedstrata", f"no block may call {program}"
            with pytest.raises(SystemExit) as end:
                main(arguments)
            status = int(end.value.code or 0)
    return status, (err.getvalue() + out.getvalue()).splitlines()


def follow(page: str, folder: Path, but: str = "nothing") -> None:
    """Do what a page says in a folder, which is the current one: write its files, and run its commands in their order.

    Args:
        page: The page of ``docs``.
        folder: The folder.
        but: A block with this text is left out, if it is a console.
    """
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "console" and but not in block.text:
            for command, shown in block.commands:
                status, printed = run("fedstrata run" if command == "make demo" else command)
                assert status == (2 if shown[-1:] and shown[-1].startswith("fedstrata:") else 0), printed
                assert agree(shown, printed), f"{command} printed\n" + "\n".join(printed)


def example(page: str, word: str = "") -> dict[str, Any]:
    """The names that the Python block of a page defines, which holds the word."""
    (block,) = (block for block in blocks(page) if block.language == "python" and word in block.text)
    names: dict[str, Any] = {}
    exec(compile(block.text, page, "exec"), names)
    return names


def agree(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether shown lines are the printed ones; a line "..." is any number of lines, one that ends so only begins."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(agree(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and _alike(shown[0], printed[0]) and agree(shown[1:], printed[1:])


def _alike(shown: str, printed: str) -> bool:
    one, other = (re.sub(r"\d+\.\d s\b", "TIME", " ".join(line.split())) for line in (shown, printed))
    one, other = (re.sub(r"(\d+\.\d)(?: ± (\d+\.\d))? (%|points)", _as_share, line) for line in (one, other))
    if one.endswith("..."):
        words = one.removesuffix("...").split()
        one, other = " ".join(words), " ".join(other.split()[: len(words)])
    numbers = [re.findall(r"-?\d+\.\d+", line) for line in (one, other)]
    rest = [re.sub(r"-?\d+\.\d+", "NUMBER", line) for line in (one, other)]
    return rest[0] == rest[1] and all(abs(float(a) - float(b)) <= CLOSE for a, b in zip(*numbers, strict=True))


def _as_share(found: re.Match[str]) -> str:
    """A number in per cent, and its spread, as shares; as such they are as close as other numbers."""
    numbers = [f"{float(number) / 100:.3f}" for number in found.groups()[:2] if number]
    return f"{' ± '.join(numbers)} {found[3]}"
