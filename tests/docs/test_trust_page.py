"""The page of faults, attacks and leaks: every row is on it, and what a row names as its evidence is there."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiments.tools import outcomes
from experiments.trust.trust import GREEN, PARTLY, RED, ROOT, UNMEASURED, Counts, Row, counted, matrix, measure, rows
from experiments.trust.trust_figures import FIGURES, Figure, Found

PAGE = ROOT / "docs" / "evidence" / "trust.md"
MATRIX = {"R": 21, "S": 6, "P": 4, "V": 4, "D": 1}
"""The rows of each letter."""

ROWS = [pytest.param(row, id=row.id) for row in rows()]


def test_the_matrix_has_all_its_rows_in_order() -> None:
    assert [row.id for row in rows()] == [f"{letter}{i}" for letter, n in MATRIX.items() for i in range(1, n + 1)]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_on_the_page_with_a_verdict(row: Row) -> None:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row.id} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:3] == [row.fault, row.expected]
    assert re.match(rf"\*\*({GREEN}|{PARTLY}|{RED}|{UNMEASURED})\*\*", cells[4])


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_and_figures_of_a_row_are_there(row: Row) -> None:
    for test in row.tests:
        path, _, function = test.partition("::")
        if (ROOT / path).is_dir():
            assert not function and list((ROOT / path).glob("test_*.py"))
        else:
            assert not function or function in functions(ROOT / path), test
    assert set(row.figures) <= FIGURES.keys()


# Results of the others may have come since.
@pytest.mark.parametrize("row", [row for row in rows() if not row.figures], ids=lambda row: row.id)
def test_a_verdict_that_is_kept_follows_from_the_counts_that_are_kept(row: Row) -> None:
    kept = json.loads((outcomes.RESULTS / "trust.json").read_text())
    found = measure(row, kept["tests"])
    assert kept["rows"][row.id] == {"figures": list(found.figures), "lacks": found.lacks, "verdict": found.verdict}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with nothing in it yet, and a figure that reads one of them."""
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)

    def read(result: Any) -> Found:
        return Found(
            f"{result} wrong", result == 0, "half of it" if result == 0.0 and isinstance(result, float) else ""
        )

    monkeypatch.setitem(FIGURES, "figure", Figure("result", read, "script"))
    return tmp_path


def row(lacks: str = "", *figures: str) -> Row:
    return Row("X1", "a fault", "no harm", ("tests/a.py", "tests/b.py::test_c"), figures, lacks)


def counts(passed: int, failed: int = 0, skipped: int = 0) -> Counts:
    return {"passed": passed, "failed": failed, "skipped": skipped}


BOTH = {"tests/a.py::test_x": counts(3), "tests/b.py::test_c": counts(2, skipped=1), "tests/b.py::test_d": counts(0, 9)}


def test_a_row_whose_tests_all_passed_is_green_and_counts_no_others() -> None:
    found = measure(row(), BOTH)
    assert (found.verdict, found.figures) == (GREEN, ("5 of 5 test cases pass, 1 skipped",))


def test_a_row_that_names_what_it_lacks_is_green_in_part() -> None:
    found = measure(row("the rest"), BOTH)
    assert (found.verdict, found.lacks) == (PARTLY, "the rest")


def test_a_folder_of_tests_has_those_of_its_files_and_no_others() -> None:
    folder = Row("X1", "a fault", "no harm", ("tests/some",))
    run = {"tests/some/a.py::test_x": counts(3), "tests/some_others/a.py::test_x": counts(0, 1)}
    assert measure(folder, run).figures == ("3 of 3 test cases pass",)


def test_one_test_that_failed_makes_a_row_red() -> None:
    assert measure(row(), {**BOTH, "tests/a.py::test_y": counts(0, 1)}).verdict == RED


def test_tests_that_were_not_run_or_were_skipped_are_no_evidence() -> None:
    assert measure(row(), {}).verdict == UNMEASURED
    assert measure(row(), {"tests/a.py::test_x": counts(0, skipped=3)}).verdict == UNMEASURED
    found = measure(row(), {"tests/a.py::test_x": counts(1)})
    assert (found.verdict, found.lacks) == (PARTLY, "1 of its 2 groups of tests were not run")


@pytest.mark.parametrize(("result", "verdict"), [("0", GREEN), ("0.0", PARTLY), ("1", RED), (None, PARTLY)])
def test_a_result_counts_like_a_test(result: str | None, verdict: str, results: Path) -> None:
    if result is not None:
        (results / "result.json").write_text(result)
    assert measure(row("", "figure"), BOTH).verdict == verdict


def test_a_result_alone_is_evidence(results: Path) -> None:
    alone = Row("X1", "a fault", "no harm", figures=("figure",))
    assert measure(alone, {}).verdict == UNMEASURED
    (results / "result.json").write_text("0")
    assert measure(alone, {}).verdict == GREEN


def test_cases_are_counted_by_function() -> None:
    case = '<testcase file="tests/a.py" name="{}">{}</testcase>'
    cases = [("test_x[1]", ""), ("test_x[2]", "<failure/>"), ("test_x[3]", "<skipped/>"), ("test_y", "<error/>")]
    report = "".join(case.format(*each) for each in cases)
    assert counted(f"<testsuites><testsuite>{report}</testsuite></testsuites>") == {
        "tests/a.py::test_x": counts(1, 1, 1),
        "tests/a.py::test_y": counts(0, 1),
    }


READ: dict[str, tuple[Any, bool]] = {
    "kills at points": ({"points": {"a": {"kills": 200, "equal": 199, "one round": 200}}}, False),
    "kills at moments": ({"moments": [{"kills": 9, "equal": True, "one round": True}]}, True),
    "kills of workers": ({"workers": [{"kills": 100, "equal": False}]}, False),
    "cut messages": ({"cut": {"cases": 5, "refused": 5}}, True),
    "damaged checkpoints": ({"cases": 1000, "wrong": 1}, False),
}


@pytest.mark.parametrize("name", READ)
def test_a_result_that_is_not_as_expected_is_not_good(name: str) -> None:
    result, good = READ[name]
    read: Callable[[Any], Found | None] = FIGURES[name].read
    found = read(result)
    assert found is not None and found.good == good


def test_a_group_of_rows_is_a_table_of_its_own() -> None:
    lines = matrix("V").splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [f"V{i}" for i in range(1, 5)]
