"""A small data set of a user's own: four sites with six trials of eight samples each."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment

SITES = ("Lyon", "Ghent", "Oslo", "Bern")
TRIALS = 6
PER_TRIAL = 8

Arrays = dict[str, NDArray[Any]]


def arrays(seed: int = 0, sites: tuple[str, ...] = SITES) -> Arrays:
    """Three features and two classes, (samples, 3): class 1 has larger ones. No two samples are equal."""
    rng = np.random.default_rng(seed)
    count = len(sites) * TRIALS * PER_TRIAL
    y = np.arange(count) % 2
    return {
        "x": (rng.normal(size=(count, 3)) + y[:, None]).astype(np.float32),
        "y": y,
        "site": np.repeat(np.array(sites), TRIALS * PER_TRIAL),
        "trial": np.repeat(np.arange(len(sites) * TRIALS), PER_TRIAL),
    }


def without(columns: Arrays, *names: str) -> Arrays:
    return {name: values for name, values in columns.items() if name not in names}


def as_test(columns: Arrays) -> Arrays:
    return {f"{name}_test": values for name, values in columns.items()}


def save(file: Path, columns: Arrays) -> Path:
    np.savez(file, **columns)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
    return file


def keys(file: Path, **data: Any) -> dict[str, Any]:
    """An experiment of one client per site."""
    return {
        "rounds": 1,
        "data": {"name": str(file), **data},
        "partition": {"scheme": "natural", "column": "site"},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        "engine": {"name": "loop"},
    }


def built(folder: Path, columns: Arrays, **data: object) -> RunSetup:
    """What a run of such an experiment needs, with these samples in a file of a folder."""
    return build_run(load_experiment(keys(save(folder / "mine.npz", columns), **data)))
