"""The settings of HiCFL's exhibits: its three kinds of skew on three data sets, its rivals, and its step sizes.

The paper's threshold of stability is half the step size, and every member of a cluster must be below it (Eq. 15). In no
setting here does that happen within 50 rounds. So an exhibit about clusters has two runs of HiCFL: one with the paper's
threshold, and one with a fitted one, which is the best case for the paper's claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from .exhibit import HERE, Setting

THRESHOLDS = HERE.parent / "results" / "hicfl_thresholds.json"

N1 = Setting("hicfl_n1")
N2 = Setting("hicfl_n2")
N3 = Setting("hicfl_n3")

MNIST = ("data.name=mnist", "model.name=mnist_cnn", "data.samples=200", "local.batch=16")
FASHION = ("data.name=fashion_mnist", "model.name=fmnist_cnn", "data.samples=200", "local.batch=16")
STEP_OF_N2 = ("local.lr=0.01", "algorithm.epsilon=0.005", "algorithm.xi=0.0005")
"""The step size of Non-IID-2 for MNIST and Fashion-MNIST, and what follows from it."""

FEWER_IMAGES = "500 images a client (MNIST and Fashion-MNIST 200) in batches of 16 or 32"

CELLS = {
    "N1 MNIST": N1.but(*MNIST),
    "N1 F-MNIST": N1.but(*FASHION),
    "N1 CIFAR-10": N1,
    "N2 MNIST": N2.but(*MNIST, *STEP_OF_N2),
    "N2 F-MNIST": N2.but(*FASHION, *STEP_OF_N2),
    "N2 CIFAR-10": N2,
    "N3 MNIST": N3.but(*MNIST, "partition.groups=2"),
    "N3 F-MNIST": N3.but(*FASHION, "partition.groups=2"),
    "N3 CIFAR-10": N3,
}
"""The nine settings of Tables II and III, for HiCFL with the paper's threshold."""

NATURAL = {
    "LDA 0.3": Setting("hicfl_lda"),
    "LDA 0.5": Setting("hicfl_lda", ("partition.alpha=0.5",)),
    "USC-HAD": Setting("hicfl_usc_had"),
}
"""The settings of Figures 12 to 14, for HiCFL with the paper's threshold."""


@cache
def thresholds(name: str) -> Mapping[str, float]:
    """The fitted thresholds of a setting, as ``experiments/hicfl_thresholds.py`` found them with another seed."""
    by_setting: dict[str, dict[str, float]] = json.loads(THRESHOLDS.read_text()) if THRESHOLDS.exists() else {}
    return by_setting.get(name, {"epsilon": 1.0, "eps1": 1.0, "eps2": 1.0})


CIFAR = {cell.split()[0]: setting for cell, setting in CELLS.items() if "CIFAR" in cell}
"""The three of them on CIFAR-10."""

STEP_SIZE = {"N1": 0.1, "N2": 0.001, "N3": 0.1}
"""Of the settings on CIFAR-10."""

FEDAVG = ("algorithm.epsilon=0.0",)
"""HiCFL that never splits is FedAvg, and it records stability."""

COMPARED = tuple(cell for cell in CELLS if not cell.endswith(" MNIST"))
"""The settings of Tables II and III that are run: without MNIST, where all methods are within a few points."""


def fitted(cell: str, *sets: str) -> Setting:
    """HiCFL with a fitted threshold in a setting, and what else differs from it."""
    return CELLS[cell].but(f"algorithm.epsilon={thresholds(cell)['epsilon']:g}", *sets)


FITTED = {name: fitted(f"{name} CIFAR-10") for name in CIFAR}
"""HiCFL with fitted thresholds on CIFAR-10."""


def cfl(cell: str) -> Setting:
    """MTCFL in a setting: recursive bipartition gated by norms (Sattler et al., Algorithm 2)."""
    return by_norms(CELLS[cell], cell)


def by_norms(setting: Setting, name: str) -> Setting:
    """MTCFL in a setting, by the thresholds that were fitted in the one of that name."""
    norms = (f"eps1={thresholds(name)['eps1']:g}", f"eps2={thresholds(name)['eps2']:g}")
    return other(setting, "cfl", "trigger=norms", *norms, *SPLITS)


def stable_cfl(cell: str) -> Setting:
    """MTCFL with model stability in a setting (Table V), by the fitted threshold."""
    step_size = STEP_SIZE[cell.split()[0]]
    stability = (f"epsilon={thresholds(cell)['epsilon']:g}", f"xi={0.05 * step_size:g}", "window=3", "rho=0.8")
    return other(CELLS[cell], "cfl", "trigger=stability", *stability, *SPLITS)


SPLITS = ("gamma=0.0", "linkage=single", "min_split=3")
"""Keys of MTCFL. HiCFL's paper names no test of a split's separation, so there is none (gamma)."""


def ifca(setting: Setting, k: int) -> Setting:
    """IFCA with the true number of clusters in a setting."""
    return other(setting, "ifca", f"k={k}", "average=model", "init=restart", "share_body=false")


def other(setting: Setting, algorithm: str, *keys: str) -> Setting:
    """A setting with another algorithm, whose keys start from its defaults."""
    kept = [text for text in setting.sets if not text.startswith("algorithm.")]
    return Setting(setting.experiment, (*kept, f"algorithm.name={algorithm}", *(f"algorithm.{key}" for key in keys)))


def methods(cell: str) -> dict[str, Setting]:
    """What Table II compares in a setting, without training on all data in one place."""
    k = 2 if cell in ("N3 MNIST", "N3 F-MNIST") else 4
    return {
        f"{cell} FedAvg": CELLS[cell].but(*FEDAVG),
        f"{cell} MTCFL": cfl(cell),
        f"{cell} IFCA": ifca(CELLS[cell], k),
        f"{cell} HiCFL": fitted(cell),
        f"{cell} HiCFL, the paper's threshold": CELLS[cell],
    }


# Single exhibits

MIXED = {
    name: setting.but(*FEDAVG, "rounds=20", "probe.bipartition=true")
    for name, setting in {"N1": N1, "N2 0.5": N2.but("partition.share=0.5"), "N2 0.7": N2, "N3": N3}.items()
}
"""The runs of Table IV, in which HiCFL never splits but says how it would."""

SWEEP = {
    "F-MNIST 0.01": fitted("N2 F-MNIST"),
    "F-MNIST 0.1": fitted("N2 F-MNIST", "local.lr=0.1", "algorithm.xi=0.005"),
    "MNIST 0.01": fitted("N2 MNIST"),
    "MNIST 0.1": fitted("N2 MNIST", "local.lr=0.1", "algorithm.xi=0.005"),
    "CIFAR-10 0.001": fitted("N2 CIFAR-10"),
    "CIFAR-10 0.01": fitted("N2 CIFAR-10", "local.lr=0.01", "algorithm.xi=0.0005"),
    "CIFAR-10 0.01, batch 512": fitted("N2 CIFAR-10", "local.lr=0.01", "algorithm.xi=0.0005", "local.batch=32"),
}
"""The step sizes of Figure 7, by data set; the batch is twice that of the others where 512 is said."""

BY_SHARE = {
    f"{data} {share}": fitted(f"N2 {data}", f"partition.share={share}", "rounds=25")
    for data in ("MNIST", "F-MNIST", "CIFAR-10")
    for share in (0.5, 0.6, 0.7, 0.8, 0.9)
}
"""The runs of Figure 8: shares of a group's class."""

XI_SHARES = (0.01, 0.05, 0.1, 0.2)
"""The multiples of the step size for xi; the paper's figure has further ones that its text does not name."""

BY_XI = {
    f"{name} {label}": setting.but("rounds=25", *sets)
    for name, setting in FITTED.items()
    for label, sets in {
        **{f"xi {share}": (f"algorithm.xi={share * STEP_SIZE[name]:g}",) for share in XI_SHARES},
        "all weights": ("algorithm.weight_selection=false",),
    }.items()
}
"""The runs of Figure 9."""

MISPLACED = {
    "normal": FITTED["N2"],
    **{
        f"{share} %, round {round}": FITTED["N2"].but(f"events.misplace=[{{round={round},share={share / 100:g}}}]")
        for share in (10, 20)
        for round in (5, 10)
    },
}
"""The runs of Figure 11: the share of the clients that are put into a wrong cluster, and the round."""

ENDINGS = {"Re-organizing": "reorganise", "Fine-grained": "fine", "Personalized": "personal"}
"""The variants of Table VI."""


def rivals(name: str) -> dict[str, Setting]:
    """HiCFL and its rivals in a natural setting."""
    setting = NATURAL[name]
    return {
        "FedAvg": setting.but(*FEDAVG),
        "MTCFL": by_norms(setting, name),
        "IFCA": ifca(setting, 4),
        "HiCFL": setting.but(f"algorithm.epsilon={thresholds(name)['epsilon']:g}"),
        "HiCFL, the paper's threshold": setting,
    }


NETWORKS = {
    "MNIST-CNN": Setting("weights"),
    "FMNIST-CNN": Setting("weights", ("data.name=fashion_mnist", "model.name=fmnist_cnn")),
    "CIFAR10-CNN": Setting("weights", ("data.name=cifar10", "model.name=cifar_cnn")),
}
"""The networks of Table I."""
