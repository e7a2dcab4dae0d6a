import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError, InputError
from fedstrata.config import Experiment, choose_all, load_experiment
from fedstrata.config.reading import plain_keys
from fedstrata.config.tables import DataTable, LocalTable
from fedstrata.data import DATASETS


def read(text: str) -> Experiment:
    return load_experiment(tomllib.loads(text))


# What is read


def test_default_experiment_is_four_hidden_groups_of_digits_and_strata() -> None:
    experiment = load_experiment()
    assert (experiment.data.name, experiment.data.clients, experiment.model.name) == ("digits", 20, "mlp")
    assert experiment.partition == {"scheme": "rotation", "groups": 4}
    assert experiment.algorithm.name == "strata"
    assert type(experiment.algorithm_of()) is ALGORITHMS["strata"]


def test_an_empty_experiment_has_the_defaults_of_the_documentation() -> None:
    """They are those of the tables, but for what follows from the data, the rounds and the loss."""
    experiment = load_experiment({})
    assert experiment.data == DataTable(samples=0)
    assert experiment.local == LocalTable(schedule="constant", metric="accuracy")
    assert experiment.partition == {"scheme": "iid"} and experiment.server.lr == 1.0
    assert experiment.algorithm_of() == ALGORITHMS["strata"]()
    for table in ("cohort", "engine", "probe", "attack", "privacy", "events"):
        assert getattr(experiment, table) == Experiment.model_fields[table].default


def test_every_default_of_an_algorithm_is_written_out() -> None:
    cfl: Any = ALGORITHMS["cfl"]
    options = read("algorithm.name = 'cfl'").algorithm.options
    assert set(options) == {field.name for field in dataclasses.fields(cfl)}
    assert cfl(**options) == cfl()


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_brings_its_own_network(name: str, found: None) -> None:
    assert load_experiment({"data": {"name": name}}).model.name == DATASETS[name].model


def test_a_file_is_read_as_the_mapping_of_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xef\xbb\xbfrounds = 3\n[probe]\ngap = ['dcos']\n")
    assert (
        load_experiment(file)
        == load_experiment(str(file))
        == load_experiment({"rounds": 3, "probe": {"gap": ("dcos",)}})
    )


def test_the_scheme_is_ready_to_deal() -> None:
    inside = {"scheme": "dirichlet", "alpha": 0.5, "over": "clients"}
    experiment = load_experiment({"partition": {"scheme": "rotation", "groups": 2, "inside": inside}})
    experiment.scheme.check(clients=20, classes=10)
    assert experiment.partition["inside"] == inside


# Hyper-parameters of several algorithms


def test_other_algorithms_have_their_own_tables() -> None:
    experiment = read("[algorithms.cfl]\ngamma = 0.25\n[algorithm]\nname = 'layercfl'\ngamma = 0.75")
    own: Any = experiment.algorithm_of()
    (cfl,) = (each for each in choose_all(plain_keys(experiment), ["cfl"])[0] if each.algorithm.name == "cfl")
    other: Any = cfl.algorithm_of()
    assert (other.gamma, own.gamma) == (0.25, 0.75)


def test_the_table_of_the_algorithm_that_is_run_is_its_own_too() -> None:
    experiment = read("[algorithms.layercfl]\neps1 = 0.1\neps2 = 0.2\n[algorithm]\nname = 'layercfl'\neps2 = 0.3")
    assert (experiment.algorithm.options["eps1"], experiment.algorithm.options["eps2"]) == (0.1, 0.3)
    assert experiment.algorithms == {}


# --set


@pytest.mark.parametrize(
    ("sets", "key", "value"),
    [
        (["seed=7"], "seed", 7),
        (["seed=7", "seed=8"], "seed", 8),
        (["local.lr=0.5"], "local.lr", 0.5),
        ([" local.lr =0.5"], "local.lr", 0.5),
        (["local.optimizer=adam"], "local.optimizer", "adam"),
        (["local.optimizer='adam'"], "local.optimizer", "adam"),
        (['probe.gap=["cos", "l2"]'], "probe.gap", ("cos", "l2")),
        (["algorithm.compares=group"], "algorithm.compares", "group"),
        (["report.baseline=true"], "report.baseline", True),
        (["cohort={fraction=0.5}"], "cohort.fraction", 0.5),
        (["model.name=a:b", "model.note=1\nseed=2"], "model.note", "1\nseed=2"),
        (["model.note=a=b"], "model.note", "a=b"),
        (["model.note="], "model.note", ""),
    ],
)
def test_set_changes_one_key(sets: list[str], key: str, value: object) -> None:
    changed: Any = load_experiment(None, sets).model_dump()
    for part in key.split("."):
        changed = changed[part]
    assert changed == value


def test_set_to_another_thing_drops_the_options_of_the_one_in_the_file() -> None:
    text = "[algorithm]\nname = 'layercfl'\n[algorithms.cfl]\neps1 = 0.1\n[model]\nname = 'mlp'\nhidden = [5]"
    sets = ["algorithm.eps2=0.4", "algorithm.name=cfl", "partition.scheme=shards", "model.name=tsdp_cnn"]
    experiment = load_experiment(tomllib.loads(text), sets)
    assert (experiment.algorithm.options["eps1"], experiment.algorithm.options["eps2"]) == (0.1, 0.4)
    assert experiment.partition == {"scheme": "shards", "per_client": 2}
    assert experiment.model.options == {}


FEATURES = "age,weight,label\n1,2.5,0\n3,4.5,1\n"


def test_a_table_of_features_has_a_small_perceptron_and_other_data_need_a_network(tmp_path: Path) -> None:
    Path("mine.csv").write_text(FEATURES, encoding="utf-8")
    np.savez("rows.npz", x=np.zeros((4, 3), np.float32), y=np.arange(4) % 2)
    np.savez("signals.npz", x=np.zeros((4, 2, 3), np.float32), y=np.arange(4) % 2)
    assert load_experiment({"data": {"name": "mine.csv"}}).model.name == "mlp"
    assert load_experiment({"data": {"name": "rows.npz"}}).model.name == "mlp"
    assert load_experiment({"data": {"name": "mine.csv"}, "model": "logistic"}).model.name == "logistic"
    for other in ({"name": "signals.npz"}, {"name": "rows.npz", "tokens": True}):
        with pytest.raises(ExperimentError, match=f"model\\.name: expected a network.* '{other['name']}'"):
            load_experiment({"data": other})


@pytest.mark.parametrize("clients", [100_000, 1_000_000])
def test_a_million_clients_are_an_experiment(clients: int, found: None) -> None:
    assert load_experiment({"data": {"name": "mnist", "clients": clients}}).data.clients == clients


# Without torch


def test_an_experiment_is_checked_before_torch_is_imported() -> None:
    code = """
import sys
from fedstrata.config import load_experiment
from fedstrata.base.errors import InputError
load_experiment()
load_experiment({"algorithms": {name: {} for name in ("fedavg", "oracle", "cfl", "strata")}})
try:
    load_experiment({"algorithm": {"name": "cfl", "eps1": -1}})
except InputError as error:
    print(error)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("algorithm.eps1 = -1: expected")


NESTED = json.loads("[" * 40 + "1" + "]" * 40)
LARGE = [{"data": {"name": "x" * 10_001}}, {"model": {"a": [[[]] * 40]}}, {1: 2}, {"model": {"hidden": NESTED}}]


@pytest.mark.parametrize("given", LARGE)
def test_a_mapping_is_as_small_as_a_file(given: Any) -> None:
    with pytest.raises(InputError):
        load_experiment(given)


def test_whole_numbers_may_be_those_of_numpy() -> None:
    keys = {"rounds": np.int64(3), "data": {"clients": np.int32(4)}, "model": {"hidden": [np.int8(5)]}}
    experiment = load_experiment(keys)
    assert (experiment.rounds, experiment.data.clients, experiment.model.options) == (3, 4, {"hidden": [5]})
