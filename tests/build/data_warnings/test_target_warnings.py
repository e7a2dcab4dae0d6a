"""Classes and numbers that networks learn."""

from pathlib import Path

import numpy as np
import pytest
from own_table import others

from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from own_data import arrays, built, keys, save


def test_one_class_written_in_two_ways_is_noticed_but_letters_may_differ_in_case(tmp_path: Path) -> None:
    columns = arrays()
    columns["y"] = np.array(["yes", "yes ", "no"])[np.arange(len(columns["y"])) % 3]
    (warning,) = others(built(tmp_path, columns, unit="trial"))
    assert "the names 'yes', 'yes '" in warning
    columns["y"] = np.array(["a", "A", "b"])[np.arange(len(columns["y"])) % 3]
    assert others(built(tmp_path, columns, unit="trial")) == ()


def test_numbers_to_learn_have_a_metric_of_numbers_whatever_the_loss(tmp_path: Path) -> None:
    """Accuracy would count how near numbers are, in a way that nobody can read."""
    made = arrays()
    file = save(tmp_path / "costs.npz", made | {"y": 50 * made["x"][:, 0]})
    loss = {"loss": "torch.nn.functional:l1_loss"}
    with pytest.raises(ExperimentError, match=r"local.metric = 'accuracy': expected a metric of numbers"):
        build_run(load_experiment({**keys(file, unit="trial"), "local": loss}))
    experiment = {**keys(file, unit="trial"), "local": {**loss, "metric": "mae"}}
    assert others(build_run(load_experiment(experiment))) == ()
