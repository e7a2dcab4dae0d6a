from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.base.errors import ExperimentError, RecordError
from fedstrata.config import choose_all, choose_sweep, dumps, folder_of, load_experiment


def test_the_seeds_of_a_comparison_that_names_none_are_those_of_all_folds_of_all_repeats() -> None:
    def seeds(algorithms: list[str], named: list[int] | None = None, **data: int) -> list[int]:
        return [each.seed for each in choose_all({"seed": 7, "data": data}, algorithms, named)[0]]

    assert seeds(["fedavg"], folds=3) == [0, 1, 2]
    assert seeds(["fedavg", "cfl"], folds=2, repeats=2) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert seeds(["fedavg"], [5], folds=3, repeats=9) == [5] and seeds(["fedavg"]) == [7]


def test_a_sweep_has_the_same_seeds() -> None:
    runs = choose_sweep({"data": {"folds": 2, "repeats": 2}}, {"local.lr": [0.1, 0.2]}).experiments
    assert [each.seed for each in runs] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_single_run_has_its_own_seed_and_its_file_is_read_again() -> None:
    experiment = load_experiment({"seed": 7, "data": {"folds": 4, "repeats": 3}})
    assert experiment.seed == 7 and experiment.data.held_out_share == 0.25
    Path("again.toml").write_text(dumps(experiment))
    assert load_experiment("again.toml") == experiment


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"folds": 5, "test": 0.3}, r"^data.test = 0.3: expected none with data.folds = 5; leave one of the two out$"),
        ({"folds": 5, "test": "own"}, r"^data.test = 'own': expected none with data.folds = 5; leave"),
        ({"folds": 1}, r"^data.folds = 1: expected a number greater than or equal to 2$"),
        ({"repeats": 2}, r"^data.repeats = 2: expected 1 without data.folds, as cross-validation alone is repeated$"),
    ],
)
def test_keys_that_contradict_folds_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        load_experiment({"data": data})


@pytest.mark.parametrize("test", [{}, {"test": 0.2}])
def test_folds_of_data_with_test_samples_of_their_own_are_refused(test: dict[str, float]) -> None:
    np.savez("own.npz", x=np.zeros((2, 1)), y=[0, 1], x_test=np.zeros((1, 1)), y_test=[0])
    with pytest.raises(ExperimentError, match=r"^data.folds = 5: expected data without test samples of their own"):
        load_experiment({"data": {"name": "own.npz", "folds": 5, **test}, "model": "mlp"})


def test_repeats_are_added_to_a_comparison_that_was_begun_and_other_folds_are_not() -> None:
    (first, *_), folder = choose_all({"data": {"folds": 2}}, ["fedavg"])
    folder_of(folder, first).mkdir(parents=True)
    (folder_of(folder, first) / "experiment.toml").write_text(dumps(first))
    more, _ = choose_all({"data": {"folds": 2, "repeats": 2}}, ["fedavg"], out=folder, resume=True)
    assert [each.seed for each in more] == [0, 1, 2, 3] and {each.data.repeats for each in more} == {2}
    with pytest.raises(RecordError, match=r"data\.folds was 2, is 3"):
        choose_all({"data": {"folds": 3}}, ["fedavg"], out=folder, resume=True)
