"""Write the table of the licences of all packages that the library needs, as their metadata declare them.

python -m experiments.tools.licences

It reads the environment of ``make``, which holds what ``requirements.lock`` says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from experiments.tools.outcomes import table
from experiments.tools.tables import ROOT

PAGE = ROOT / "docs" / "reference" / "licences.md"
LOCK = ROOT / "requirements.lock"
TOOLS = ("dev", "docs")
"""Extras for working on the library; nobody who uses it needs them."""

TEXT = """# Licences of dependencies

fedstrata has the licence [Apache-2.0](../../LICENSE). This page lists the packages that it needs, directly or not,
with the licence that the metadata of each package declare. It is no legal advice: a wheel may contain compiled
libraries under further licences, and its own licence files name them.

`make licences` makes this page, through pip-licenses. The versions are those of
[`requirements.lock`](../../requirements.lock), for Python 3.11 on Linux. On another platform, a build of torch for GPUs
brings NVIDIA's packages, which have licences of their own.

Of the {installed} packages, {always} are always installed. The others are installed with an extra only.

{table}"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page of licences, as this environment says."""
    users = needed_by()
    declared = licences()
    rows = sorted((name, version(name), declared[name], ", ".join(users[name])) for name in users)
    return TEXT.format(
        installed=len(rows),
        always=sum(users[name] == [ALWAYS] for name in users),
        table=table("package | version | licence | needed", rows),
    )


ALWAYS = "always"


def needed_by() -> dict[str, list[str]]:
    """The canonical name of every package that is needed, and the extras that need it."""
    core = reached(project()["dependencies"])
    found = {name: [ALWAYS] for name in core}
    for extra, own in extras().items():
        for name in reached(own) - core:
            found.setdefault(name, []).append(f"`{extra}`")
    return found


def project() -> dict[str, Any]:
    """The project's own metadata."""
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return metadata


def extras() -> dict[str, list[str]]:
    """The requirements of each extra with which the library can do more."""
    every: dict[str, list[str]] = project()["optional-dependencies"]
    return {extra: own for extra, own in sorted(every.items()) if extra not in TOOLS}


@cache
def locked() -> dict[str, str]:
    """The version of every package in the lock, by canonical name."""
    found = re.findall(r"^([\w.-]+)(?:\[\S+\])?==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): pinned for name, pinned in found}


def is_locked_environment() -> bool:
    """Whether every package that is needed is installed in the version of the lock."""
    try:
        return all(version(name) == locked().get(name) for name in needed_by())
    except PackageNotFoundError:
        return False


def reached(requirements: Iterable[str]) -> set[str]:
    """The canonical names of what these requirements need here, directly or not."""
    found = set[tuple[str, str]]()
    ahead = [(Requirement(text), "") for text in requirements]
    while ahead:
        wanted, extra = ahead.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        for asked in ("", *wanted.extras):
            step = (canonicalize_name(wanted.name), asked)
            if step not in found:
                found.add(step)
                ahead += [(Requirement(text), asked) for text in requires(wanted.name) or ()]
    return {name for name, _ in found}


def licences() -> dict[str, str]:
    """The declared licence of every installed package, by canonical name."""
    command = [sys.executable, "-m", "piplicenses", "--from=mixed", "--with-system", "--format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Some packages declare their licence by its whole text, whose first line is its name.
    return {canonicalize_name(each["Name"]): each["License"].splitlines()[0] for each in json.loads(done.stdout)}


if __name__ == "__main__":
    main()
