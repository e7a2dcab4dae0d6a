"""The tables of docs/deploy/flower.md about many nodes, in Flower's simulation and as real SuperNodes."""

from __future__ import annotations

import json
from typing import Any

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

EQUAL = "rounds with equal labels | models with equal bits"
COSTS = "seconds a round | seconds a round, simulator | MB to the nodes | MB from them"

STARTS = {"forked": "forked", "new": "each by itself"}
"""How the programs of SuperNodes started, in words."""


def virtual_nodes() -> str:
    """What is equal, and what a round takes, by the number of nodes."""
    rows = [(str(run["nodes"]), *equal(run), *costs(run)) for run in runs("virtual_nodes")]
    return table(f"virtual nodes | {EQUAL} | {COSTS}", rows or [(MISSING,)])


def super_nodes() -> str:
    """The same of real SuperNodes, with the memory of all their processes."""
    rows = [
        (str(run["nodes"]), STARTS[run["start"]], *equal(run), *costs(run), f"{run['memory'] / 2**30:.1f}")
        for run in runs("super_nodes")
    ]
    return table(f"SuperNodes | programs start | {EQUAL} | {COSTS} | GiB of memory", rows or [(MISSING,)])


def runs(name: str) -> list[dict[str, Any]]:
    """The results of an experiment; none while there is no file."""
    path = outcomes.RESULTS / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def equal(run: dict[str, Any]) -> tuple[str, str]:
    """What is equal in a run and in the simulator's."""
    return f"{run['rounds_equal']} of {run['rounds']}", f"{run['models_equal']} of {run['models']}"


def costs(run: dict[str, Any]) -> tuple[str, str, str, str]:
    """The seconds of a round in both, and the bytes."""
    seconds = f"{run['seconds']:.1f}", f"{run['seconds_own']:.2f}"
    return *seconds, f"{run['bytes_down'] / 1e6:.1f}", f"{run['bytes_up'] / 1e6:.1f}"
