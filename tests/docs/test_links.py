"""Every link of the documentation leads somewhere: files and anchors here, external ones in form."""

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import website
from website import CODE, ROOT, is_external, links, pages, targets

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as repositories make them."""
    fenceless = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found, seen = set[str](), Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", fenceless, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in links(page.read_text()):
        if is_external(path):
            parts = urlsplit(path)
            assert parts.scheme == "https" and re.fullmatch(r"[\w.-]+\.\w+", parts.netloc), path
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), f"{page.name}: {path}"
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target.read_text()), f"{page.name}: {path}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_links_of_one_text_do_not_fall_apart_over_brackets(page: Path) -> None:
    prose = CODE.sub("", page.read_text())
    assert prose.count("](") == len(list(links(prose))), f"{page.name} has a link that cannot be read"


def test_what_pages_link_to_is_found() -> None:
    assert ROOT / "experiments" / "results" in targets(ROOT / "docs" / "strata.md")
    assert list(links("[a](b.md#c) `[d](e)` [f\ng](h)")) == [("b.md", "c"), ("h", "")]
    assert list(links("```\n[a](b)\n```\n[c](#d)")) == [("", "d")]


def test_headings_become_the_anchors_of_repositories() -> None:
    assert anchors("# [data] and `x`: y\n## A\n## A\n```\n# no\n```\n") == {"data-and-x-y", "a", "a-1"}


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached, ahead = set[Path](), [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [target for target in targets(page) if target.suffix == ".md"]
    assert set(pages()) <= reached


def test_sources_and_folders_are_shown_and_other_files_are_not() -> None:
    assert (website._shown(ROOT / "experiments" / "pages.py") or "").startswith(
        "# experiments/pages.py\n\n````python\n"
    )
    assert "- [strata.py](strata.py.md)\n" in (website._shown(ROOT / "src" / "fedstrata" / "algorithms") or "")
    assert website._shown(ROOT / "docs" / "report.png") is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the site is built with the extra docs: pip install .[docs]")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    built = tmp_path / "site"
    for name in ("index.html", "docs/tutorial/index.html", "docs/algorithms/strata/index.html", "CHANGELOG/index.html"):
        assert "fedstrata" in (built / name).read_text()
    assert (built / "docs" / "report.png").exists()
    for page in built.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|icon|preconnect)")[^>]*"(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, f"{page} loads {loaded}"
