"""What is done with a run on devices when it is over. Their data are not those that the experiment names."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from in_process import KEYS, Loopback, Ticks
from pyarrow import csv

import builders
from fedstrata.flower.client_app import Device
from fedstrata.flower.federation import Federation, Samples
from fedstrata.flower.server_app import drive
from fedstrata.records.arrays import read_input_means
from fedstrata.results.assign import assign
from fedstrata.results.run import Run, load

UNIT = "patient"


def visits(seed: int, count: int = 60) -> dict[str, Any]:
    """Who is older than 500 is ill; both numbers are far from those of the file that the experiment names."""
    age, pulse = np.random.default_rng(seed).normal(500, 1000, (2, count))
    return {"age": age, "pulse": pulse, "label": np.where(age > 500, "ill", "well"), UNIT: np.arange(count) // 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on the tables of three devices. The file that it was prepared with is not there any more."""
    folder = tmp_path_factory.mktemp("visits")
    devices = {}
    for client in range(3):
        csv.write_csv(pa.table(visits(client)), folder / f"{client}.csv")
        devices[100 + client] = Device(f"site-{client}", folder / f"{client}.csv", folder / f"state-{client}")
    pilot = folder / "pilot.csv"
    csv.write_csv(
        pa.table({"age": [0.5, -0.5] * 9, "pulse": [0.0] * 18, "label": ["ill", "well"] * 9, UNIT: [1] * 18}), pilot
    )
    data = {"name": str(pilot), "clients": 3, "unit": UNIT}
    tables = {"data": data, "partition": {"scheme": "iid"}, "algorithm": {"name": "fedavg"}}
    tables["records"] = {"inputs": True}
    experiment = builders.experiment(KEYS, rounds=8, local={"lr": 0.3}, **tables)
    samples = Samples((2,), 2, (500.0,) * 2, (1000.0,) * 2, "float32", ("ill", "well"), UNIT, features=("age", "pulse"))
    members = Federation(tuple(device.key for device in devices.values()), samples)
    drive(Loopback(devices), experiment, members, folder / "run", clock=Ticks().clock)
    pilot.unlink()
    return load(folder / "run")


def test_a_model_finds_the_columns_of_a_table_by_their_names(run: Run) -> None:
    new = visits(9)
    assert (run.predict(0, {"pulse": new["pulse"], "age": new["age"]}) == new["label"]).mean() > 0.9


def test_a_newcomer_is_placed_by_the_federations_mean_and_names(run: Run, tmp_path: Path) -> None:
    csv.write_csv(pa.table(visits(9)), tmp_path / "new.csv")
    (placed,) = assign(run.folder, [tmp_path / "new.csv"])
    assert placed["accuracy"] > 0.9 and placed["members"] == ["site-0", "site-1", "site-2"]


def test_devices_send_what_a_newcomer_without_labels_is_placed_by(run: Run, tmp_path: Path) -> None:
    clients, means = read_input_means(run.folder, 32)
    assert clients == [0, 1, 2] and means.shape == (3, 32) and (means.std(axis=0) > 0).all()
    new = visits(9)
    csv.write_csv(pa.table({"pulse": new["pulse"], "age": new["age"]}), tmp_path / "new.csv")
    (placed,) = assign(run.folder, [tmp_path / "new.csv"], unlabelled=True)
    assert placed["members"] == ["site-0", "site-1", "site-2"]
