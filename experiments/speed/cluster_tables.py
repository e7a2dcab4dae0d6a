"""The tables of docs/deploy/cluster.md: what nodes of a cluster get, what their loss costs, and what a round costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

EVENTS = {
    "equal": "none: three nodes, four cores",
    "killed": "a node is killed in mid-round",
    "silent": "a node falls silent in mid-round",
    "added": "a node of two cores joins",
    "autoscaling": "no node at first; the autoscaler adds two",
}
"""The title of each part of `cluster.py` that is made of runs."""


def _measured() -> dict[str, Any]:
    """The results of the experiment; none while it has not been run."""
    path = outcomes.RESULTS / "cluster.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def shipped() -> str:
    """The bytes that each node gets."""
    found = _measured().get("shipped")
    if not found:
        return table("node", [(MISSING,)])
    rows = [
        (
            f"{node['cores']} {'core' if node['cores'] == 1 else 'cores'}",
            f"{node['first_round']:,}",
            f"{node['first_round'] / found['data_bytes']:.3f}",
            f"{node['second_round']:,}",
        )
        for node in found["nodes"]
    ]
    return table("node | bytes in the first round | times the data | bytes in the second round", rows)


def events() -> str:
    """The bits of runs, and the seconds of the round in which something happens."""
    known = _measured()
    rows = list[tuple[str, ...]]()
    for name, title in EVENTS.items():
        runs = known.get(name)
        if not runs:
            rows.append((title, MISSING, "", "", ""))
            continue
        same = f"{sum(run['equal'] for run in runs)} of {len(runs)}"
        if "seconds_of_others" in runs[0]:
            then, usual = (median(run[key] for run in runs) for key in ("seconds", "seconds_of_others"))
        elif name == "autoscaling":
            then, usual = runs[0]["seconds"][0], median(runs[0]["seconds"][1:])
        else:
            rows.append((title, same, "-", "-"))
            continue
        rows.append((title, same, f"{then:.0f}", f"{usual:.1f}"))
    return table("what happens | runs equal to the loop | seconds of that round | seconds of other rounds", rows)


def overhead() -> str:
    """The seconds of rounds on processes and on a cluster."""
    rows = list[tuple[str, ...]]()
    for found in _measured().get("overhead", []):
        first, usual, third = (f"{1000 * value:.0f}" for value in found["difference"])
        rows.append(
            (
                f"{found['clients']} clients, {found['update_bytes'] / 1e6:,.2f} MB of updates",
                f"{1000 * found['processes']:.0f}",
                f"{1000 * found['cluster']:.0f}",
                f"{usual} ({first} to {third})",
            )
        )
    return table("round | processes, ms | cluster, ms | difference, ms", rows or [(MISSING,)])


CLUSTER: Mapping[str, Callable[[], str]] = {"shipped": shipped, "events": events, "overhead": overhead}
"""The tables of docs/deploy/cluster.md."""


def cluster(name: str) -> str:
    """One of them."""
    return CLUSTER[name]()
