import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hostile.run_folders import COMPARE, Case, good_run, run_folders
from hostile.runner import Runner, complaints


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good run, and what else a case needs."""
    folder = tmp_path_factory.mktemp("good")
    good_run(folder)
    return folder


@pytest.mark.parametrize("case", run_folders(), ids=lambda case: case.name)
def test_a_hostile_run_folder_ends_in_a_page_or_in_one_line(
    case: Case, good: Path, warm: Runner, tmp_path: Path
) -> None:
    """A command may write to the run and to a comparison alone."""
    place = shutil.copytree(good, tmp_path / "place")
    writable = [place / "run", place / "comparison"]
    case.change(place / "run")
    for command in case.commands:
        outcome = warm.call("fedstrata.cli:main", [list(command)], folder=place, surroundings=place, writable=writable)
        if command == COMPARE and outcome.status == 1:
            outcome = replace(outcome, status=2)  # a run was left out of the comparison, and the line says why
        assert complaints(outcome, accepted=outcome.status == 0) == [], f"{command}: {outcome.err}"
        page = place / "run" / "report.html"
        if page.is_file() and not page.is_symlink():
            text = page.read_text(encoding="utf-8", errors="replace")
            assert "SECRET" not in text and "<img src=x" not in text
        assert not list(place.rglob("made-by-pickle"))
    shutil.rmtree(place)
