"""The table of docs/deploy/speed.md about many clients: what a round writes, and how long a run takes to begin."""

from __future__ import annotations

import json

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table


def many_clients() -> str:
    """The bytes of a round, and the time until the first round of a new run and of one that goes on."""
    path = outcomes.RESULTS / "many_clients_records.json"
    found = json.loads(path.read_text()) if path.exists() else []
    rows = [
        (
            f"{one['clients']:,}",
            f"{one['first_line'] / 1e3:,.0f}",
            f"{one['files'] / 1e3:,.0f}",
            f"{one['replaced'] / 1e6:,.1f}",
            f"{one['cpu_fresh']:.1f}",
            f"{one['cpu_resumed']:.1f}",
        )
        for one in found
    ]
    return table(
        "clients | KB of a line | KB of the files of a round | MB that a round replaces | s until the first round, "
        "new | s until the first round, resumed",
        rows or [(MISSING, "", "", "", "", "")],
    )
