"""The tables of docs/methods/privacy.md: what attacks learn from what others see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from experiments.strata import federations
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from experiments.trust import leaks

METHOD_TITLES = {
    "local": "training alone",
    "fedavg": "FedAvg",
    "strata": "Strata",
    "strata_finetune": "Strata + `finetune`",
    "strata_best": "Strata + `best`",
    "fedavg, sent": "FedAvg: what a client sends",
    "strata, sent": "Strata: what a client sends",
}
"""The models that are attacked, by what they are called in the results."""

SENT_TITLES = {
    "fedavg": "the whole update (FedAvg, Strata, LayerCFL, HiCFL, FedTSDP and most others)",
    "fedper": "all but the head (FedPer, FedRep)",
    "lg_fedavg": "the head alone (LG-FedAvg here; FedClust, once)",
    "bias of the head": "the bias of the head alone",
    "bias of the head, closed form": "the same, by a formula and without data of one's own",
    "sketch of 1024": "a sketch of 1024 numbers (no algorithm sends it)",
    "sketch of 256": "a sketch of 256 numbers (no algorithm sends it)",
}
"""What is seen of a client, by what it is called in the results."""

STATISTICS = "adacfl, number of classes and entropy"
"""What a client of AdaCFL says of its data beside its update."""

SIZED_TITLES = {"oracle": "Oracle", "strata": "Strata", "ifca": "IFCA"}
"""The algorithms whose clusters have a least size, by name."""

CLOSED_FORM = {
    "1 image, gradient": "1 images in batches of 1",
    "1 image, gradient without the head": "1 images in batches of 1",
    "4 images, gradient": "4 images in batches of 4",
    "16 images, gradient": "16 images in batches of 16",
    "16 images, epoch of 4 steps": "16 images in batches of 4",
    "100 images, epoch of 10 steps": "100 images in batches of 10",
}
"""What the closed form of the first layer sees, by exposure."""


def _runs(name: str) -> Sequence[Mapping[str, Any]]:
    """The runs of a study, none while it has not been done."""
    return federations.runs_of(federations.read(outcomes.RESULTS / "leaks.json"), name)


def _mean(runs: Sequence[Mapping[str, Any]], *path: str, digits: int = 2) -> str:
    """A number over the seeds that have it, by the keys that lead to it."""
    values = list[float]()
    for run in runs:
        value: Any = run
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        values += [] if value is None else [value]
    return f"{mean(values):.{digits}f}" if values else MISSING


def by_size() -> str:
    """Membership inference by the number of clients that trained a model."""
    runs = _runs("membership by size")
    rows = [
        (str(size), *(_mean(runs, str(size), attack, what) for attack in ("loss", "shadow") for what in ("auc", "tpr")))
        for size in leaks.SIZES
    ]
    head = "clients | loss: AUC | loss: found at 1 % | shadow models: AUC | shadow models: found at 1 %"
    return table(f"{head} | seeds", [(*row, str(len(runs))) for row in rows])


def by_method() -> str:
    """Membership inference by method."""
    runs = _runs("membership by method")
    rows = []
    for name, title in METHOD_TITLES.items():
        used = (_mean(runs, name, "acc_client"), _mean(runs, name, "clusters", digits=0))
        cells = ("", "") if name.endswith("sent") else used
        rows.append((title, _mean(runs, name, "auc"), _mean(runs, name, "tpr"), *cells))
    return table("model | AUC | found at 1 % | accuracy | clusters", rows)


def with_noise() -> str:
    """Membership inference under differential privacy, with the accuracy that is left."""
    runs = _runs("membership with noise")
    rows = []
    for name in leaks.NOISY:
        for size in leaks.NOISY_SIZES:
            case = f"{name}, {size} clients"
            found = [_mean(runs, case, attack, what) for attack in ("loss", "shadow") for what in ("auc", "tpr")]
            rows.append((name, str(size), _epsilon(runs, case), *found, _mean(runs, case, "accuracy"), str(len(runs))))
    head = (
        "noise | clients | epsilon | loss: AUC | loss: found at 1 % | shadow models: AUC | shadow models: found at 1 %"
    )
    return table(f"{head} | accuracy | seeds", rows)


def _epsilon(runs: Sequence[Mapping[str, Any]], case: str) -> str:
    """The epsilon of a run; above a thousand it is a number without a meaning."""
    found = runs[0].get(case, {}).get("epsilon") if runs else None
    if found is None:
        return ""
    return "over 1,000" if found > 1000 else f"{found:.0f}"


def by_least_size() -> str:
    """Membership inference by the least size of clusters, in small groups and in the others."""
    runs = _runs("membership by least size")
    rows = []
    for name in leaks.SIZED:
        for least in leaks.LEAST_SIZES:
            case = f"{name}, at least {least}"
            cells = [
                _mean(runs, case, which, what) for which in ("small", "large") for what in ("auc", "tpr", "accuracy")
            ]
            rows.append((SIZED_TITLES[name], str(least), *cells, str(len(runs))))
    columns = (
        f"{which} groups: {what}" for which in ("small", "large") for what in ("AUC", "found at 1 %", "accuracy")
    )
    return table(f"algorithm | min_cluster | {' | '.join(columns)} | seeds", rows)


def mix_with_noise() -> str:
    """The estimate of class shares from an update with noise, with the accuracy that is left."""
    runs = _runs("label mix with noise")
    rows = []
    for name in leaks.LOCAL_NOISE:
        last = f"{name}, round {max(leaks.ROUNDS)}"
        cells = (_mean(runs, f"{name}, round {round}", key) for round in leaks.ROUNDS for key in ("r", "r2"))
        rows.append((name, _epsilon(runs, last), *cells, _mean(runs, last, "accuracy"), str(len(runs))))
    columns = " | ".join(f"round {round}: {key}" for round in leaks.ROUNDS for key in ("r", "R2"))
    return table(f"noise | epsilon | {columns} | accuracy in round {max(leaks.ROUNDS)} | seeds", rows)


def mix() -> str:
    """The estimate of class shares by what is seen of a client."""
    runs = _runs("label mix")
    rows = []
    for what, title in SENT_TITLES.items():
        cells = (_mean(runs, f"{what}, round {round}", key) for round in leaks.ROUNDS for key in ("r", "r2"))
        rows.append((title, *cells))
    told = (_mean(runs, STATISTICS, key) for key in ("r", "r2"))
    rows.append(("number of classes and entropy (AdaCFL, beside its update)", *told, "", ""))
    columns = " | ".join(f"round {round}: {key}" for round in leaks.ROUNDS for key in ("r", "R2"))
    return table(f"seen | {columns}", rows)


def inverted() -> str:
    """The likeness of images that are found to the true ones, by exposure."""
    runs = _runs("inversion")
    rows = []
    for exposure in leaks.EXPOSURES:
        searched = [_searched(runs, network, exposure) for network in leaks.NETWORKS]
        closed = [_closed(runs, exposure, key) for key in ("psnr", "exact")]
        rows.append((exposure, *searched, *closed))
    guess = _mean(runs, "mean image of the class", digits=1)
    rows.append(("nothing: the mean image of the class", guess, guess, "", ""))
    head = "seen | search, MLP | search, CNN | formula, MLP | images found exactly by the formula"
    return table(head, rows)


def _searched(runs: Sequence[Mapping[str, Any]], network: str, exposure: str) -> str:
    tried = exposure in leaks.EXPOSURES_OF[network]
    return _mean(runs, f"{network}, {exposure}", digits=1) if tried else ""


def _closed(runs: Sequence[Mapping[str, Any]], exposure: str, key: str) -> str:
    """What the formula gives; where the first layer is not seen as it is, it gives nothing."""
    if exposure not in CLOSED_FORM:
        return ""
    found = _mean(runs, f"mlp, {CLOSED_FORM[exposure]}, closed form", key, digits=4)
    if found == MISSING:
        return found
    return f"{100 * float(found):.0f} %" if key == "exact" else f"{float(found):.1f}"


def vectors() -> str:
    """How much of clients' samples the singular vectors of PACFL show."""
    runs = _runs("singular vectors")
    rows = []
    for case in leaks.VECTORS_OF:
        few = _mean(runs, case, "few")
        has_few = any(run.get(case, {}).get("few") is not None for run in runs)
        cells = (_mean(runs, case, "mean"), _mean(runs, case, "sample"), few if has_few or not runs else "")
        rows.append((case, *cells))
    head = "client | first vector and class mean | one sample | one sample of a class with up to three"
    return table(head, rows)


LEAKS: Mapping[str, Callable[..., str]] = {
    "membership": by_size,
    "memberships": by_method,
    "noisy_memberships": with_noise,
    "least_sizes": by_least_size,
    "mix": mix,
    "noisy_mix": mix_with_noise,
    "inverted": inverted,
    "vectors": vectors,
}
"""The tables of docs/methods/privacy.md."""
