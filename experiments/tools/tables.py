"""Fill the tables of the documentation from the results: what is between ``<!-- table NAME -->`` and ``<!-- end -->``.

python -m experiments.tools.tables
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from statistics import mean

from experiments.adapters_tables import ADAPTERS
from experiments.heart_tables import HEART
from experiments.papers.defaults import defaults
from experiments.papers.ifca_starts import starts
from experiments.published import niid_bench, rotated_mnist
from experiments.published.clove import groups_found
from experiments.speed.cluster_tables import cluster
from experiments.speed.compression_tables import compressed
from experiments.speed.gpu_tables import gpu
from experiments.speed.instructions import instructions
from experiments.speed.many_clients_tables import many_clients
from experiments.speed.virtual_node_tables import super_nodes, virtual_nodes
from experiments.strata.ablation_tables import ABLATIONS
from experiments.strata.comparisons import (
    against,
    compared,
    identical,
    precision,
    precision_on_gpu,
    preclustered,
    tuned,
)
from experiments.strata.conditioned import challenger
from experiments.strata.proofs import PROOFS
from experiments.strata.rank_picture import write_picture
from experiments.strata.rankings import RANKINGS
from experiments.strata.robustness import ROBUSTNESS
from experiments.tools.outcomes import MISSING, acted, difference, listed, lower_than, results, spread, table
from experiments.trust.confirmations import confirmations
from experiments.trust.fault_tables import FAULTS
from experiments.trust.leak_tables import LEAKS
from experiments.trust.null_comparisons import null_comparisons
from experiments.trust.trust import TRUST
from experiments.trust.unlabelled_newcomers import newcomers

ROOT = Path(__file__).parents[2]

FOUND = (
    ("mnist_rotation", "MNIST, rotation, conv"),
    ("fashion_mnist_rotation", "Fashion-MNIST, rotation, conv"),
    ("mnist_majority", "MNIST, majority 0.8, linear"),
    ("fashion_mnist_majority", "Fashion-MNIST, majority 0.8, linear"),
    ("cifar10_rotation", "CIFAR-10, rotation, conv, 1000 images"),
    ("emnist_letters_rotation", "EMNIST Letters, rotation, conv"),
)
AFTER = (
    ("fashion_mnist_rotation", "Fashion-MNIST", "rounds=50"),
    ("cifar10_rotation", "CIFAR-10", "rounds=50"),
)
SHOWN = (1, 5, 10, 15, 20, 30, 40, 50)


def main() -> None:
    """Write all tables, and the picture of the ranks."""
    for path in documents():
        path.write_text(filled(path.read_text()))
    write_picture()


def documents() -> list[Path]:
    """The documents that may hold tables."""
    return sorted((ROOT / "docs").rglob("*.md"))


def filled(text: str) -> str:
    """A document with its tables made anew."""
    return renewed(text, "table", lambda name, *args: TABLES[name](*args))


def renewed(text: str, kind: str, made: Callable[..., str]) -> str:
    """A document with all anew between ``<!-- KIND WORD WORD -->`` and ``<!-- end -->``, made from the words."""
    return re.sub(
        rf"(<!-- {kind} ([\w ]+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{made(*match[2].split())}{match[3]}",
        text,
        flags=re.DOTALL,
    )


def found() -> str:
    """Agreement and accuracy of LayerCFL, and the share of the gap between FedAvg and the oracle that it closes."""
    rows = list[tuple[str, ...]]()
    for experiment, title in FOUND:
        runs = [results(experiment, variant) for variant in ("fedavg", "layercfl_retrying", "oracle")]
        plain, own = runs[:2]
        if not all(runs):
            rows.append((title, MISSING))
            continue
        start, here, end = (mean(result["acc_client"] for result in each) for each in runs)
        accuracies = (spread(each, "acc_client") for each in runs)
        numbers = (*accuracies, difference(own, plain), f"{100 * (here - start) / (end - start):.0f} %")
        losers = (lower_than(own, plain), lower_than(own, results(experiment, "local")))
        rows.append((title, f"{len(own)}", acted(own), listed(own, itemgetter("ari")), *numbers, *losers))
    head = "experiment | seeds | acted in | ARI | FedAvg | LayerCFL | oracle | LayerCFL minus FedAvg | gap closed"
    return table(f"{head} | accuracy lower than with FedAvg | lower than local training", rows)


def carried() -> str:
    """What the thresholds of one data set do on others."""
    titles = dict(FOUND)
    experiments = ("mnist_rotation", "fashion_mnist_rotation", "cifar10_rotation")
    variants = ("layercfl_retrying", "layercfl_retrying:0.25", "layercfl_retrying:0.25")
    rows = []
    for experiment, variant in zip(experiments, variants, strict=True):
        runs = results(experiment, variant)
        cells = [listed(runs, itemgetter(key)) for key in ("clusters", "ari")]
        rows.append((titles[experiment], *cells))
    return table("experiment | clusters | ARI", rows)


def after() -> str:
    """Clusters over rounds, for true groups and for identically distributed clients."""
    rows = []
    for experiment, title, changes in AFTER:
        for partition, ending in (("4 groups", ""), ("IID", "+partition.scheme=iid")):
            runs = results(experiment, f"layercfl_retrying+{changes}{ending}")
            curves = [[str(run["curves"]["clusters"][round - 1]) for round in SHOWN] for run in runs]
            cells = [" / ".join(values) for values in zip(*curves, strict=True)] or [MISSING]
            rows.append((f"{title}, {partition}", " | ".join(cells)))
    return table("data | " + " | ".join(f"round {round}" for round in SHOWN), rows)


def gap() -> str:
    """The first round in which the gap of each layer is positive, the first split, and what that split divided."""
    rows = []
    for run in results("cifar10_rotation", "layercfl_retrying"):
        first = run["splits"][0]
        curves = {name.rsplit(" ", 1)[1]: curve for name, curve in run["curves"].items() if name.startswith("gap dcos")}
        cells = [next((str(i + 1) for i, value in enumerate(curve) if value > 0), "never") for curve in curves.values()]
        rows.append((str(run["seed"]), " | ".join(cells), str(first["round"]), str(first["torn groups"])))
    layers = "conv1 | conv2 | linear | all"
    return table(f"seed | {layers} | first split in round | true groups that it divided", rows or [(MISSING,)])


TABLES: Mapping[str, Callable[..., str]] = {
    "defaults": defaults,
    "ifca_starts": starts,
    "challenger": challenger,
    "clove_grid": groups_found,
    "niid_bench": niid_bench.repeated,
    "rotated_mnist": rotated_mnist.repeated,
    "found": found,
    "carried": carried,
    "after": after,
    "gap": gap,
    "null_comparisons": null_comparisons,
    "confirmations": confirmations,
    "iid": identical,
    "compared": compared,
    "against": against,
    "tuned": tuned,
    "preclustered": preclustered,
    "precision": precision,
    "precision_on_gpu": precision_on_gpu,
    "instructions": instructions,
    "cluster": cluster,
    "compressed": compressed,
    "many_clients": many_clients,
    "gpu": gpu,
    "virtual_nodes": virtual_nodes,
    "super_nodes": super_nodes,
    "unlabelled_newcomers": newcomers,
    **ABLATIONS,
    **FAULTS,
    **ADAPTERS,
    **HEART,
    **PROOFS,
    **RANKINGS,
    **ROBUSTNESS,
    **LEAKS,
    **TRUST,
}
"""What a document may name, with at most one word behind it."""


if __name__ == "__main__":
    main()
