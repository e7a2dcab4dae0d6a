"""Runs of FedAvg and of local training next to a run: what its clients would have with one model, or each alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file
from fedstrata.records.final_scores import RightSamples, last_scores, read_right_samples
from fedstrata.records.schema import BASELINE, Summary, parse_record
from fedstrata.report.catalogue import WORDS

ALGORITHMS = tuple(WORDS["reference"])
"""The algorithms that a run is compared with, in the order in which the page shows them."""


def reference_text(name: str, settings: Mapping[str, Any]) -> str:
    """Return what an algorithm that runs are compared with stands for.

    Args:
        name: The name of the algorithm.
        settings: The keys that the runs have in common. Where clients make personal models, they do so of FedAvg's too.
    """
    text: str = WORDS["reference"][name]["text"]
    return f"{text} and the same personal stage" if has_personal_models(settings) else text


def has_personal_models(settings: Mapping[str, Any]) -> bool:
    """Return whether the clients of a run with such an experiment make personal models."""
    personal = settings.get("personal")
    return isinstance(personal, Mapping) and personal.get("method", "none") != "none"


_MAY_DIFFER = ("algorithm", "algorithms", "label", "engine", "probe", "records", "report")
"""Tables of the experiment in which a run and its references may differ."""


class Reference(NamedTuple):
    """What another algorithm reached in the same experiment.

    Attributes:
        mean: The mean of the metric over clients.
        by_client: The metric of each client whose score is known.
        right: Which test samples of each client are classified correctly, where that is known.
    """

    mean: float
    by_client: Mapping[int, float]
    right: RightSamples = MappingProxyType({})


def read_references(folder: Path, settings: Mapping[str, Any]) -> dict[str, Reference]:
    """Return the finished runs of other algorithms in the folder of a run and next to it, by their algorithm.

    The run in its folder, which ``report.baseline`` asks for, comes before those in folders next to it.

    Args:
        folder: The folder of the run.
        settings: Its experiment. A reference must be of the same one, the seed included, on the same data.
    """
    here = folder.resolve()
    data = _data_digest(here)
    algorithm = settings.get("algorithm")
    own = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    found: dict[str, Reference] = {}
    beside = (path for path in sorted(here.parent.glob("*/summary.json")) if path.parent != here)
    for path in (here / BASELINE / "summary.json", *beside):
        try:
            summary = parse_record(parse_json(read_file(path)), Summary)
            name = summary.algorithm
            if name not in ALGORITHMS or name in (own, *found) or summary.acc_client is None:
                continue
            other = parse_toml(read_file(path.parent / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
        except (OSError, ValueError, RecordError):
            continue  # A folder that is no run, or a damaged one, is no reference.
        same_data = not data or summary.data_digest in ("", data)
        if same_data and _comparable(settings) == _comparable(other):
            scores = {client: value for client, (_, value) in last_scores(path.parent).items()}
            found[name] = Reference(summary.acc_client, scores, read_right_samples(path.parent))
    return {name: found[name] for name in ALGORITHMS if name in found}


def _data_digest(folder: Path) -> str:
    """Return the digest of the data of a finished run; empty where they cannot change, and where it is not known."""
    try:
        return parse_record(parse_json(read_file(folder / "summary.json")), Summary).data_digest
    except (OSError, ValueError, RecordError):
        return ""


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run and its reference must share, wherever the data files are."""
    kept = {key: value for key, value in settings.items() if key not in _MAY_DIFFER}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept
