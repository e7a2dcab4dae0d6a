"""The tables of docs/evidence/heart.md, from the probabilities in ``experiments/results/heart.json``.

A probability above one half says that a patient has the disease. Figures are means over seeds. Their intervals (95 %)
say how far the test patients could be others:

- An accuracy of one hospital has the interval of Wilson (1927), with its number of test patients.
- A mean of hospitals, and the difference of two methods, has a percentile bootstrap interval. It draws test patients of
  each hospital, and seeds, with replacement; both methods of a difference have the same draws.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t
from sklearn.metrics import brier_score_loss, roc_auc_score

from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table

DRAWS = 10_000
"""The number of draws of a bootstrap."""

LEAST = 5
"""An AUC is taken where each class has so many test patients."""

TITLES = {
    "share": "no features: the share of the disease",
    "own": "each hospital alone",
    "converged_own": "each hospital alone, converged",
    "pooled_mixed": "pooled, tested on another scale",
    "pooled": "pooled",
    "converged_pooled": "pooled, converged",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "Scaffold",
    "cyclic": "Cyclic",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "fedavg_faster": "FedAvg, learning rate 0.00316",
    "finetune_faster": "the same, fine-tuned",
    "finetune": "FedAvg, fine-tuned",
    "fedavg_best": "FedAvg + `best`",
    "strata": "Strata",
    "strata_unchecked": "Strata, no checks",
    "strata_best": "Strata + `best`",
    "layercfl": "LayerCFL",
    "adacfl": "AdaCFL",
    "hicfl": "HiCFL",
    "fedtsdp": "FedTSDP",
}
"""The methods, in the order of the tables."""


@dataclass(frozen=True)
class Published:
    """Accuracies that FLamby publishes: ``results`` and ``personalization_example`` of owkin/FLamby.

    Attributes:
        hospitals: In each hospital, as a mean over seeds with its standard deviation; empty where it is not published.
        seeds: The mean over hospitals, for each of the seeds 42 to 46.
    """

    hospitals: tuple[tuple[float, float], ...]
    seeds: tuple[float, ...]


_FEDAVG = Published(
    ((0.731, 0.022), (0.719, 0.033), (0.650, 0.114), (0.640, 0.051)), (0.6915, 0.7198, 0.6427, 0.6943, 0.6765)
)
_YOGI = Published(
    ((0.760, 0.018), (0.753, 0.018), (0.738, 0.028), (0.676, 0.040)), (0.7240, 0.7194, 0.7513, 0.7350, 0.7271)
)

PUBLISHED: Mapping[str, Published] = {
    "own": Published(
        ((0.746, 0.016), (0.746, 0.006), (0.725, 0.122), (0.702, 0.051)), (0.7629, 0.7482, 0.6938, 0.7371, 0.7072)
    ),
    "pooled_mixed": Published(
        ((0.783, 0.011), (0.764, 0.000), (0.750, 0.000), (0.644, 0.000)), (0.7391, 0.7343, 0.7367, 0.7343, 0.7319)
    ),
    "fedavg": _FEDAVG,
    "fedprox": _FEDAVG,
    "scaffold": Published(
        ((0.727, 0.019), (0.719, 0.033), (0.650, 0.114), (0.640, 0.051)), (0.6891, 0.7198, 0.6427, 0.6919, 0.6765)
    ),
    "cyclic": Published(
        ((0.758, 0.014), (0.762, 0.015), (0.712, 0.095), (0.640, 0.019)), (0.7240, 0.7295, 0.6751, 0.7528, 0.7087)
    ),
    "fedadam": Published(
        ((0.752, 0.017), (0.746, 0.019), (0.738, 0.028), (0.667, 0.044)), (0.7212, 0.7115, 0.7461, 0.7322, 0.7167)
    ),
    "fedyogi": _YOGI,
    "fedadagrad": _YOGI,
    "fedavg_faster": Published((), (0.7110, 0.6986, 0.7105, 0.7368, 0.7319)),
    "finetune_faster": Published((), (0.7478, 0.7243, 0.7316, 0.7368, 0.7347)),
}
"""What FLamby publishes of its methods."""

PUBLISHED_BY_HOSPITAL: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "own": {
        "42": (0.7308, 0.7528, 0.8125, 0.7556),
        "43": (0.7500, 0.7416, 0.8125, 0.6889),
        "44": (0.7308, 0.7528, 0.6250, 0.6667),
        "45": (0.7500, 0.7416, 0.8125, 0.6444),
        "46": (0.7692, 0.7416, 0.5625, 0.7556),
    },
    "fedavg": {
        "42": (0.7596, 0.6966, 0.6875, 0.6222),
        "43": (0.7212, 0.7416, 0.7500, 0.6667),
        "44": (0.7404, 0.7528, 0.5000, 0.5778),
        "45": (0.7308, 0.6742, 0.7500, 0.6222),
        "46": (0.7019, 0.7303, 0.5625, 0.7111),
    },
}
"""What FLamby publishes for each seed and hospital, of the methods of `heart_twin.py`."""

FLOAT = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """What one method says about the test patients.

    Attributes:
        probabilities: Of the disease, (seeds, patients) for each hospital.
        disease: Who has it, (patients,) for each hospital.
        groups: The group of each hospital, for each seed.
    """

    probabilities: Mapping[str, FLOAT]
    disease: Mapping[str, NDArray[np.int64]]
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def right(self) -> dict[str, FLOAT]:
        """Whether each patient is told rightly, (seeds, patients) for each hospital."""
        return {
            name: ((values > 0.5) == self.disease[name]).astype(np.float64)
            for name, values in self.probabilities.items()
        }

    @property
    def accuracies(self) -> dict[str, float]:
        """The accuracy in each hospital, as a mean over seeds."""
        return {name: float(right.mean()) for name, right in self.right.items()}

    def by_seed(self) -> dict[str, list[float]]:
        """The accuracy of each seed in each hospital, and their mean under the name ``mean``."""
        found = {name: right.mean(axis=1).tolist() for name, right in self.right.items()}
        return {**found, "mean": [mean(values) for values in zip(*found.values(), strict=True)]}

    @property
    def auc(self) -> float:
        """The mean AUC of the hospitals with enough patients of both classes."""
        enough = [name for name, disease in self.disease.items() if min(np.bincount(disease, minlength=2)) >= LEAST]
        return mean(
            float(roc_auc_score(self.disease[name], row)) for name in enough for row in self.probabilities[name]
        )

    @property
    def brier(self) -> float:
        """The mean Brier score of the hospitals: 0 is perfect, and 0.25 is a probability of one half for everybody."""
        return mean(
            mean(float(brier_score_loss(self.disease[name], row, pos_label=1)) for row in rows)
            for name, rows in self.probabilities.items()
        )


def known() -> dict[str, Any]:
    """The results; none while nothing has been run."""
    path = outcomes.RESULTS / "heart.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def predictions(results: Mapping[str, Any], study: str) -> dict[str, Predictions]:
    """The methods of a study that have been run, and the references of its data, in the order of `TITLES`.

    Only seeds with which all of these methods have been run are taken, so that all have the same.
    """
    runs: dict[str, dict[str, Any]] = {}
    for title, run in results.get("runs", {}).items():
        of, method, seed = title.split()
        if of == study:
            runs.setdefault(method, {})[seed] = run
    common = sorted(set[str].intersection(*(set(seeds) for seeds in runs.values()))) if runs else []
    found = dict[str, Predictions]()
    for method in TITLES:
        reference = results.get("references", {}).get(f"{study} {method}")
        if method not in runs and reference is None:
            continue
        own = [runs[method][seed] for seed in common] if method in runs else []
        rows = [run["probabilities"] for run in own] or [reference]
        data = own[0]["data"] if own else study
        found[method] = Predictions(
            {name: np.array([row[name] for row in rows]) for name in rows[0]},
            {name: np.array([int(letter) for letter in told]) for name, told in results["tests"][data].items()},
            tuple(tuple(run["groups"]) for run in own),
        )
    return found


# Intervals.


def wilson(accuracy: float, patients: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy that was measured on so many patients (Wilson 1927)."""
    z = float(norm.ppf(0.975))
    centre = (accuracy + z**2 / (2 * patients)) / (1 + z**2 / patients)
    half = z * sqrt(accuracy * (1 - accuracy) / patients + z**2 / (4 * patients**2)) / (1 + z**2 / patients)
    return centre - half, centre + half


def drawn_means(right: Mapping[str, FLOAT]) -> FLOAT:
    """The mean accuracy of the hospitals in each draw of a bootstrap, (draws,).

    Args:
        right: Whether each patient is told rightly, (seeds, patients) for each hospital.
    """
    counts = [len(next(iter(right.values()))), *(told.shape[1] for told in right.values())]
    seeds, *patients = drawn_weights(tuple(counts))
    found = [
        np.einsum("ds,sp,dp->d", seeds, told, weights, optimize=True)
        for told, weights in zip(right.values(), patients, strict=True)
    ]
    means: FLOAT = np.mean(found, axis=0)
    return means


@cache
def drawn_weights(counts: tuple[int, ...]) -> list[FLOAT]:
    """How often each of so many seeds, or patients of a hospital, is in a draw, as a share: (draws, count) for each.

    Methods with as many seeds and the same patients have the same draws.
    """
    rng = np.random.default_rng(0)
    return [rng.multinomial(count, [1 / count] * count, DRAWS) / count for count in counts]


def interval(draws: FLOAT) -> tuple[float, float]:
    """The middle 95 % of some draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def difference(one: Predictions, other: Predictions) -> tuple[float, float, float]:
    """How much more accurate a method is than another on average over hospitals, and the interval of that."""
    # A reference has one row for all seeds of the other.
    gaps = {name: right - other.right[name] for name, right in one.right.items()}
    found = mean(float(gap.mean()) for gap in gaps.values())
    return found, *interval(drawn_means(gaps))


def over_seeds(gaps: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some numbers, one for each seed, and its 95 % t-interval."""
    found = mean(gaps)
    half = float(t.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / sqrt(len(gaps))
    return found, found - half, found + half


def gaps_to_published(told: Predictions, method: str) -> list[float]:
    """Our mean accuracy of each seed minus the published one, whose initial weights are the same."""
    return [our - their for our, their in zip(told.by_seed()["mean"], PUBLISHED[method].seeds, strict=False)]


# Tables.


def reproduced() -> str:
    """Our accuracies beside the published ones."""
    found = predictions(known(), "published")
    if not found:
        return table("method | mean", [(MISSING, MISSING)])
    rows = list[tuple[str, ...]]()
    for method, published in PUBLISHED.items():
        told = [_spread(*pair) for pair in published.hospitals] or [""] * 4
        rows.append((TITLES[method], "published", *told, _spread(mean(published.seeds), stdev(published.seeds)), ""))
        if method in found:
            gap = _signed(*over_seeds(gaps_to_published(found[method], method)))
            rows.append(("", "ours", *_spreads(found[method]), gap))
    hospitals = " | ".join(found["fedavg"].disease)
    return table(f"method | whose | {hospitals} | mean | ours minus published", rows)


def repeated() -> str:
    """What a plain loop with FLamby's random numbers comes to, and whether that is what is published."""
    path = outcomes.RESULTS / "heart_twin.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    rows = []
    for method, by_seed in found.items():
        for seed, accuracies in by_seed.items():
            published = PUBLISHED_BY_HOSPITAL[method][seed]
            equal = [round(ours, 4) == theirs for ours, theirs in zip(accuracies.values(), published, strict=True)]
            cells = (f"{accuracy:.4f}" for accuracy in accuracies.values())
            rows.append((TITLES[method], seed, *cells, f"{sum(equal)} of {len(equal)}"))
    head = "method | seed | Cleveland | Hungary | Switzerland | VA | as published"
    return table(head, rows or [(MISSING,) * 7])


def compared(study: str) -> str:
    """The methods of a study, with intervals that respect the number of test patients."""
    found = predictions(known(), study)
    if "fedavg" not in found:
        return table("method | accuracy", [(MISSING, MISSING)])
    rows = []
    for method, told in found.items():
        hospitals = (
            _with_interval(accuracy, *wilson(accuracy, len(told.disease[name])))
            for name, accuracy in told.accuracies.items()
        )
        average = mean(told.accuracies.values())
        rows.append(
            (
                TITLES[method],
                _groupings(told.groups),
                *hospitals,
                _with_interval(average, *interval(drawn_means(told.right))),
                "" if method == "fedavg" else _signed(*difference(told, found["fedavg"])),
                f"{told.auc:.3f}",
                f"{told.brier:.3f}",
            )
        )
    hospitals_head = " | ".join(f"{name} ({len(disease)})" for name, disease in found["fedavg"].disease.items())
    seeds = len(found["fedavg"].groups)
    head = f"method | groups | {hospitals_head} | mean, {seeds} seeds | mean minus FedAvg's | AUC | Brier"
    return table(head, rows)


def patients() -> str:
    """How many patients there are to train and to test with, and how many have the disease."""
    results = known()
    rows = []
    for data, title in (("hospital", "complete rows"), ("all", "all rows")):
        for hospital, told in results.get("tests", {}).get(data, {}).items():
            (share,) = set(results["references"][f"{data} share"][hospital])
            tested = [int(letter) for letter in told]
            rows.append((title, hospital, f"{share:.2f}", f"{len(tested)}", f"{sum(tested)}"))
    head = "rows | hospital | share with disease, training | test patients | of them with disease"
    return table(head, rows or [(MISSING,) * 5])


def shortened() -> str:
    """In how many of the rounds the checks of Strata took the update of a hospital out, or shortened it."""
    runs = known().get("runs", {})
    rows = []
    for study in dict.fromkeys(title.split()[0] for title in runs):
        told = [run["checked"] for title, run in runs.items() if title.split()[:2] == [study, "strata"]]
        hospitals = sorted({name for each in told for name in each})
        cells = [f"{name} {mean(each.get(name, 0) for each in told):.1f}" for name in hospitals]
        rows.append((study, ", ".join(cells) or "nobody"))
    return table("study | rounds, of 15", rows or [(MISSING, MISSING)])


def _groupings(groups: tuple[tuple[int, ...], ...]) -> str:
    """How the hospitals were grouped, by their first letters, in how many seeds; empty for one group in all."""
    times = Counter(" / ".join(_letters(labels)) for labels in groups if len(set(labels)) > 1)
    return ", ".join(f"{grouping} in {count}" for grouping, count in times.most_common())


def _letters(labels: tuple[int, ...]) -> Iterator[str]:
    """The first letters of the hospitals of each group."""
    for group in dict.fromkeys(labels):
        yield "".join(letter for letter, label in zip("CHSV", labels, strict=True) if label == group)


def _spread(value: float, spread: float) -> str:
    return f"{value:.3f} ± {spread:.3f}"


def _spreads(told: Predictions) -> list[str]:
    """The accuracy in each hospital and their mean, with standard deviations over seeds."""
    return [_spread(mean(values), stdev(values)) for values in told.by_seed().values()]


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} ({low:.2f} to {high:.2f})"


def _signed(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


HEART: Mapping[str, Callable[..., str]] = {
    "heart_published": reproduced,
    "heart_twin": repeated,
    "heart_patients": patients,
    "heart_checks": shortened,
    "heart": compared,
}
"""The tables of the page."""
