"""The table of docs/flower.md about Flower's simulation of many nodes."""

from __future__ import annotations

import json

import outcomes
from outcomes import MISSING, table


def virtual_nodes() -> str:
    """What is equal, and what a round takes, by the number of nodes."""
    path = outcomes.RESULTS / "virtual_nodes.json"
    runs = json.loads(path.read_text()) if path.exists() else []
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
    equal = "rounds with equal labels | models with equal bits"
    seconds = "seconds a round | seconds a round, simulator"
    return table(f"virtual nodes | {equal} | {seconds} | MB to the nodes | MB from them", rows or [(MISSING,)])
