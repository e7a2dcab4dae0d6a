from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.algorithms.ifca import IFCA
from fedstrata.base.errors import ModelError, RecordError
from fedstrata.base.files import parse_toml
from fedstrata.base.registry import name_of_object
from fedstrata.config import dumps, load_experiment
from fedstrata.config.hyperparameters import algorithm_table, keys_of_algorithm
from fedstrata.models import make
from fedstrata.models.registry import takes_shape


@dataclass(frozen=True)
class Mine(FedAvg):
    """An algorithm of a user's own, without pydantic."""

    source: ClassVar[str] = "a test"

    k: int = 2
    eager: bool = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k = {self.k}: expected at least 1")


class Net(nn.Sequential):
    """A network that knows its shape."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def test_an_object_is_written_as_its_name_and_keys() -> None:
    experiment = load_experiment({"algorithm": Mine(k=3), "model": Net, "rounds": 2})
    assert experiment.algorithm.name == f"{__name__}:Mine" and experiment.algorithm.options == {"k": 3, "eager": False}
    assert experiment.algorithm_of() == Mine(k=3)
    assert experiment.model.name == f"{__name__}:Net"
    assert load_experiment(parse_toml(dumps(experiment))) == experiment


def test_an_object_of_the_library_has_its_short_name_and_a_class_its_defaults() -> None:
    assert algorithm_table(IFCA(k=5)) == {"name": "ifca", **keys_of_algorithm(IFCA(k=5))}
    assert "init" in keys_of_algorithm(IFCA())  # as a file calls it
    assert load_experiment({"algorithm": IFCA(k=5)}).algorithm_of() == IFCA(k=5)
    assert load_experiment({"algorithm": fedstrata.Strata}).algorithm_of() == fedstrata.Strata()


def test_a_text_is_short_for_a_name(tmp_path: Path) -> None:
    given = load_experiment({"algorithm": "ifca", "model": "mlp", "partition": "iid"}, ["algorithm=fedavg"])
    assert (given.algorithm.name, given.model.name) == ("fedavg", "mlp")
    assert load_experiment({"algorithm": {"name": "ifca", "k": 3}}, ["algorithm=ifca"]).algorithm_of() == IFCA(k=3)


def test_a_network_is_made_with_or_without_its_shape() -> None:
    module = make(f"{__name__}:Net", (1, 8, 8), 10, 0, hidden=6)
    assert module[1].out_features == 6  # type: ignore[index]  # a Sequential
    with pytest.raises(ModelError, match=r"unknown key"):
        make(f"{__name__}:Net", (1, 8, 8), 10, 0, depth=6)
    with pytest.raises(ModelError, match=r"needs 'shape' alone"):
        takes_shape(lambda shape: nn.Linear(shape[0], 2), "half")


def test_a_network_object_begins_with_its_weights() -> None:
    network = Net()
    name = name_of_object(network)
    made = make(name, (1, 8, 8), 10, 0)
    assert name.startswith("object:") and name.endswith(":Net") and made is not network
    assert all((a == b).all() for a, b in zip(made.parameters(), network.parameters(), strict=True))
    with pytest.raises(ModelError, match=r"was given as an object, which no file holds; give it again"):
        make("object:Gone", (1, 8, 8), 10, 0)


def test_two_networks_of_one_class_are_two_networks(tmp_path: Path) -> None:
    """A run is loaded and resumed with its own network, whatever was given in between."""
    keys = {"rounds": 1, "data": {"clients": 4, "samples": 20}, "algorithm": {"name": "fedavg"}}

    def network(activation: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation, nn.Linear(8, 10))

    first = network(nn.ReLU())
    run = fedstrata.run(keys, tmp_path / "first", model=first, quiet=True)
    inputs = np.random.default_rng(0).integers(0, 17, (50, 1, 8, 8), dtype=np.uint8)
    expected = run.cluster_model(0).outputs(inputs)
    fedstrata.run(keys, tmp_path / "second", model=network(nn.Tanh()), quiet=True)
    assert torch.equal(fedstrata.load(tmp_path / "first").cluster_model(0).outputs(inputs), expected)
    with pytest.raises(RecordError, match=r'model.name was "object:.*, is "object:'):
        fedstrata.run(keys, tmp_path / "first", model=network(nn.Tanh()), resume=True, quiet=True)
