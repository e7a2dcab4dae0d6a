"""The tables of what each part of Strata earns, and of its rivals at equal computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean

import numpy as np
from scipy import stats

from experiments.strata import equal_computing
from experiments.strata.ablation import TABLES, VARIANTS
from experiments.strata.championship import FEDERATIONS, true_groups
from experiments.strata.rankings import PASS, TITLES, federation_title
from experiments.tools.outcomes import MISSING, Result, every, results, table

_WHOLE = "strata"


def ablation() -> str:
    """What each change of Strata does to its accuracy, groups and computing, without and with personal models."""
    rows = list[tuple[str, ...]]()
    for change in TABLES:
        cells = list[str]()
        for suffix in ("", " + best"):
            found = _by_federation(change + suffix) if change + suffix in VARIANTS else {}
            whole = _by_federation(_WHOLE + suffix)
            cells += _cells(found, whole, compares=change != _WHOLE)
        if any(cell != "-" for cell in cells):
            rows.append((change, *cells))
    columns = ("accuracy, minus the whole", "groups exact", "computing")
    both = [f"{column}{suffix}" for suffix in ("", " (`best`)") for column in columns]
    return table(" | ".join(["change", *both]), rows or [("all changes", MISSING, *[""] * 5)])


def _by_federation(variant: str) -> dict[str, dict[int, Result]]:
    """The runs of a variant by federation and seed."""
    return {
        name: {run["seed"]: run for run in every(f"ablation/{name}") if run["variant"] == variant and "right" in run}
        for name in FEDERATIONS
    }


def _cells(
    found: Mapping[str, Mapping[int, Result]], whole: Mapping[str, Mapping[int, Result]], *, compares: bool
) -> tuple[str, str, str]:
    """The difference in accuracy with its 95 % interval over federations, exact groups, and computing."""
    runs = [run for own in found.values() for run in own.values()]
    if not runs:
        return "-", "-", "-"
    gaps = [
        mean(own[seed]["acc_client"] - whole[name][seed]["acc_client"] for seed in own if seed in whole[name])
        for name, own in found.items()
        if own
    ]
    grouped = [
        own["ari"] == 1.0
        for name, by_seed in found.items()
        if (true_groups(FEDERATIONS[name]["partition"]) or 1) > 1
        for own in by_seed.values()
    ]
    works = [_computing(name, own) for name, by_seed in found.items() for own in by_seed.values()]
    exact = f"{sum(grouped)} of {len(grouped)}"
    return _interval(gaps) if compares else "-", exact, f"{mean(works):.2f}"


def _computing(federation: str, run: Result) -> float:
    """The computing of a run as a multiple of FedAvg's."""
    rounds: int = FEDERATIONS[federation].get("rounds", 20)
    work: float = run["epochs"] + PASS * run["passes"]
    return work / rounds


def _interval(values: Sequence[float]) -> str:
    """A mean with its 95 % t-interval."""
    if len(values) < 2:
        return f"{mean(values):+.4f}"
    reach = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    middle = mean(values)
    return f"{middle:+.4f} ({middle - reach:+.4f} to {middle + reach:+.4f})"


def at_equal_computing() -> str:
    """By how much Strata with personal models is more accurate than rivals that may compute as much, by federation."""
    rows = list[tuple[str, ...]]()
    gaps: list[list[float]] = [[] for _ in equal_computing.RIVALS]
    for name in FEDERATIONS:
        own = {run["seed"]: run for run in results(f"championship/{name}", "strata_best")}
        rivals = [
            {run["seed"]: run for run in results(f"equal_computing/{name}", f"{method}, equal computing")}
            for method in equal_computing.RIVALS
        ]
        seeds = sorted(set(own).intersection(*rivals))
        if not seeds:
            continue
        for found, rival in zip(gaps, rivals, strict=True):
            found.append(mean(own[seed]["acc_client"] - rival[seed]["acc_client"] for seed in seeds))
        accuracy, work = (mean(of(own[seed]) for seed in seeds) for of in (_accuracy, partial(_computing, name)))
        cells = (f"{accuracy:.3f}", f"{work:.2f}", *(f"{found[-1]:+.3f}" for found in gaps))
        rows.append((federation_title(name), str(len(seeds)), *cells))
    if rows:
        rows.append((f"all {len(rows)}, with the 95 % interval over them", "", "", "", *map(_interval, gaps)))
    columns = (f"minus {TITLES[method]}" for method in equal_computing.RIVALS)
    head = " | ".join(["federation", "seeds", "Strata + `best`", "its computing", *columns])
    return table(head, rows or [("all federations", MISSING, "", "", *[""] * len(equal_computing.RIVALS))])


def _accuracy(run: Result) -> float:
    """The mean accuracy of the clients of a run."""
    accuracy: float = run["acc_client"]
    return accuracy


ABLATIONS: Mapping[str, Callable[[], str]] = {"ablation": ablation, "equal_computing": at_equal_computing}
"""The tables of docs/methods/strata.md and docs/evidence/championship.md."""
