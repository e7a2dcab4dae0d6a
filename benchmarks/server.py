"""The server's own work, by the number of clients: cosines of every layer, and the split-half test.

python benchmarks/server.py
python benchmarks/server.py --clients 100      # a small one
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

import torch

from fedstrata.clustering import (
    PermutationResult,
    cosine,
    euclidean,
    in_views,
    likeness,
    split_half_test,
)

P = ParamSpec("P")
T = TypeVar("T")

LAYERS = {"conv1": 456, "conv2": 2416, "fc1": 48120, "fc2": 10164, "fc3": 850}
"""Parameters of LeNet-5 on CIFAR-10: 62,006."""


def main() -> None:
    """Print a table for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000, help="most clients whose layers are compared")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {given.threads} threads\n")
    sizes = [m for m in (20, 50, 100, 200, 500, 1000, 2000, 5000) if m <= given.clients]
    layers(sizes)
    split_half([m for m in sizes if m <= 200])


def layers(sizes: list[int]) -> None:
    """Every layer and all together, by m."""
    p, views = sum(LAYERS.values()), _views()
    print(
        f"all {len(views)} views of {p:,} parameters: seconds of cosine, euclidean, likeness; of the cosines one by one"
    )
    for m in sizes:
        rows = torch.randn(m, p, generator=_generator())
        once = [_clock(measure, rows, in_views(views))[1] for measure in (cosine, euclidean, likeness)]
        each = sum(_clock(cosine, rows[:, view])[1] for view in views)
        print(f"m = {m:5}  " + "  ".join(f"{seconds:7.3f}" for seconds in (*once, each)))


def split_half(sizes: list[int]) -> None:
    """The test that Strata rests on, for clients that are alike: then it draws the most."""
    views = _views()
    print("\nsplit-half test of all views at level 0.05, clients alike | in two groups: seconds, permutations")
    for m in sizes:
        line = f"m = {m:5}"
        for apart in (0.0, 1.0):
            one, other = torch.randn(2, m, sum(LAYERS.values()), generator=_generator())
            side = apart * torch.randn(one.shape[1], generator=_generator()) * (torch.arange(m) % 2)[:, None]
            found, seconds = _clock(_tested, one + side, other + side, views)
            line += f"  {seconds:7.3f} {found.drawn:5} |"
        print(line.rstrip(" |"))


def _tested(one: torch.Tensor, other: torch.Tensor, views: list[torch.Tensor]) -> PermutationResult:
    return split_half_test(likeness(one, in_views(views)), likeness(other, in_views(views)), _generator(), 0.05)


def _views() -> list[torch.Tensor]:
    """The columns of every layer of LeNet, and of all together."""
    views, start = list[torch.Tensor](), 0
    for width in LAYERS.values():
        views.append(torch.arange(start, start := start + width))
    return [*views, torch.arange(start)]


def _clock(work: Callable[P, T], *inputs: P.args, **options: P.kwargs) -> tuple[T, float]:
    began = perf_counter()
    done = work(*inputs, **options)
    return done, perf_counter() - began


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


if __name__ == "__main__":
    main()
