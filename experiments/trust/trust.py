"""Run the tests behind the rows of the matrix of faults, attacks and leaks, and keep figures and verdicts.

    python -m experiments.trust.trust --rows R7 S1
    python -m experiments.trust.trust --no-tests

``trust.toml`` has the rows: what is expected, and which tests and results are the evidence. The tests of the named
rows, by default of all, are run by pytest in a process of its own and counted. `FIGURES` reads the results of
experiments. Both go to ``experiments/results/trust.json``, with a verdict for each row that follows from them:

- ``red``: a test failed or is not there, or a result is not what is expected.
- ``not measured``: no test of the row was run, and no result of it is there.
- ``partly``: something of the evidence is not there, or the row says in words what its evidence does not cover.
- ``green``: everything else.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from experiments.trust.trust_figures import FIGURES

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).parent / "trust.toml"

GREEN, PARTLY, RED, UNMEASURED = "green", "partly", "red", "not measured"

Counts = dict[str, int]


@dataclass(frozen=True)
class Row:
    """A row of the matrix.

    Attributes:
        id: Its letter and number.
        fault: What goes wrong, or is attacked.
        expected: What is to hold then.
        tests: The tests that hold it: folders, files, or functions behind ``::``.
        figures: The figures that are read from results, by their names in `FIGURES`.
        lacks: What the evidence does not cover, in words; empty if it covers all.
    """

    id: str
    fault: str
    expected: str
    tests: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    lacks: str = ""


@dataclass(frozen=True)
class Measured:
    """What is known of a row.

    Attributes:
        figures: In words.
        lacks: What is missing, in words; empty if nothing is.
        verdict: What follows.
    """

    figures: tuple[str, ...]
    lacks: str
    verdict: str


def rows() -> list[Row]:
    """The rows of the matrix, in order."""
    found = tomllib.loads(ROWS.read_text())["row"]
    return [
        Row(**{**row, "tests": tuple(row.get("tests", ())), "figures": tuple(row.get("figures", ()))}) for row in found
    ]


def main() -> None:
    """Run tests, read results, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[row.id for row in rows()], help="whose tests are run")
    parser.add_argument("--no-tests", action="store_true", help="read results only")
    given = parser.parse_args()
    path = outcomes.RESULTS / "trust.json"
    tests = _known(path)
    if not given.no_tests:
        named = {test for row in rows() if row.id in given.rows for test in row.tests}
        others = {test for row in rows() for test in row.tests} - named
        # Tests that no row names any more are dropped.
        before = {test: counts for test, counts in tests.items() if any(belongs(test, to=each) for each in others)}
        tests = before | run_tests(named)
    measured = {row.id: measure(row, tests) for row in rows()}
    kept = {
        "versions": {"python": platform.python_version(), "torch": version("torch"), "flwr": version("flwr")},
        "rows": {
            id: {"figures": found.figures, "lacks": found.lacks, "verdict": found.verdict}
            for id, found in measured.items()
        },
        "tests": dict(sorted(tests.items())),
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")
    for id, found in measured.items():
        print(f"{id:4} {found.verdict:13} {'; '.join(found.figures)} {found.lacks and f'({found.lacks})'}")


def _known(path: Path) -> dict[str, Counts]:
    """The tests that were run before, with their counts."""
    return dict(json.loads(path.read_text())["tests"]) if path.exists() else {}


def belongs(test: str, to: str) -> bool:
    """Whether a function of tests is the one that is named, or is in the file or the folder that is named."""
    return test == to or test.startswith((f"{to}::", f"{to}/"))


def run_tests(named: Iterable[str]) -> dict[str, Counts]:
    """Run tests, and count by function how many cases passed, failed and were skipped."""
    wanted = sorted(named)
    # A function whose whole file is named would be run twice.
    wanted = [test for test in wanted if not any(test != other and belongs(test, to=other) for other in wanted)]
    if not wanted:
        return {}
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-o", "junit_family=xunit1", *wanted]
        done = subprocess.run(command, cwd=ROOT, check=False)
        # 0 is all passed, and 1 that some failed; else pytest did not get so far.
        if done.returncode not in (0, 1):
            sys.exit(f"pytest ended with status {done.returncode}")
        return counted(report.read_text())


def counted(report: str) -> dict[str, Counts]:
    """The counts in a report of pytest, by function."""
    found = dict[str, Counts]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        function = case.attrib["name"].partition("[")[0]
        counts = found.setdefault(f"{case.attrib['file']}::{function}", {"passed": 0, "failed": 0, "skipped": 0})
        outcome = {child.tag for child in case} & {"failure", "error", "skipped"}
        counts["skipped" if outcome == {"skipped"} else "failed" if outcome else "passed"] += 1
    return found


def measure(row: Row, tests: Mapping[str, Counts]) -> Measured:
    """What is known of a row.

    Args:
        row: The row.
        tests: The counts of the tests that were run, by function.
    """
    figures = list[str]()
    missing = list[str]()
    wrong = False
    known = list[bool]()
    if row.tests:
        by_name = {name: [counts for test, counts in tests.items() if belongs(test, to=name)] for name in row.tests}
        total = sum((Counter(counts) for every in by_name.values() for counts in every), Counter[str]())
        unknown = [name for name, every in by_name.items() if not every]
        known.append(total["passed"] + total["failed"] > 0)
        wrong |= total["failed"] > 0
        if known[-1]:
            figures.append(_count_text(total))
        if unknown:
            missing.append(f"{len(unknown)} of its {len(by_name)} groups of tests were not run")
    for name in row.figures:
        figure = FIGURES[name]
        path = outcomes.RESULTS / f"{figure.file}.json"
        found = figure.read(json.loads(path.read_text())) if path.exists() else None
        known.append(found is not None)
        if found is None:
            missing.append(f"{name}: {MISSING}")
            continue
        figures.append(found.text)
        wrong |= not found.good
        if found.lacks:
            missing.append(found.lacks)
    if row.lacks:
        missing.append(row.lacks)
    verdict = RED if wrong else UNMEASURED if not any(known) else PARTLY if missing else GREEN
    return Measured(tuple(figures), "; ".join(missing), verdict)


def _count_text(total: Mapping[str, int]) -> str:
    """How many cases of tests passed, and how many did not."""
    text = f"{total['passed']} of {total['passed'] + total['failed']} test cases pass"
    return f"{text}, {total['skipped']} skipped" if total["skipped"] else text


def _kept() -> Mapping[str, Mapping[str, Any]]:
    """What is kept of each row; nothing while nothing was measured."""
    path = outcomes.RESULTS / "trust.json"
    return dict(json.loads(path.read_text())["rows"]) if path.exists() else {}


def matrix(group: str = "") -> str:
    """The rows of the matrix whose ids begin with a letter, with figures and verdicts."""
    kept = _kept()
    lines = list[tuple[str, ...]]()
    for row in rows():
        if row.id.startswith(group):
            found = kept.get(row.id, {"figures": (), "lacks": "", "verdict": UNMEASURED})
            verdict = f"**{found['verdict']}**" + (f": {found['lacks']}" if found["lacks"] else "")
            figures = "; ".join(found["figures"]) or MISSING
            lines.append((row.id, row.fault, row.expected, figures, verdict, _evidence(row)))
    return table("row | fault | expected | measured | verdict | evidence", lines)


def _evidence(row: Row) -> str:
    """Links to the files of tests and experiments behind a row."""
    files = dict.fromkeys(test.partition("::")[0] for test in row.tests)
    scripts = dict.fromkeys(FIGURES[name].script for name in row.figures)
    rooms = (next((ROOT / "experiments").glob(f"*/{script}.py")) for script in scripts if script)
    paths = [*files, *(path.relative_to(ROOT).as_posix() for path in rooms)]
    return ", ".join(f"[{Path(path).name}](../../{path})" for path in paths) or "none yet"


def headlines() -> str:
    """The number of rows by verdict, and the figures that say most."""
    verdicts = Counter(found["verdict"] for found in _kept().values())
    counts = ", ".join(f"{verdicts[each]} {each}" for each in (GREEN, PARTLY, RED, UNMEASURED))
    lines = [("rows of the matrix", f"{counts}, of {len(rows())}" if verdicts else MISSING)]
    for title, name in HEADLINES.items():
        figure = FIGURES[name]
        path = outcomes.RESULTS / f"{figure.file}.json"
        found = figure.read(json.loads(path.read_text())) if path.exists() else None
        lines.append((title, found.text if found else MISSING))
    return table("what | measured", lines)


HEADLINES: Mapping[str, str] = {
    "a killed server": "kills at points",
    "a server killed again and again": "kills at moments",
    "a killed worker process": "kills of workers",
    "changed messages": "mutated messages",
    "repeated and misdelivered messages": "delivered messages",
    "damaged checkpoints": "damaged checkpoints",
    "clients that drop out": "drop-outs",
    "a fifth of the clients is Byzantine": "attacks on updates",
    "backdoors": "backdoors",
    "attacks on the clustering": "attacks on clusters",
    "faults of the network": "network faults",
    "long runs": "soak",
    "membership inference": "membership",
}
"""The figures at the top of the page, by what they are about."""

TRUST = {"trust": matrix, "trust_headlines": headlines}
"""The tables, by name."""


if __name__ == "__main__":
    main()
