"""The gallery: its pictures, its links and the pages that the site publishes."""

from pathlib import Path

import pytest
from experiments.tools.gallery import DOCS, PICTURES, SHOTS, Shot
from experiments.tools.published import COMPARISON, RUNS, SHOWN, make_pages, published
from experiments.tools.website import links

LINKS = [path for path, _ in links((DOCS / "start" / "gallery.md").read_text())]


def test_every_picture_is_on_the_page_and_can_be_made_again() -> None:
    files = {path.name for path in PICTURES.iterdir()}
    assert files == {f"{shot.name}.png" for shot in SHOTS} == {Path(path).name for path in LINKS if ".png" in path}


def test_every_published_run_is_linked_or_part_of_the_comparison(tmp_path: Path) -> None:
    linked = {published((DOCS / "start" / path).resolve()) for path in LINKS} - {None}
    assert COMPARISON / "comparison.html" in linked
    assert published(RUNS / "ditto") is None and published(DOCS) is None
    made = {RUNS / page.relative_to(tmp_path) for page in make_pages(tmp_path)}
    assert linked <= made and len(made) == len(SHOWN) + 1


@pytest.mark.parametrize("shot", [shot for shot in SHOTS if not shot.page.startswith("sweep")], ids=str)
def test_a_picture_shows_a_page_that_is_published(shot: Shot) -> None:
    page = RUNS / shot.page
    assert page == COMPARISON / "comparison.html" or published(page.parent) == page
