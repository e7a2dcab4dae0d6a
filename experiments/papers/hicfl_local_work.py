"""Try local work for HiCFL's Non-IID-2 and Dirichlet mixes, with a seed that no result uses.

    python -m experiments.papers.hicfl_local_work

The paper names batch and step size, not the images and epochs of a client. On CIFAR-10 its groups are complete in under
ten rounds, and its models are right for 76.5 % of the test images (Tables II and III). A model that knows nothing but
its group's main class is right for 70 %. Writes ``experiments/results/hicfl_local_work.json``: for each local work,

* how near the least stable member came to the threshold of Eq. 15, half the step size, while there was one cluster, in
  multiples of the threshold;
* the first round whose clusters are the groups, and the clusters and their accuracy after the last round;
* for some of them, the accuracy after 50 rounds of five clients of one group that train without the others: what a
  model learns of this work when the groups are known.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.papers.cfl_thresholds import least_over_layers
from experiments.papers.exhibit import Setting
from experiments.papers.hicfl_settings import FASHION, FEDAVG, MNIST, N2, step_size
from experiments.papers.measures import agreement, cluster_accuracy, clusters, round_of_groups
from experiments.papers.running import alone, run, short

SEED = 10
RESULTS = Path(__file__).parents[1] / "results" / "hicfl_local_work.json"
FOLDER = Path("runs") / "hicfl_local_work"

TRIED = {
    "1 epoch": N2.but("rounds=16"),
    "5 epochs": N2.but("local.epochs=5", "rounds=8"),
    "1 epoch, Adam": N2.but("local.optimizer=adam", "rounds=8"),
    "1 epoch, step 0.1": N2.but(*step_size(0.1), "rounds=16"),
    "2 epochs, step 0.1": N2.but("local.epochs=2", *step_size(0.1), "rounds=16"),
    "2 epochs, step 0.03": N2.but("local.epochs=2", *step_size(0.03), "rounds=12"),
    "3 epochs, step 0.01, momentum 0.9": N2.but("local.epochs=3", *step_size(0.01), "local.momentum=0.9", "rounds=14"),
    "3 epochs, step 0.03": N2.but("local.epochs=3", *step_size(0.03), "rounds=12"),
    "3 epochs, step 0.05": N2.but("local.epochs=3", *step_size(0.05), "rounds=12"),
    "1 epoch, step 0.05, batch 64": N2.but(*step_size(0.05), "local.batch=64", "rounds=14"),
    **{
        f"{data}, epochs {epochs}": N2.but(*keys, *step_size(0.01), f"local.epochs={epochs}", "rounds=25")
        for data, keys in (("MNIST", MNIST), ("F-MNIST", FASHION))
        for epochs in (1, 3)
    },
    **{
        f"Dirichlet({alpha}), {words}": Setting("hicfl_lda", (f"partition.alpha={alpha}", *keys, "rounds=20"))
        for alpha in (0.3, 0.5)
        for words, keys in {
            "1 epoch": (),
            "1 epoch, batch 128": ("local.batch=128",),
            "3 epochs, step 0.05": ("local.epochs=3", *step_size(0.05)),
        }.items()
    },
}
"""What was tried, on CIFAR-10 with a step size of 0.001 and a batch of 256 where nothing is said. MNIST, Fashion-MNIST
and Dirichlet mixes have a step size of 0.01."""

APART = (
    *("1 epoch", "5 epochs", "1 epoch, Adam", "3 epochs, step 0.05"),
    *(f"{data}, epochs {epochs}" for data in ("MNIST", "F-MNIST") for epochs in (1, 3)),
)
"""What is also tried with known groups."""

ONE_GROUP = ("data.clients=5", "partition.groups=1", "rounds=50", *FEDAVG)
"""The clients of one group alone."""


def main() -> None:
    """Try the local work that is named, or all."""
    for name in sys.argv[1:] or TRIED:
        found = outcome(name, TRIED[name])
        print(name, found, flush=True)
        with alone(RESULTS.with_suffix(".lock")):
            known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            known = {**known, name: found}
            RESULTS.write_text(json.dumps({each: known[each] for each in TRIED if each in known}, indent=1) + "\n")


def outcome(name: str, setting: Setting) -> Mapping[str, float | None]:
    """What comes of the groups with some local work, and what models of one group learn."""
    trained = run(setting, SEED, FOLDER)
    epsilon = 0.5 * trained.keys["local"]["lr"]
    whole = [number for number, count in enumerate(trained.curve("clusters"), start=1) if count == 1]
    # The stability of a round is known before its split, so that of the first round with two clusters counts.
    least_stable = least_over_layers(trained, "max_stability")
    before = [value for number, value in least_stable.items() if number <= len(whole) + 1]
    found = {
        "rounds": float(len(trained.rounds)),
        "stability / epsilon, least stable member": short(min(before) / epsilon),
        "round of the groups": round_of_groups(trained),
        "clusters": clusters(trained),
        "ARI": short(agreement(trained)),
        "accuracy, %": short(cluster_accuracy(trained)),
    }
    if name in APART:
        found["accuracy with known groups, %"] = short(cluster_accuracy(run(setting.but(*ONE_GROUP), SEED, FOLDER)))
    return found


if __name__ == "__main__":
    main()
