"""The recipes of ``docs/data/data.md`` run as they stand on small files."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pyarrow import csv

import fedstrata
from blocks import Block, blocks, run

RECIPES = {block.file: block for block in blocks("data/data.md") if block.file}
SITES = ("Ghent", "Lyon", "Oslo")


def visits(seed: int = 0) -> pa.Table:
    """Five patients with forty visits at each of three sites."""
    rng = np.random.default_rng(seed)
    count = len(SITES) * 200
    age = rng.normal(60, 10, count)
    return pa.table(
        {
            "age": age,
            "dose": rng.normal(size=count),
            "patient": np.repeat(np.arange(len(SITES) * 5), 40),
            "site": np.repeat(SITES, 200),
            "date": ["2026-01-01"] * count,
            "outcome": np.where(age > 60, "ill", "well"),
        }
    )


def write_visits() -> None:
    csv.write_csv(visits(), "visits.csv")


def write_ward() -> None:
    rng = np.random.default_rng(0)
    table = visits().drop_columns(["outcome", "patient", "date"])
    chest = np.array(["typical", "atypical", "no pain", ""])[rng.integers(0, 4, len(table))]
    age = [
        None if gap else round(age)
        for age, gap in zip(table["age"].to_pylist(), rng.random(len(table)) < 0.2, strict=True)
    ]
    sick = pa.array((np.array(table["age"]) > 60) * rng.integers(1, 5, len(table)))
    table = table.set_column(0, "age", pa.array(age)).append_column("num", sick)
    csv.write_csv(table.append_column("chest", pa.array(chest)), "ward.csv")


def write_program() -> None:
    write_ward()
    Path("ward.toml").write_text(RECIPES["ward.toml"].text)
    for command in ("run ward.toml --out runs/own", "export runs/own models --client Ghent --format torch"):
        status, _ = run(f"fedstrata {command}")
        assert status == 0


def write_split() -> None:
    table = visits()
    split = np.where(np.arange(len(table)) % 200 < 160, "train", "test")  # one of five patients of each site
    csv.write_csv(table.append_column("split", pa.array(split)), "visits_split.csv")


def write_sites() -> None:
    Path("sites").mkdir()
    for place, name in enumerate(SITES):
        csv.write_csv(visits().slice(200 * place, 200).drop_columns(["site"]), f"sites/{name}.csv")


def write_photos() -> None:
    rng = np.random.default_rng(0)
    for site, label in product(SITES, ("cat", "dog")):
        folder = Path("photos", site, label)
        folder.mkdir(parents=True)
        for number in range(30):
            side = 16 + number % 6  # of other sizes, as photographs are
            pixels = rng.integers(0, 128, (side, side), dtype=np.uint8) + 100 * (label == "dog")
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def write_motion() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"subject": subject, "activity": activity, "trial": f"take {trial}", "signal": (signal + shift).tolist()}
        for subject, (activity, shift), trial in product(("Ada", "Bo"), (("walk", 0), ("run", 2)), range(3))
        for signal in [rng.normal(size=(1280, 3))]
    ]
    pq.write_table(pa.Table.from_pylist(rows), "motion.parquet")


def write_nothing() -> None:
    """The recipe makes its own data."""


def write_archive() -> None:
    exec(compile(RECIPES["archive.py"].text, "archive.py", "exec"), {})


FILES: dict[str, Callable[[], None]] = {
    "arrays.py": write_nothing,
    "torch_datasets.py": write_nothing,
    "frame.py": write_visits,
    "visits.toml": write_visits,
    "ward.toml": write_ward,
    "program.py": write_program,
    "sites.toml": write_sites,
    "folds.toml": write_visits,
    "own_split.toml": write_split,
    "photos.toml": write_photos,
    "motion.toml": write_motion,
    "archive.py": write_nothing,
    "archive.toml": write_archive,
    "large.toml": write_sites,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fedstrata, "run", fedstrata.run)
    return tmp_path


def test_every_recipe_has_its_files_here() -> None:
    assert set(RECIPES) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_the_recipe_runs(name: str, folder: Path) -> None:
    FILES[name]()
    block: Block = RECIPES[name]
    (folder / name).write_text(block.text)
    torch.manual_seed(0)
    own = f"fedstrata run {name} --out runs/own --set engine.name=loop"
    status, lines = run(f"python {name}" if name.endswith(".py") else own)
    assert status == 0
    told = "\n".join(lines)
    assert "WARNING" not in told, "no recipe teaches a reader to live with a warning"
    named = {"motion.toml": "Ada, Bo"}.get(name, "Ghent, Lyon, Oslo")
    if name.endswith(".toml"):
        assert f"clients {named}" in told


def test_raw_rows_have_the_same_probabilities_wherever_they_are_predicted(folder: Path) -> None:
    """In a run that is loaded, on the command line, and in a program of which torch is all that it needs."""
    write_program()
    told = run("fedstrata predict runs/own Ghent ward.csv")[1]
    by_command = np.array([line.split(",")[1:] for line in told[1:]], dtype=float)
    table = csv.read_csv("ward.csv")
    by_run = fedstrata.load("runs/own").predict_proba("Ghent", table)
    assert told[0] == "prediction,p(no),p(yes)" and np.array_equal(by_command, by_run)
    found: dict[str, Any] = {}
    exec(compile(RECIPES["program.py"].text, "program.py", "exec"), found)
    rows = torch.tensor(found["rows"], dtype=torch.float64)
    assert found["program"](rows).softmax(1).tolist() == pytest.approx(by_run, abs=1e-6)


def test_clients_of_a_list_are_numbered_and_those_that_are_alike_share_a_cluster(folder: Path) -> None:
    found: dict[str, Any] = {}
    exec(compile(RECIPES["arrays.py"].text, "arrays.py", "exec"), found)
    labels = found["run"].labels
    assert list(labels) == ["0", "1", "2", "3", "4", "5"]
    assert len(set(labels.values())) == 2 and all(labels[str(i)] == labels[str(i % 2)] for i in range(6))


def test_recipes_do_not_learn_from_the_names_of_clients_units_or_days(folder: Path) -> None:
    from fedstrata.build.build import build_run
    from fedstrata.config import load_experiment

    for name in ("visits.toml", "sites.toml", "own_split.toml"):
        FILES[name]()
        (folder / name).write_text(RECIPES[name].text)
        setup = build_run(load_experiment(folder / name))
        assert setup.client_data.dataset.feature_names == ("age", "dose"), name
        assert setup.client_data.dataset.unit == "patient"
