"""Weights of classes in the cross-entropy."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import cross_entropy

import fedstrata as fs
from fedstrata.base.errors import ExperimentError
from fedstrata.objective.objective import balancing_weights

RNG = np.random.default_rng(0)


def site(count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    y = (RNG.random(count) < share).astype(int)
    return RNG.normal(size=(count, 4)) + y[:, None], y


CLIENTS = {"b": (site(120, 0.1), site(2500, 0.1)), "a": (site(90, 0.3), site(40, 0.3))}
COUNTS = np.bincount(np.concatenate([train[1] for train, _ in CLIENTS.values()]))


def test_balancing_weights_are_those_of_scikit_learn() -> None:
    labels = np.repeat([0, 2, 3], [7, 2, 1])
    found = balancing_weights(np.bincount(labels).tolist())
    assert np.allclose(
        np.array(found)[[0, 2, 3]], compute_class_weight("balanced", classes=np.unique(labels), y=labels)
    )
    assert found[1] == 1


@pytest.mark.parametrize("weights", ["balanced", [1, 20.0]])
def test_every_engine_weighs_classes_alike_and_records_the_weighted_loss(weights: Any, tmp_path: Path) -> None:
    """The loss on 2,500 samples is no mean over batches of 1,024."""
    own = np.array(weights if weights != "balanced" else COUNTS.sum() / (2 * COUNTS), dtype=np.float32)
    local = {"lr": 0.1, "batch": 10, "class_weights": weights}
    runs = {}
    for engine in ("loop", "processes", "batched"):
        keys = {"rounds": 2, "local": local, "engine": {"name": engine, "workers": 2}, "algorithm": "fedavg"}
        run = fs.run(keys, tmp_path / engine, clients=CLIENTS, quiet=True)
        scores = pq.read_table(run.folder / "clients" / "00002.parquet").to_pydict()
        for name, loss in zip(run.names, scores["loss"], strict=True):
            x, y = (torch.tensor(part) for part in CLIENTS[name][1])
            outputs = run.model(name)(x.float()).detach()
            assert loss == pytest.approx(float(cross_entropy(outputs, y, torch.tensor(own))), rel=1e-5)
        runs[engine] = run.state.models
    assert torch.equal(runs["loop"], runs["processes"])
    assert torch.allclose(runs["loop"], runs["batched"], atol=1e-5)


@pytest.mark.parametrize(
    ("local", "message"),
    [
        ({"class_weights": [1, 2, 3]}, "expected a weight for each class, found 2 classes"),
        ({"class_weights": "balanced", "loss": "bce"}, "none with another loss than 'cross_entropy'"),
        ({"class_weights": [1, 0]}, "class_weights.* greater than 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(local: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=message):
        fs.run({"rounds": 1, "local": local}, tmp_path / "run", clients=CLIENTS, quiet=True)
