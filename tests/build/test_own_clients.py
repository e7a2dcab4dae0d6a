"""Clients that a program gives as objects go through the whole library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv, table

import fedstrata
from fedstrata.base.errors import DataError, ExperimentError, InputError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data.memory import keep
from fedstrata.results.assign import assign
from own_data import SITES, arrays

PLAIN = {"model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}, "engine": {"name": "loop"}}
KEYS: dict[str, Any] = {"rounds": 2, "data": {"unit": "trial"}, **PLAIN}


def clients(seed: int = 0) -> dict[str, Any]:
    """The four sites, each with its arrays."""
    whole = arrays(seed)
    return {
        site: {name: values[whole["site"] == site] for name, values in whole.items() if name != "site"}
        for site in SITES
    }


def test_a_mapping_of_clients_is_run_with_one_client_for_each_name_in_its_order(tmp_path: Path) -> None:
    """The weights of the draw are in the order of the ids. Lyon, the first one here, was the third one."""
    keys = {**KEYS, "data": {"unit": "trial", "test": 0.34}, "cohort": {"weights": [0, 1, 1, 1], "fraction": 0.75}}
    run = fedstrata.run(keys, tmp_path / "run", clients=clients(), quiet=True)
    assert run.names == ("Lyon", "Ghent", "Oslo", "Bern") and run.warnings == ()
    assert all(0 not in each["cohort"] for each in run.rounds)
    assert run.summary["dataset"].startswith("memory:") and run.summary["partition"] == "natural"


def test_clients_network_algorithm_and_rounds_are_enough(tmp_path: Path) -> None:
    sites = {name: (site["x"], site["y"]) for name, site in clients().items()}
    run = fedstrata.run(None, tmp_path / "run", clients=sites, model="mlp", algorithm="fedavg", rounds=2, quiet=True)
    assert (run.summary["algorithm"], run.summary["rounds"], len(run.names)) == ("fedavg", 2, 4)
    fewer = fedstrata.run({**KEYS, "data": {"clients": 3}}, tmp_path / "fewer", clients=clients(), quiet=True)
    assert len(fewer.names) == 3


def test_another_process_is_told_to_give_the_data_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedstrata.run(KEYS, tmp_path / "run", clients=clients(), quiet=True)
    monkeypatch.setattr("fedstrata.data.memory._KEPT", {})
    with pytest.raises(DataError, match="clients="):
        fedstrata.run(None, tmp_path / "run", resume=True, quiet=True)


def test_a_newcomer_may_be_a_table(tmp_path: Path) -> None:
    """Its classes and features are those of the run, and the column that the networks do not read is not read."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for name in (*SITES, "Rome"):
        x = arrays(seed=len(name))["x"][:40]
        rows = {"a": x[:, 0], "b": x[:, 1], "visit_id": list(range(40)), "label": ["ill", "well"] * 20}
        csv.write_csv(table(rows), folder / f"{name}.csv")
    (folder / "Rome.csv").rename(tmp_path / "Rome.csv")
    run = fedstrata.run(KEYS | {"data": {"name": str(folder)}}, tmp_path / "run", quiet=True)
    assert json.loads((run.folder / "data.json").read_text())["inputs"] == "a, b; no inputs: visit_id"
    (placed,) = assign(run.folder, [tmp_path / "Rome.csv"])
    turned = csv.read_csv(tmp_path / "Rome.csv").select(["label", "b", "visit_id", "a"])
    csv.write_csv(turned, tmp_path / "turned.csv")
    assert assign(run.folder, [tmp_path / "turned.csv"])[0]["evidence"] == placed["evidence"]
    assert (placed["client"], placed["members"]) == ("Rome", ["Bern", "Ghent", "Lyon", "Oslo"])


# What networks learn beside classes


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and a number that is a sum of two of them."""
    x = np.random.default_rng(seed).normal(size=(count, 4))
    return x, x[:, 0] + 2 * x[:, 1]


def test_numbers_are_learnt_from_arrays_with_test_samples_of_their_own(tmp_path: Path) -> None:
    sites = {name: (pairs(60, seed), pairs(20, seed + 9)) for seed, name in enumerate(SITES)}
    keys = PLAIN | {"local": {"loss": "mse", "lr": 0.05}}
    run = fedstrata.run(keys, tmp_path / "run", clients=sites, rounds=3, quiet=True)
    assert run.summary["acc_client"] > 0.5  # R2


def regression_files(folder: Path) -> Path:
    """A file for each site, with a column of numbers to learn."""
    folder.mkdir()
    for seed, name in enumerate(SITES):
        x, y = pairs(60, seed)
        csv.write_csv(table({"a": x[:, 0], "b": x[:, 1], "target": y}), folder / f"{name}.csv")
    return folder


def test_numbers_are_refused_as_classes(tmp_path: Path) -> None:
    data = {"data": {"name": str(regression_files(tmp_path / "sites"))}}
    with pytest.raises(InputError, match="loss"):
        fedstrata.run(PLAIN | data, tmp_path / "run", rounds=1, quiet=True)
    assert not (tmp_path / "run").exists()


def test_whole_numbers_that_are_floats_are_told_from_numbers_to_learn() -> None:
    """pandas makes 1.0 of 1 beside a missing value; the advice was to learn them as numbers."""
    rng = np.random.default_rng(0)
    name = keep([(rng.normal(size=(40, 2)), rng.integers(0, 2, 40).astype(float)) for _ in range(2)])
    keys = {"data": {"name": name}, "model": {"name": "mlp"}, "rounds": 1}
    with pytest.raises(InputError, match=r"found floats in .*; store classes as integers"):
        build_run(load_experiment(keys))


@pytest.mark.parametrize("scale", [True, False])
def test_tokens_are_never_normalised(tmp_path: Path, scale: bool) -> None:
    tokens = np.random.default_rng(0).integers(0, 20, (40, 6))
    name = keep({"a": (tokens, tokens[:, 0] % 2), "b": (tokens[::-1], tokens[::-1, 0] % 2)})
    data = {"name": name, "tokens": True, "scale": scale}
    model = {"model": {"name": "own_network:token_network"}}
    held = build_run(load_experiment(PLAIN | model | {"data": data})).client_data
    inputs, _ = held.samples(held.train(0))
    assert str(inputs.dtype) == "torch.int64" and set(map(tuple, inputs.tolist())) <= set(map(tuple, tokens.tolist()))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data": {"clients": 1798}}, "data.clients = 1798: expected at most 1797, as digits has so many samples"),
        ({"model": {"name": "mlp", "classes": 3}}, "model.classes: unknown key"),
        ({"data": {"public": 1798}}, "data.public = 1798: expected at most the .* samples that no client holds"),
        ({"partition": {"scheme": "concept", "groups": 2}, "local": {"loss": "mse"}}, "'concept': expected a loss of"),
    ],
)
def test_what_does_not_fit_the_data_or_the_loss_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_run(load_experiment(keys, ["engine.name=loop"]))


def test_a_run_goes_on_when_its_data_have_moved_and_with_another_engine_of_the_same_bits(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    columns = {"a": np.arange(40.0) % 7, "b": np.arange(40.0) % 5, "label": np.arange(40) % 2}
    csv.write_csv(table(columns), old / "mine.csv")
    data = {"name": "mine.csv", "root": str(old), "clients": 4, "samples": 0}
    keys = {**KEYS, "data": data, "partition": {"scheme": "iid"}}
    begun = fedstrata.run(keys, tmp_path / "run", sets=["rounds=1", "engine.name=processes"], quiet=True)
    old.rename(new)
    sets = ["rounds=2", f"data.root={new}", "engine.name=loop"]
    found = fedstrata.run(None, tmp_path / "run", sets=sets, resume=True, quiet=True)
    assert (begun.summary["rounds"], found.summary["rounds"]) == (1, 2)
    whole = fedstrata.run(keys, tmp_path / "whole", sets=[f"data.root={new}"], quiet=True)
    assert found.summary["acc_client"] == whole.summary["acc_client"]


def test_texts_among_numbers_to_learn_are_refused(tmp_path: Path) -> None:
    values = ["0.0", "1.5", "<5", "3.0"] * 10
    csv.write_csv(table({"a": np.arange(40.0), "target": values}), tmp_path / "x.csv")
    data = {"name": str(tmp_path / "x.csv"), "clients": 2, "samples": 0}
    keys = {**PLAIN, "data": data, "partition": {"scheme": "iid"}, "local": {"loss": "mse"}}
    with pytest.raises(ExperimentError, match=r"'mse': expected numbers to learn, found the texts '0\.0', '1"):
        build_run(load_experiment(keys))
