"""The models of every algorithm, taken home: their predictions on raw samples are those that the run has scored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import fedstrata
from fedstrata.algorithms import ALGORITHMS
from fedstrata.config import load_experiment
from fedstrata.engine import ClientData
from fedstrata.models import make
from fedstrata.runner.build import build_run
from fedstrata.runner.export import INDEX
from test_every_algorithm import EAGER

ROUNDS = 3


def keys(algorithm: str) -> dict[str, Any]:
    """Digits turned by four angles. Some clients never answer, and some that wait for a cluster are left over."""
    return {
        "rounds": ROUNDS,
        "data": {"name": "digits", "clients": 12, "samples": 40, "test": 0.3, "public": 32},
        "partition": {"scheme": "rotation", "groups": 4},
        "model": {"name": "mlp", "hidden": [16]},
        "local": {"lr": 0.2, "batch": 8},
        "cohort": {"fraction": 0.7, "dropout": 0.2},
        "engine": {"name": "loop"},
        "algorithm": {"name": algorithm, **EAGER.get(algorithm, {})},
    }


def raw_test_samples(data: ClientData, client: int) -> tuple[np.ndarray, np.ndarray]:
    """The test samples of a client as it holds them, not normalised, and their classes."""
    inputs, labels = data.raw_samples(data.test(client))
    assert inputs.dtype == torch.uint8
    return inputs.numpy(), labels.numpy()


def recorded(folder: Path) -> dict[int, float]:
    """The accuracy of each client at the end, as the run has recorded it."""
    table = pq.read_table(folder / "clients" / f"{ROUNDS:05d}.parquet").to_pydict()
    return dict(zip(table["client"], table["accuracy"], strict=True))


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_predictions_on_raw_samples_are_those_that_the_run_has_scored(algorithm: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedstrata.run(keys(algorithm), folder, quiet=True)
    run = fedstrata.load(folder)
    data = build_run(load_experiment(keys(algorithm))).client_data
    scores = recorded(folder)
    assert list(run.clients) == [str(client) for client in scores]
    for client, accuracy in scores.items():
        inputs, labels = raw_test_samples(data, client)
        predicted = run.predict(client, inputs)
        assert (predicted == labels).mean() == pytest.approx(accuracy, abs=1e-12)
        assert (run.predict_proba(client, inputs).argmax(1) == predicted).all()

    run.export(tmp_path / "models")
    index = json.loads((tmp_path / "models" / INDEX).read_text())
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
