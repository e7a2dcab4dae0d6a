"""The settings of HiCFL's exhibits: its three kinds of skew on three data sets, its rivals, and its step sizes.

Batches and step sizes are the paper's, but where `LEARNING` or an experiment says otherwise. It names neither the
images of a client nor its local epochs, on which the noise of stability depends: here clients have equal numbers of
whole batches, and as many epochs as let every member of a cluster become stable (Eq. 15). The paper's own sizes differ
by Dirichlet(1), which keeps the smallest clients from it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache

from .exhibit import HERE, Setting
from .rivals import cfl_by_norms, other

THRESHOLDS = HERE.parent / "results" / "cfl_thresholds.json"

N1 = Setting("hicfl_n1")
N2 = Setting("hicfl_n2")
N3 = Setting("hicfl_n3")

MNIST = ("data.name=mnist", "model.name=mnist_cnn")
FASHION = ("data.name=fashion_mnist", "model.name=fmnist_cnn")


def step_size(lr: float) -> tuple[str, ...]:
    """A step size, and the thresholds of HiCFL that follow from it (section V-A)."""
    return (f"local.lr={lr:g}", f"algorithm.epsilon={0.5 * lr:g}", f"algorithm.xi={0.05 * lr:g}")


EQUAL_SIZES = "clients of equal size in place of Dirichlet(1): 1,024 images and five epochs, in Non-IID-2 768 and one"

LEARNS = (
    "768 images for every client in place of Dirichlet(1), three epochs, and a step size of 0.05 in place of 0.001, "
    "with which models learn more than the main class (`hicfl_local_work.py`); 30 rounds of 50"
)

CELLS = {
    "N1 MNIST": N1.but(*MNIST),
    "N1 F-MNIST": N1.but(*FASHION),
    "N1 CIFAR-10": N1,
    "N2 MNIST": N2.but(*MNIST, *step_size(0.01)),
    "N2 F-MNIST": N2.but(*FASHION, *step_size(0.01)),
    "N2 CIFAR-10": N2,
    "N3 MNIST": N3.but(*MNIST, "partition.groups=2"),
    "N3 F-MNIST": N3.but(*FASHION, "partition.groups=2"),
    "N3 CIFAR-10": N3,
}
"""The nine settings of Tables II and III, for HiCFL as its paper has it."""

NATURAL = {
    "LDA 0.3": Setting("hicfl_lda"),
    "LDA 0.5": Setting("hicfl_lda", ("partition.alpha=0.5",)),
    "USC-HAD": Setting("hicfl_usc_had"),
}
"""The settings of Figures 12 to 14, for HiCFL."""


@cache
def thresholds(name: str) -> Mapping[str, float]:
    """CFL's thresholds in a setting, as ``experiments/papers/cfl_thresholds.py`` found them with another seed."""
    by_setting: dict[str, dict[str, float]] = json.loads(THRESHOLDS.read_text())
    return by_setting[name]


LEARNING_RATE = 0.05
"""The step size of `LEARNING`."""

LEARNING = N2.but("local.epochs=3", *step_size(LEARNING_RATE), "rounds=30")
"""Non-IID-2 on CIFAR-10 with local work of which models learn more than their group's main class.

With the paper's step size and one epoch the groups are complete in the paper's rounds, but models are right for 70 % of
the images, the share of the main class. ``hicfl_local_work.py`` tried others, with a seed that no exhibit has. Exhibits
that are about accuracies in this setting have this one.
"""

SETTINGS = {**CELLS, "N2 CIFAR-10, learning": LEARNING.but("rounds=50"), **NATURAL}
"""All settings in which HiCFL has rivals."""

STEP_SIZE = {"N1": 0.1, "N2": 0.001, "N3": 0.1}
"""Of the settings on CIFAR-10."""

FEDAVG = ("algorithm.epsilon=0.0",)
"""HiCFL that never splits is FedAvg, and it records stability."""

COMPARED = tuple(cell for cell in CELLS if cell.startswith("N2") or cell in ("N1 CIFAR-10", "N3 CIFAR-10"))
"""The settings of Tables II and III that are run: for time, without the larger networks in Non-IID-1 and Non-IID-3."""


def variant(setting: Setting, name: str) -> Setting:
    """A setting with a variant of its algorithm that is in ``variants.py``, and with the same keys."""
    keys = tomllib.loads(setting.path.read_text())["algorithm"]
    own = [f"algorithm.{key}={json.dumps(value)}" for key, value in keys.items() if key != "name"]
    # Another algorithm does not have the keys of the file by itself.
    named = f"algorithm.name=experiments.papers.variants:{name}"
    return Setting(setting.experiment, (named, *own, *setting.sets))


def cfl(name: str) -> Setting:
    """MTCFL in a setting: recursive bipartition gated by norms (Sattler et al., Algorithm 2)."""
    fitted = thresholds(name)
    return cfl_by_norms(SETTINGS[name], fitted["eps1"], fitted["eps2"], NO_BOUND)


def stable_cfl(cell: str) -> Setting:
    """MTCFL with model stability in a setting (Table V), as HiCFL has it."""
    lr = STEP_SIZE[cell.split()[0]]
    stability = (f"epsilon={0.5 * lr:g}", f"xi={0.05 * lr:g}", "window=3", "rho=0.8")
    splits = (f"gamma={NO_BOUND}", "linkage=single", "min_split=3")
    return other(CELLS[cell], "experiments.papers.variants:StableCFL", *stability, *splits)


NO_BOUND = 0.0
"""MTCFL's gamma. HiCFL's paper names no test of a split's separation, so there is none."""


def ifca(setting: Setting) -> Setting:
    """IFCA with the true number of clusters in a setting; four where there are no groups."""
    k = 2 if "partition.groups=2" in setting.sets else 4
    return other(setting, "ifca", f"k={k}", "average=model", "init=restart", "share_body=false")


def methods(name: str) -> dict[str, Setting]:
    """HiCFL and its rivals in a setting."""
    setting = SETTINGS[name]
    return {
        "FedAvg": setting.but(*FEDAVG),
        "MTCFL": cfl(name),
        "IFCA": ifca(setting),
        "HiCFL": setting,
    }


# Single exhibits

MIXED = {
    name: variant(setting.but(*FEDAVG, "rounds=20"), "WatchedHiCFL")
    for name, setting in {
        "N1": N1.but("partition.labels=[[0,1,2,3],[4,5,6,7,8,9]]"),
        "N2 0.5": N2.but("partition.groups=2", "partition.share=0.5", "data.samples=512"),
        "N2 0.7": N2.but("partition.groups=2", "data.samples=512"),
        "N3": N3.but("partition.groups=2"),
    }.items()
}
"""The runs of Table IV, in which HiCFL never splits but says how it would; two groups, as section V-C has it."""

SWEEP = {
    "F-MNIST 0.01": CELLS["N2 F-MNIST"],
    "F-MNIST 0.1": N2.but(*FASHION, *step_size(0.1)),
    "MNIST 0.01": CELLS["N2 MNIST"],
    "MNIST 0.1": N2.but(*MNIST, *step_size(0.1)),
    "CIFAR-10 0.001": N2,
    "CIFAR-10 0.01": N2.but(*step_size(0.01)),
    "CIFAR-10 0.01, batch 512": N2.but(*step_size(0.01), "local.batch=512"),
}
"""The step sizes of Figure 7, by data set; the batch is 256 where nothing is said."""

LEVELS_ROUNDS = 25
"""The rounds of Figure 8 here."""

MAIN_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)

BY_SHARE = {
    f"{data} {share}": CELLS[f"N2 {data}"].but(f"partition.share={share}", f"rounds={LEVELS_ROUNDS}")
    for data in ("MNIST", "F-MNIST", "CIFAR-10")
    for share in MAIN_SHARES
}
"""The runs of Figure 8: shares of a group's class."""

XI_SHARES = (0.01, 0.05, 0.1, 0.2)
"""The multiples of the step size for xi; the paper's figure has further ones that its text does not name."""

PAPERS_XI = 0.05
"""The one that the paper recommends."""

ALL_WEIGHTS = 1e9
"""The xi that no weight reaches, so that stability looks at all weights."""

UNSPLIT = 4
"""The rounds of Figure 9 in which weights are counted; in the last of them the first split comes at the earliest."""

BY_XI = {
    **{
        f"N2 xi {share}": LEARNING.but(f"algorithm.xi={share * LEARNING_RATE:g}", f"rounds={UNSPLIT}")
        for share in XI_SHARES
        if share != PAPERS_XI
    },
    f"N2 xi {PAPERS_XI}": LEARNING,
    "N2 all weights": LEARNING.but(f"algorithm.xi={ALL_WEIGHTS:g}", "rounds=16"),
}
"""The runs of Figure 9."""

MISPLACED = {
    "normal": LEARNING,
    **{
        f"{share} %, round {round}": LEARNING.but(f"events.misplace=[{{round={round},share={share / 100:g}}}]")
        for share in (10, 20)
        for round in (5, 10)
    },
}
"""The runs of Figure 11: the share of the clients that are put into a wrong cluster, and the round."""

ENDINGS = {"Re-organizing": "reorganise", "Fine-grained": "fine", "Personalized": "personal"}
"""The variants of Table VI."""


NETWORKS = {
    "MNIST-CNN": Setting("weights"),
    "FMNIST-CNN": Setting("weights", ("data.name=fashion_mnist", "model.name=fmnist_cnn")),
    "CIFAR10-CNN": Setting("weights", ("data.name=cifar10", "model.name=cifar_cnn")),
}
"""The networks of Table I."""
