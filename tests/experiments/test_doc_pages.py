import tomllib
from pathlib import Path

import pages
import pytest
from comparisons import ALIKE, COMPARED, SCOUTED
from descriptions import facts
from tables import ROOT, documents, filled

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import Experiment

EXPERIMENTS = ROOT / "experiments"


def test_the_generated_pages_and_tables_are_up_to_date() -> None:
    made = pages.pages()
    for path, text in made.items():
        assert path.exists() and path.read_text() == text, f"run experiments/pages.py: {path.name} is out of date"
    for path in documents():
        assert filled(path.read_text()) == path.read_text(), f"run experiments/tables.py: {path.name} is out of date"
    assert set((ROOT / "docs" / "algorithms").glob("*.md")) <= set(made)
    assert set(facts()) == set(ALGORITHMS)


def test_every_experiment_of_a_table_is_there_with_its_algorithms() -> None:
    named = {*COMPARED, ALIKE, *(name for name, _ in SCOUTED)}
    for name in named:
        assert (EXPERIMENTS / f"{name}.toml").exists(), name
    for wanted in COMPARED.values():
        assert all(variant.split("+")[0] in ALGORITHMS for variant, _ in wanted.methods)


# The rows of the matrix of faults are no experiment.
@pytest.mark.parametrize(
    "path", sorted({*EXPERIMENTS.glob("*.toml")} - {EXPERIMENTS / "trust.toml"}), ids=lambda path: path.stem
)
def test_every_experiment_is_one_and_says_how_it_is_run(path: Path) -> None:
    text = path.read_text()
    experiment = Experiment.model_validate(tomllib.loads(text))
    experiment.algorithm_of()
    experiment.scheme.check(clients=experiment.data.clients, classes=12)
    study = f"python experiments/study.py experiments/{path.name}"
    # A study of its own is in a program of the same name. A single run needs no study.
    commands = (study, f"python experiments/{path.stem}.py", f"fedstrata run experiments/{path.name}")
    assert any(command in text for command in commands)
