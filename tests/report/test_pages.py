"""One snapshot of each kind of page: its texts, and what its charts are made of.

After a change on purpose, or when the runs in ``runs`` were made again, this writes them anew; read the difference:

    PYTHONPATH=tests python tests/report/test_pages.py
"""

import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from synthetic_comparison import compare
from synthetic_run import edit, figures_of, write

from fedstrata.report import build
from fedstrata.report.comparison.page import build_comparison

HERE = Path(__file__).parent
SNAPSHOTS = HERE / "pages"


def small_run(name: str) -> Callable[[Path], Path]:
    return lambda place: build(Path(shutil.copytree(HERE / "runs" / name, place / name)))


def beside_references(place: Path) -> Path:
    """A run of which the folder beside it has what one model for all reached."""
    small_run("fedavg")(place)
    return small_run("cfl")(place)


def sweep(place: Path) -> Path:
    folder = compare(place).folder
    choice = {"label": "strata", "value": 0.5, "why": "It is the best.", "grid": {"local.lr": ["0.01", "0.1"]}}
    edit(folder / "comparison.json", sweep=choice)
    return build_comparison(folder)


PAGES: dict[str, Callable[[Path], Path]] = {
    "strata": small_run("strata"),
    "adacfl": small_run("adacfl"),
    "fedavg": small_run("fedavg"),
    "references": beside_references,
    "splits": lambda place: build(write(place / "run", count=12)),
    "unfinished": lambda place: build(write(place / "run", count=5, finished=False)),
    "comparison": lambda place: build_comparison(compare(place).folder),
    "sweep": sweep,
}


def snapshot(page: Path) -> str:
    """The texts of a page in lines, without the experiment file, and of each chart its kinds of traces."""
    text = page.read_text(encoding="utf-8")
    body = re.sub(r'(?s)<(style|script|pre class="file").*?</(style|script|pre)>', "", text)
    body = re.sub(r"</?(b|span|code|a|button)\b[^>]*>", " ", body)
    lines = [" ".join(unescape(line).split()) for line in re.sub(r"<[^>]+>", "\n", body.replace("\n", " ")).split("\n")]
    charts = []
    for name, figure in figures_of(text).items():
        traces = [f"{trace['type']} {trace.get('name', '')}".strip() for trace in figure["data"]]
        charts.append(f"{name}: {', '.join(traces)}")
    return "\n".join([*filter(None, lines), "", *charts]) + "\n"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_said_before(name: str, tmp_path: Path) -> None:
    assert snapshot(PAGES[name](tmp_path)) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for page_name, make in PAGES.items():
        with TemporaryDirectory() as folder:
            (SNAPSHOTS / f"{page_name}.txt").write_text(snapshot(make(Path(folder))), encoding="utf-8")
