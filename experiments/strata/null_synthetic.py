"""Wrong splits and power of the tests of Strata on synthetic updates, where both are known.

    python -m experiments.strata.null_synthetic
    python -m experiments.strata.null_synthetic inside    # one part anew

Writes ``experiments/results/null_synthetic.json``; a few minutes on one core. An update is a common part, the part of
its client's group, and noise: c + g + n, all of independent normal entries, of standard deviations 1, ``apart``
and 1. Rates come with their 95 % intervals of Clopper and Pearson.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from fedstrata.algorithms.evidence.split_half import next_level
from fedstrata.clustering import (
    bipartition,
    centred,
    contrast,
    cosine,
    fold_test,
    in_views,
    likeness,
    newcomer_test,
    propose,
    split_half_test,
)

Measure = Callable[[Tensor], Tensor]

ALPHAS = (0.01, 0.05, 0.2)
LEVEL = next_level(0.05, tests=0)
"""Of the first test of a cluster."""

SMALL = 30
"""Draws of each case with few clients, whose tests take longer."""

DIFFERENCES = {
    "10, 10": (0.12, 0.15, 0.18, 0.24),
    "5, 5, 5, 5": (0.16, 0.2, 0.24, 0.32),
    "5, 5, 5, 5 in two pairs": (0.12, 0.15, 0.18, 0.24),
    "12, 5, 3": (0.16, 0.2, 0.24, 0.32),
    "17, 3": (0.2, 0.25, 0.3, 0.4),
    "18, 2": (0.25, 0.35, 0.45),
    "19, 1": (0.5, 1.0),
    "2, 2, 2, 2, 2": (0.25, 0.35, 0.5),
    "5, 5": (0.18, 0.25, 0.35),
    "4, 4": (0.2, 0.3, 0.5),
    "10 of 10": (0.12, 0.15, 0.2, 0.3),
    "50, 50": (0.08, 0.1, 0.15),
}
"""Groups, and how far apart they are in units of the noise; the second half of "in two pairs" shares a parent."""


def main() -> None:
    """Run all parts, or those that are named, and write the results."""
    parts = {part.__name__: part for part in (null, uneven, folded, inside, power, small, newcomers)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *parts], help="by default all")
    wanted = parser.parse_args().parts or list(parts)
    torch.set_num_threads(1)
    start = time.perf_counter()
    path = Path(__file__).parents[1] / "results" / "null_synthetic.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found = {name: part() if name in wanted else known[name] for name, part in parts.items()}
    print(f"{', '.join(wanted)}: {time.perf_counter() - start:.0f} s", flush=True)
    rows = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row) for row in table) + "\n]"
        for name, table in found.items()
    ]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def null() -> list[dict[str, Any]]:
    """Clients that are all alike, of equal noise: how often they are split."""
    table = []
    for m, v, p, draws in (
        (8, 1, 100, 1000),
        (8, 6, 600, 1000),
        (10, 3, 300, 1000),
        (20, 1, 100, 2000),
        (20, 6, 600, 1000),
        (20, 6, 6000, 2000),
        (40, 3, 300, 400),
        (100, 6, 600, 100),
    ):
        table.append({"m": m, "v": v, "p": p, **_size(draws, m, v, p, torch.ones(m))})
    return table


def uneven() -> list[dict[str, Any]]:
    """Clients that are all alike, of unequal noise, by cosines and by likeness; sizes are spread evenly in log."""
    table = []
    for spread in (3.0, 10.0):
        sizes = spread ** torch.linspace(0, 1, 20)
        for name, measure in (("likeness", likeness), ("cosine", cosine)):
            row = _size(500, 20, 3, 600, (sizes.mean() / sizes).sqrt(), measure)
            table.append({"spread": spread, "measure": name, **row})
    return table


def folded() -> list[dict[str, Any]]:
    """Clients that are all alike, by folds: groups among few, and one newcomer to some members."""
    table = []
    for m, f in ((4, 4), (6, 4), (8, 2), (8, 4)):
        p_values = []
        for draw in _generators(500, m, f):
            similarity = _of_folds(_folds(f, m, (m,), 0.0, draw))
            p_values.append(fold_test(similarity, f, draw, min(ALPHAS)).p)
        table.append({"test": "groups", "m": m, "f": f, **_rates(p_values)})
    for m, f in ((3, 4), (11, 4)):
        new = torch.arange(m) == m - 1
        p_values = []
        for draw in _generators(500, m, f):
            similarity = _of_folds(_folds(f, m, (m,), 0.0, draw))
            p_values.append(newcomer_test(similarity, f, new, draw, min(ALPHAS)).p)
        table.append({"test": "newcomer", "m": m, "f": f, **_rates(p_values)})
    return table


def inside() -> list[dict[str, Any]]:
    """Sides of a confirmed split that are true groups: how often the halves that found them split them as well.

    Noise is equal, or that of sizes which are spread evenly in log inside every group.
    """
    table, draws = [], 500
    for sizes, apart, spread in (((10, 10), 0.24, 1.0), ((20, 10), 0.24, 1.0), ((10, 10), 1.0, 10.0)):
        p_values = list[float]()
        kinds = torch.cat([spread ** torch.linspace(0, 1, size) for size in sizes])
        for draw in _generators(draws, *sizes, int(1000 * apart)):
            first, second, truth = _halves(sizes, apart, False, draw, (kinds.mean() / kinds).sqrt())
            split = split_half_test(_by_layer(first), _by_layer(second), draw, LEVEL)
            for side in (split.proposal, ~split.proposal) if split.confirmed else ():
                if len(truth[side].unique()) == 1:
                    p_values.append(
                        split_half_test(_by_layer(first[side]), _by_layer(second[side]), draw, min(ALPHAS)).p
                    )
        groups = ", ".join(map(str, sizes))
        table.append({"groups": groups, "apart": apart, "spread": spread, "federations": draws, **_rates(p_values)})
    return table


def _by_layer(half: Tensor, v: int = 4, measure: Measure = likeness) -> Tensor:
    """Who is like whom by each of v layers, (v, m, m)."""
    return torch.stack([measure(layer) for layer in half.split(half.shape[1] // v, dim=1)])


def power() -> list[dict[str, Any]]:
    """Groups: how often each statistic finds them at the first level, and how often a proposal tears no group."""
    table = []
    for groups, differences in DIFFERENCES.items():
        sizes = (10,) * 10 if groups == "10 of 10" else tuple(int(part) for part in groups.split(" in ")[0].split(","))
        draws = 30 if sum(sizes) > 50 else 100
        for apart in differences:
            hits: dict[str, list[bool]] = {}
            for draw in _generators(draws, len(sizes), int(1000 * apart)):
                first, second, truth = _halves(sizes, apart, "pairs" in groups, draw)
                for name, value in _compared(first, second, truth, draw).items():
                    hits.setdefault(name, []).append(value)
            shares = {name: round(sum(values) / draws, 3) for name, values in hits.items()}
            table.append({"groups": groups, "apart": apart, "draws": draws, **shares})
    return table


def small() -> list[dict[str, Any]]:
    """Two groups among few clients, from the same data in 2 or 4 folds: how often they are found."""
    table = []
    for m in (4, 6, 8):
        for apart in (0.2, 0.3, 0.5, 0.8):
            row: dict[str, Any] = {"groups": f"{m // 2}, {m // 2}", "apart": apart, "draws": SMALL}
            for f in (2, 4):
                p_values = []
                for draw in _generators(SMALL, m, f, int(1000 * apart)):
                    folds = _folds(f, m, (m // 2, m // 2), apart, draw)
                    p_values.append(fold_test(likeness(folds.flatten(0, 1))[None], f, draw, LEVEL).p)
                for spent in (LEVEL, 0.005):
                    row[f"{f} folds, level {spent:.3g}"] = round(sum(p <= spent for p in p_values) / SMALL, 3)
            table.append(row)
    return table


def newcomers() -> list[dict[str, Any]]:
    """One client of another group against some members, four folds each: how often it is told apart."""
    table = []
    for members in (1, 2, 5, 10, 20):
        new = torch.arange(members + 1) == members
        row: dict[str, Any] = {"members": members}
        for apart in (0.3, 0.5, 0.8):
            found = []
            for draw in _generators(100, members, int(1000 * apart)):
                folds = _folds(4, members + 1, (members, 1), apart, draw)
                found.append(newcomer_test(_of_folds(folds), 4, new, draw, LEVEL).confirmed)
            row[f"apart {apart}"] = sum(found) / len(found)
        table.append(row)
    return table


WIDTH = 1000
LAYERS = (torch.arange(WIDTH), torch.arange(WIDTH // 2))


def _of_folds(folds: Tensor) -> Tensor:
    """Who is like whom by all folds (f, m, p), in two layers, (2, f m, f m)."""
    return likeness(folds.flatten(0, 1), in_views(LAYERS))


def _compared(first: Tensor, second: Tensor, truth: Tensor, draw: torch.Generator) -> dict[str, bool]:
    """What the statistics say about one draw of the halves."""
    likes = [likeness(half)[None] for half in (first, second)]
    cosines = [cosine(half)[None] for half in (first, second)]
    return {
        "Z by likeness": split_half_test(likes[0], likes[1], draw, LEVEL).confirmed,
        "Z by cosine": split_half_test(cosines[0], cosines[1], draw, LEVEL).confirmed,
        "Mantel by cosine": _mantel_test(cosines[0][0], cosines[1][0], draw) <= LEVEL,
        "T by cosine": _bipartition_test(cosines[0][0], cosines[1][0], draw) <= LEVEL,
        "whole, both halves": _whole(propose(likes[0][0] + likes[1][0]), truth),
        "whole, average linkage of A": _whole(bipartition(cosines[0][0], "average") == 1, truth),
    }


def _mantel_test(first: Tensor, second: Tensor, draw: torch.Generator) -> float:
    """Mantel's test: the share of permutations of the clients whose patterns correlate as well as those in order."""
    m, one, other = len(first), centred(first), centred(second)
    orders = [torch.arange(m), *(torch.randperm(m, generator=draw) for _ in range(332))]
    products = torch.stack([(one * other[order][:, order]).sum() for order in orders])
    return float((products >= products[0] - 1e-9 * products.std()).double().mean())


def _bipartition_test(first: Tensor, second: Tensor, draw: torch.Generator) -> float:
    """The first proposal for Strata: T of one half's average linkage in the other half, both ways, studentised."""
    m, heights = len(first), []
    orders = torch.stack([torch.arange(m), *(torch.randperm(m, generator=draw) for _ in range(332))])
    left, right = torch.triu_indices(m, m, offset=1)
    for proposer, judge, places in ((first, second, orders), (second, first, orders.argsort(dim=1))):
        sides = bipartition(proposer, "average")
        within = sides[left] == sides[right]
        values = judge[places[:, left], places[:, right]]
        contrasts = values[:, within].mean(dim=1) - values[:, ~within].mean(dim=1)
        assert abs(float(contrasts[0]) - contrast(judge, sides == 1)) < 1e-9
        heights.append((contrasts - contrasts.mean()) / contrasts.std().clamp(min=1e-12))
    largest = torch.stack(heights).amax(dim=0)
    return float((largest >= largest[0] - 1e-9).double().mean())


def _whole(sides: Tensor, truth: Tensor) -> bool:
    """Whether no true group has members on both sides."""
    return all(len(sides[truth == group].unique()) == 1 for group in truth.unique())


def _size(draws: int, m: int, v: int, p: int, noise: Tensor, measure: Measure = likeness) -> dict[str, Any]:
    """Rates of rejection of `split_half_test`, over layers of p / v columns, without groups."""
    least = min(alpha for alpha in ALPHAS if m >= 10 or alpha >= 0.05)
    p_values = []
    for draw in _generators(draws, m, v, p):
        common = torch.randn(p, generator=draw)
        halves = [common + noise[:, None] * torch.randn(m, p, generator=draw) for _ in range(2)]
        first, second = (_by_layer(half, v, measure) for half in halves)
        result = split_half_test(first, second, draw, least)
        assert result.tested, result.reason
        p_values.append(result.p)
    return _rates(p_values)


def _rates(p_values: Sequence[float]) -> dict[str, Any]:
    """Share of p up to each alpha, with its interval."""
    rates: dict[str, Any] = {"draws": len(p_values)}
    for alpha in ALPHAS:
        hits, n = sum(p <= alpha for p in p_values), len(p_values)
        low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
        high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
        rates[str(alpha)] = [round(value, 4) for value in (hits / n, low, high)]
    return rates


def _halves(
    sizes: tuple[int, ...], apart: float, pairs: bool, draw: torch.Generator, noise: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Updates A and B of clients in groups, and their groups; noise (m,) is 1 by default."""
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    means = apart * torch.randn(len(sizes), WIDTH, generator=draw)
    if pairs:
        parents = apart * torch.randn(len(sizes), WIDTH, generator=draw)
        means = parents[torch.arange(len(sizes)) // 2] + means / 2
    centre = torch.randn(WIDTH, generator=draw) + means[truth]
    scale = torch.ones(len(truth), 1) if noise is None else noise[:, None]
    first, second = (centre + scale * torch.randn(len(truth), WIDTH, generator=draw) for _ in range(2))
    return first, second, truth


def _folds(f: int, m: int, sizes: tuple[int, ...], apart: float, draw: torch.Generator) -> Tensor:
    """Updates (f, m, p) of clients in groups; a half of their data has noise 1, so a fold more."""
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    means = torch.randn(WIDTH, generator=draw) + apart * torch.randn(len(sizes), WIDTH, generator=draw)
    return means[truth] + sqrt(f / 2) * torch.randn(f, m, WIDTH, generator=draw)


def _generators(draws: int, *seeds: int) -> list[torch.Generator]:
    """A generator for every draw, fixed by what is drawn."""
    first = sum(seed * 1009**place for place, seed in enumerate(seeds))
    return [torch.Generator().manual_seed(first * 100003 + draw) for draw in range(draws)]


if __name__ == "__main__":
    main()
