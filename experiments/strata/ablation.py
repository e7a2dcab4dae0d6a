"""Strata without one of its parts at a time, or with half or twice one of its constants, beside the whole.

    FEDSTRATA_DATA=DATA python -m experiments.strata.ablation --seeds 5,6,7 --jobs 2

Runs on the federations of the championship, and adds to ``experiments/results/ablation/<federation>.json``. All
variants of a federation and seed have the same clients, first model and random numbers, so their differences are
paired. None of these seeds chose anything of Strata.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from pydantic.dataclasses import dataclass

from experiments.strata import championship
from fedstrata.algorithms.keys import STRICT
from fedstrata.algorithms.strata import algorithm, candidates, trial
from fedstrata.algorithms.strata.algorithm import Strata
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.algorithms.strata.trial_tasks import GROUP_TASK, add_group_task
from fedstrata.core import Diagnostics, Plan, Problem, Report

RESULTS = Path(__file__).parents[1] / "results" / "ablation"


def _once(plan: Plan, labels: torch.Tensor, clusters: list[int], samples: int) -> Plan:
    """As `add_group_task`, going through half A once."""
    plan = add_group_task(plan, labels, clusters, samples)
    if GROUP_TASK not in plan.tasks:
        return plan
    task = replace(plan.tasks[GROUP_TASK], training=plan.tasks["train"].training)
    return replace(plan, tasks={**plan.tasks, GROUP_TASK: task})


CHANGES: Mapping[str, tuple[Any, str, Any]] = {
    "no groups inside the sides": (candidates, "_MAX_DEPTH", 1),
    "three splits deep": (candidates, "_MAX_DEPTH", 3),
    "half A once": (algorithm, "add_group_task", _once),
    "claims bounded at 3": (trial, "_BOUND", 3.0),
    "claims bounded at 12": (trial, "_BOUND", 12.0),
}
"""What stands in the place of a part or a constant: a module, a name in it, and another value."""


@dataclass(frozen=True, config=STRICT)
class Changed(Strata):
    """Strata with one of the changes.

    Attributes:
        change: The name of the change.
    """

    change: str = "half A once"

    def plan(self, problem: Problem, state: StrataState, cohort: torch.Tensor) -> Plan:
        """What clients are asked."""
        with patch.object(*CHANGES[self.change]):
            return super().plan(problem, state, cohort)

    def update(self, problem: Problem, state: StrataState, report: Report) -> tuple[StrataState, Diagnostics]:
        """The state after a round."""
        with patch.object(*CHANGES[self.change]):
            return super().update(problem, state, report)


def _strata(**keys: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "strata", **keys}}


TABLES: dict[str, dict[str, Any]] = {
    "strata": _strata(),
    **{name: {"algorithm": {"name": "experiments.strata.ablation:Changed", "change": name}} for name in CHANGES},
    "no choice after a split": _strata(reassignment_rounds=0),
    "choice for one round": _strata(reassignment_rounds=1),
    "choice for four rounds": _strata(reassignment_rounds=4),
    "alpha = 0.1": _strata(alpha=0.1),
    "alpha = 0.025": _strata(alpha=0.025),
    "no checks of updates": {**_strata(), "server": {"checks": []}},
    "groups' models decide": _strata(compares="group"),
}

PERSONAL_ALONE = ("groups' models decide",)
"""The changes of what there is with personal models alone."""

VARIANTS: dict[str, dict[str, Any]] = {
    **{name: tables for name, tables in TABLES.items() if name not in PERSONAL_ALONE},
    **{f"{name} + best": {**tables, "personal": {"method": "best"}} for name, tables in TABLES.items()},
}


def main() -> None:
    """Run what is missing, and keep the results of a federation and seed as soon as they are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default=",".join(championship.FEDERATIONS), help="comma-separated")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated; all by default")
    parser.add_argument("--seeds", default="5,6,7")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    given = parser.parse_args()
    # The championship knows its methods by name; its processes are copies of this one.
    championship.METHODS.update(VARIANTS)
    matches = [
        (federation, int(seed)) for seed in given.seeds.split(",") for federation in given.federations.split(",")
    ]
    sys.exit(not championship.run_matches(matches, given.variants.split(","), [], given.out, given.jobs))


if __name__ == "__main__":
    main()
