"""Every link of the documentation leads to a file and a heading, and the site can be built."""

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from website import ROOT, is_external, links, pages, targets, widened

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as repositories make them."""
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = set[str]()
    seen = Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", without_code, re.MULTILINE):
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


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached = set[Path]()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [target for target in targets(page) if target.suffix == ".md"]
    assert set(pages()) <= reached


def test_the_first_picture_of_a_cell_is_wide_enough_to_read_and_others_stay() -> None:
    html = '<td>a</td><td><a href="b"><img src="b"></a><img src="c"></td><p><img src="d"></p>'
    assert [part.split('"')[0] for part in widened(html).split("<img ")[1:]] == ["style=", "src=", "src="]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the site is built with the extra docs: pip install .[docs]")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    for name in ("index.html", "docs/tutorial/index.html", "docs/algorithms/strata/index.html", "CHANGELOG/index.html"):
        assert "fedstrata" in (built / name).read_text()
    assert (built / "docs" / "report.png").exists()
    for page in built.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|icon|preconnect)")[^>]*"(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, f"{page} loads {loaded}"
