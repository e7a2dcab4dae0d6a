"""Find the layer in which clients fall apart, by their updates alone: no labels, no hidden truth.

LayerCFL is to be told its layers "by statistics obtained in advance"; these are such statistics. In some rounds every
client also trains on folds of its data, and for every layer we ask whether who is like whom by one fold is so by
another: what comes from a client's own sample is not found again, what truly sets clients apart is. It is Strata's
test, and where it finds nothing, no layer is named.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from fedstrata.algorithms.parts.proof.budget import level
from fedstrata.algorithms.parts.proof.hearings import LEAST
from fedstrata.algorithms.parts.proof.testimony import Testimony, examine, looked_at
from fedstrata.algorithms.parts.scout.finding import Finding, View
from fedstrata.algorithms.parts.scout.sighting import Sighting, bias_of
from fedstrata.clustering import replication
from fedstrata.core import Layout, TensorSpec
from fedstrata.lazy_torch import torch

ROUNDS = 3
"""Rounds that make one look; in the first of a run, nobody knows yet how many samples clients have."""

LEVEL = 0.02
"""Probability of naming a layer although all clients are alike; of several looks, for all of them together."""

TIE = 0.05
"""Correlations that differ by no more are as clear; then the layer is taken in which updates have least in common, for
there Theorem 1 of LayerCFL allows most noise. In 24 federations of MNIST and Fashion-MNIST, half of them with so few
samples that the pattern was weak, that came nearer to the largest Gap of a layer (0.01 below it on average) than the
largest Z, or the size of the pattern, which are large in first layers too (0.10 and 0.09).
"""

REPEATS = 20
"""Repeats of the choice, each without other clients."""


def conclude(layout: Layout, sighting: Sighting, generator: torch.Generator, level: float = LEVEL) -> Finding:
    """Look at what was seen.

    Args:
        layout: of the network.
        sighting: of the clients' folds.
        generator: for re-arranging clients at random.
        level: probability of naming a layer although all clients are alike.
    """
    bias, known = bias_of(layout), sighting.layers
    if known is None:
        able, least = int((sighting.sizes >= 2 * LEAST).sum()), 2 * LEAST
        reason = f"{able} clients have the {least} samples that two folds need, too few for a test"
        return Finding(None, (), bias, 0, 0, level, reason=reason)
    clients, found = examine(layout, known, generator, level)
    compared, rounds = len(clients), int(known.seen.max())
    if not found.tested:
        return Finding(None, (), bias, compared, rounds, level, reason=found.reason)
    common, names = sighting.common / sighting.rounds, looked_at(layout)
    looks = {name: replace(known, alike=known.alike[place : place + 1]) for place, name in enumerate(names)}
    if bias is not None and sighting.bias is not None:
        looks[bias] = sighting.bias
    pairs = zip(looks.items(), common.tolist(), strict=True)
    measured = [_view(name, one, alike, generator, level) for (name, one), alike in pairs]
    layers = [view for view in measured if view.name != bias]
    eligible = torch.tensor([view.name == found.layer or view.p <= level for view in layers]) & found.confirmed
    if not bool(eligible.any()):
        return Finding(None, tuple(measured), bias, compared, rounds, level, found.p)
    chosen, again = _clearest(torch.tensor([view.correlation for view in layers]), common, eligible), list[bool]()
    halves = _halves(known.only(torch.isin(known.clients, clients)))
    for repeat in range(min(REPEATS, compared)):
        kept = torch.arange(compared) % REPEATS != repeat
        fewer = [half[:, kept][:, :, kept] for half in halves]
        correlation = replication(fewer[0], fewer[1], generator, permutations=0).correlation
        again.append(_clearest(correlation, common, eligible) == chosen)
    stands = sum(again) / len(again)
    return Finding(layers[chosen].name, tuple(measured), bias, compared, rounds, level, found.p, stands)


def _view(name: str, known: Testimony, common: float, generator: torch.Generator, level: float) -> View:
    """What is seen by one view alone."""
    clients, found = examine(Layout((TensorSpec(name, name, "linear", ()),)), known, generator, level)
    first, second = _halves(known.only(torch.isin(known.clients, clients)))
    again = replication(first, second, generator, permutations=0)
    return View(name, float(again.correlation), float(again.apart), common, found.p)


def _halves(known: Testimony) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean likeness of clients, all pairs of whom were seen, by the first folds and by the others, (v, m, m) each."""
    m, f = len(known.clients), known.folds
    folds = known.alike.double().reshape(-1, f, m, f, m) / known.seen[:, None]
    first, second = slice(f // 2), slice(f // 2, f)
    return folds[:, first, :, first].mean(dim=(1, 3)), folds[:, second, :, second].mean(dim=(1, 3))


def _clearest(correlation: torch.Tensor, common: torch.Tensor, eligible: torch.Tensor) -> int:
    """The layer that replicates best; of those as good to within TIE, the one with least in common."""
    correlation = torch.where(eligible, correlation, -torch.inf)
    return int(torch.where(correlation >= correlation.max() - TIE, common[: len(correlation)], torch.inf).argmin())


def twinned(round: int) -> bool:
    """Whether clients train on folds in a round while the layer is not known: in the last rounds before every look."""
    return round > _look(round)[1] - ROUNDS


def due(round: int) -> bool:
    """Whether there is a look after a round."""
    return round == _look(round)[1]


def level_of(round: int) -> float:
    """The level of the next look, from a round on. All looks of a run together spend LEVEL."""
    return level(LEVEL, _look(round)[0])


def _look(round: int) -> tuple[int, int]:
    """Which look comes next, from 0, and the round it comes after: 3, 6, 12, 24 and so on."""
    number = max(0, ceil(round / ROUNDS) - 1).bit_length()
    return number, ROUNDS * 2**number
