"""Runs of other algorithms beside a run: where they are, whom the run serves better, and which clients stand out."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from scipy.special import bdtr, bdtrc

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_toml, read_file
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.arrays import last_predictions, last_scores
from fedstrata.records.schema import BASELINE, Predictions, Summary, read_record
from fedstrata.report.catalogue import WORDS
from fedstrata.report.differences import Effect, corrected, of_clients, of_counts, of_samples, sample_gains, verdict_of

_OUTLIER_CHANCE = 0.05
"""The chance that some client seems clearly worse than the mean, if all have the mean."""


class Gain(NamedTuple):
    """Whom a run serves better than a reference, by client id.

    Attributes:
        better: Clients whose metric is better by more than chance, corrected for the number of clients.
        worse: Clients whose metric is worse by more than chance.
        unclear: Clients without such a difference, or of whom nobody knows how much of it is chance.
    """

    better: list[int]
    worse: list[int]
    unclear: list[int]

    def of(self, client: int) -> str:
        """Return which of the three a client is."""
        if client in self.better:
            return "better"
        return "worse" if client in self.worse else "unclear"


def effects(
    own: Mapping[int, tuple[int, float]],
    other: Mapping[int, float],
    metric: MetricInfo,
    own_predictions: Mapping[int, Predictions],
    other_predictions: Mapping[int, Predictions],
) -> dict[int, Effect | None]:
    """Compare the metric of each client with that of a reference on the same test samples.

    Args:
        own: The number of test samples and the metric of each client.
        other: The metric of each client in the reference.
        metric: What it is.
        own_predictions: What each client's model predicts, where that is known.
        other_predictions: The same of the reference.

    Returns:
        The difference of each client that both have; None where nobody knows how much of it is chance.
    """
    found = dict[int, Effect | None]()
    for client in sorted(own.keys() & other.keys()):
        if client in own_predictions and client in other_predictions:
            one = own_predictions[client]
            gains = sample_gains(one, other_predictions[client], metric)
            found[client] = None if gains is None else of_samples(gains, one.unit, metric)
        else:
            found[client] = of_counts(*own[client], other[client], metric)
    return found


def mean_effect(own: Mapping[int, Predictions], other: Mapping[int, Predictions], metric: MetricInfo) -> Effect | None:
    """Compare the mean metric over clients with that of a reference; None where a client cannot be compared.

    Args:
        own: What each client's model predicts.
        other: The same of the reference.
        metric: What is compared.
    """
    if own.keys() != other.keys():
        return None
    gains = (sample_gains(each, other[client], metric) for client, each in own.items())
    return of_clients(gains, (each.unit for each in own.values()))


def gain(of: Mapping[int, Effect | None]) -> Gain:
    """Find the clients whose metric differs by more than chance, whatever the number of clients (`corrected`)."""
    verdicts: dict[str, list[int]] = {kind: [] for kind in Gain._fields}
    for (client, effect), p in zip(of.items(), corrected(list(of.values())), strict=True):
        verdicts[verdict_of(effect, p)].append(client)
    return Gain(**verdicts)


def stands_out(samples: int, value: float, mean: float, clients: int, metric: MetricInfo) -> bool:
    """Return whether a client is clearly worse than the mean of all: an exact binomial test, corrected by Bonferroni.

    If all clients had the mean, the worst of them would be this bad by chance in less than `_OUTLIER_CHANCE` of cases.

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
    return bool(chance * clients < _OUTLIER_CHANCE)


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
        predictions: What each client's model predicts for its test samples, where that is known.
    """

    mean: float
    by_client: Mapping[int, float]
    predictions: Mapping[int, Predictions] = MappingProxyType({})


def read_references(folder: Path, settings: Mapping[str, Any], own: Summary) -> dict[str, Reference]:
    """Return the finished runs of other algorithms in the folder of a run and next to it, by their algorithm.

    The run in its folder, which ``report.baseline`` asks for, comes before those in folders next to it.

    Args:
        folder: The folder of the run.
        settings: Its experiment. A reference must be of the same one, the seed included.
        own: Its summary. A reference must be on the same data, where these may change.
    """
    here = folder.resolve()
    found: dict[str, Reference] = {}
    beside = (path for path in sorted(here.parent.glob("*/summary.json")) if path.parent != here)
    for path in (here / BASELINE / "summary.json", *beside):
        try:
            summary = read_record(path, Summary)
            name = summary.algorithm
            if name not in ALGORITHMS or name in (own.algorithm, *found) or summary.acc_client is None:
                continue
            other = parse_toml(read_file(path.parent / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
        except (OSError, ValueError, RecordError):
            continue  # A folder that is no run, or a damaged one, is no reference.
        if summary.data_digest == own.data_digest and _comparable(settings) == _comparable(other):
            scores = {client: value for client, (_, value) in last_scores(path.parent).items()}
            found[name] = Reference(summary.acc_client, scores, last_predictions(path.parent))
    return {name: found[name] for name in ALGORITHMS if name in found}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run and its reference must share, wherever the data files are."""
    kept = {key: value for key, value in settings.items() if key not in _MAY_DIFFER}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept
