"""Runs of FedAvg and of local training next to a run: what its clients would have with one model, or each alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import bdtr, bdtrc

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file
from fedstrata.metric_info import MetricInfo
from fedstrata.records.schema import BASELINE, Summary, parse_record
from fedstrata.report.paired import PairedDifference, RightSamples, read_right_samples

ALGORITHMS = {"fedavg": "one model for all (FedAvg)", "local": "training alone"}
"""The algorithms that a run is compared with, and what they stand for."""

_MAY_DIFFER = ("algorithm", "algorithms", "label", "engine", "probe", "records", "report")
"""Tables of the experiment in which a run and its references may differ."""

_MOST_CLIENTS = 1_000_000
"""Scores of more clients are not read."""

CLEAR = 1.96
"""Standard errors beyond which a difference is clear: about one in twenty would be by chance alone."""


OUTLIER_CHANCE = 0.05
"""The chance that some client seems clearly worse than the mean, if all have the mean."""


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


class Gain(NamedTuple):
    """Whom a run serves better than a reference, by client id.

    Attributes:
        better: Clients whose metric is clearly better.
        worse: Clients whose metric is clearly worse.
        unclear: Clients whose test samples are too few to tell, or without a difference.
    """

    better: list[int]
    worse: list[int]
    unclear: list[int]


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
    return found


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


def last_scores(folder: Path) -> dict[int, tuple[int, float]]:
    """Return the number of test samples and the metric of each client after the last round; {} where unreadable."""
    files = sorted((folder / "clients").glob("[0-9]*.parquet"))
    try:
        with open_file(files[-1]) as file:
            table = pq.ParquetFile(file)
            if table.metadata.num_rows > _MOST_CLIENTS:
                return {}
            columns = table.read(["client", "samples", "accuracy"]).to_pydict()
    except (IndexError, OSError, ValueError, KeyError, RecordError, pa.ArrowException):
        return {}
    rows = zip(*columns.values(), strict=True)
    return {client: (samples, value) for client, samples, value in rows if isinstance(value, float) and isfinite(value)}


def gain(
    own: Mapping[int, tuple[int, float]],
    other: Mapping[int, float],
    metric: MetricInfo,
    pairs: Mapping[int, PairedDifference],
) -> Gain:
    """Find the clients whose metric differs clearly from that of a reference, on the same test samples.

    Args:
        own: The number of test samples and the metric of each client.
        other: The metric of each client in the reference.
        metric: What it is.
        pairs: The comparisons sample by sample, of those clients of whom they are known.
    """
    found = Gain([], [], [])
    for client in sorted(own.keys() & other.keys()):
        getattr(found, compare(*own[client], other[client], metric, pairs.get(client))).append(client)
    return found


def compare(
    samples: int, value: float, other: float, metric: MetricInfo, pair: PairedDifference | None
) -> Literal["better", "worse", "unclear"]:
    """Return whether a value is clearly better or worse than another one on the same samples.

    Where the samples are not known one by one, the standard error is that of different ones, which is larger. Where
    nobody knows how much of a difference is chance, every difference that can be seen counts.

    Args:
        samples: The number of test samples.
        value: The metric of a client.
        other: The other value.
        metric: What it is.
        pair: The comparison of the two sample by sample; None where it is not known.
    """
    if pair is not None and metric.share_of_samples:
        if not pair.clear:
            return "unclear"
        return "better" if pair.by > 0 else "worse"
    error = metric.standard_error(samples, value, other)
    least = metric.smallest_gain(value, other) if error is None else CLEAR * error
    if abs(value - other) <= least:
        return "unclear"
    return "better" if metric.gain(value, other) > 0 else "worse"


def stands_out(samples: int, value: float, mean: float, clients: int, metric: MetricInfo) -> bool:
    """Return whether a client is clearly worse than the mean of all: an exact binomial test, corrected by Bonferroni.

    If all clients had the mean, the worst of them would be this bad by chance in less than `OUTLIER_CHANCE` of cases.

    Args:
        samples: The number of the client's test samples.
        value: Its metric, a share of these samples.
        mean: The mean of the metric over the clients.
        clients: The number of clients.
        metric: What it is. Where nobody knows how much of a difference is chance, no client stands out.
    """
    if not metric.share_of_samples or metric.gain(value, mean) >= 0 or not 0 <= mean <= 1:
        return False
    # By the special functions themselves: the distributions of SciPy take a hundred times as long for one value.
    if metric.larger_is_better:
        chance = bdtr(floor(value * samples + 1e-9), samples, mean)
    else:
        chance = bdtrc(ceil(value * samples - 1e-9) - 1, samples, mean)
    return bool(chance * clients < OUTLIER_CHANCE)
