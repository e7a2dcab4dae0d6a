"""Samples that depend on each other."""

from pathlib import Path

import numpy as np
import pytest
from own_table import others

from fedstrata.base.errors import DataError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from own_data import arrays, as_test, built, keys, save, without


def test_a_column_that_looks_like_a_unit_is_named_with_the_key_that_settles_it(tmp_path: Path) -> None:
    (warning,) = others(built(tmp_path, arrays()))
    assert "'trial'" in warning and "data.unit = 'trial'" in warning and "24 values" in warning


def test_a_unit_that_is_set_or_denied_needs_no_warning(tmp_path: Path) -> None:
    assert others(built(tmp_path, arrays(), unit="trial")) == ()
    denied = built(tmp_path, arrays(), unit="none")
    assert others(denied) == () and denied.client_data.dataset.unit is None


def test_samples_of_no_unit_are_refused(tmp_path: Path) -> None:
    """They would count as one unit: a client with many of them would train on few samples."""
    columns = arrays()
    numbers = columns["trial"].astype(float)
    numbers[5:8] = np.nan
    with pytest.raises(DataError, match=r"data.unit = 'trial': 3 samples of .* have no value in it"):
        built(tmp_path, columns | {"trial": numbers}, unit="trial")
    texts = columns["trial"].astype(str)
    texts[5:9] = ""
    with pytest.raises(DataError, match=r"4 samples of .* have no value in it"):
        built(tmp_path, columns | {"trial": texts}, unit="trial")
    assert others(built(tmp_path, columns | {"trial": texts}, unit="none")) == ()


@pytest.mark.parametrize("name", ["temperature", "retrial", "site"])
def test_columns_of_another_name_are_no_units(tmp_path: Path, name: str) -> None:
    columns = arrays()
    renamed = without(columns, "trial") | {name: columns["site" if name == "site" else "trial"]}
    assert others(built(tmp_path, renamed)) == ()


def test_a_column_with_one_value_per_client_or_per_sample_is_no_unit_inside_a_client(tmp_path: Path) -> None:
    columns = without(arrays(), "trial")
    subject = {"subject": columns["site"], "record": np.arange(len(columns["y"]))}
    assert others(built(tmp_path, columns | subject)) == ()


def test_units_on_both_sides_of_the_users_split_are_told(tmp_path: Path) -> None:
    (warning,) = others(built(tmp_path, arrays() | as_test(arrays(seed=1)), unit="trial"))
    assert "24 of 24 tested values of data.unit = 'trial' are in training samples" in warning


@pytest.mark.parametrize("scheme", ["iid", "natural"])
def test_held_out_units_that_other_clients_train_on_are_told(tmp_path: Path, scheme: str) -> None:
    """Whoever is tested on a unit shares models with a client that trains on samples of the same unit."""
    file = tmp_path / "mine.npz"
    columns = arrays()
    save(file, columns | {"trial": np.arange(len(columns["y"])) % 10})  # each trial has samples of all sites
    partition = {"scheme": "iid"} if scheme == "iid" else {"scheme": "natural", "column": "site"}
    setup = build_run(load_experiment(keys(file, unit="trial", clients=4) | {"partition": partition}))
    assert any("are in training samples as well" in warning for warning in setup.warnings)
