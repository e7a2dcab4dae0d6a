"""Fit the thresholds of CFL in the settings of HiCFL's exhibits, with a seed that no result uses.

    python -m experiments.papers.cfl_thresholds

Writes ``experiments/results/cfl_thresholds.json``: for each setting, from 20 rounds of FedAvg with seed 10,

* ``eps1``: the norm of the mean update in round 15, so that CFL may split from about that round on.
* ``eps2``: half the largest norm of an update in that round.
* how near the layers came to HiCFL's threshold of stability in rounds 3 to 20, half the step size: in the mean of the
  members and in the least stable one, in multiples of the threshold.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.papers.exhibit import Setting
from experiments.papers.hicfl_settings import FEDAVG, SETTINGS
from experiments.papers.run_folder import RunFolder
from experiments.papers.running import alone, run, short

SEED = 10
ROUNDS = 20
RESULTS = Path(__file__).parents[1] / "results" / "cfl_thresholds.json"
FOLDER = Path("runs") / "cfl_thresholds"


def main() -> None:
    """Fit the thresholds of the settings that are named, or of all."""
    for name in sys.argv[1:] or SETTINGS:
        fitted = thresholds(SETTINGS[name])
        print(name, fitted, flush=True)
        with alone(RESULTS.with_suffix(".lock")):
            known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            found = {**known, name: fitted}
            RESULTS.write_text(json.dumps({each: found[each] for each in SETTINGS if each in found}, indent=1) + "\n")


def thresholds(setting: Setting) -> Mapping[str, float | None]:
    """What FedAvg shows of a setting."""
    trained = run(setting.but(*FEDAVG, f"rounds={ROUNDS}"), SEED, FOLDER)
    epsilon = 0.5 * trained.keys["local"]["lr"]
    mean_of_members = least_over_layers(trained, "stability")
    least_stable = least_over_layers(trained, "max_stability")
    mean_norm, max_norm = (norm_in_round(trained, name, 15) for name in ("mean_norm", "max_norm"))
    fitted = {
        "eps1": mean_norm,
        "eps2": max_norm / 2,
        "stability / epsilon, mean of the members": min(mean_of_members.values()) / epsilon,
        "stability / epsilon, least stable member": min(least_stable.values()) / epsilon,
    }
    return {name: short(value) for name, value in fitted.items()}


def least_over_layers(trained: RunFolder, metric: str) -> dict[int, float]:
    """By round, the value of the most stable layer."""
    by_round = zip(*(trained.metric(metric, layer) for layer in trained.layers(metric)), strict=True)
    return {
        number: min(value for value in values if value is not None)
        for number, values in enumerate(by_round, start=1)
        if None not in values
    }


def norm_in_round(trained: RunFolder, name: str, first: int) -> float:
    """A norm in the first round, from a given one on, in which it was recorded."""
    return next(value for value in trained.metric(name)[first - 1 :] if value is not None)


if __name__ == "__main__":
    main()
