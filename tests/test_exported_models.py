"""Models taken home: their predictions on raw samples are those that the run has scored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import builders
import fedstrata
from fedstrata.engine import ClientData
from fedstrata.models import make
from fedstrata.results.export import INDEX
from test_every_algorithm import EAGER

TABLES = builders.keys(
    rounds=3,
    data={"clients": 12, "test": 0.3, "public": 32},
    partition={"groups": 4},
    model={"hidden": [16]},
    local={"batch": 8},
    cohort={"fraction": 0.7, "dropout": 0.2},
)
"""Digits turned by four angles. Some clients never answer, and some that wait for a cluster are left over."""


def normalised(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """A network with batch normalisation, whose running statistics belong to a model as its weights do."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


ALONE = {"name": "hicfl", "epsilon": 2.0, "rho": 1.0, "ending": "personal", "patience": 1}
PERSONAL = ("ditto", "fedper", "fedrep", "finetune", "lg_fedavg", "local")
"""Algorithms by which each client ends with a model of its own."""

SHARED = ("centralized", "cfl", "fedavg", "fedbn", "fedtsdp", "ifca", "strata")
"""Algorithms with one model for all, or one for each cluster, of which clients may keep a part."""

CASES: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": {"name": name, **EAGER.get(name, {})}} for name in (*SHARED, *PERSONAL)},
    "hicfl, every client alone at the end": {"algorithm": ALONE, "rounds": 30, "cohort": None},
    **{
        f"{name} with batch normalisation": {"algorithm": {"name": name}, "model": {"name": f"{__name__}:normalised"}}
        for name in ("fedavg", "fedbn", "ditto", "local")
    },
}


def raw_test_samples(data: ClientData, client: int) -> tuple[np.ndarray, np.ndarray]:
    """The test samples of a client as it holds them, not normalised, and their classes."""
    inputs, labels = data.raw_samples(data.test(client))
    assert inputs.dtype == torch.uint8
    return inputs.numpy(), labels.numpy()


def recorded(folder: Path) -> dict[int, float]:
    """The accuracy of each client at the end, as the run has recorded it."""
    table = pq.read_table(max((folder / "clients").glob("*.parquet"))).to_pydict()
    return dict(zip(table["client"], table["accuracy"], strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_predictions_on_raw_samples_are_those_that_the_run_has_scored(case: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    builders.run(folder, TABLES, **case)
    run = fedstrata.load(folder)
    data = builders.federation(TABLES, **case).client_data
    scores = recorded(folder)
    assert list(run.clients) == [str(client) for client in scores]
    for client, accuracy in scores.items():
        inputs, labels = raw_test_samples(data, client)
        predicted = run.predict(client, inputs)
        assert (predicted == labels).mean() == pytest.approx(accuracy, abs=1e-12)
        assert (run.predict_proba(client, inputs).argmax(1) == predicted).all()

    fedstrata.export(run, tmp_path / "models")
    index = json.loads((tmp_path / "models" / INDEX).read_text())
    if case["algorithm"]["name"] in PERSONAL or case["algorithm"] is ALONE:
        assert len(index["models"]) == len(scores), "each client has a model of its own"
    exported = set[int]()
    for model in index["models"]:
        network = make(index["network"]["name"], (1, 8, 8), 10, 0, **index["network"]["options"]).eval()
        network.load_state_dict(load_file(tmp_path / "models" / model["file"]))
        for client in map(int, model["clients"]):
            inputs, labels = raw_test_samples(data, client)
            with torch.inference_mode():
                normalised = torch.from_numpy(inputs).float() * index["scale"][0] + index["shift"][0]
                right = (network(normalised).argmax(1).numpy() == labels).mean()
            assert right == pytest.approx(scores[client], abs=1e-12)
            exported.add(client)
    assert exported == set(scores)


def hospitals(kind: str) -> dict[str, Any]:
    """Three named clients with tables of four numbers, and what they learn from them."""
    rng = np.random.default_rng(0)
    found = {}
    for name in ("Ghent / north", "Lyon", "15"):
        x = rng.normal(3.0, 2.0, (60, 4)).astype(np.float32)
        sums = x @ np.array([1.0, -1.0, 0.5, 0.0], np.float32)
        y: np.ndarray = {
            "cross_entropy": (sums > sums.mean()).astype(np.int64),
            "mse": sums[:, None],
            "bce": np.stack([sums > 0, x[:, 3] > 3], axis=1).astype(np.float32),
        }[kind]
        found[name] = ((x[:40], y[:40]), (x[40:], y[40:]))
    return found


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
def test_models_of_named_clients_with_data_of_a_program_are_taken_home(loss: str, tmp_path: Path) -> None:
    clients = hospitals(loss)
    keys = builders.keys(rounds=3, data=None, partition=None, local={"lr": 0.05, "loss": loss})
    fedstrata.run(keys, tmp_path / "run", clients=clients, algorithm="ditto", quiet=True)
    run = fedstrata.load(tmp_path / "run")
    assert run.clients == run.names == tuple(clients) and set(run.labels) == set(clients)
    scores = recorded(tmp_path / "run")
    for place, name in enumerate(run.names):
        _, (x, y) = clients[name]
        predicted = run.predict(name, x)
        if loss == "mse":
            score = 1 - ((predicted - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        else:
            score = (predicted == y).mean()
        assert score == pytest.approx(scores[place], abs=1e-5)
    files = fedstrata.export(run, tmp_path / "models", ["Ghent / north", "15"], format="torch")
    assert [path.stem for path in files] == ["models", *["client-Ghent_north"] * 2, *["client-15"] * 2]
    program = torch.export.load(files[2]).module()
    x = clients["Ghent / north"][1][0]
    assert torch.allclose(program(torch.from_numpy(x)), run.model("Ghent / north").outputs(x), atol=1e-6)
