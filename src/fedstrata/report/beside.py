"""What one model for all would have given: the run of FedAvg that lies beside a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file
from fedstrata.records.schema import Summary, check

FREE = ("algorithm", "algorithms", "engine", "probe", "records")
"""Tables of the experiment in which the two may differ."""


def one_model(folder: Path, settings: Mapping[str, Any]) -> float | None:
    """Mean accuracy of a finished run of FedAvg in a folder next to this one; None where there is none.

    Args:
        folder: of the run.
        settings: its experiment: the other must be of the same, the seed included.
    """
    here, own = folder.resolve(), settings.get("algorithm")
    if isinstance(own, Mapping) and own.get("name") == "fedavg":
        return None
    for path in sorted(here.parent.glob("*/summary.json")):
        if path.parent == here:
            continue
        try:
            summary = parse_json(read_file(path))
            check(summary, Summary)
            if summary["algorithm"] != "fedavg":
                continue
            other = parse_toml(read_file(path.parent / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
            if _same(settings) == _same(other):
                return float(summary["acc_client"])
        except (OSError, ValueError, KeyError, TypeError, RecordError):
            continue  # a folder that is no run, or a damaged one, tells nothing
    return None


def _same(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal, wherever the data lie."""
    kept = {key: value for key, value in settings.items() if key not in FREE}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept
