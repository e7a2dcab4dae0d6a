"""Where the files of a federation and of its runs lie."""

from __future__ import annotations

from pathlib import Path

FEDERATION_FILE = "federation.toml"
"""The name of a federation's own file, in its folder."""

NETWORK = "network"
"""The folder in a run folder with the run's name on the devices, the registered clients and every round's traffic."""


def node_data(home: Path, client: str) -> Path:
    """The file with the data of a client of a test federation, in the folder of its node."""
    return home / "nodes" / client / "data.npz"
