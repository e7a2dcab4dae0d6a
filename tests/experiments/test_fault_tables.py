import json
from pathlib import Path
from typing import Any

import pytest
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING
from experiments.trust import fault_tables, soak


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with nothing in it yet."""
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_what_was_not_measured_is_said_to_be_so(folder: Path) -> None:
    for made in fault_tables.FAULTS.values():
        assert all(row[1] == MISSING for row in rows(made()))


def test_a_fault_has_its_rounds_and_its_bits(folder: Path) -> None:
    found: dict[str, Any] = {"case": "stopped", "seconds_per_round": [2, 50, 4], "same_bits": True}
    runs = [
        {**found, "run": 0, "absent": {"2": [2]}, "seconds_to_recover": 20.8},
        {**found, "run": 1, "absent": {"2": [2], "3": [2]}, "seconds_to_recover": None},
    ]
    (folder / "network_faults.json").write_text(json.dumps(runs))
    (row,) = [row for row in rows(fault_tables.network()) if row[1] != MISSING]
    assert row[1:] == ["2", "4", "1 to 2", "21", "equal in 2"]


def test_growth_is_that_of_the_line_after_the_warm_up() -> None:
    """From 100 by 1 every round: 150 rounds are a growth of 150 %. What was before does not count."""
    measured = [{"mib": 1000.0}] * soak.WARM_UP + [{"mib": 100.0 + round} for round in range(150)]
    line = soak.fitted(measured, "mib")
    assert (line["growth"], line["per_100_rounds"], line["least"], line["most"]) == (1.5, 100.0, 100.0, 249.0)
