"""Exhibits of AdaCFL.

"Adaptive clustered federated learning for heterogeneous data in edge computing", Mobile Networks and Applications
2022, sections 3, 4 and 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import sqrt

import torch

from fedstrata.clustering import agglomerate, euclidean

from .exhibit import Exhibit, Measured, Quantities, Setting
from .hicfl import weight_counts
from .hicfl_settings import NETWORKS
from .measures import (
    agreement,
    client_accuracy,
    clusters,
    dip,
    percent,
    round_of_final_accuracy,
    rounds_to_recover,
    seconds,
    within_and_across,
)
from .rivals import cfl_by_norms, other
from .run_folder import RunFolder

MAIN = Setting("adacfl")
CIFAR = ("data.name=cifar10", "model.name=cifar_cnn", "local.batch=50")
FASHION = ("data.name=fashion_mnist", "model.name=fmnist_cnn", "local.batch=150", "data.samples=480")

DATA = {
    "MNIST": MAIN,
    "CIFAR-10": MAIN.but(*CIFAR, "partition.groups=10"),
    "F-MNIST": MAIN.but(*FASHION),
}
"""The data sets of Table 2, with 80 % of a client's images of its group's class."""

MIXES = {
    "0.5": ("partition.share=0.5",),
    "0.8": (),
    "1.0": ("partition.share=1.0",),
    "B": ('partition={scheme="class_pairs"}',),
}
"""The paper's alpha: the share of the group's class, or pairs of classes (B)."""

GROUPS = {"MNIST": 5, "CIFAR-10": 10, "F-MNIST": 5}
"""Of a data set; B has ten everywhere."""


def cell(data: str, mix: str) -> Setting:
    """AdaCFL in a cell of Table 2."""
    setting = DATA[data].but(*MIXES[mix])
    if mix != "B":
        return setting
    return Setting(setting.experiment, tuple(each for each in setting.sets if "groups=" not in each))


SMALL = ("data.clients=20", "rounds=12")
"""What makes a cell of Table 2 small enough for two cores."""


def small(data: str, mix: str) -> Setting:
    """AdaCFL in a cell of Table 2, with fewer clients and rounds."""
    return cell(data, mix).but(*SMALL)


THRESHOLDS = {"0.5": (0.7, 0.9), "0.8": (0.85, 1.1), "1.0": (1.6, 2.0), "B": (1.5, 1.7)}
"""Of FMTL (eps1, eps2), which the paper does not give. Adam moves every weight by about its step size, however small
the gradient is, so the mean update settles at half of the largest one, and not below a tenth of it as the automatic
threshold wants. These were chosen on seed 10 (``exhibit_keys.py``): just above the norm at which the mean update
settles, and below that of the largest update."""


def fmtl(setting: Setting, eps1: float, eps2: float, *keys: str) -> Setting:
    """FMTL (CFL) in a setting, with thresholds."""
    return cfl_by_norms(setting, eps1, eps2, 0.5, *keys)


def methods(data: str, mix: str) -> dict[str, Setting]:
    """What Table 2 compares in a cell."""
    setting = small(data, mix)
    k = 10 if mix == "B" else GROUPS[data]
    return {
        f"{mix} {data} FedAvg": other(setting, "fedavg"),
        # The first updates are still far from a stationary point: splits in rounds 2 and 3 separate single clients.
        f"{mix} {data} FMTL": fmtl(setting, *THRESHOLDS[mix], "first=4"),
        f"{mix} {data} IFCA": other(setting, "ifca", f"k={k}", "average=model", "init=random", "share_body=false"),
        f"{mix} {data} AdaCFL": setting,
    }


TABLE_2 = {
    "0.5": {
        "FedAvg": ((97.03, 15), (35.40, 38), (81.94, 22)),
        "FMTL": ((96.77, 10), (53.94, 31), (83.12, 16)),
        "IFCA": ((96.12, 8), (58.53, 6), (85.19, 14)),
        "AdaCFL": ((96.53, 4), (57.51, 2), (84.97, 7)),
    },
    "0.8": {
        "FedAvg": ((96.62, 14), (31.20, 42), (76.03, 18)),
        "FMTL": ((97.22, 12), (63.43, 25), (85.56, 16)),
        "IFCA": ((98.06, 8), (79.61, 3), (91.23, 11)),
        "AdaCFL": ((99.12, 5), (79.87, 2), (91.56, 9)),
    },
    "1.0": {
        "FedAvg": ((94.37, 20), (26.15, 33), (79.07, 30)),
        "FMTL": ((97.64, 15), (82.27, 38), (97.03, 36)),
        "IFCA": ((99.83, 5), (99.81, 6), (99.96, 4)),
        "AdaCFL": ((99.67, 2), (99.73, 3), (99.92, 2)),
    },
    "B": {
        "FedAvg": ((95.95, 16), (44.61, 32), (81.80, 26)),
        "FMTL": ((97.65, 24), (78.85, 37), (93.73, 33)),
        "IFCA": ((99.38, 5), (86.95, 14), (97.59, 6)),
        "AdaCFL": ((99.12, 3), (85.90, 10), (98.93, 3)),
    },
}
"""The paper's accuracies in percent and the rounds that reached them, on MNIST, CIFAR-10 and Fashion-MNIST."""


def accuracy_and_round(runs: Mapping[str, RunFolder]) -> Quantities:
    """The accuracy after the last round, and the first round that has it but for half a point."""
    found: dict[str, float | None] = {}
    for name, run in runs.items():
        found[f"{name} accuracy"] = client_accuracy(run)
        found[f"{name} round"] = round_of_final_accuracy(run.curve("acc_client"))
        if name.endswith("FMTL"):
            found[f"{name} clusters"] = clusters(run)
    return found


def compared_with_adacfl(runs: Mapping[str, RunFolder]) -> Quantities:
    """Table 2, and how many times AdaCFL's rounds its rivals need in the mean."""
    found = dict(accuracy_and_round(runs))
    ratios = [
        (found[f"{mix} {data} {rival} round"] or 0.0) / (found[f"{mix} {data} AdaCFL round"] or 1.0)
        for mix in MIXES
        for data in DATA
        for rival in RIVALS
    ]
    found["rounds of a rival / AdaCFL's"] = sum(ratios) / len(ratios)
    found["most clusters of FMTL"] = max(found[f"{mix} {data} FMTL clusters"] or 0.0 for mix in MIXES for data in DATA)
    return found


RIVALS = ("FedAvg", "FMTL", "IFCA")
"""What AdaCFL is compared with in Table 2."""


def never_split(found: Measured) -> str:
    """Says where FMTL never split with some seed, so that it is FedAvg there."""
    whole = [f"{mix} {data}" for mix in MIXES for data in DATA if not found.above(f"{mix} {data} FMTL clusters", 1.5)]
    return f" (FMTL never split in {', '.join(whole)})" if whole else ""


def split_nowhere(found: Measured) -> str:
    """Says that FMTL split in no cell of Table 2."""
    return "" if found.above("most clusters of FMTL", 1.5) else "FMTL split in no cell, so it is FedAvg."


def adacfl_is_fast(found: Measured) -> Mapping[str, bool]:
    """Table 2."""
    cells = [(mix, data) for mix in MIXES for data in DATA]
    near = [found.less(f"{mix} {data} IFCA accuracy", f"{mix} {data} AdaCFL accuracy", by=-2) for mix, data in cells]
    fewest = [
        # Half a round is added so that equally many rounds count as few.
        all(found.less(f"{mix} {data} AdaCFL round", f"{mix} {data} {rival} round", by=-0.5) for rival in RIVALS)
        for mix, data in cells
    ]
    ahead = [
        # Where groups share no class, both may be right always.
        found.less(f"{mix} {data} {rival} accuracy", f"{mix} {data} AdaCFL accuracy", by=-0.5)
        for mix, data in cells
        if mix != "0.5"
        for rival in ("FedAvg", "FMTL")
        if rival == "FedAvg" or found.above(f"{mix} {data} FMTL clusters", 1.5)
    ]
    falls = [found.less(f"1.0 {data} FedAvg accuracy", f"0.5 {data} FedAvg accuracy") for data in DATA]
    return {
        "AdaCFL is at most 2 points behind IFCA in every cell": all(near),
        "no rival needs fewer rounds than AdaCFL in any cell": all(fewest),
        "the rivals need at least twice AdaCFL's rounds in the mean": found.above("rounds of a rival / AdaCFL's", 2),
        f"AdaCFL is not behind FMTL and FedAvg in any cell but those of 0.5{never_split(found)}": all(ahead),
        "FedAvg is less accurate with 1.0 than with 0.5": all(falls),
    }


# Table 3: the number of clusters


def found_clusters(runs: Mapping[str, RunFolder]) -> Quantities:
    """The clusters that were found, and how well they are the true groups."""
    return {
        **{f"{name} clusters": clusters(run) for name, run in runs.items()},
        **{f"{name} ARI": agreement(run) for name, run in runs.items()},
    }


TABLE_3 = {"0.5": (5, 8, 4), "0.8": (5, 10, 5), "1.0": (5, 10, 5), "B": (10, 10, 10)}
"""The clusters that the paper found on MNIST, CIFAR-10 and Fashion-MNIST."""


def right_clusters(found: Measured) -> Mapping[str, bool]:
    """Table 3."""
    return {
        f"{mix} {data}: as many clusters as in the paper": found.mean(f"{mix} {data} clusters") == count
        for mix, counts in TABLE_3.items()
        for data, count in zip(DATA, counts, strict=True)
    }


def one_round(data: str, mix: str) -> Setting:
    """A cell of Table 3: the clients are clustered in round 1, so there need not be more."""
    clients = 50 if data == "F-MNIST" else 100
    distances = ('probe.matrices=["l2"]', 'probe.layers=["linear"]')
    return cell(data, mix).but("rounds=1", f"data.clients={clients}", *distances)


# Table 4: complete or partial weights


def weights_compared(data: str, mix: str) -> dict[str, Setting]:
    """AdaCFL by all weights, cut as in the paper or where the hierarchy tells, and by those of the linear layer."""
    setting = small(data, mix)
    complete = setting.but("algorithm.layers=all")
    return {
        f"{mix} {data} complete": complete,
        f"{mix} {data} complete, own cut": complete.but("algorithm.cut=auto"),
        f"{mix} {data} partial": setting,
    }


def accuracies_and_clusters(runs: Mapping[str, RunFolder]) -> Quantities:
    """Accuracy and the round that reached it, clusters and ARI."""
    return {**accuracy_and_round(runs), **found_clusters(runs)}


def partial_is_better(found: Measured) -> Mapping[str, bool]:
    """Table 4."""
    return {
        f"{mix} {data}: partial weights are more accurate": found.less(
            f"{mix} {data} complete accuracy", f"{mix} {data} partial accuracy"
        )
        for mix in ("0.8", "B")
        for data in DATA
    }


TABLE_4 = {
    "0.8": {"complete": (95.94, 32.47, 77.68), "partial": (99.12, 79.87, 91.56)},
    "B": {"complete": (95.84, 38.81, 77.51), "partial": (99.12, 85.90, 98.93)},
}

# Table 5: the first or the second of two linear layers


CUTS = {
    "MNIST": {"linear1": 4.8, "linear2": 0.45},
    "CIFAR-10": {"linear1": 4.8, "linear2": 0.72},
    "F-MNIST": {"linear1": 4.8, "linear2": 0.55},
}
"""Where the layers of Table 5 are cut. Distances grow with the weights of a layer, so 1.4 fits neither. These numbers
fit the distances after round 1 of seed 10, with 0.8 and with B (``exhibit_keys.py``)."""


def linear_layers(data: str, mix: str) -> dict[str, Setting]:
    """AdaCFL by either linear layer of a network that has two."""
    setting = small(data, mix).but("rounds=5", "model.hidden=100")
    return {
        f"{mix} {data} {name}": setting.but(f"algorithm.layers={layer}", f"algorithm.cut={CUTS[data][layer]}")
        for name, layer in (("first", "linear1"), ("second", "linear2"))
    }


def accuracies_and_partitions(runs: Mapping[str, RunFolder]) -> Quantities:
    """Accuracy, clusters and ARI by either layer, and whether both give the same partition (1) or not (0)."""
    found = {**accuracies_and_clusters(runs)}
    for name in runs:
        if name.endswith("first"):
            pair = name.removesuffix(" first")
            labels = [runs[f"{pair} {layer}"].rounds[-1]["labels"] for layer in ("first", "second")]
            found[f"{pair} same partition"] = float(labels[0] == labels[1])
    return found


TABLE_5 = {
    "0.8": {"first": (99.17, 79.79, 91.60), "second": (99.14, 79.84, 91.56)},
    "B": {"first": (99.14, 85.95, 99.06), "second": (99.12, 86.10, 98.93)},
}
"""The paper's accuracies on MNIST, CIFAR-10 and Fashion-MNIST."""


def layers_agree(found: Measured) -> Mapping[str, bool]:
    """Table 5."""
    conditions = {}
    for mix in TABLE_5:
        for data in DATA:
            first, second = f"{mix} {data} first accuracy", f"{mix} {data} second accuracy"
            conditions[f"{mix} {data}: the accuracies differ by less than a point"] = found.less(
                first, second, by=-1
            ) and found.less(second, first, by=-1)
            conditions[f"{mix} {data}: the partitions are the same"] = found.above(f"{mix} {data} same partition", 0.5)
    return conditions


# Figures 1, 4 and 5


K = (1, 4, 8, 10, 12, 16, 20)
"""The numbers of models for IFCA."""


def accuracies_by_k(runs: Mapping[str, RunFolder]) -> Quantities:
    """The accuracy of IFCA for every number of models, and the best number."""
    accuracies = {int(name): client_accuracy(run) or 0.0 for name, run in runs.items()}
    best = max(accuracies, key=lambda k: accuracies[k])
    return {"best k": float(best), **{f"k = {k} accuracy": value for k, value in accuracies.items()}}


def best_k_is_near_the_truth(found: Measured) -> Mapping[str, bool]:
    """Figure 1 (a)."""
    others = [f"k = {k} accuracy" for k in K if k > 1]
    best = found.mean("best k")
    return {
        "one model is the least accurate": all(found.less("k = 1 accuracy", name) for name in others),
        "the best number is 10 to 15": best is not None and 10 <= best <= 15,
        "accuracy falls beyond it": found.less("k = 20 accuracy", "k = 12 accuracy"),
    }


def jumps(runs: Mapping[str, RunFolder]) -> Quantities:
    """How much accuracy changes from round to round after the tenth, when FMTL splits first, and how it ends."""
    found: dict[str, float | None] = {}
    for name, run in runs.items():
        curve = [100 * (value or 0.0) for value in run.curve("acc_client")][10:]
        steps = [after - before for before, after in pairwise(curve)]
        found[f"{name} change a round"] = sqrt(sum(step**2 for step in steps) / len(steps))
        found[f"{name} accuracy"] = client_accuracy(run)
        splits = run.events("split")
        if name != "FedAvg":
            found[f"{name} first split"] = float(splits[0]["round"]) if splits else None
            found[f"{name} clusters"] = clusters(run)
    return found


def no_split(found: Measured) -> str:
    """Says that FMTL never split, by neither rule of when it may."""
    acted = found.above("FMTL clusters", 1.5) or found.above("FMTL after round 20 clusters", 1.5)
    return "" if acted else "FMTL never split, so it is FedAvg."


def late_and_unstable(found: Measured) -> Mapping[str, bool]:
    """Figure 1 (b)."""
    return {
        "by its thresholds alone, FMTL splits later than round 5": found.above("FMTL first split", 5),
        "its accuracy then changes more from round to round than FedAvg's": found.less(
            "FedAvg change a round", "FMTL change a round"
        ),
        "it does where FMTL splits after round 20, as its authors' code has it": found.less(
            "FedAvg change a round", "FMTL after round 20 change a round"
        ),
    }


SHOWN_LAYERS = {"conv1": "layer 1", "conv7": "layer 7", "linear1": "layer 14", "linear3": "layer 16"}
"""The layers of VGG16 in Figure 2."""


def gaps_of_distances(runs: Mapping[str, RunFolder]) -> Quantities:
    """The Gap of the layers' distances after the last round."""
    (run,) = runs.values()
    return {name: run.gap(len(run.rounds), layer, "l2") for layer, name in SHOWN_LAYERS.items()}


def linear_layers_show(found: Measured) -> Mapping[str, bool]:
    """Figure 2."""
    return {
        "layers 14 and 16 separate the groups": found.above("layer 14", 0) and found.above("layer 16", 0),
        "layers 1 and 7 do not": found.below("layer 1", 0) and found.below("layer 7", 0),
    }


def clustering_seconds(runs: Mapping[str, RunFolder]) -> Quantities:
    """The seconds that clustering 100 clients takes, by all weights and by those of the linear layer."""
    found: dict[str, float | None] = {}
    for name, run in runs.items():
        counts = run.weights()
        rows = torch.randn(100, sum(counts.values()), generator=torch.Generator().manual_seed(0))
        partial = rows[:, : counts["linear"]].contiguous()
        complete = seconds(lambda rows=rows: agglomerate(euclidean(rows), 0.0, "average"))  # type: ignore[misc]
        found[f"{name} complete, s"] = complete
        found[f"{name} partial, s"] = seconds(lambda rows=partial: agglomerate(euclidean(rows), 0.0, "average"))  # type: ignore[misc]
        found[f"{name} times faster"] = complete / (found[f"{name} partial, s"] or complete)
        found[f"{name} times fewer weights"] = sum(counts.values()) / counts["linear"]
    return found


def partial_is_faster(found: Measured) -> Mapping[str, bool]:
    """Figure 4."""
    return {
        **{
            f"{name}: clustering by partial weights takes less than a second": found.below(f"{name} partial, s", 1)
            for name in NETWORKS
        },
        **{
            f"{name}: it is faster than by all weights": found.less(f"{name} partial, s", f"{name} complete, s")
            for name in NETWORKS
        },
        "by all weights it takes longer than a second": all(found.above(f"{name} complete, s", 1) for name in NETWORKS),
    }


JOINED = 20
"""The round in which ten clients join."""


def newcomers(runs: Mapping[str, RunFolder]) -> Quantities:
    """How far accuracy falls when clients join, when it is back, and how many of them are with their own group."""
    found: dict[str, float | None] = {}
    for name, run in runs.items():
        curve = run.curve("acc_client")
        found[f"{name} dip, points"] = dip(curve, JOINED)
        found[f"{name} rounds to recover"] = rounds_to_recover(curve, JOINED)
        found[f"{name} well placed, %"] = percent(well_placed(run))
        found[f"{name} clusters before"] = float(run.rounds[JOINED - 2]["clusters"])
        found[f"{name} ARI before"] = run.rounds[JOINED - 2]["ari"]
        found[f"{name} clusters after"] = clusters(run)
        distances = run.matrix(1, "l2", "smallest_linear of pre-cluster 0")
        groups = [run.truth[client] for client in sorted(run.rounds[0]["cohort"])]
        found[f"{name} distance within"], found[f"{name} distance across"] = within_and_across(distances, groups)
    return found


def well_placed(run: RunFolder) -> float:
    """The share of the newcomers whose cluster is mostly of their own group."""
    labels, truth = run.rounds[-1]["labels"], run.truth
    early = set(run.rounds[0]["cohort"])
    late = [client for client in range(len(truth)) if client not in early]
    right = 0
    for client in late:
        groups = Counter(truth[other] for other in early if labels[other] == labels[client])
        right += bool(groups) and groups.most_common(1)[0][0] == truth[client]
    return right / len(late)


def no_groups(found: Measured) -> str:
    """Says on which data sets the clusters that newcomers join are not the groups."""
    lost = [
        f"{name} ({found.mean(f'{name} clusters before'):.0f} clusters)"
        for name in DATA
        if not found.above(f"{name} ARI before", 0.5)
    ]
    return f"The cut at 1.4 does not find the groups that newcomers could join: {', '.join(lost)}." if lost else ""


def small_dip(found: Measured) -> Mapping[str, bool]:
    """Figure 5."""
    conditions = {}
    for name in DATA:
        conditions[f"{name}: accuracy falls by 5 points at most"] = found.below(f"{name} dip, points", 5)
        conditions[f"{name}: it is back within 5 rounds"] = found.below(f"{name} rounds to recover", 5.5)
        conditions[f"{name}: newcomers are with their own group"] = found.above(f"{name} well placed, %", 99)
    return conditions


NEWCOMERS = Setting("adacfl_newcomers")
TEN_GROUPS = (
    "data.clients=50",
    "partition.groups=10",
    "partition.share=0.8",
    "events.join=[{round=20,clients=[4,9,14,19,24,29,34,39,44,49]}]",
)
"""Ten groups of four clients and a newcomer. With half of the images of one class, no cut finds them on CIFAR-10."""

SPLITTING = MAIN.but(
    *CIFAR,
    "data.clients=30",
    "partition.groups=3",
    "rounds=35",
    "local.optimizer=sgd",
    "local.momentum=0.9",
)
"""The federation in which FMTL is watched (Figure 1 b), with the optimiser of its authors' code."""


TABLE_1 = {"MNIST-CNN": 33500, "CIFAR10-CNN": 6850, "FMNIST-CNN": 21200}
"""The weights of the networks."""

EXHIBITS = [
    Exhibit(
        id="A-F1a",
        paper="adacfl",
        claim="IFCA on CIFAR-10 (0.8, ten groups, 20 rounds): k = 1 is worst, k = 12 is best, more are worse again.",
        settings={
            str(k): other(
                DATA["CIFAR-10"].but("data.clients=40", "data.samples=120", "rounds=10"),
                "ifca",
                f"k={k}",
                "average=model",
                "init=random",
                "share_body=false",
            )
            for k in K
        },
        measure=accuracies_by_k,
        conditions=best_k_is_near_the_truth,
        published={"best k": 12},
        reduction="40 clients of 100, with 120 images each; 10 rounds of 20; seven numbers of models",
        remark=(
            "With some seeds 16 and 20 models are the most accurate. We believe that ten rounds are too few "
            "to train away models that few clients choose, and too few to see what they cost. The paper's 20 "
            "rounds would tell."
        ),
        hours=0.2,
    ),
    Exhibit(
        id="A-F1b",
        paper="adacfl",
        claim="FMTL (CFL) splits late, and its accuracy is less stable than FedAvg's (30 clients in three groups).",
        settings={
            "FedAvg": other(SPLITTING, "fedavg"),
            # Its authors' rule of thumb for eps1, a tenth of the largest update (0.5), is never met in some runs: the
            # mean update has norms of 0.06 to 0.17 after round 2.
            "FMTL": fmtl(SPLITTING, 0.08, 0.3),
            # Its authors' code splits after round 20 alone.
            "FMTL after round 20": fmtl(SPLITTING, 0.15, 0.3, "first=21"),
        },
        measure=jumps,
        conditions=late_and_unstable,
        obstacle=no_split,
        reduction="35 rounds of 50; SGD with momentum 0.9, as in the code of FMTL's authors, where the paper names no "
        "optimiser",
        remark="When FMTL splits is set by its thresholds, which the paper does not give: those used here "
        "are met in round 3 with seed 0, which finds the groups at once, and never with the others. With the groups "
        "accuracy stays at 80 %, which a model has that always predicts the main class. After round 20, as its "
        "authors' code has it, a split makes accuracy jump as the paper shows. The paper's own thresholds "
        "would decide between the two.",
        hours=0.1,
    ),
    Exhibit(
        id="A-F2",
        paper="adacfl",
        claim="VGG16, two label groups: distances of linear layers 14 and 16 show them, those of convolutions do not.",
        settings={
            "VGG16": Setting(
                "layercfl_rotation",
                (
                    "data.clients=10",
                    "data.samples=500",
                    "rounds=8",
                    'partition={scheme="label_groups",labels=[[0,1,2,3,4],[5,6,7,8,9]]}',
                ),
            )
        },
        measure=gaps_of_distances,
        conditions=linear_layers_show,
        reduction="An eighth of VGG16's width; 500 images a client and 8 rounds, of which the paper says nothing",
        remark=(
            "Layer 7 has a Gap near 0, far below that of the linear layers. The paper shows a heat map of one "
            "run, in which so small a difference cannot be seen."
        ),
        hours=0.1,
    ),
    Exhibit(
        id="A-T1",
        paper="adacfl",
        claim="The networks have 33,500, 6,850 and 21,200 weights.",
        settings=NETWORKS,
        measure=weight_counts,
        conditions=lambda found: {
            f"{name} has {count:,} weights": found.mean(name) == count for name, count in TABLE_1.items()
        },
        published={"MNIST-CNN": 33500, "CIFAR10-CNN": 6850, "FMNIST-CNN": 21200},
        remark="The paper's 21,200 counts 8,000 weights for the linear layer of Fashion-MNIST, which is that of "
        "MNIST's; 32 channels of 4 x 4 pixels and ten classes make 5,120, as HiCFL's Table I has it.",
        shown=("MNIST-CNN", "CIFAR10-CNN", "FMNIST-CNN"),
    ),
    Exhibit(
        id="A-T2",
        paper="adacfl",
        claim="AdaCFL is about as accurate as IFCA with the true number of clusters, in a sixth of the rivals' rounds.",
        settings={name: each for mix in MIXES for data in DATA for name, each in methods(data, mix).items()},
        measure=compared_with_adacfl,
        conditions=adacfl_is_fast,
        obstacle=split_nowhere,
        published={
            "rounds of a rival / AdaCFL's": 6.26,
            **{
                f"{mix} {data} {method} {what}": value
                for mix, rows in TABLE_2.items()
                for method, pairs in rows.items()
                for data, pair in zip(DATA, pairs, strict=True)
                for what, value in zip(("accuracy", "round"), pair, strict=True)
            },
        },
        reduction="20 clients of 100, 12 rounds of 50",
        remark=(
            "FMTL's thresholds were chosen on another seed for each mix and not for each cell; where it never splits, "
            "its figures are FedAvg's. The paper has 50 rounds, in which we believe that rivals come nearer. On "
            "CIFAR-10 with 0.8, 80 % is what a model has that always predicts the main class, here and in the paper. "
            "Thresholds for each cell, and 50 rounds, would change our mind."
        ),
        hours=0.7,
        shown=[
            "rounds of a rival / AdaCFL's",
            *(
                f"0.8 {data} {method} {what}"
                for data in DATA
                for method in (*RIVALS, "AdaCFL")
                for what in ("accuracy", "round")
            ),
        ],
    ),
    Exhibit(
        id="A-T3",
        paper="adacfl",
        claim="AdaCFL finds 5, 10 and 5 clusters on MNIST, CIFAR-10 and Fashion-MNIST, but 5, 8 and 4 with 0.5.",
        settings={f"{mix} {data}": one_round(data, mix) for mix in MIXES for data in DATA},
        measure=found_clusters,
        conditions=right_clusters,
        published={
            f"{mix} {data} clusters": count
            for mix, row in TABLE_3.items()
            for data, count in zip(DATA, row, strict=True)
        },
        reduction="50 clients of 100 on Fashion-MNIST, where 100 would need more images of one class than there are; "
        "the round of the clustering alone; the numbers of images were chosen so that 1.4 finds the groups with 0.8, "
        "1.0 and B on most data, so 0.5 tests the claim",
        remark="The paper says neither how many images a client has nor the optimiser: 1.4 fits 220 images (MNIST, "
        "CIFAR-10) and 480 (Fashion-MNIST) with Adam. With 0.5, distances within a group grow more than those across, "
        "so on MNIST and CIFAR-10 the cut lies inside the groups and not, as in the paper, above some of them; on "
        "Fashion-MNIST it finds the true five, where the paper has four. The paper's number of images, or another rule "
        "than Adam's for the first round, could change that.",
        hours=0.1,
        shown=[f"{mix} {data} clusters" for mix in MIXES for data in DATA],
    ),
    Exhibit(
        id="A-T4",
        paper="adacfl",
        claim="Clustering by the linear layer is far more accurate than by all weights (CIFAR-10: 79.87, 32.47 %).",
        settings={
            name: each for mix in ("0.8", "B") for data in DATA for name, each in weights_compared(data, mix).items()
        },
        measure=accuracies_and_clusters,
        conditions=partial_is_better,
        published={
            f"{mix} {data} {weights} accuracy": value
            for mix, rows in TABLE_4.items()
            for weights, values in rows.items()
            for data, value in zip(DATA, values, strict=True)
        },
        reduction="20 clients of 100, 12 rounds of 50",
        remark="On CIFAR-10 and Fashion-MNIST all weights lead to nearly the same clusters as those of the linear "
        "layer, and on MNIST they do with a cut of their own. The paper's accuracies by all weights are about those of "
        "its FedAvg (Table 2), as if all weights led to one cluster there. The distances that the paper found by all "
        "weights would tell why.",
        hours=0.2,
        shown=[
            f"{mix} {data} {weights} accuracy"
            for mix in ("0.8", "B")
            for data in DATA
            for weights in ("complete", "complete, own cut", "partial")
        ],
    ),
    Exhibit(
        id="A-F4",
        paper="adacfl",
        claim="Clustering 100 clients by partial weights takes less than a second, far less than by all weights.",
        settings=NETWORKS,
        measure=clustering_seconds,
        conditions=partial_is_faster,
        reduction="Random weights in place of trained ones",
        remark="Networks of 7,000 to 34,000 weights are small: with one product of matrices for all distances, 100 "
        "clients take a tenth of a second by all weights too. A slower implementation could "
        "exceed a second.",
        hours=0.0,
    ),
    Exhibit(
        id="A-T5",
        paper="adacfl",
        claim="In a network of two linear layers, the first is about as good to cluster by as the second.",
        settings={name: each for mix in TABLE_5 for data in DATA for name, each in linear_layers(data, mix).items()},
        measure=accuracies_and_partitions,
        conditions=layers_agree,
        published={
            f"{mix} {data} {layer} accuracy": value
            for mix, rows in TABLE_5.items()
            for layer, values in rows.items()
            for data, value in zip(DATA, values, strict=True)
        },
        reduction="20 clients of 100, 5 rounds of 50; 100 units between the layers, as the paper's sizes fit none; "
        "each layer has a cut of its own, fitted on another seed so that it finds the groups",
        adapted="the cuts are the paper's: they were fitted, and the paper's cut for either layer would decide it",
        shown=[
            f"{mix} {data} {what}"
            for mix in TABLE_5
            for data in DATA
            for what in ("first accuracy", "second accuracy", "same partition")
        ],
        hours=0.2,
    ),
    Exhibit(
        id="A-F5",
        paper="adacfl",
        claim="When ten clients join in round 20, accuracy falls a little and comes back; their clusters are right.",
        settings={
            "MNIST": NEWCOMERS,
            "CIFAR-10": NEWCOMERS.but(*CIFAR, *TEN_GROUPS),
            "F-MNIST": NEWCOMERS.but(*FASHION),
        },
        measure=newcomers,
        conditions=small_dip,
        obstacle=no_groups,
        reduction="30 clients (CIFAR-10: 40) and one newcomer of each group, for the paper's 100 and 10; 25 rounds; on "
        "CIFAR-10 a share of 0.8 for 0.5, with which 1.4 finds no groups (A-T3)",
        adapted="the share of the main class is the paper's: 0.8 on CIFAR-10 for 0.5, which its images would decide",
        shown=[
            f"{name} {what}"
            for name in DATA
            for what in ("clusters before", "distance within", "distance across", "dip, points", "rounds to recover")
        ],
        hours=0.3,
    ),
]
