"""A table of a user's own as a CSV file: the samples of `own_data`, with features and classes by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from own_data import PER_TRIAL, SITES, TRIALS, arrays, keys

ROWS = len(SITES) * TRIALS * PER_TRIAL


def table(**columns: Any) -> dict[str, Any]:
    """Three features, two classes and the sites of `own_data.arrays`, with further columns."""
    made = arrays()
    features = {name: made["x"][:, place] for place, name in enumerate("abc")}
    outcome = np.where(made["y"] == 1, "ill", "well")
    return {**features, "outcome": outcome, "site": made["site"], **columns}


def others(setup: RunSetup) -> tuple[str, ...]:
    """The warnings but that of the few test samples, which small data of tests have."""
    return tuple(line for line in setup.warnings if "fewer than 5 test samples" not in line)


def warnings_of(folder: Path, columns: dict[str, Any], **tables: Any) -> tuple[str, ...]:
    file = folder / "mine.csv"
    csv.write_csv(pa.table(columns), file)
    data = {"label": "outcome", "unit": "none", **tables.pop("data", {})}
    return others(build_run(load_experiment({**keys(file, **data), **tables})))
