"""The table of docs/flower.md about Flower's simulation of many nodes."""

from __future__ import annotations

import json
from pathlib import Path

from outcomes import MISSING, table

RESULTS = Path(__file__).parent / "results" / "virtual_nodes.json"


def virtual_nodes() -> str:
    """What is equal, and what a round takes, by the number of nodes."""
    runs = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [
        (
            str(run["nodes"]),
            f"{run['rounds_equal']} of {run['rounds']}",
            f"{run['models_equal']} of {run['models']}",
            f"{run['seconds']:.1f}",
            f"{run['seconds_own']:.2f}",
            f"{run['bytes_down'] / 1e6:.1f}",
            f"{run['bytes_up'] / 1e6:.1f}",
        )
        for run in runs
    ]
    head = "virtual nodes | rounds with equal labels | models with equal bits | seconds a round | seconds a round, simulator"
    return table(f"{head} | MB to the nodes | MB from them", rows or [(MISSING,)])
