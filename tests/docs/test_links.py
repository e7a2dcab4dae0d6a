"""Every link of the documentation leads to a file and a heading, and the site can be built."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from experiments.tools.published import published
from experiments.tools.website import ROOT, for_programs, is_external, links, pages, targets

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
        if anchor and not published(target):
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


def test_the_files_and_folders_that_contributors_are_led_to_are_there() -> None:
    text, source = (ROOT / "CONTRIBUTING.md").read_text(), ROOT / "src" / "fedstrata"
    rows = re.findall(r"^\| [^|]+ \| `[^|]+\|[^|]*\|$", text, re.MULTILINE)
    assert len(rows) == 19
    for row in rows:
        folder = ""
        for path in re.findall(r"`([\w/]+\.(?:py|html|toml)|[\w/]+/)`", row):
            # A file without a folder lies in that of the one before.
            folder = path.rpartition("/")[0] or folder
            assert (source / path).exists() or (source / folder / path).exists(), path
    tree = re.findall(r"^  (\w+)/ ", text, re.MULTILINE)
    assert set(tree) == {path.parent.name for path in source.glob("*/__init__.py")}


def test_the_overview_for_programs_has_every_page_of_the_navigation_with_its_first_sentence() -> None:
    nav = [{"Start": ["README.md", {"Tutorial": "docs/start/tutorial.md"}]}, {"More": [{"Licence": "SECURITY.md"}]}]
    title, blank, description, *rest = for_programs("fedstrata", "Finds groups.", nav).splitlines()
    assert (title, blank, description) == ("# fedstrata", "", "> Finds groups.")
    assert [line for line in rest if line.startswith("#")] == ["## Start", "## More"]
    first, second, third = (line for line in rest if line.startswith("- "))
    assert re.fullmatch(r"- \[fedstrata\]\(\./\): fedstrata [^.]+\.", first)
    assert second.startswith("- [Tutorial](docs/start/tutorial/): ") and third.startswith("- [Security](SECURITY/): ")


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """The strict build of a site."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)


@pytest.mark.pages
@pytest.mark.parametrize(
    ("text", "complaint"),
    [("::: fedstrata.nothing", "fedstrata.nothing could not be found"), ("[a][fedstrata.nothing]", "cross-reference")],
)
def test_a_reference_to_what_does_not_exist_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n::: fedstrata.load\n\n{text}\n")
    python = {
        "paths": [str(ROOT / "src")],
        "options": {"extensions": [str(ROOT / "experiments/tools/docstring_links.py")]},
    }
    site = {"site_name": "a", "plugins": [{"mkdocstrings": {"handlers": {"python": python}}}]}
    (tmp_path / "mkdocs.yml").write_text(json.dumps(site))  # JSON is YAML
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and complaint in done.stderr, done.stderr


@pytest.mark.pages
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = tmp_path / "site"
    done = build(ROOT / "mkdocs.yml", built)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    for name in (
        "index.html",
        "docs/start/tutorial/index.html",
        "docs/methods/algorithms/strata/index.html",
        "CHANGELOG/index.html",
    ):
        assert "fedstrata" in (built / name).read_text()
    assert (built / "docs" / "report.png").exists()
    for folder, _ in links((built / "llms.txt").read_text()):
        assert (built / folder / "index.html").exists(), folder
    assert 'id="fedstrata.Run.predict"' in (built / "docs/reference/fedstrata/index.html").read_text()
    for card in links((ROOT / "docs/start/gallery.md").read_text()):
        shown = published((ROOT / "docs/start" / card[0]).resolve())
        assert shown is None or "<title>" in (built / shown.relative_to(ROOT)).read_text()
    for page in built.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|icon|preconnect)")[^>]*"(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, f"{page} loads {loaded}"
