"""A CSV file of a million rows and twenty columns, read as a data set and by pandas in turn, and the memory of both.

    python benchmarks/tables.py
    python benchmarks/tables.py --rows 100000 --times 5

Each reading is a process of its own, and its time begins after its imports. pandas ends with an array of numbers and an
array of classes, as the data set does. Memory is the most that belongs to no file beyond what the imports took, as a
multiple of the table in float64.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyarrow import csv

FEATURES = 19

READERS = {
    "fedstrata": """
from fedstrata.data import load_dataset
import torch, pyarrow.csv, fedstrata.data.reading, fedstrata.data.csv_files
def read(path):
    return load_dataset(path)
""",
    "pandas": """
import numpy, pandas
def read(path):
    frame = pandas.read_csv(path)
    names = [name for name in frame.columns if name != "label"]
    return frame[names].to_numpy(numpy.float64), frame["label"].to_numpy()
""",
}

MEASURED = """
import sys, time
from peak import Peak, _anonymous
before = _anonymous()
with Peak() as peak:
    began = time.perf_counter()
    found = read(sys.argv[1])
    print(time.perf_counter() - began)
print(peak.anonymous - before)
"""


def main() -> None:
    """Print the time of each pair, its ratio, and the memory of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3, help="how often each reads the file, in turn")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path, given.rows)
        table = given.rows * FEATURES * 8
        ratios = list[float]()
        for _ in range(given.times):
            found = {name: measured(reader, path) for name, reader in READERS.items()}
            ratios.append(found["fedstrata"][0] / found["pandas"][0])
            print("; ".join(f"{name} {time:.2f} s, {peak / table:.2f} tables" for name, (time, peak) in found.items()))
    print(f"fedstrata / pandas: median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


def write(path: Path, rows: int) -> None:
    """Write a table of numbers with two classes."""
    rng = np.random.default_rng(0)
    columns = {f"x{place}": rng.normal(size=rows).round(4) for place in range(FEATURES)}
    csv.write_csv(pa.table({**columns, "label": rng.integers(0, 2, rows)}), path)


def measured(reader: str, path: Path) -> tuple[float, int]:
    """The seconds and the bytes that one reading takes."""
    command = [sys.executable, "-c", reader + MEASURED, str(path)]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    out = subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.split()
    return float(out[0]), int(out[1])


if __name__ == "__main__":
    main()
