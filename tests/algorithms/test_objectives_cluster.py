"""Clients whose data differ in what is to be learned are told apart, whatever that is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstrata as fs
from fedstrata.clustering import ari

Split = tuple[NDArray[np.float64], NDArray[Any]]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
KEYS: dict[str, dict[str, Any]] = {
    "strata": {},
    "ifca": {"k": 2, "init": "restart"},
    "cfl": {"eps1": 0.5, "eps2": 0.1},
}


def numbers(x: NDArray[np.float64], group: int) -> NDArray[Any]:
    """The same inputs lead up in one group and down in the other."""
    return x[:, :1] * (1.0 if group else -1.0) + x[:, 1:2]


def labels(x: NDArray[np.float64], group: int) -> NDArray[Any]:
    """Two labels, whose meanings are swapped in the second group."""
    both = (x[:, :2] > 0).astype(np.int64)
    return both[:, ::-1] if group else both


def clients_of(learned: Any) -> dict[str, tuple[Split, Split]]:
    rng = np.random.default_rng(0)
    clients = {}
    for client, group in enumerate(GROUPS):
        x = rng.normal(size=(150, 3))
        y = learned(x, group)
        clients[f"site {client}"] = ((x[:120], y[:120]), (x[120:], y[120:]))
    return clients


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize(("learned", "loss"), [(numbers, "mse"), (labels, "bce")])
def test_two_groups_are_found(learned: Any, loss: str, algorithm: str, tmp_path: Path) -> None:
    tables = {
        "rounds": 12,
        "data": {"scale": False},
        "model": {"name": "mlp", "hidden": [16]},
        "local": {"loss": loss, "lr": 0.3 if loss == "bce" else 0.1, "batch": 20},
        "algorithm": {"name": algorithm, **KEYS[algorithm]},
        "engine": {"name": "loop"},
    }
    run = fs.run(tables, clients=clients_of(learned), out=tmp_path / "run", quiet=True)
    assert ari(np.array(list(run.labels.values())), np.array(GROUPS)) == 1.0
    assert run.summary["acc_client"] > 0.7
