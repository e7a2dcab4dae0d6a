"""How far the updates of honest clients lie on one side of those of their cluster: what Strata must let through.

    python -m experiments.strata.honest_balances [NAME...]
    FEDSTRATA_DATA=DATA python -m experiments.strata.honest_balances --championship [NAME...]

Runs the federations of ``honest_norms.py`` on handwritten digits, and others with small networks; or those of
``championship.py`` with Strata, without an attack. Prints for each the largest balance of an update
(`fedstrata.uploads.checks.one_sided_updates`), and how many updates it would have left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import fedstrata as fs
from experiments.strata.championship import FEDERATIONS, experiment_keys
from experiments.strata.honest_norms import BASE, DIRICHLET, RUNS
from experiments.tools.small_runs import merged
from fedstrata.core import TRAIN, Layout, Plan, Report
from fedstrata.uploads import validation
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.one_sided_updates import balances_by_size, one_sided
from fedstrata.uploads.validation import validate

SMALL_NETWORKS: Mapping[str, tuple[dict[str, Any], ...]] = {
    f"{federation}, {'no hidden layer' if not units else f'{units} hidden units'}": (
        *changes,
        {"model": {"name": "mlp", "hidden": [units] if units else []}},
    )
    for federation, changes in (("alike", ()), ("dirichlet", (DIRICHLET,)))
    for units in (0, 2, 4, 8, 16)
}
"""Federations with small networks, in which few units decide about the signs of all weights."""


def experiments(championship: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names and the keys of the federations."""
    if championship:
        for name in FEDERATIONS:
            yield name, experiment_keys(name, "strata", seed=0)
        return
    for name, changes in {**RUNS, **SMALL_NETWORKS}.items():
        experiment = BASE
        for change in changes:
            experiment = merged(experiment, change)
        yield name, experiment


def main() -> None:
    """Run the federations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the federations that run; all by default")
    parser.add_argument("--championship", action="store_true", help="those of championship.py")
    given = parser.parse_args()
    print("| federation | updates | largest balance | left out |")
    print("| --- | --- | --- | --- |")
    for name, keys in experiments(given.championship):
        if given.names and name not in given.names:
            continue
        count, largest, left_out = look(keys)
        print(f"| {name} | {count} | {largest:.2f} | {left_out} |", flush=True)


def look(keys: Mapping[str, Any]) -> tuple[int, float, int]:
    """The number of updates of a run, the largest balance of one, and how many the check would have left out."""
    count = left_out = 0
    largest = 0.0

    def watched(layout: Layout, plan: Plan, report: Report, *, compared: bool = True) -> Report:
        nonlocal count, largest, left_out
        result = report.results[TRAIN]
        clients = result.updates.clients
        count += len(clients)
        labels = torch.full((int(clients.max()) + 1,), -1).index_put((clients,), result.chosen)
        updates = compared_updates(layout, report, labels)
        left_out += int(one_sided(updates).sum())
        for _, found in balances_by_size(updates):
            largest = max(largest, float(abs(found).max()))
        return validate(layout, plan, report, compared=compared)

    # The run itself is watched, nothing is changed.
    with TemporaryDirectory() as scratch:
        validation.validate = watched
        try:
            fs.run(dict(keys), Path(scratch) / "run", quiet=True)
        finally:
            validation.validate = validate
    return count, largest, left_out


if __name__ == "__main__":
    main()
