"""The tables that compare algorithms: on clients that are alike, and where there is something to be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import mean

from experiments.tools.descriptions import clustering, title_of
from experiments.tools.outcomes import (
    MISSING,
    Result,
    acted,
    average,
    beside,
    counted,
    difference,
    every,
    listed,
    lower_than,
    results,
    spread,
    table,
)

Named = tuple[tuple[str, str], ...]

BASELINES = (
    ("fedavg", "FedAvg"),
    ("local", "local training"),
    ("oracle", "oracle (the true groups)"),
)
"""No groups, no federation, the true groups."""

PERSONAL = (
    ("finetune", "fine-tuning"),
    ("ditto", "Ditto"),
    ("fedper", "FedPer"),
    ("fedrep", "FedRep"),
)
"""One federation, and something that is each client's own."""

CLUSTERED = (
    ("ifca", "IFCA"),
    ("fesem", "FeSEM"),
    ("cfl", "CFL"),
    ("layercfl", "LayerCFL"),
    ("hicfl", "HiCFL"),
    ("hicfl_mean", "HiCFL, mean of the members"),
    ("adacfl", "AdaCFL"),
    ("fedclust", "FedClust"),
    ("fl_hc", "FL+HC"),
    ("strata", "Strata"),
)

NOT_CLUSTERING = dict(BASELINES + PERSONAL)
"""Methods that never look for clusters, so that they do not act."""


@dataclass(frozen=True)
class Comparison:
    """The methods on one federation, all with the same images and rounds.

    Attributes:
        title: What the clients have, in a few words.
        methods: Variant of `study.py` and what it is. The keys are in the experiment.
    """

    title: str
    methods: Named


GROUPED = (*BASELINES, *PERSONAL, *CLUSTERED)
WITHOUT_TRUTH = tuple(method for method in GROUPED if method[0] != "oracle")

COMPARED = {
    "compare_fashion_rotation": Comparison("Fashion-MNIST, 4 rotations", GROUPED),
    "compare_fashion_majority": Comparison("Fashion-MNIST, 4 majorities of 0.8", GROUPED),
    "compare_fashion_dirichlet": Comparison(
        "Fashion-MNIST, Dirichlet 0.3", (*WITHOUT_TRUTH[:-1], ("fedtsdp", "FedTSDP"), WITHOUT_TRUTH[-1])
    ),
    "compare_usc_had": Comparison("USC-HAD, 14 people", WITHOUT_TRUTH),
    "late_split": Comparison(
        "MNIST, 4 weak majorities of 0.35",
        (
            *BASELINES,
            ("cfl", "CFL, `auto`"),
            ("layercfl", "LayerCFL, `auto`, all layers"),
            ("strata", "Strata"),
        ),
    ),
}
"""The tables of `compared`, by experiment."""

WEAK = "late_split"
"""The experiment whose results are of an earlier revision."""

HEAD = (
    "method | seeds | accuracy | minus FedAvg | worst client | acted in | clusters | ARI | "
    "accuracy lower than with FedAvg | lower than local training"
)
LOSERS = "accuracy lower than with FedAvg | lower than local training"


def compared(experiment: str) -> str:
    """All methods on one federation; each is held against FedAvg on the same seeds, and client by client."""
    rows = list[tuple[str, ...]]()
    missing = []
    plain, alone = results(experiment, "fedavg"), results(experiment, "local")
    for variant, method in COMPARED[experiment].methods:
        runs = results(experiment, variant)
        if not runs:
            missing.append(method)
            continue
        ahead = "-" if variant == "fedavg" else difference(runs, plain)
        numbers = (f"{len(runs)}", spread(runs, "acc_client"), ahead, average(runs, "acc_worst"))
        below_plain = "-" if variant == "fedavg" else lower_than(runs, plain)
        below_alone = "-" if variant == "local" else lower_than(runs, alone)
        rows.append((method, *numbers, *_clusters(variant, runs), below_plain, below_alone))
    if missing:
        rows.append((", ".join(missing), "", MISSING, *[""] * 7))
    return table(HEAD, rows)


def _clusters(variant: str, runs: Sequence[Result]) -> tuple[str, str, str]:
    """In how many runs a method acted, its clusters at the end, and their agreement with the truth."""
    if variant in NOT_CLUSTERING:
        return ("-", "-", "-")
    known = [run["ari"] for run in runs if run["ari"] is not None]
    agreement = f"{mean(known):.2f}" if known else "-"
    return (acted(runs), listed(runs, itemgetter("clusters")), agreement)


def against(variant: str) -> str:
    """What a method is ahead of each other one, on every federation that is compared today and on which it ran."""
    experiments = [name for name in COMPARED if name != WEAK and results(name, variant)]
    if not experiments:
        return table("method", [(MISSING,)])
    names = {other: method for name in experiments for other, method in COMPARED[name].methods if other != variant}
    rows = []
    for other, method in names.items():
        cells = [
            difference(results(name, variant), results(name, other)) if other in dict(COMPARED[name].methods) else "-"
            for name in experiments
        ]
        rows.append((method, *cells))
    return table(" | ".join(["minus", *(COMPARED[name].title for name in experiments)]), rows)


TUNED = {
    "tuning_fashion_rotation": "Fashion-MNIST, 4 rotations",
    "tuning_fashion_majority": "Fashion-MNIST, 4 majorities of 0.8",
    "tuning_fashion_dirichlet": "Fashion-MNIST, Dirichlet 0.3",
    "tuning_usc_had": "USC-HAD, 14 people",
}
"""The file of results of each search for thresholds, and its federation."""


def tuned() -> str:
    """The thresholds that were tried on another seed: accuracy, clusters and agreement of each."""
    rows = list[tuple[str, ...]]()
    for file, title in TUNED.items():
        tried = [run for run in every(file) if _algorithm(run["variant"]) in ("cfl", "layercfl")]
        for run in tried:
            found = (f"{run['acc_client']:.3f}", str(run["clusters"]), listed([run], itemgetter("ari")))
            rows.append((title, str(run["seed"]), _titled(run["variant"]), *found))
        if not tried:
            rows.append((title, "", MISSING, "", "", ""))
    return table("federation | seed | method | accuracy | clusters | ARI", rows)


PRECISE = tuple(
    (experiment, f"partition={partition}", f"{data}, {title}")
    for experiment, data in (("strata_mnist", "MNIST"), ("strata_cifar10", "CIFAR-10"))
    for partition, title in (
        ('{scheme="rotation",groups=4}', "4 rotations"),
        ('{scheme="majority",groups=4,share=0.8}', "4 majorities of 0.8"),
    )
)
"""Experiment, changes and title of what was also trained in bfloat16."""

BFLOAT16 = 'engine.precision="bfloat16"'

ALIKE = "iid_mnist"
ROUNDS = (1, 5, 10, 20)


def identical(name: str = "") -> str:
    """What one algorithm, or all, do with clients that are alike: clusters over the rounds, and clients that lose."""
    found = [run["variant"] for run in every(ALIKE)]
    rows = list[tuple[str, ...]]()
    for algorithm in [name] if name else clustering():
        variants = sorted({variant for variant in found if _algorithm(variant) == algorithm}, key=len)
        rows += [_alike(variant) for variant in variants] or [(title_of(algorithm), "", MISSING)]
    rounds = " | ".join(f"clusters in round {round}" for round in ROUNDS)
    return table(f"algorithm | seeds | {rounds} | acted in | accuracy | minus FedAvg | {LOSERS}", rows)


def _alike(variant: str) -> tuple[str, ...]:
    """One row of that table."""
    runs, plain, alone = results(ALIKE, variant), *(beside(ALIKE, variant, other) for other in ("fedavg", "local"))
    clusters = [counted(run["curves"]["clusters"][round - 1] for run in runs) for round in ROUNDS]
    numbers = (acted(runs), spread(runs, "acc_client"), difference(runs, plain))
    return (_titled(variant), f"{len(runs)}", *clusters, *numbers, lower_than(runs, plain), lower_than(runs, alone))


def preclustered() -> str:
    """What AdaCFL finds with default keys where clients of five groups have 80 % of one class, one row a seed."""
    rows = [
        (str(run["seed"]), str(run["clusters"]), f"{run['ari']:.2f}", str(run["rounds_to_partition"]))
        for run in results("adacfl_mnist_majority", "adacfl+rounds=3")
    ]
    return table("seed | clusters | ARI | partition in round", rows or [("", MISSING, "", "")])


def _algorithm(variant: str) -> str:
    return variant.split("+")[0].split(":")[0]


def _titled(variant: str) -> str:
    """An algorithm, and which keys of the file it changes."""
    name, *changes = variant.split("+")
    name, _, thresholds = name.partition(":")
    if thresholds:
        changes = [f"eps1={thresholds}", f"eps2={thresholds}", *changes]
    return ", ".join([title_of(name), *(f"`{change.removeprefix('algorithm.')}`" for change in changes)])


def precision() -> str:
    """Accuracy and agreement of training in bfloat16, beside float32 with the same seeds."""
    rows = list[tuple[str, ...]]()
    for experiment, on, title in PRECISE:
        for name, method in (("fedavg", "FedAvg"), ("strata", "Strata")):
            short = results(experiment, f"{name}+{BFLOAT16}+{on}")
            seeds = {run["seed"] for run in short}
            full = [run for run in results(experiment, f"{name}+{on}") if run["seed"] in seeds]
            if not short or len(full) < len(short):
                rows.append((title, method, "", MISSING, *[""] * 4))
                continue
            agreement = [listed(runs, itemgetter("ari")) for runs in (full, short)]
            accuracies = [spread(runs, "acc_client") for runs in (full, short)]
            rows.append((title, method, f"{len(short)}", *accuracies, difference(short, full), *agreement))
    return table("data | method | seeds | float32 | bfloat16 | difference | ARI, float32 | ARI, bfloat16", rows)


def precision_on_gpu() -> str:
    """Accuracy and agreement of training on a GPU in TF32 and bfloat16, beside float32 with the same seeds."""
    rows = list[tuple[str, ...]]()
    on = 'partition={scheme="rotation",groups=4}'
    for name, method in (("fedavg", "FedAvg"), ("strata", "Strata")):
        runs = {
            each: results("gpu_precisions", f'{name}+engine={{name="batched",device="cuda",precision="{each}"}}+{on}')
            for each in ("float32", "tf32", "bfloat16")
        }
        exact, *others = runs.values()
        if not all(runs.values()):
            rows.append((method, "", MISSING, *[""] * 3))
            continue
        agreement = ", ".join(dict.fromkeys(listed(each, itemgetter("ari")) for each in runs.values()))
        apart = [difference(each, exact) for each in others]
        rows.append((method, f"{len(exact)}", spread(exact, "acc_client"), *apart, agreement))
    return table("method | seeds | float32 | TF32, difference | bfloat16, difference | ARI", rows)
