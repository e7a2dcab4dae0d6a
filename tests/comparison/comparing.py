"""A small federation for comparisons, and what is looked at of their run folders."""

from pathlib import Path
from typing import Any

import builders

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 8, "samples": 64, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.1, "batch": 16},
    "cohort": {"fraction": 0.75, "dropout": 0.2},
    "algorithm": {"name": "fedavg"},
    "algorithms": {
        "cfl": {"eps1": 10.0, "eps2": 0.0, "gamma": 0.0, "first": 2, "min_split": 3},
        "layercfl": {"layers": "all", "eps1": 10.0, "eps2": 0.0, "gamma": 0.0, "first": 3, "min_split": 3},
        "hicfl": {"epsilon": 2.0, "rho": 1.0},
        "ifca": {"k": 2},
    },
}
"""Who takes part, and who of them answers, differs from round to round."""


def left(folder: Path) -> object:
    """All that does not depend on time."""
    return builders.left(folder), (folder / "experiment.toml").read_text()
