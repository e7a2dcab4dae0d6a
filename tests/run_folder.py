"""What a run has left in its folder."""

import json
from pathlib import Path

import pyarrow.parquet as pq


def left(folder: Path) -> object:
    """What a run has left: every byte of its models and matrices, its tree, and its records but for their seconds."""
    files = [*folder.glob("models/*"), *folder.glob("matrices/*")]
    tables = [pq.read_table(path).to_pydict() for path in sorted(folder.glob("clients/*"))]
    nodes = json.loads((folder / "tree.json").read_text())
    # The same clients have other names on a network.
    nameless = [{key: value for key, value in each.items() if key not in ("name", "names")} for each in tables + nodes]
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in each.items() if "seconds" not in key} for each in records]
    return {path.relative_to(folder): path.read_bytes() for path in sorted(files)}, nameless, timeless
