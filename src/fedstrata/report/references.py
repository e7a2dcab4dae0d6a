"""Runs of FedAvg and of local training next to a run: what its clients would have with one model, or each alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file
from fedstrata.records.schema import Summary, parse_record

ALGORITHMS = {"fedavg": "one model for all (FedAvg)", "local": "training alone"}
"""The algorithms that a run is compared with, and what they stand for."""

_MAY_DIFFER = ("algorithm", "algorithms", "label", "engine", "probe", "records")
"""Tables of the experiment in which a run and its references may differ."""

_MOST_CLIENTS = 1_000_000
"""Scores of more clients are not read."""

CLEAR = 1.96
"""Standard errors beyond which a difference is clear: about one in twenty would be by chance alone."""


class Reference(NamedTuple):
    """What another algorithm reached in the same experiment.

    Attributes:
        accuracy: The mean accuracy over clients.
        by_client: The accuracy of each client whose score is known.
    """

    accuracy: float
    by_client: Mapping[int, float]


class Gain(NamedTuple):
    """Whom a run serves better than a reference, by client id.

    Attributes:
        better: Clients whose accuracy is clearly higher.
        worse: Clients whose accuracy is clearly lower.
        unclear: Clients whose test samples are too few to tell.
    """

    better: list[int]
    worse: list[int]
    unclear: list[int]


def read_references(folder: Path, settings: Mapping[str, Any]) -> dict[str, Reference]:
    """Return the finished runs of other algorithms in folders next to a run, by their algorithm.

    Args:
        folder: The folder of the run.
        settings: Its experiment. A reference must be of the same one, the seed included.
    """
    here = folder.resolve()
    algorithm = settings.get("algorithm")
    own = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    found: dict[str, Reference] = {}
    for path in sorted(here.parent.glob("*/summary.json")):
        if path.parent == here:
            continue
        try:
            summary = parse_record(parse_json(read_file(path)), Summary)
            name = summary.algorithm
            if name not in ALGORITHMS or name in (own, *found) or summary.acc_client is None:
                continue
            other = parse_toml(read_file(path.parent / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
        except (OSError, ValueError, RecordError):
            continue  # A folder that is no run, or a damaged one, is no reference.
        if _comparable(settings) == _comparable(other):
            found[name] = Reference(summary.acc_client, _last_accuracies(path.parent))
    return found


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run and its reference must share, wherever the data files are."""
    kept = {key: value for key, value in settings.items() if key not in _MAY_DIFFER}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept


def _last_accuracies(folder: Path) -> dict[int, float]:
    """Return the accuracy of each client after the last round; {} where it cannot be read."""
    files = sorted((folder / "clients").glob("[0-9]*.parquet"))
    try:
        with open_file(files[-1]) as file:
            table = pq.ParquetFile(file)
            if table.metadata.num_rows > _MOST_CLIENTS:
                return {}
            columns = table.read(["client", "accuracy"]).to_pydict()
    except (IndexError, OSError, ValueError, KeyError, RecordError, pa.ArrowException):
        return {}
    rows = zip(columns["client"], columns["accuracy"], strict=True)
    return {client: accuracy for client, accuracy in rows if isinstance(accuracy, float) and 0 <= accuracy <= 1}


def gain(own: Mapping[int, tuple[int, float]], other: Mapping[int, float]) -> Gain:
    """Find the clients whose accuracy differs clearly from that of a reference, on the same test samples.

    Args:
        own: The number of test samples and the accuracy of each client.
        other: The accuracy of each client in the reference.
    """
    found = Gain([], [], [])
    for client in sorted(own.keys() & other.keys()):
        getattr(found, compare(*own[client], other[client])).append(client)
    return found


def compare(samples: int, accuracy: float, other: float) -> Literal["better", "worse", "unclear"]:
    """Return whether an accuracy is clearly above or below another one on as many samples."""
    if abs(accuracy - other) <= CLEAR * standard_error(samples, accuracy, other):
        return "unclear"
    return "better" if accuracy > other else "worse"


def standard_error(samples: int, one: float, other: float) -> float:
    """Return the standard error of the difference of two accuracies on as many samples.

    As if the samples were different ones. On the same samples it is mostly smaller, so what is clear here is clear.
    """
    return sqrt((one * (1 - one) + other * (1 - other)) / max(samples, 1))
