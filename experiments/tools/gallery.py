"""Make the pictures of ``docs/start/gallery.md`` and ``docs/report.png``: parts of pages, photographed in Chromium.

    python -m experiments.tools.gallery

It takes about a minute and needs no data beside the digits of scikit-learn. Pictures of published pages show the small
runs of ``experiments/tools/published.py``; the others show runs that are made here.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageOps
from playwright.sync_api import Page, sync_playwright

import fedstrata as fs
from experiments.tools.published import make_pages

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = DOCS / "start" / "gallery"

WIDTH, HEIGHT = 1160, 725
"""Pixels of the part of a page that is photographed, at most. A narrower page puts its charts below each other."""

CARD = (800, 500)
"""Pixels of a picture."""

MARGIN = 8
"""Pixels that are left around what is photographed."""

COLOURS = 256
"""Colours of a picture; they are chosen so that thin lines keep theirs."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Shot:
    """One picture.

    Attributes:
        name: The name of the file, without its ending.
        page: The page, relative to the folder in which all pages are made.
        part: The part of the page, as a selector of CSS. It is cut off where it is too high.
        click: What is clicked first.
    """

    name: str
    page: str
    part: str
    click: str = ""


SHOTS = (
    Shot("result", "strata/report.html", "body"),
    Shot("accuracy", "strata/report.html", "#of-metric"),
    Shot("groups", "strata/report.html", "#of-groups"),
    Shot("tree", "strata/report.html", ".treebox"),
    Shot("decision", "hicfl/report.html", "figure:has(#split-0-dcos-linear1)"),
    Shot("layers", "layercfl/report.html", "figure:has(#gap-dcos)"),
    Shot("newcomers", "adacfl/report.html", "figure:has(#membership)"),
    Shot("client", "strata/report.html", "#client", ".sortable button.client >> nth=0"),
    Shot("comparison", "comparison/comparison.html", "body"),
    Shot("differences", "comparison/comparison.html", "#of-differences"),
    Shot("sweep", "sweep/comparison.html", "body"),
)

SWEPT = {
    "rounds": 8,
    "data": {"name": "digits", "clients": 12, "samples": 64, "validation": 0.2},
    "partition": {"scheme": "rotation", "groups": 4},
    "local": {"batch": 10},
}
"""The experiment of the sweep, whose page is not published."""


def main() -> None:
    """Make all pages, and take the pictures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of {', '.join(BROWSERS)} on this machine, found none; install chromium")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_pages(folder)
        fs.sweep(SWEPT, {"algorithm": ["ifca", "fesem"], "local.lr": [0.05, 0.2]}, out=folder / "sweep", quiet=True)
        fs.run(out=folder / "first", sets=["report.baseline=true"], quiet=True)
        take(SHOTS, folder, browser)


def take(shots: Sequence[Shot], folder: Path, browser: str) -> None:
    """Photograph parts of the pages in a folder."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for shot in shots:
            picture = photograph(page, folder, shot)
            save(ImageOps.pad(picture, CARD, Image.Resampling.LANCZOS, color="white"), PICTURES / f"{shot.name}.png")
        first = photograph(page, folder, Shot("report", "first/report.html", "body"), end=".tiles")
        save(first, DOCS / "report.png")
        chromium.close()


def photograph(page: Page, folder: Path, shot: Shot, end: str = "") -> Image.Image:
    """Open a page, and photograph a part of it: as far as a picture is high, or to the end of another part."""
    page.goto((folder / shot.page).as_uri())
    page.wait_for_selector(".plot .main-svg", state="attached")
    if shot.click:
        page.locator(shot.click).click()
        page.wait_for_selector("#client-curve .main-svg", state="attached")
    part = box(page, shot.part)
    bottom = box(page, end)["bottom"] if end else min(part["bottom"], part["top"] + HEIGHT)
    left = max(part["left"] - MARGIN, 0)
    top = max(part["top"] - MARGIN, 0)
    clip = {"x": left, "y": top, "width": part["right"] + MARGIN - left, "height": bottom + MARGIN - top}
    return Image.open(BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")  # type: ignore[arg-type]


def box(page: Page, part: str) -> dict[str, float]:
    """Where a part of a page is, in pixels from the top left of the page."""
    found: dict[str, float] = page.locator(part).first.evaluate(
        """part => {
          const {left, right, top, bottom} = part.getBoundingClientRect();
          return {left: left + scrollX, right: right + scrollX, top: top + scrollY, bottom: bottom + scrollY};
        }"""
    )
    return found


def save(picture: Image.Image, file: Path) -> None:
    """Write a picture with few colours, so that the repository stays small."""
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file.relative_to(DOCS.parent), file.stat().st_size)


if __name__ == "__main__":
    main()
