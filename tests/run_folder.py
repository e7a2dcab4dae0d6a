"""What a run has left in its folder."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

DISK_EVENTS = ("unsaved", "resume")
"""The kinds of events about checkpoints that could not be written, and rounds that were repeated."""


def left(folder: Path, without: Container[str] = ()) -> object:
    """What a run has left: every byte of its models and matrices, its tree, and its records but for their seconds.

    Args:
        folder: The folder of the run.
        without: Kinds of events that do not matter.
    """
    files = [*folder.glob("models/*"), *folder.glob("matrices/*")]
    tables = [pq.read_table(path).to_pydict() for path in sorted(folder.glob("clients/*"))]
    nodes = json.loads((folder / "tree.json").read_text())
    # The same clients have other names on a network.
    nameless = [{key: value for key, value in each.items() if key not in ("name", "names")} for each in tables + nodes]
    records = records_of(folder)
    for each in records:
        each["events"] = [event for event in each["events"] if event["kind"] not in without]
    timeless = [{key: value for key, value in each.items() if "seconds" not in key} for each in records]
    return {path.relative_to(folder): path.read_bytes() for path in sorted(files)}, nameless, timeless


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of the rounds of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
