from pathlib import Path

import pytest
from experiments.papers.catalogue import EXHIBITS
from experiments.strata.comparisons import ALIKE, COMPARED
from experiments.strata.study import VARIANTS
from experiments.tools import pages
from experiments.tools.descriptions import facts
from experiments.tools.schemes import drawings
from experiments.tools.tables import ROOT, documents, filled
from experiments.tools.textbook import example_of, textbook

from blocks import agree
from fedstrata.algorithms import ALGORITHMS
from fedstrata.config import load_experiment

# The programs of two dozen pages are run, and all tables are made anew.
pytestmark = pytest.mark.pages

EXPERIMENTS = {path.stem: path for path in (ROOT / "experiments").glob("*/*.toml")}


def test_the_generated_pages_and_tables_are_up_to_date() -> None:
    made = pages.pages()
    for path, text in made.items():
        assert path.exists() and path.read_text() == text, (
            f"run python -m experiments.tools.pages: {path.name} is out of date"
        )
    for path in documents():
        assert filled(path.read_text()) == path.read_text(), (
            f"run experiments/tools/tables.py: {path.name} is out of date"
        )
    assert set((ROOT / "docs" / "methods" / "algorithms").glob("*.md")) <= set(made)
    assert set(facts()) == set(textbook()) == set(ALGORITHMS)


def test_the_pictures_of_the_pages_are_up_to_date() -> None:
    drawn = drawings()
    for path, text in drawn.items():
        assert path.read_text() == text, f"run python -m experiments.tools.schemes: {path.name} is out of date"
    assert {path.stem for path in drawn} == {told["picture"] for told in textbook().values()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_example_of_a_page_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = example_of(name)
    exec(compile(program, name, "exec"), {})
    assert agree([program.split("# ")[-1]], capsys.readouterr().out.splitlines())


def test_every_experiment_of_a_table_is_there_with_its_algorithms() -> None:
    for name in (*COMPARED, ALIKE):
        assert name in EXPERIMENTS
    for wanted in COMPARED.values():
        assert all(variant.split("+")[0] in {*ALGORITHMS, *VARIANTS} for variant, _ in wanted.methods)


# The rows of the matrix of faults are no experiment.
OF_EXHIBITS = {setting.experiment for exhibit in EXHIBITS.values() for setting in exhibit.settings.values()}


@pytest.mark.parametrize("name", sorted({*EXPERIMENTS} - {"trust"} - OF_EXHIBITS))
def test_every_experiment_is_one(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS[name], find_data=False)
    experiment.algorithm_of()
    experiment.scheme.check(clients=experiment.data.clients, classes=12)
