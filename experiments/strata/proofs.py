"""The tables about Strata: wrong splits with their intervals, what is found, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from scipy.stats import binomtest

from experiments.strata import federations
from experiments.strata.null_federations import ALPHAS, STUDIES
from experiments.tools import outcomes
from experiments.tools.descriptions import title_of
from experiments.tools.outcomes import MISSING, Result, counted, difference, lower_than, results, spread, table
from fedstrata.algorithms.evidence.split_half import split_half_rounds
from fedstrata.config.hyperparameters import algorithm_from

DATA = (
    ("strata_mnist", "MNIST"),
    ("strata_fashion_mnist", "Fashion-MNIST"),
    ("strata_cifar10", "CIFAR-10"),
    ("strata_emnist_letters", "EMNIST Letters"),
)
GROUPED = (
    ('partition={scheme="rotation",groups=4}', "4 rotations"),
    ('partition={scheme="majority",groups=4,share=0.8}', "4 majorities of 0.8"),
    ('partition={scheme="majority",groups=4,share=0.5}', "4 majorities of 0.5"),
    ('partition={scheme="concept",groups=4}', "4 concepts"),
    ('partition={scheme="rotation",sizes=[12,5,3]}', "rotations of 12, 5, 3"),
)
ALIKE = 'partition={scheme="iid"}'
NUMBERS = (
    ("strata_mnist", 'data.clients=8+partition={scheme="rotation",groups=2}', "8 in 2 rotations, 500 images"),
    (
        "strata_mnist",
        'data.clients=100+data.samples=300+partition={scheme="majority",groups=10,share=0.8}',
        "100 in 10 majorities of 0.8, 300 images",
    ),
    (
        "strata_mnist",
        'data.clients=1000+data.samples=50+data.test=0.1+partition={scheme="concept",groups=10}',
        "1000 in 10 concepts, 50 images",
    ),
    (
        "strata_emnist_letters",
        'data.clients=1000+data.samples=72+partition={scheme="concept",groups=10}',
        "1000 in 10 concepts, 72 letters",
    ),
)
"""Experiment, changes and title of what is shown, as the heads of the experiments have them."""

SETTINGS = {
    "equal": "20 clients of 72 digits",
    "memorised": "the same, memorised (lr 0.5)",
    "dropout": "20 clients of 72 digits, dropout layer",
    "small": "20 clients of 36 digits",
    "few": "8 clients of 160 digits",
    "few_dropout_memorised": "the same, dropout layer, memorised",
    "four": "4 clients of 320 digits",
    "sizes": "20 clients of MNIST, sizes about 10 : 1",
    "participation": "40 clients of 72 MNIST images, 30 % selected",
    "few_silent": "12 clients of 120 digits, memorised, 30 % never answer",
    "cnn": "20 clients of 200 CIFAR-10 images, the papers' CNN",
}
"""The settings of the null study in which alike clients are shown."""

LEAST_GAP = 0.01
"""Accuracy that the oracle must be ahead of FedAvg, so that a share of the gap is given."""


def grouped() -> str:
    """What Strata finds where there are groups, with one configuration for all."""
    rows = list[tuple[str, ...]]()
    for experiment, data in DATA:
        for on, federation in GROUPED:
            rows.append((data, federation, *_found(experiment, on)))
    return table(f"data | federation | {FOUND}", rows)


def regrouped() -> str:
    """How often the clusters of today's program are the true groups, and the mean accuracy of Strata."""
    rows = list[tuple[str, ...]]()
    for experiment, data in DATA:
        name = experiment.replace("strata_", "strata_alone_")
        found = [results(name, f"strata+{on}") for on, _ in (*GROUPED, (ALIKE, ""))]
        rows.append((data, *(_exact_and_accuracy(runs) for runs in found)))
    return table(" | ".join(("data", *(federation for _, federation in GROUPED), "alike clients")), rows)


def _exact_and_accuracy(runs: Sequence[Result]) -> str:
    """The number of runs whose clusters are the true groups, and the mean accuracy of all."""
    if not runs:
        return MISSING
    exact = sum(run["ari"] == 1.0 for run in runs)
    return f"{exact} of {len(runs)}, {mean(run['acc_client'] for run in runs):.3f}"


def numbers() -> str:
    """The same for few clients and for many."""
    return table(f"clients | {FOUND}", ((title, *_found(experiment, on)) for experiment, on, title in NUMBERS))


FOUND = (
    "seeds | ARI | exact | partition in round | FedAvg | Strata | oracle | Strata minus FedAvg | gap closed | "
    "accuracy lower than with FedAvg"
)


def _found(experiment: str, on: str) -> tuple[str, ...]:
    """Agreement, time and accuracy of Strata under some changes."""
    plain, own, best = (results(experiment, f"{name}+{on}") for name in ("fedavg", "strata", "oracle"))
    if not own:
        return ("", MISSING, *[""] * 8)
    exact = sum(run["ari"] == 1.0 for run in own)
    rounds = [run["rounds_to_partition"] for run in own if run["rounds_to_partition"] is not None]
    when = f"{median(rounds):g} ({min(rounds)} to {max(rounds)})" if rounds else "never"
    agreement = (f"{len(own)}", f"{mean(run['ari'] for run in own):.3f}", f"{exact} of {len(own)}", when)
    return (
        *agreement,
        *(spread(runs, "acc_client") for runs in (plain, own, best)),
        difference(own, plain),
        _gap_closed(plain, own, best),
        lower_than(own, plain),
    )


def _gap_closed(plain: Sequence[Result], own: Sequence[Result], best: Sequence[Result]) -> str:
    """The share of the gap from FedAvg to the oracle that is closed, over the seeds of all three; if it is large."""
    seeds = set.intersection(*({run["seed"] for run in runs} for runs in (plain, own, best)))
    if not seeds:
        return MISSING
    start, here, end = (mean(run["acc_client"] for run in runs if run["seed"] in seeds) for runs in (plain, own, best))
    return f"{100 * (here - start) / (end - start):.0f} %" if end - start >= LEAST_GAP else "-"


def alike() -> str:
    """Clusters of Strata at the end where all clients are alike; one is right."""
    rows = list[tuple[str, ...]]()
    for experiment, data in DATA:
        runs = results(experiment, f"strata+{ALIKE}")
        rows.append((data, f"{len(runs)}" if runs else "", counted(run["clusters"] for run in runs)))
    return table("data | seeds | clusters", rows)


def wrong() -> str:
    """How often alike clients are split by round 50, by alpha; and how often the p of a trial is at most 5 %."""
    rows = list[tuple[str, ...]]()
    for setting, title in SETTINGS.items():
        runs = _runs("null_strata", setting)
        trials = [p <= 0.05 for run in runs for _, p, _ in run["trials"]]
        shares = [_share(f"strata {alpha}" in run["splits"] for run in runs) for alpha in ALPHAS]
        told = (f"{len(runs)}", f"{len(trials)}") if runs else ("", "")
        rows.append((title, told[0], *shares, told[1], _share(trials)))
    percent = [f"split with alpha = {100 * alpha:g} %" for alpha in ALPHAS]
    return table(" | ".join(["federations", "number", *percent, "trials", "p up to 5 %"]), rows)


def others() -> str:
    """In how many federations of alike clients each algorithm splits them by round 50, and with which keys."""
    rows = []
    for name in OTHERS_ALIKE:
        study, keys = next((study, keys) for study, keys in STUDIES.items() if name in keys)
        cells = []
        for setting in SETTINGS:
            runs = _runs(study, setting)
            found = sum(name in run["splits"] for run in runs)
            cells.append(f"{found} of {len(runs)}" if runs else MISSING)
        rows.append((_exact_keys(keys[name]), *cells))
    return table(" | ".join(["algorithm and keys", *SETTINGS.values()]), rows)


OTHERS_ALIKE = (
    "cfl",
    "cfl, published",
    "cfl, stability",
    "layercfl",
    "layercfl, linear",
    "layercfl, as for MNIST",
    "hicfl",
    "hicfl, mean",
    "adacfl",
    "adacfl, published",
    "strata 0.05",
)
"""The rows of `others`, as the null study calls them."""

TOLD_KEYS = {
    "cfl": ("eps1", "eps2", "gamma", "linkage", "first", "min_split"),
    "layercfl": ("layers", "eps1", "eps2", "gamma", "min_split"),
    "hicfl": ("epsilon", "xi", "rho"),
    "adacfl": ("layers", "cut", "precluster"),
    "strata": ("alpha",),
}
"""The keys that decide whether an algorithm splits, by its name."""

VARIANTS = {
    "experiments.papers.variants:StableCFL": ("CFL, timed by stability", ("members", *TOLD_KEYS["hicfl"], "gamma")),
    "experiments.papers.variants:RetryingLayerCFL": ("LayerCFL, tried again after a refusal", TOLD_KEYS["layercfl"]),
    "experiments.papers.variants:MeanOfMembers": ("HiCFL, stable in the mean of the members", TOLD_KEYS["hicfl"]),
}
"""What the variants of the papers' algorithms are called, and the keys that decide, by import path."""


def _exact_keys(given: Mapping[str, Any]) -> str:
    """An algorithm with the values of the keys that decide, those that it was given and the defaults."""
    name = str(given["name"])
    algorithm = algorithm_from(name, {key: value for key, value in given.items() if key != "name"})
    title, told = VARIANTS[name] if name in VARIANTS else (title_of(name), TOLD_KEYS[name])
    return f"{title}: " + ", ".join(f"{key} = {getattr(algorithm, key)}" for key in told)


def power() -> str:
    """What is found at alpha = 0.05, when, and whether the first split tears a true group."""
    rows = list[tuple[str, ...]]()
    for name, held in federations.read(outcomes.RESULTS / "power_federations.json").items():
        runs = held["runs"]
        rounds = [run["round"] for run in runs if run["round"] is not None]
        torn = sum(bool(run["torn"]) for run in runs)
        when = f"{median(rounds):g}" if rounds else "-"
        rows.append((name, f"{len(runs)}", f"{len(rounds)} of {len(runs)}", when, f"{torn} of {len(rounds)}"))
    head = "federation | number | found by round 20 | in round, median | first split divides a true group"
    return table(head, rows or [("", "", MISSING, "", "")])


def outliers() -> str:
    """How often Strata finds one or two clients that differ from all others."""
    rows = list[tuple[str, ...]]()
    for name, held in federations.read(outcomes.RESULTS / "outlier_federations.json").items():
        runs = held["runs"]
        exact = sum(run["strata"]["ari"] == 1.0 for run in runs)
        split = median(run["strata"]["splits"][-1] for run in runs if run["strata"]["splits"])
        accuracy = (
            f"{mean(run[algorithm]['acc_client'] for run in runs):.3f}" for algorithm in ("fedavg", "oracle", "strata")
        )
        rows.append((name, f"{exact} of {len(runs)}", f"{split:g}", *accuracy))
    head = "federation | exact | last split in round, median | FedAvg | oracle (the true groups) | Strata"
    return table(head, rows or [("", MISSING, "", "", "", "")])


def small() -> str:
    """How often Strata finds the groups of clients that have few samples."""
    rows = list[tuple[str, ...]]()
    for name, held in federations.read(outcomes.RESULTS / "small_federations.json").items():
        runs = held["runs"]
        exact = (f"{sum(run[method]['ari'] == 1.0 for run in runs)} of {len(runs)}" for method in ("strata", "ifca"))
        methods = ("fedavg", "oracle", "ifca", "strata")
        accuracy = (f"{mean(run[method]['acc_client'] for run in runs):.3f}" for method in methods)
        rows.append((name, *exact, *accuracy))
    head = "federation | exact | IFCA exact | FedAvg | oracle (the true groups) | IFCA, k = 2 | Strata"
    return table(head, rows or [("", MISSING, "", "", "", "", "")])


def cost() -> str:
    """What trials add to FedAvg for a cluster that is never split; from the calendar, not measured."""
    rows = []
    for rounds in (10, 20, 30, 50, 100, 200):
        trials = split_half_rounds(rounds) - 1  # in round 3, that of round 2 is judged
        # As many steps as in a round, on half of the data each; and five models that are judged on the other half.
        share = trials / rounds
        judged = 5 * 0.5 / 3
        rows.append((f"{rounds}", f"{trials}", f"{100 * share:.0f} %", f"{100 * judged * share:.0f} %"))
    return table("rounds | trials | extra training | judging models, as training", rows)


def _runs(study: str, name: str) -> list[dict[str, Any]]:
    """The federations of a study under one name; none while it has not been run."""
    held = federations.read(outcomes.RESULTS / f"{study}.json").get(name, {"runs": []})
    runs: list[dict[str, Any]] = held["runs"]
    return runs


def _share(hits: Iterable[bool]) -> str:
    """A share, with its 95 % interval of Clopper and Pearson."""
    told = list(hits)
    if not told:
        return MISSING
    interval = binomtest(sum(told), len(told)).proportion_ci(method="exact")
    return f"{sum(told) / len(told):.3f} ({interval.low:.3f} to {interval.high:.3f})"


PROOFS: Mapping[str, Callable[[], str]] = {
    "grouped": grouped,
    "regrouped": regrouped,
    "numbers": numbers,
    "alike": alike,
    "wrong": wrong,
    "others": others,
    "power": power,
    "outliers": outliers,
    "small": small,
    "cost": cost,
}
"""The tables of docs/methods/strata.md, docs/evidence/strata-proof.md and docs/evidence/strata-results.md."""
