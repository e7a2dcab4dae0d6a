import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from synthetic_comparison import compare
from synthetic_run import edit_rounds, write

from fedstrata.base.errors import InputError, RecordError
from fedstrata.report.figures import charts_of, save_figures

RUNS = Path(__file__).parent / "runs"
CHROMIUM = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
drawn = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed: apt-get install chromium")


@drawn
@pytest.mark.pages
@pytest.mark.parametrize(("kind", "start", "name"), [("png", b"\x89PNG", "strata"), ("pdf", b"%PDF", "adacfl")])
def test_every_chart_of_the_page_becomes_a_file(kind: str, start: bytes, name: str, tmp_path: Path) -> None:
    """Of runs with other charts; what draws them is the same for every kind of file."""
    folder = Path(shutil.copytree(RUNS / name, tmp_path / name))
    files = save_figures(folder, kind)
    assert [file.name for file in files] == [f"{name}.{kind}" for name in charts_of(folder)]
    assert all(file.read_bytes().startswith(start) for file in files)
    if kind == "png":
        with Image.open(folder / "figures" / "accuracy.png") as image:
            assert image.width == 1500, "wide enough to print"


@drawn
@pytest.mark.pages
def test_the_charts_of_a_comparison_become_files_too(tmp_path: Path) -> None:
    files = save_figures(compare(tmp_path).folder, "svg")
    assert [file.name for file in files] == ["accuracy.svg", "clusters.svg", "accuracy-by-bytes.svg"]


@drawn
@pytest.mark.pages
def test_text_stays_text_and_names_are_shown_letter_by_letter(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=2)
    edit_rounds(folder, lambda line: {"metrics": [{"name": "<b>$x$", "value": 1.5}]})
    shutil.rmtree(folder / "matrices")
    shutil.rmtree(folder / "gaps")
    files = save_figures(folder, "svg")
    assert [file.name for file in files] == [f"{name}.svg" for name in charts_of(folder)]
    assert all(file.read_bytes().startswith(b"<svg") for file in files)
    assert "worst client" in re.findall(r">([^<]*)</text>", (folder / "figures" / "accuracy.svg").read_text())
    assert (folder / "figures" / "metric-b-x.svg").is_file()


def test_bad_input_is_one_line_that_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--figures = 'gif': expected one of png, svg, pdf"):
        save_figures(folder, "gif")
    with pytest.raises(RecordError, match="no folder at"):
        save_figures(folder / "nowhere", "png")
    gone: dict[str, Any] = {"kaleido": None, "kaleido.errors": None}
    for module, found in gone.items():
        monkeypatch.setitem(sys.modules, module, found)
    with pytest.raises(InputError, match=r'pip install "fedstrata\[figures\]"'):
        save_figures(folder, "png")
    assert not (folder / "figures").exists()


def test_a_machine_without_a_browser_is_told_what_draws_the_charts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(folder / "nowhere"))
    with pytest.raises(
        InputError, match=r"expected Chromium or Chrome, .*found none that starts; .*kaleido_get_chrome"
    ):
        save_figures(folder, "png")
    assert not (folder / "figures").exists()
