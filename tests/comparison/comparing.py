"""A small federation for comparisons, and what is looked at of their run folders."""

import hashlib
import json
from pathlib import Path
from typing import Any

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 8, "samples": 64, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.1, "batch": 16},
    "cohort": {"fraction": 0.75, "dropout": 0.2},
    "algorithm": {"name": "fedavg"},
    "algorithms": {
        "cfl": {"eps1": 10.0, "eps2": 0.0, "gamma": 0.0, "first": 2},
        "layercfl": {"layers": "all", "eps1": 10.0, "eps2": 0.0, "gamma": 0.0, "first": 3},
        "hicfl": {"epsilon": 2.0, "rho": 1.0},
        "ifca": {"k": 2},
    },
}
"""Who takes part, and who of them answers, differs from round to round."""


def files(folder: Path) -> dict[str, str]:
    """What a run has left, but for what names times."""
    left = [*folder.glob("models/*"), *folder.glob("matrices/*"), folder / "tree.json", *folder.glob("clients/*")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(left)}


def records(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run, without their seconds."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines]


def left(folder: Path) -> object:
    """All that does not depend on time."""
    return files(folder), records(folder), (folder / "experiment.toml").read_text()
