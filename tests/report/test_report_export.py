import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from synthetic_run import write

from fedstrata.errors import InputError, RecordError
from fedstrata.report.charts import all_charts
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import Figure
from fedstrata.report.export import draw, save
from fedstrata.report.reader import read

RUNS = Path(__file__).parent / "runs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", count=10)


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_every_chart_of_the_page_becomes_a_file_the_same_twice(kind: str, start: bytes, folder: Path) -> None:
    files = save(folder, kind)
    plots = [plot for some in all_charts(Clusters(read(folder))).values() for plot in some]
    assert [file.name for file in files] == [f"{plot.name}.{kind}" for plot in plots]
    first = [file.read_bytes() for file in files]
    assert all(content.startswith(start) for content in first)
    assert [file.read_bytes() for file in save(folder, kind)] == first


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir()))
def test_the_charts_of_every_kind_of_run_can_be_drawn(name: str) -> None:
    for some in all_charts(Clusters(read(RUNS / name))).values():
        for plot in some:
            draw(plot.figure).canvas.draw()


def test_a_chart_is_large_enough_to_print(folder: Path) -> None:
    save(folder, "png")
    with Image.open(folder / "figures" / "accuracy.png") as image:
        assert image.width > 1200
    with Image.open(folder / "figures" / "split-0-dcos-conv2.png") as image:
        assert abs(image.width - image.height) < 400


def test_text_stays_text_and_names_are_shown_letter_by_letter(folder: Path) -> None:
    rounds = folder / "rounds.jsonl"
    lines = [
        json.loads(line) | {"metrics": [{"name": "<b>$x$", "value": 1.5}]} for line in rounds.read_text().splitlines()
    ]
    rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    save(folder, "svg")
    assert ">worst client</text>" in (folder / "figures" / "accuracy.svg").read_text()
    plots = all_charts(Clusters(read(folder)))["metrics"]
    assert [plot.name for plot in plots] == ["metric-b-x"]


def drawn(figure: Figure, **layout: object) -> Figure:
    axes = {"xaxis": {"gridcolor": "#cccccc"}, "yaxis": {"gridcolor": "#cccccc"}, "height": 300, "showlegend": True}
    return {"layout": axes | layout, **figure}


def test_a_trace_keeps_its_places_its_colour_and_its_holes() -> None:
    trace = {"type": "scatter", "mode": "lines+markers", "x": [1, 2, 3], "y": [0.5, None, 0.7], "name": "&lt;b&gt;"}
    line = {"color": "#3a7fc8", "width": 2, "dash": "dot", "shape": "hv"}
    axes = draw(drawn({"data": [{**trace, "line": line}]})).axes[0]
    (curve,) = axes.lines
    assert np.asarray(curve.get_xdata()).tolist() == [1, 2, 3]
    assert np.isfinite(np.asarray(curve.get_ydata())).tolist() == [True, False, True]
    assert (curve.get_color(), curve.get_drawstyle(), curve.get_marker()) == ("#3a7fc8", "steps-post", "o")
    assert curve.get_label() == "<b>"


def test_bars_stand_beside_each_other_and_a_missing_one_has_no_height() -> None:
    bars = [
        {"type": "bar", "x": ["a", "b"], "y": [0.5, None], "name": name, "marker": {"color": "#3a7fc8"}}
        for name in ("one", "two")
    ]
    axes = draw(drawn({"data": bars}, xaxis={"gridcolor": "#cccccc", "type": "category"})).axes[0]
    assert [round(patch.get_x(), 2) for patch in axes.patches] == [-0.4, 0.6, 0.0, 1.0]  # type: ignore[attr-defined]  # bars are rectangles
    assert [patch.get_height() for patch in axes.patches] == [0.5, 0.0, 0.5, 0.0]  # type: ignore[attr-defined]  # bars are rectangles


def test_a_matrix_keeps_its_scale_and_an_empty_one_is_nothing(folder: Path) -> None:
    plot = all_charts(Clusters(read(folder)))["splits"][0]
    canvas = draw(plot.figure)
    mesh = canvas.axes[0].collections[0]
    heat = plot.figure["data"][0]
    assert mesh.get_clim() == (heat["zmin"], heat["zmax"])
    assert canvas.axes[0].get_ylim()[0] > canvas.axes[0].get_ylim()[1], "the first client is on top"
    empty = replace(plot, figure={**plot.figure, "data": [{**heat, "x": [], "y": [], "z": []}]})
    assert not draw(empty.figure).axes[0].collections


def test_rules_and_words_stand_where_the_page_has_them() -> None:
    across = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 5,
        "y1": 5,
        "line": {"color": "#8a94a0", "width": 1},
    }
    box = {"type": "rect", "x0": 1, "x1": 3, "y0": 4, "y1": 2, "fillcolor": "#d1661c", "line": {"width": 0}}
    words = {"x": 1, "xref": "paper", "y": 5, "xanchor": "right", "yanchor": "bottom", "text": "cut &lt; 5"}
    axes = draw(drawn({"data": []}, shapes=[across, box], annotations=[words])).axes[0]
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [5, 5]
    assert axes.texts[0].get_text() == "cut < 5"
    (patch,) = axes.patches
    assert patch.get_bbox().bounds == (1, 2, 2, 2)  # type: ignore[attr-defined]  # this patch is a rectangle
    assert to_hex(patch.get_facecolor()) == "#d1661c"


def test_a_run_without_a_round_has_no_charts(folder: Path) -> None:
    (folder / "rounds.jsonl").write_text("", encoding="utf-8")
    assert save(folder, "png") == []


def test_bad_input_is_one_line_that_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--figures = 'gif': expected one of png, svg, pdf"):
        save(folder, "gif")
    with pytest.raises(RecordError, match="no folder at"):
        save(folder / "nowhere", "png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'pip install "fedstrata\[figures\]"'):
        save(folder, "png")
    assert not (folder / "figures").exists()
