"""A small federation for comparisons, and what is looked at of their run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builders
from fedstrata.comparison import Comparison
from fedstrata.comparison.collect import judged
from fedstrata.report.comparison.folder import Outcome

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


def compared(outcomes: Sequence[Outcome], folder: Path = Path("c"), **others: Any) -> Comparison:
    """A comparison of runs that are not written to its folder."""
    experiment = {"data": {"name": "digits"}}
    return Comparison(folder, judged(folder, outcomes, experiment, **others))
