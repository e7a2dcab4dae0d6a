"""How far the norms of honest clients lie apart: what validation and the checks of updates must let through.

    python -m experiments.strata.honest_norms [NAME...]

Runs federations on the handwritten digits, and prints for each the largest ratio of a norm to the median that it was
compared with, and how many answers were rejected, which has to be none. The checks of updates average such ratios over
rounds (`fedstrata.uploads.checks.norms`): for clients that have trained the same model, the largest mean ratio, and how
many updates the check would have left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import fedstrata as fs
from experiments.tools.small_runs import merged
from fedstrata.core import TRAIN, Layout, Plan, Report
from fedstrata.uploads import validation
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.norms import mean_logs, no_norms, with_norms
from fedstrata.uploads.validation import measure_norms, validate

BASE: dict[str, Any] = {
    "rounds": 30,
    "data": {"name": "digits", "clients": 20, "samples": 60, "test": 0.25},
    "partition": {"scheme": "iid"},
    "local": {"epochs": 1, "batch": 10, "lr": 0.1},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop"},
}
CONVERGED = {"rounds": 104, "data": {"samples": 40}, "local": {"epochs": 5, "lr": 0.3}}
ADAM = {"optimizer": "adam", "lr": 0.005}
DIRICHLET = {"data": {"samples": 0}, "partition": {"scheme": "dirichlet", "alpha": 0.1}}
QUANTITY = {"data": {"samples": 0}, "partition": {"scheme": "quantity", "alpha": 0.3}}
TURNED = {"partition": {"scheme": "rotation", "groups": 2}}
JOIN = {"events": {"join": [{"round": 100, "clients": [3, 4]}]}}
CHANGE = {"events": {"change": [{"round": 102, "client": 2, "takes_data_of": 7}]}}
RESNET = {"rounds": 4, "data": {"clients": 8, "samples": 0}, "model": {"name": "resnet18", "width": 0.0625}}

RUNS: dict[str, tuple[dict[str, Any], ...]] = {
    "alike": (),
    "turned": (TURNED, {"algorithm": {"name": "strata"}}),
    "dirichlet": (DIRICHLET,),
    "dirichlet, Adam": (DIRICHLET, {"local": ADAM}),
    "dirichlet, momentum": (DIRICHLET, {"local": {"momentum": 0.9, "lr": 0.05}, "rounds": 80}),
    "dirichlet, FedPer": (DIRICHLET, {"algorithm": {"name": "fedper"}, "local": {"epochs": 5}, "rounds": 60}),
    "unequal sizes": (QUANTITY,),
    "unequal sizes, Adam": (QUANTITY, {"local": ADAM}),
    "unequal sizes, Strata": (QUANTITY, {"algorithm": {"name": "strata"}}),
    "one class each": ({"partition": {"scheme": "shards", "per_client": 1}},),
    "converged": (CONVERGED, {"rounds": 200}),
    "newcomers, converged": (CONVERGED, JOIN),
    "newcomers, Strata": (CONVERGED, TURNED, JOIN, {"algorithm": {"name": "strata"}}),
    "changed data, oracle": (CONVERGED, TURNED, CHANGE, {"algorithm": {"name": "oracle"}}),
    "personal layers": (
        DIRICHLET,
        {"data": {"samples": 60, "public": 60}, "algorithm": {"name": "fedtsdp", "threshold": 0.5}},
    ),
    "batch normalisation": (DIRICHLET, RESNET),
}


def main() -> None:
    """Run the federations that are named, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    print("| federation | largest norm beside the median | rejected | largest mean | left out |")
    print("| --- | --- | --- | --- | --- |")
    for name in parser.parse_args().names or RUNS:
        ratio, rejected, mean, left_out = look(name)
        print(f"| {name} | {ratio:.1f} | {rejected} | {mean:.1f} | {left_out} |", flush=True)


def look(name: str) -> tuple[float, int, float, int]:
    """The largest ratio of a norm to its median in one of the runs, and the number of rejected answers.

    And the largest mean ratio over rounds, and the updates that it would leave out.
    """
    experiment = BASE
    for changes in RUNS[name]:
        experiment = merged(experiment, changes)
    largest = mean = 0.0
    left_out = 0
    history = no_norms(experiment["data"]["clients"])

    def watched(layout: Layout, plan: Plan, report: Report, *, compared: bool = True) -> Report:
        nonlocal largest, mean, left_out, history
        for measured in measure_norms(layout, plan, report):
            medians, _ = measured.medians_and_limits
            ratios = measured.values / medians
            largest = max(largest, float(np.nanmax(ratios, initial=0.0)))
        result = report.results[TRAIN]
        labels = torch.full(history.weights.shape, -1).index_put((result.updates.clients,), result.chosen)
        history = with_norms(history, compared_updates(layout, report, labels), labels)
        mean = max(mean, float(mean_logs(history).max().exp()))
        left_out += int(history.left_out.sum())
        return validate(layout, plan, report, compared=compared)

    with TemporaryDirectory() as scratch:
        validation.validate = watched  # the run itself is watched, nothing is changed
        try:
            summary = fs.run(experiment, Path(scratch) / "run", quiet=True).summary
        finally:
            validation.validate = validate  # as it was
    return largest, summary["rejected"], mean, left_out


if __name__ == "__main__":
    main()
