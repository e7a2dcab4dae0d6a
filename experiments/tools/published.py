"""The interactive pages that the site publishes: those of the small runs that tests of the report are made with.

The records of these runs are in the repository; their pages, of megabytes, are made when the site is built.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.tools.small_runs import OUT

RUNS = OUT
"""The folder of the runs."""

COMPARED = ("fedavg", "cfl", "fedclust", "fesem", "fl_hc", "pacfl")
"""Runs of one experiment, which the page of a comparison holds side by side."""

SHOWN = ("strata", "layercfl", "adacfl", "hicfl", *COMPARED)
"""The runs whose pages are published."""

COMPARISON = RUNS / "comparison"
"""Where the page of the comparison seems to lie."""


def published(folder: Path) -> Path | None:
    """The page that is published for a folder of the repository; None where there is none."""
    if folder == RUNS:
        return COMPARISON / "comparison.html"
    return folder / "report.html" if folder.parent == RUNS and folder.name in SHOWN else None


def html_pages() -> dict[Path, str]:
    """The text of every published page, by where it seems to lie in the repository."""
    with TemporaryDirectory() as scratch:
        made = make_pages(Path(scratch))
        return {RUNS / page.relative_to(scratch): page.read_text(encoding="utf-8") for page in made}


def make_pages(folder: Path) -> list[Path]:
    """Make the published pages in a folder, from copies of the records."""
    from fedstrata.comparison.collect import conclude
    from fedstrata.config import load_experiment
    from fedstrata.report import build

    for name in SHOWN:
        shutil.copytree(RUNS / name, folder / name)
    pages = [build(folder / name) for name in SHOWN]
    runs = {folder / name: load_experiment(folder / name / "experiment.toml", find_data=False) for name in COMPARED}
    compared = conclude(runs, folder / COMPARISON.name, {}, None)
    return [*pages, compared.folder / "comparison.html"]
