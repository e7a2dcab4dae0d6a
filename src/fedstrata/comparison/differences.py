"""Which algorithm is above which, paired by seed: all runs of a seed have the same clients, data and cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from fedstrata.comparison.table import Outcome
from fedstrata.report.comparison import Difference


def differences(outcomes: Sequence[Outcome]) -> tuple[Difference, ...]:
    """The difference in accuracy of every two algorithms that have a seed in common, in the order of the runs."""
    found: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            found.setdefault(outcome.algorithm, {})[outcome.seed] = outcome.summary["acc_client"]
    paired = [
        Difference(one, other, seeds, tuple(found[one][seed] - found[other][seed] for seed in seeds))
        for one, other in combinations(found, 2)
        if (seeds := tuple(seed for seed in found[one] if seed in found[other]))
    ]
    return tuple(each if each.mean >= 0 else _turned(each) for each in paired)


def _turned(each: Difference) -> Difference:
    return Difference(each.other, each.algorithm, each.seeds, tuple(-value for value in each.values))
