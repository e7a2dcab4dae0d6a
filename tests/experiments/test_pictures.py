import io
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.papers import pictures, running
from experiments.papers.catalogue import EXHIBITS
from experiments.papers.exhibit import Exhibit, Setting
from experiments.papers.page import page_text
from experiments.papers.pictures import (
    PICTURES,
    Picture,
    accuracies,
    accuracies_at_triggers,
    accuracies_by_start,
    accuracy_by_number,
    curves,
    dendrogram,
    gap_by_layer,
    gap_by_round,
    heat_maps,
    hopkins_and_layers,
    last_heat_maps,
    paper_measures,
    points,
    similarity_of_layers,
    unstable_again,
    write_picture,
)
from experiments.papers.run_folder import RunFolder
from experiments.papers.svg import Curves, HeatMap, Panel, draw, png, steps
from PIL import Image

RUNS = Path(__file__).parents[1] / "report" / "runs"
"""Small runs of every algorithm; those that are used here have 12 clients and 8 rounds."""


def run(name: str) -> RunFolder:
    return RunFolder(RUNS / name)


def lines(panel: Panel) -> dict[str, list[tuple[float, float]]]:
    assert isinstance(panel, Curves)
    return {name: list(line) for name, line in panel.curves.items()}


def test_a_round_without_a_value_has_no_point() -> None:
    assert points([0.5, None, 0.25], 100) == [(1.0, 50.0), (3.0, 25.0)]


def test_curves_are_the_records_of_the_runs() -> None:
    (panel,) = curves({"a": run("fedavg"), "b": run("ifca")}, "loss", "loss")
    assert list(lines(panel)) == ["a", "b"]
    assert lines(panel)["b"] == [(record["round"], record["loss"]) for record in run("ifca").rounds]
    (panel,) = accuracies({"a": run("fedavg")})
    assert lines(panel)["a"][-1] == (8.0, 100 * run("fedavg").rounds[-1]["acc_client"])


def test_runs_whose_names_begin_alike_share_a_panel() -> None:
    some = run("fedavg")
    panels = accuracies_by_start({"MNIST 0.1": some, "CIFAR 0.1": some, "MNIST 0.2": some}, "acc_cluster")
    assert [list(lines(panel)) for panel in panels] == [["0.1", "0.2"], ["0.1"]]
    assert [panel.title for panel in panels] == ["MNIST", "CIFAR"]


def test_the_gap_is_drawn_by_round_and_by_layer() -> None:
    layercfl = run("layercfl")
    panels = gap_by_round(layercfl)
    assert [panel.title for panel in panels] == ["dcos", "l2"]
    assert list(lines(panels[0])) == ["linear1", "linear2", "all"]
    (panel,) = gap_by_round(layercfl, measures=["l2"], layers=["linear1"])
    assert lines(panel) == {"linear1": [(n, layercfl.gap(n, "linear1", "l2")) for n in range(1, 9)]}
    (panel,) = gap_by_layer(layercfl, 8, ["dcos"])
    assert isinstance(panel, Curves) and panel.ticks == ["linear1", "linear2"]
    assert lines(panel)["dcos"] == [(n, layercfl.gap(8, f"linear{n + 1}", "dcos")) for n in (0, 1)]
    (panel,) = paper_measures({"digits": layercfl}, "linear1")
    # dcos is of all layers, those with a P of the chosen one; dl2 and cos were not recorded.
    assert lines(panel)["dcos"][0] == (1.0, layercfl.gap(1, "all", "dcos"))
    assert lines(panel)["dcosP"][0] == (1.0, layercfl.gap(1, "linear1", "dcos")) and lines(panel)["cosP"] == []


def test_heat_maps_have_clients_in_the_order_of_their_groups() -> None:
    some = run("fedclust")
    (panel,) = heat_maps(some, [1], ["l2"], ["head"])
    assert isinstance(panel, HeatMap) and panel.distances
    order = sorted(range(12), key=lambda client: (some.truth[client], client))
    matrix = some.matrix(1, "l2", "head")
    assert panel.values[0, 1] == matrix[order[0], order[1]] and list(panel.ends) == [3, 6, 9]
    assert heat_maps(some, [1], ["dcos"]) == heat_maps(some, [2]) == []
    assert [each.title for each in last_heat_maps({"a": some, "b": run("fedavg")})] == [panel.title]
    (similar,) = heat_maps(run("hicfl"), [3])
    assert isinstance(similar, HeatMap) and not similar.distances


def test_a_dendrogram_merges_all_clients() -> None:
    some = run("fedclust")
    panel = dendrogram(some, "clients", "l2", "head")
    assert sorted(map(int, panel.leaves)) == list(range(12)) and len(panel.elbows) == 11
    assert panel.groups[0] == some.truth[int(panel.leaves[0])]
    lowest = some.matrix(1, "l2", "head")[np.triu_indices(12, 1)].min()
    assert min(elbow[1][1] for elbow in panel.elbows) == pytest.approx(lowest)


def test_unstable_weights_are_compared_with_those_of_the_round_before(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps({"round": round}) + "\n" for round in (1, 2, 3)))
    for round, places in ((2, [[1, 2]]), (3, [[2, 3]])):
        arrays = {"conv1": np.array(places), "conv1|clients": np.array([0])}
        np.savez(tmp_path / "weights" / f"{round:05}.npz", allow_pickle=False, **arrays)
    (panel,) = unstable_again({"a": RunFolder(tmp_path)})
    assert lines(panel) == {"conv1": [(3.0, 1 / 3)]}  # one of three weights in both rounds


def test_runs_named_by_numbers_are_in_their_order() -> None:
    (panel,) = accuracy_by_number({"12": run("ifca"), "4": run("fedavg")}, "k")
    assert [x for x, _ in lines(panel)["accuracy"]] == [4.0, 12.0]


def test_rounds_of_clustering_are_marked_and_statistics_have_their_threshold() -> None:
    some = run("fedtsdp")
    (panel,) = accuracies_at_triggers({"0.5": some})
    assert isinstance(panel, Curves)
    assert len(panel.marks) == some.metric("triggers")[-1]
    hopkins, layers = hopkins_and_layers({"0.5": some}, threshold=0.65)
    assert isinstance(hopkins, Curves) and hopkins.level == 0.65
    assert lines(layers)["0.5"] == points(some.metric("shared_layers"))


def test_what_was_not_recorded_is_not_drawn(tmp_path: Path) -> None:
    assert similarity_of_layers({"a": run("fedavg")}) == []
    assert [type(panel) for panel in similarity_of_layers({"a": run("layercfl")})] == [HeatMap]
    shutil.copytree(RUNS / "layercfl", tmp_path / "gaps", ignore=shutil.ignore_patterns("matrices"))
    panels = similarity_of_layers({"a": RunFolder(tmp_path / "gaps")})
    assert [panel.title for panel in panels] == ["dcos", "l2"]


def test_a_matrix_that_several_clusters_have_is_not_taken_for_one_of_all(tmp_path: Path) -> None:
    (tmp_path / "matrices").mkdir()
    names = {"1|dcos|linear": np.eye(2), "2|dcos|linear": np.eye(2), "1|js|predictions": np.eye(2)}
    clients = {f"{name}|clients": np.array([5, 3]) for name in names}
    np.savez(tmp_path / "matrices" / "00004.npz", allow_pickle=False, **names, **clients)
    assert RunFolder(tmp_path).matrices(4) == {("js", "predictions"): [3, 5]}


def test_an_image_has_a_pixel_for_each_value_and_close_is_dark() -> None:
    image = Image.open(io.BytesIO(png(np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 1.0]]))))
    assert image.size == (3, 3)
    shades = image.convert("L")
    dark, light, middle = (shades.getpixel((x, 0)) for x in range(3))
    assert isinstance(dark, int) and isinstance(middle, int) and isinstance(light, int) and dark < middle < light


def test_ticks_are_round_numbers_inside_the_axis() -> None:
    assert steps(1, 50) == [10, 20, 30, 40, 50]
    assert steps(-0.31, 0.42) == [-0.2, 0, 0.2, 0.4]
    assert steps(97.2, 98.1) == [97.2, 97.4, 97.6, 97.8, 98.0]


LARGEST: dict[str, list[Panel]] = {
    "curves": [
        Curves("a & b", "round", "<y>", {f"run {n}": [(r, r / 7 + n) for r in range(100)] for n in range(6)})
        for _ in range(6)
    ],
    "matrices of 100 clients": [HeatMap("a", np.random.default_rng(0).random((100, 100)), [50]) for _ in range(6)],
    "a point, and nothing": [Curves("a", "round", "y", {"one": [(1.0, 2.0)], "none": []}), HeatMap("b", np.eye(1))],
}


@pytest.mark.parametrize("panels", LARGEST.values(), ids=LARGEST)
def test_a_picture_is_small_and_the_same_again(panels: list[Panel]) -> None:
    picture = draw(panels, "A title")
    assert draw(panels, "A title") == picture and len(picture) < 60_000
    root = ET.fromstring(picture)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == len(panels)


def test_pictures_are_of_exhibits() -> None:
    assert set(PICTURES) <= set(EXHIBITS)


def test_the_picture_of_seed_0_is_drawn_with_the_result_and_again_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = Exhibit(
        id="X-F1",
        paper="hicfl",
        claim="There are eight rounds.",
        settings={"a": Setting("weights")},
        measure=lambda runs: {"rounds": float(len(runs["a"].rounds))},
        conditions=lambda found: {"eight": found.mean("rounds") == 8},
    )
    monkeypatch.setitem(pictures.__dict__, "PICTURES", {"X-F1": Picture("Accuracy", accuracies)})
    kept = running.folder_of(which.settings["a"], 0, tmp_path / "runs")
    kept.parent.mkdir(parents=True)
    kept.symlink_to(RUNS / "fedavg")
    for seed in (0, 1):
        running.folder_of(which.settings["a"], seed, tmp_path / "runs").parent.mkdir(parents=True, exist_ok=True)
    running.reproduce(which, 0, tmp_path / "runs", tmp_path / "results", tmp_path / "pictures")
    (drawn,) = (tmp_path / "pictures").iterdir()
    assert drawn.name == "X-F1.svg" and "Accuracy" in drawn.read_text()
    before = drawn.read_bytes()
    drawn.unlink()
    assert running.draw_again(which, tmp_path / "runs", tmp_path / "pictures") == drawn
    assert drawn.read_bytes() == before
    assert running.draw_again(which, tmp_path / "nowhere", tmp_path / "pictures") is None


def test_an_exhibit_without_a_picture_draws_nothing(tmp_path: Path) -> None:
    runs: dict[str, Any] = {"a": run("fedavg")}
    assert write_picture("H-T1", runs, tmp_path) is None
    assert write_picture("H-F1", runs, tmp_path) is None  # no Gap was recorded
    assert not list(tmp_path.iterdir())


def test_the_page_shows_the_picture_beside_the_figures(tmp_path: Path) -> None:
    result = {
        "measured": {"Gap of linear, round 1": 0.5},
        "hours": 0.5,
        "machine": {"kernels": "AVX2"},
        "cores": 2,
        "source": "0abc123",
    }
    running.keep(EXHIBITS["H-F1"], 0, result, tmp_path / "results")
    folder = tmp_path / "exhibits"
    assert ".svg" not in page_text(tmp_path / "results", folder)
    write_picture("H-F1", {"labels": run("layercfl")}, folder)
    page = page_text(tmp_path / "results", folder)
    shown = page.split("\n### H-F1: ")[1].split("\n### ")[0]
    assert f"\n[![{PICTURES['H-F1'].alt} (seed 0)](exhibits/H-F1.svg)](exhibits/H-F1.svg)\n" in shown
    assert "0.5 hours (2 cores), revision 0abc123" in shown
