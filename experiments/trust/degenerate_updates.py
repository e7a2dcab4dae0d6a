"""Let every algorithm decide about updates that are degenerate, and check what it leaves.

    PYTHONPATH=tests python -m experiments.trust.degenerate_updates

Writes ``experiments/results/degenerate_updates.json``. A federation has 1 to 12 clients without data, of whom some are
absent in some rounds; each is pulled towards a point. The points are all equal, all orthogonal, all zero, on one line,
opposite in pairs, apart for one client, nearly equal, or of very different lengths. A case is one round of one
algorithm. It is wrong if the algorithm raises an exception, if a model is not finite, if the labels, the clients that
wait and the tree do not say the same, or if a client drops out of a branch in an algorithm that only splits.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.config.hyperparameters import algorithm_from
from fedstrata.engine.device import one_thread
from pulled import LAYOUT, Pulled, pulled_problem
from test_every_algorithm import EAGER, WANDERS
from turns import check, check_growth

RESULT = Path(__file__).parents[1] / "results" / "degenerate_updates.json"
ROUNDS = 5


def orthogonal(n: int, draw: torch.Generator) -> torch.Tensor:
    """Each client has a column of its own."""
    return torch.eye(LAYOUT.p)[torch.randperm(LAYOUT.p, generator=draw)[: n + 1]]


def on_a_line(n: int, draw: torch.Generator) -> torch.Tensor:
    """Multiples of one direction, in both directions."""
    return torch.randn(n + 1, 1, generator=draw) * torch.randn(1, LAYOUT.p, generator=draw)


def in_pairs(n: int, draw: torch.Generator) -> torch.Tensor:
    """Every second client is the opposite of all others."""
    signs = 1.0 - 2.0 * (torch.arange(n + 1) % 2)
    return signs[:, None] * torch.randn(1, LAYOUT.p, generator=draw)


def one_apart(n: int, draw: torch.Generator) -> torch.Tensor:
    """All are equal but for one."""
    points = torch.randn(1, LAYOUT.p, generator=draw).repeat(n + 1, 1)
    points[int(torch.randint(n, (), generator=draw))] *= -3.0
    return points


POINTS: Mapping[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "all equal": lambda n, draw: torch.randn(1, LAYOUT.p, generator=draw).repeat(n + 1, 1),
    "all orthogonal": orthogonal,
    "all zero": lambda n, draw: torch.zeros(n + 1, LAYOUT.p),
    "on one line": on_a_line,
    "opposite": in_pairs,
    "one apart": one_apart,
    "nearly equal": lambda n, draw: 1.0 + 1e-7 * torch.randn(n + 1, LAYOUT.p, generator=draw),
    "of different lengths": lambda n, draw: (
        10.0 ** torch.randint(-12, 6, (n + 1, 1), generator=draw) * torch.randn(n + 1, LAYOUT.p, generator=draw)
    ),
}
"""The points that n clients, and the union of their data, are pulled towards, (n + 1, p)."""


class Degenerate(Pulled):
    """Clients that are pulled towards given points, whatever part of their data they train on."""

    def __init__(self, points: torch.Tensor) -> None:
        """Keep the points."""
        super().__init__(torch.arange(len(points) - 1))
        self._points = dict.fromkeys(self._points, points)


def play(name: str, kind: str, seed: int) -> Counter[str]:
    """The rounds of one federation, counted as sound or by what is wrong."""
    draw = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 13, (), generator=draw))
    everyone = torch.arange(n)
    problem, clients = pulled_problem(everyone), Degenerate(POINTS[kind](n, draw))
    algorithm = algorithm_from(name, EAGER.get(name, {}))
    setup: Any = SimpleNamespace(
        problem=problem, algorithm=algorithm, members=SimpleNamespace(active=lambda round: everyone)
    )
    found = Counter[str]()
    try:
        state = algorithm.init(problem)
    except ExperimentError:
        return found  # so few clients are refused in one line
    for _ in range(ROUNDS):
        try:
            plan = algorithm.plan(problem, state, everyone)
            here = torch.rand(len(plan.cohort), generator=draw) < 0.8
            after, _ = algorithm.update(problem, state, replace(clients.run(plan.only(here)), cohort=plan.cohort))
            check(setup, after)
            check_growth(state, after, wanders=name in WANDERS)
        except Exception as error:
            found[f"{name}, {kind}, seed {seed}: {type(error).__name__}: {error}"[:200]] += 1
            break
        found["sound"] += 1
        state = after
    return found


def main() -> None:
    """Play federations until there are enough cases, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are kept")
    given = parser.parse_args()
    found = Counter[str]()
    federations = seed = 0
    with one_thread():
        while found.total() < given.cases:
            for name in ALGORITHMS:
                for kind in POINTS:
                    found += play(name, kind, seed)
                    federations += 1
            seed += 1
            print(seed, found.total(), dict(found), flush=True)
    wrong = {what: count for what, count in found.items() if what != "sound"}
    kept = {
        "seeds": seed,
        "federations": federations,
        "algorithms": len(ALGORITHMS),
        "kinds": list(POINTS),
        "cases": found.total(),
        "wrong": sum(wrong.values()),
        "failures": list(wrong)[:20],
    }
    given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
