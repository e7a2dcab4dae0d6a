"""The server's own work: cosines of every layer, clustering of very many clients, and the split-half test.

    python benchmarks/server.py
    python benchmarks/server.py --clients 100 --most 10000 --exact 2000      # a small one

By m and by p. What is clustered are sketches of 256 numbers around 50 centres; up to --exact clients, the result is
also compared with SciPy's hierarchy by average linkage, which takes a distance for every pair.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

import torch
from peak import Peak
from scipy.cluster.hierarchy import fcluster, linkage

from fedstrata.clustering import (
    PermutationResult,
    ari,
    cluster_many,
    cosine,
    euclidean,
    likeness,
    sketch,
    split_half_test,
)

P = ParamSpec("P")
T = TypeVar("T")

LAYERS = {"conv1": 456, "conv2": 2416, "fc1": 48120, "fc2": 10164, "fc3": 850}
"""Parameters of LeNet-5 on CIFAR-10: 62,006."""

GROUPS, WIDTH = 50, 256


def main() -> None:
    """Print a table for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000, help="most clients whose layers are compared")
    parser.add_argument("--most", type=int, default=1_000_000, help="most clients that are clustered")
    parser.add_argument("--exact", type=int, default=20_000, help="most clients whose exact hierarchy is made")
    parser.add_argument("--apart", type=float, default=2.0, help="spread of the centres, in that of a group")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {given.threads} threads\n")
    sizes = [m for m in (20, 50, 100, 200, 500, 1000, 2000, 5000) if m <= given.clients]
    layers(sizes)
    columns(sizes[-1])
    many(given.most, given.exact, given.apart)
    split_half([m for m in sizes if m <= 200])


def layers(sizes: list[int]) -> None:
    """Every layer and all together, by m."""
    p, views = sum(LAYERS.values()), _views(1)
    print(
        f"all {len(views)} views of {p:,} parameters: seconds of cosine, euclidean, likeness; of the cosines one by one"
    )
    for m in sizes:
        rows = torch.randn(m, p, generator=_generator())
        once = [_clock(measure, rows, views)[1] for measure in (cosine, euclidean, likeness)]
        each = sum(_clock(cosine, rows[:, view])[1] for view in views)
        print(f"m = {m:5}  " + "  ".join(f"{seconds:7.3f}" for seconds in (*once, each)))


def columns(m: int) -> None:
    """Every layer and all together, and a sketch, by p."""
    print(f"\n{m} clients: seconds of the cosines of all views, and of sketches of {WIDTH} numbers, by p")
    for times in (0.1, 0.3, 1, 3):
        views = _views(times)
        p = len(views[-1])
        rows = torch.randn(m, p, generator=_generator())
        cosines, short = _clock(cosine, rows, views)[1], _clock(sketch, rows, WIDTH, 0)[1]
        print(f"p = {p:7,}  {cosines:7.3f}  {short:7.3f}")


def many(most: int, exact: int, apart: float) -> None:
    """Groups of sketches, by m; the number of groups given, and found."""
    print(f"\nclients around {GROUPS} centres, sketches of {WIDTH} numbers, k given | k found | exact hierarchy:")
    print("seconds, most anonymous memory with the points in GB, ARI with the truth; of the last, ARI with k given")
    for m in (m for m in (1_000, 10_000, 20_000, 100_000, 1_000_000) if m <= most):
        points, truth = _blobs(m, apart)
        line, told = f"m = {m:9,}", truth
        for k in (GROUPS, None):
            with Peak() as peak:
                labels, seconds = _clock(cluster_many, points, _generator(), k)
            told = labels if k else told
            line += f"  {seconds:7.2f} {peak.anonymous / 1e9:6.2f} {ari(labels, truth):6.3f} |"
        if m <= exact:
            with Peak() as peak:
                tree, seconds = _clock(linkage, points.numpy(), "average")
            labels = torch.from_numpy(fcluster(tree, GROUPS, "maxclust"))
            line += f"  {seconds:7.2f} {peak.anonymous / 1e9:6.2f} {ari(labels, truth):6.3f} {ari(labels, told):6.3f}"
        print(line)


def split_half(sizes: list[int]) -> None:
    """The test that Strata rests on, for clients that are alike: then it draws the most."""
    views = _views(1)
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
    return split_half_test(likeness(one, views), likeness(other, views), _generator(), 0.05)


def _views(times: float) -> list[torch.Tensor]:
    """The columns of every layer, so many times as wide as LeNet's, and of all together."""
    views, start = list[torch.Tensor](), 0
    for width in LAYERS.values():
        views.append(torch.arange(start, start := start + round(times * width)))
    return [*views, torch.arange(start)]


def _blobs(m: int, apart: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = _generator()
    truth = torch.randint(GROUPS, (m,), generator=generator)
    centres, points = apart * torch.randn(GROUPS, WIDTH, generator=generator), torch.empty(m, WIDTH)
    for some, label in zip(points.split(10_000), truth.split(10_000), strict=True):
        some.normal_(generator=generator).add_(centres[label])
    return points, truth


def _clock(work: Callable[P, T], *inputs: P.args, **options: P.kwargs) -> tuple[T, float]:
    began = perf_counter()
    done = work(*inputs, **options)
    return done, perf_counter() - began


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


if __name__ == "__main__":
    main()
