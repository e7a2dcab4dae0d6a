"""Measure what the keys of AdaCFL's and FedTSDP's exhibits were chosen by, with a seed that no result uses.

    python -m experiments.papers.exhibit_keys

Writes ``experiments/results/exhibit_keys.json``:

* for FedTSDP, the distances of models after round 1, which its second radius goes by, and the norms of FedAvg's
  updates, which CFL's thresholds go by;
* for FMTL in AdaCFL's Table 2, the norms at which FedAvg's updates settle, for each mix and data set;
* for the cuts of AdaCFL's Table 5, the mean distance of clients of one group and of two groups after round 1.

``cfl_thresholds.py`` does the same for HiCFL's rivals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.papers.adacfl import CUTS, DATA, MIXES, fmtl, linear_layers, small
from experiments.papers.exhibit import Setting
from experiments.papers.fedtsdp import DIRICHLET
from experiments.papers.measures import within_and_across
from experiments.papers.rivals import cfl_by_norms, other
from experiments.papers.run_folder import RunFolder
from experiments.papers.running import run, short

SEED = 10
NEVER = 0.0
"""The threshold of CFL that no update is below: it never splits, and records the norms."""
DISTANCES = ("rounds=1", 'probe.matrices=["l2"]', "probe.rounds=[1]")
RESULTS = Path(__file__).parents[1] / "results" / "exhibit_keys.json"
FOLDER = Path("runs") / "exhibit_keys"

Found = Mapping[str, float | None]


def main() -> None:
    """Measure everything; runs that are finished are kept."""
    found = {**of_fedtsdp(), **of_fmtl(), **of_cuts()}
    rounded = {name: {what: short(value) for what, value in each.items()} for name, each in found.items()}
    RESULTS.write_text(json.dumps(rounded, indent=1) + "\n")


def trained(setting: Setting) -> RunFolder:
    """A finished run of a setting."""
    return run(setting, SEED, FOLDER)


def of_fedtsdp() -> dict[str, Found]:
    """The distances of models after a round of FedAvg, and the norms of updates in all rounds."""
    models = trained(other(DIRICHLET, "fedavg").but(*DISTANCES)).matrix(1, "l2", "all")
    apart = models + np.diag(np.full(len(models), np.inf))
    distances = {
        "median distance of two models": float(np.median(models[np.triu_indices(len(models), k=1)])),
        "median distance to the nearest model": float(np.median(apart.min(axis=1))),
    }
    norms = trained(cfl_by_norms(DIRICHLET, NEVER, NEVER, gamma=0.5))
    return {"FedTSDP": {**distances, **norms_of(norms)}}


def of_fmtl() -> dict[str, Found]:
    """The norms of FedAvg's updates in each cell of AdaCFL's Table 2."""
    return {
        f"{mix} {data} FMTL": norms_of(trained(fmtl(small(data, mix), NEVER, NEVER))) for mix in MIXES for data in DATA
    }


def norms_of(run: RunFolder) -> Found:
    """The norm of the mean update and the largest norm of an update: over all rounds, and in the last."""
    means, largest = ([value for value in run.metric(name) if value is not None] for name in ("mean_norm", "max_norm"))
    return {
        "least norm of the mean update": min(means),
        "norm of the mean update, last round": means[-1],
        "largest norm of an update": max(largest),
        "largest norm of an update, last round": largest[-1],
    }


def of_cuts() -> dict[str, Found]:
    """How far clients of one group, and of two groups, are from each other by each of two linear layers."""
    found: dict[str, Found] = {}
    for data, cuts in CUTS.items():
        for mix in ("0.8", "B"):
            for layer, setting in zip(cuts, linear_layers(data, mix).values(), strict=True):
                trained_once = trained(setting.but(*DISTANCES))
                within, across = within_and_across(trained_once.matrix(1, "l2", layer), trained_once.truth)
                found[f"{mix} {data} {layer}"] = {"cut": cuts[layer], "one group": within, "two groups": across}
    return found


if __name__ == "__main__":
    main()
