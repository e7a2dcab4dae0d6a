"""The tables of the championship: ranks and regrets of the methods, and what they do to single clients.

The ranks are compared as Demšar does, "Statistical comparisons of classifiers over multiple data sets", Journal of
Machine Learning Research 2006: Friedman's test, then Nemenyi's critical difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from experiments.strata.championship import FEDERATIONS, METHODS, SHARED_MODEL, unpacked
from experiments.tools.outcomes import MISSING, Result, average, counted, difference, every, table
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.report.differences import LEVEL, Effect, of_samples

TITLES: dict[str, str] = {
    "local": "local training",
    "fedavg": "FedAvg",
    "fedavg_best": "FedAvg + `best`",
    "finetune_1": "fine-tuning, 1 epoch",
    "finetune_3": "fine-tuning, 3 epochs",
    "finetune_10": "fine-tuning, 10 epochs",
    "ditto_001": "Ditto, lambda 0.01",
    "ditto_01": "Ditto, lambda 0.1",
    "ditto_1": "Ditto, lambda 1",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "lg_fedavg": "LG-FedAvg",
    "ifca": "IFCA, true k",
    "fesem": "FeSEM, true k",
    "clove": "CLoVE, true k",
    "cfl": "CFL",
    "layercfl": "LayerCFL",
    "hicfl": "HiCFL",
    "hicfl_mean": "HiCFL, mean of the members",
    "adacfl": "AdaCFL",
    "fedtsdp": "FedTSDP",
    "fedclust": "FedClust",
    "pacfl": "PACFL",
    "oracle": "oracle (the true groups)",
    "oracle_best": "oracle + `best`",
    "strata": "Strata",
    "strata_best": "Strata + `best`",
}
"""What each method is."""

COMPETITORS = tuple(method for method in METHODS if not method.startswith("oracle"))
"""The methods that are ranked: all but those that know the true groups."""

CLOSE = 0.005
"""The accuracy within which a method is as good as the best."""

LEAST_FEDERATIONS = 10
"""The federations from which on a critical difference of ranks is given."""

ALPHA = 0.05
"""The level of the tests of ranks."""

PASS = 1 / 3
"""What a pass without training costs, in epochs of training."""

DATA = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "emnist_letters": "EMNIST Letters",
    "usc_had": "USC-HAD",
}


@dataclass(frozen=True)
class Federation:
    """What the methods came to on one federation.

    Attributes:
        name: Its name.
        seeds: The seeds with which every method ran or refused.
        runs: The runs of each method with these seeds, by seed; none where it refused.
    """

    name: str
    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[Result]]

    def accuracy(self, method: str) -> float | None:
        """The mean accuracy of a method over clients and seeds; None where it refused."""
        runs = self.runs[method]
        return mean(run["acc_client"] for run in runs) if runs else None

    @property
    def best(self) -> str:
        """The competitor of the highest accuracy, the first of several."""
        return max(COMPETITORS, key=lambda method: _or_last(self.accuracy(method)))

    def regret(self, method: str) -> float | None:
        """How much the accuracy of a method is lower than that of the best competitor; None where it refused."""
        best, own = self.accuracy(self.best), self.accuracy(method)
        return None if best is None or own is None else best - own


def played() -> list[Federation]:
    """The federations on which every method ran or refused with at least one seed."""
    found = []
    for name in FEDERATIONS:
        runs = [run for run in every(f"championship/{name}") if run["variant"] in METHODS]
        there = {(run["variant"], run["seed"]) for run in runs}
        seeds = sorted({seed for _, seed in there if all((method, seed) in there for method in METHODS)})
        if seeds:
            found.append(_federation(name, seeds, runs))
    return found


def _federation(name: str, seeds: Sequence[int], runs: Iterable[Result]) -> Federation:
    """A federation with its runs by method; a method that refused with one seed has none."""
    by_method: dict[str, list[Result]] = {method: [] for method in METHODS}
    for run in runs:
        if run["seed"] in seeds and "refused" not in run:
            by_method[run["variant"]].append(run)
    complete = {method: own if len(own) == len(seeds) else [] for method, own in by_method.items()}
    return Federation(name, tuple(seeds), complete)


def _or_last(accuracy: float | None) -> float:
    return -math.inf if accuracy is None else accuracy


def ranks(accuracies: Sequence[Mapping[str, float | None]]) -> dict[str, list[float]]:
    """The rank of each method on each federation: 1 for the highest accuracy, the mean of their ranks for equal ones.

    Args:
        accuracies: Of every method on each federation. A method that refused it, None, is last there.
    """
    found: dict[str, list[float]] = {}
    for each in accuracies:
        # The largest accuracy has the smallest rank.
        values = [-_or_last(accuracy) for accuracy in each.values()]
        for method, rank in zip(each, rankdata(values), strict=True):
            found.setdefault(method, []).append(float(rank))
    return found


def critical_difference(methods: int, federations: int) -> float:
    """The difference of two mean ranks from which on Nemenyi's test tells them apart."""
    quantile = float(studentized_range.ppf(1 - ALPHA, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * federations))


def competitors_ranks(federations: Sequence[Federation]) -> dict[str, list[float]]:
    """The rank of each competitor on each federation."""
    return ranks([{method: each.accuracy(method) for method in COMPETITORS} for each in federations])


def championship() -> str:
    """The methods by mean rank: what they lose to the best, and to whom of the clients they do harm."""
    federations = played()
    if not federations:
        return table(HEAD, [("all methods", "", MISSING, *[""] * 7)])
    mean_ranks = {method: mean(own) for method, own in competitors_ranks(federations).items()}
    order = sorted(METHODS, key=lambda method: mean_ranks.get(method, math.inf))
    return table(HEAD, (_row(method, federations, mean_ranks) for method in order))


HEAD = (
    "method | federations | mean rank | mean regret | largest regret | within 0.005 of the best | "
    "clearly worse than alone | than FedAvg | than the cluster's model | computing"
)


def _row(method: str, federations: Sequence[Federation], mean_ranks: Mapping[str, float]) -> tuple[str, ...]:
    """A method in that table."""
    regrets = [regret for each in federations if (regret := each.regret(method)) is not None]
    rank = f"{mean_ranks[method]:.1f}" if method in mean_ranks else "-"
    if not regrets:
        return (TITLES[method], "0", rank, *["-"] * 7)
    close = sum(regret <= CLOSE for regret in regrets)
    others = [_share_worse(method, other, federations) if other != method else "-" for other in ("local", "fedavg")]
    return (
        TITLES[method],
        str(len(regrets)),
        rank,
        f"{mean(regrets):.3f}",
        f"{max(regrets):.3f}",
        f"{close} of {len(regrets)}",
        *others,
        _share_worse_than_cluster(method, federations),
        f"{_computing(method, federations):.1f}",
    )


def _share_worse(method: str, other: str, federations: Sequence[Federation]) -> str:
    """The share of clients that are clearly worse than with another method, as the mean over federations."""
    return _mean_share(share_worse(each.runs[method], each.runs[other]) for each in federations)


def _share_worse_than_cluster(method: str, federations: Sequence[Federation]) -> str:
    """The share of clients that are clearly worse than with the model that they had before it was made personal."""
    if method in SHARED_MODEL:
        return _share_worse(method, SHARED_MODEL[method], federations)
    return _mean_share(
        share_worse(runs, with_cluster_models(runs)) for runs in (each.runs[method] for each in federations)
    )


def with_cluster_models(runs: Iterable[Result]) -> list[Result]:
    """Those of some runs that tell which samples are right with the models of the clusters, with these as theirs."""
    return [{**run, "right": run["right_cluster"]} for run in runs if "right_cluster" in run]


def _mean_share(counts: Iterable[tuple[int, int] | None]) -> str:
    """The mean of shares, each of so many clients among so many; None for a federation without any."""
    shares = [found / of for found, of in filter(None, counts)]
    return f"{100 * mean(shares):.1f} %" if shares else "-"


def share_worse(runs: Sequence[Result], others: Sequence[Result]) -> tuple[int, int] | None:
    """How many clients have a clearly lower accuracy than in the other runs of the same seeds, and of how many."""
    found = of = 0
    there = {run["seed"]: run["right"] for run in others}
    for run in runs:
        for client, right in run["right"].items():
            if client in there.get(run["seed"], {}):
                gap = _paired(right, there[run["seed"]][client])
                found += gap.p < LEVEL and gap.by < 0
                of += 1
    return (found, of) if of else None


def _paired(own: str, other: str) -> Effect:
    """The difference of two models on the test samples of a client, as they are kept."""
    first, second = unpacked(own), unpacked(other)
    return _difference(int((first & ~second).sum()), int((second & ~first).sum()), len(first))


@cache
def _difference(gained: int, lost: int, samples: int) -> Effect:
    """The difference of two models, which depends on these numbers alone; so few of them have to be computed."""
    gains = np.repeat([1.0, -1.0, 0.0], [gained, lost, samples - gained - lost])
    return of_samples(gains, np.arange(samples), ACCURACY)


def _computing(method: str, federations: Iterable[Federation]) -> float:
    """The computing of a client, as the mean of multiples of FedAvg's over the federations."""
    multiples = []
    for each in federations:
        own = [run["epochs"] + PASS * run["passes"] for run in each.runs[method]]
        plain = [run["epochs"] for run in each.runs["fedavg"]]
        if own:
            multiples.append(float(mean(own) / mean(plain)))
    return mean(multiples)


SHOWN = ("local", "fedavg", "oracle", "strata", "strata_best")
"""The methods that have a column in the table of federations."""


def federations() -> str:
    """Each federation: the best competitor, some methods beside it, and what Strata with personal models loses."""
    rows = []
    for each in played():
        best = each.runs[each.best]
        columns = (average(each.runs[method], "acc_client") if each.runs[method] else "-" for method in SHOWN)
        own = each.runs["strata_best"]
        lost = difference(best, own) if each.best != "strata_best" else "-"
        winner = (TITLES[each.best], average(best, "acc_client"))
        rows.append((federation_title(each.name), str(len(each.seeds)), *winner, *columns, lost))
    shown = " | ".join(TITLES[method] for method in SHOWN)
    head = f"federation | seeds | best method | its accuracy | {shown} | the best minus Strata + `best`"
    return table(head, rows or [("all federations", "", MISSING, *[""] * 7)])


def federation_title(name: str) -> str:
    """What the clients of a federation have, in a few words."""
    keys = FEDERATIONS[name]
    partition = keys["partition"]
    data = DATA[keys["data"]["name"]]
    clients = keys["data"].get("clients", 20)
    groups = partition.get("groups")
    kinds = {
        "rotation": f"{groups} rotations",
        "majority": f"{groups} majorities of {partition.get('share')}",
        "concept": f"{groups} concepts",
        "dirichlet": f"Dirichlet {partition.get('alpha')}",
        "iid": "IID",
        "natural": f"{clients} people",
    }
    kind = kinds[partition["scheme"]]
    if "sizes" in partition:
        kind = f"rotations of {', '.join(map(str, partition['sizes']))}"
    if "inside" in partition:
        kind += f", each of Dirichlet {partition['inside']['alpha']}"
    return f"{data}, {kind}" + (f", {clients} clients" if name.endswith(f"_of_{clients}") else "")


def entered() -> str:
    """How many federations, seeds and runs the championship has so far, and who refused."""
    known = played()
    refusals = [
        f"{TITLES[method]} {sum(not each.runs[method] for each in known)}"
        for method in METHODS
        if not all(each.runs[method] for each in known)
    ]
    rows = [
        ("federations that are complete", f"{len(known)} of {len(FEDERATIONS)}" if known else MISSING),
        ("seeds of a federation", counted(len(each.seeds) for each in known)),
        ("methods", f"{len(METHODS)}, of which {len(COMPETITORS)} are ranked"),
        ("runs", str(sum(len(runs) for each in known for runs in each.runs.values()))),
        ("federations that a method refused", ", ".join(refusals) or "-"),
    ]
    return table("what | number", rows)


def resolved() -> str:
    """Whether ranks differ at all, and from which difference on two of them do."""
    head = "ranked methods | federations | p of Friedman's test | critical difference | not told apart from the first"
    known = played()
    if not known:
        return table(head, [(str(len(COMPETITORS)), "", MISSING, "", "")])
    counts = (str(len(COMPETITORS)), str(len(known)))
    if len(known) < LEAST_FEDERATIONS:
        few = f"not given for fewer than {LEAST_FEDERATIONS} federations"
        return table(head, [(*counts, few, few, "-")])
    found = competitors_ranks(known)
    p = float(friedmanchisquare(*found.values()).pvalue)
    reach = critical_difference(len(COMPETITORS), len(known))
    order = sorted(found, key=lambda method: mean(found[method]))
    best = mean(found[order[0]])
    beside = [TITLES[method] for method in order[1:] if mean(found[method]) - best < reach]
    shown = "below 0.001" if p < 0.001 else f"{p:.3f}"
    return table(head, [(*counts, shown, f"{reach:.2f}", f"{TITLES[order[0]]}: {', '.join(beside) or 'none'}")])


RANKINGS: Mapping[str, Callable[..., str]] = {
    "entered": entered,
    "championship": championship,
    "resolved": resolved,
    "federations": federations,
}
"""The tables of the championship."""
