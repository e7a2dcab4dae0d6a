"""Runs of other algorithms beside a run: where they are, whom the run serves better, and which clients stand out.

Two runs on the same clients are compared test sample by test sample where that is known: McNemar, "Note on the sampling
error of the difference between correlated proportions or percentages", Psychometrika 1947, in its exact form. Of the
samples that only one of two models classifies correctly, each model would have as many by chance. The interval is that
of Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data",
Journal of Educational and Behavioral Statistics 2012.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, ndtri

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_toml, read_file
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.records.arrays import last_scores, read_right_samples
from fedstrata.records.schema import BASELINE, RightSamples, Summary, read_record
from fedstrata.report.catalogue import WORDS

LEVEL = 0.05
"""A difference is clear where its p-value is below."""


class PairedDifference(NamedTuple):
    """How much better a client's accuracy is than in another run.

    Attributes:
        by: The difference of the two accuracies; negative where it is worse.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: The p-value of the exact test of McNemar.
    """

    by: float
    low: float
    high: float
    p: float

    @property
    def clear(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p < LEVEL


def paired_difference(own: NDArray[np.bool_], other: NDArray[np.bool_]) -> PairedDifference:
    """Compare two models on the same test samples.

    Samples that both classify correctly, or neither, tell nothing about which one is better.

    Args:
        own: Which samples the first model classifies correctly, bool (s,).
        other: The same of the second model.
    """
    gained = int((own & ~other).sum())
    lost = int((other & ~own).sum())
    # Both tails of the binomial distribution with a probability of one half. scipy.stats would be slow to import.
    p = min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))
    # One more sample for each model: without it, the interval of two models that agree would have no width.
    adjusted = len(own) + 2
    middle = (gained - lost) / adjusted
    error = sqrt(gained + lost + 2 - (gained - lost) ** 2 / adjusted) / adjusted
    reach = float(ndtri(1 - LEVEL / 2)) * error
    return PairedDifference((gained - lost) / len(own), max(middle - reach, -1.0), min(middle + reach, 1.0), p)


def paired_differences(own: RightSamples, other: RightSamples) -> dict[int, PairedDifference]:
    """Compare two runs for every client that has the same number of test samples in both, by client id."""
    both = sorted(client for client in own.keys() & other.keys() if len(own[client]) == len(other[client]) > 0)
    return {client: paired_difference(own[client], other[client]) for client in both}


_CLEAR = 1.96
"""Standard errors beyond which a difference is clear: about one in twenty would be by chance alone."""

_OUTLIER_CHANCE = 0.05
"""The chance that some client seems clearly worse than the mean, if all have the mean."""


class Gain(NamedTuple):
    """Whom a run serves better than a reference, by client id.

    Attributes:
        better: Clients whose metric is clearly better.
        worse: Clients whose metric is clearly worse.
        unclear: Clients without a difference, or whose test samples are too few to tell.
    """

    better: list[int]
    worse: list[int]
    unclear: list[int]


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
    least = metric.smallest_gain(value, other) if error is None else _CLEAR * error
    if abs(value - other) <= least:
        return "unclear"
    return "better" if metric.gain(value, other) > 0 else "worse"


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
        right: Which test samples of each client are classified correctly, where that is known.
    """

    mean: float
    by_client: Mapping[int, float]
    right: RightSamples = MappingProxyType({})


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
            found[name] = Reference(summary.acc_client, scores, read_right_samples(path.parent))
    return {name: found[name] for name in ALGORITHMS if name in found}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run and its reference must share, wherever the data files are."""
    kept = {key: value for key, value in settings.items() if key not in _MAY_DIFFER}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept
