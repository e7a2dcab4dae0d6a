import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hostile.run_folders import COMPARE, Case, good_run, run_folders
from hostile.runner import Outcome, Runner, complaints

CASES = run_folders()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, and what else a case needs."""
    folder = tmp_path_factory.mktemp("good")
    good_run(folder)
    return folder


def tried(runner: Runner, command: tuple[str, ...], place: Path) -> Outcome:
    """What a command does in a folder in which it may write to the run and to a comparison alone."""
    writable = [place / "run", place / "comparison"]
    return runner.call("fedstrata.cli:main", [list(command)], folder=place, surroundings=place, writable=writable)


def wrong(outcome: Outcome, command: tuple[str, ...]) -> list[str]:
    """What is wrong with an outcome: it must be a success or one line."""
    if command == COMPARE and outcome.status == 1:
        outcome = replace(outcome, status=2)  # a run was left out of the comparison, and the line says why
    return complaints(outcome, accepted=outcome.status == 0)


def test_there_are_enough_cases_of_different_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 140


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_run_folder_ends_in_a_page_or_in_one_line(
    case: Case, good: Path, warm: Runner, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(good, place)
    case.change(place / "run")
    for command in case.commands:
        outcome = tried(warm, command, place)
        assert wrong(outcome, command) == [], f"{command}: {outcome.err}"
        page = place / "run" / "report.html"
        if page.is_file() and not page.is_symlink():
            text = page.read_text(encoding="utf-8", errors="replace")
            assert "SECRET" not in text and "<img src=x" not in text
        assert not list(place.rglob("made-by-pickle"))
    shutil.rmtree(place)
