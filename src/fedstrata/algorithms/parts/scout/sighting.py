"""What the scout sees: who is like whom by folds of the clients' data, in every layer and in the last one's bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.proof.budget import gathered
from fedstrata.algorithms.parts.proof.hearings import Hearing, hearing
from fedstrata.algorithms.parts.proof.testimony import FEWEST, Testimony, looked_at
from fedstrata.algorithms.parts.proof.voters import counted, heard
from fedstrata.clustering import cosine, norms
from fedstrata.core import Layout, Problem, Report, Rows, State
from fedstrata.lazy_torch import torch

WHOLE = "all"
"""The view of all conv and linear layers together."""


@dataclass(frozen=True)
class Sighting:
    """What the folds of some rounds showed.

    Attributes:
        layers: by every layer, and all of them together; None before the first folds.
        bias: by the bias of the last layer alone; None before the first folds, or without one.
        common: mean cosine of two different clients, summed over the rounds with folds, by view, (v,).
        rounds: with folds.
        longest: norm of the longest whole update so far, by view, (v,).
        sizes: training samples of each client, (n,); 0 until it has answered.
    """

    layers: Testimony | None
    bias: Testimony | None
    common: torch.Tensor
    rounds: int
    longest: torch.Tensor
    sizes: torch.Tensor


def views(layout: Layout) -> dict[str, torch.Tensor]:
    """What is looked at, and its columns: every layer, all of them if there are several, the last one's bias."""
    bias = bias_of(layout)
    return {**looked_at(layout), **({} if bias is None else {bias: layout.columns(layout.select(bias))})}


def bias_of(layout: Layout) -> str | None:
    """The bias of the last layer: it moves with how often each class occurs, whatever the inputs look like."""
    last = [slot.name for slot in layout.tensors if slot.layer == layout.layers[-1] and slot.kind == "linear"]
    return last[1] if len(last) == 2 else None


def unseen(layout: Layout, clients: int) -> Sighting:
    """Nothing has been seen yet of so many clients."""
    v = len(views(layout))
    return Sighting(None, None, torch.zeros(v), 0, torch.zeros(v), torch.zeros(clients, dtype=torch.int64))


def forget(sighting: Sighting, clients: torch.Tensor) -> Sighting:
    """The sighting without what some clients, a bool (n,), showed: their data may have changed since."""
    if not len(sighting.sizes):
        return sighting
    kept = [each and each.only(~clients[each.clients]) for each in (sighting.layers, sighting.bias)]
    return replace(sighting, layers=kept[0], bias=kept[1], sizes=torch.where(clients, 0, sighting.sizes))


def watching(problem: Problem, state: State, sighting: Sighting, level: float) -> tuple[Hearing, ...]:
    """Who trains on folds for the scout, of the only cluster that there is; nobody until sample counts are known."""
    found = hearing(problem, state, sighting.sizes, 0, "auto", level)
    return () if found is None else (found,)


def see(layout: Layout, sighting: Sighting, report: Report, hearings: Sequence[Hearing], done: int) -> Sighting:
    """Add what a round showed.

    Args:
        layout: of the network.
        sighting: before.
        report: of clients that all started from the same model.
        hearings: who was to train on folds.
        done: results that come before those of the folds.
    """
    updates, longest = report.results[0].updates, sighting.longest
    if len(updates.clients):
        longest = torch.maximum(longest, norms(updates.values, views(layout).values()).amax(dim=1).to(longest))
    for sent in heard(report, hearings, done).values():
        sighting = _with(layout, sighting, sent)
    return replace(sighting, longest=longest, sizes=counted(sighting.sizes, report, hearings, done))


def _with(layout: Layout, sighting: Sighting, sent: Sequence[Rows]) -> Sighting:
    """The sighting with updates of the same clients by every fold, (m, p) each."""
    if len(sent[0].clients) < FEWEST:
        return sighting
    looks, bias, everyone = views(layout), bias_of(layout), torch.ones_like(sighting.sizes, dtype=torch.bool)
    alone = sighting.bias
    if bias is not None:
        slot = next(slot for slot in layout.tensors if slot.name == bias)
        alone = gathered(Layout((slot,)), alone, [fold.only(looks[bias]) for fold in sent], everyone)
    different = ~torch.eye(len(sent[0].clients), dtype=torch.bool)
    cosines = torch.stack([cosine(fold.values, looks.values())[:, different].mean(dim=1) for fold in sent])  # (f, v)
    return replace(
        sighting,
        layers=gathered(layout, sighting.layers, sent, everyone),
        bias=alone,
        common=sighting.common + cosines.mean(dim=0),
        rounds=sighting.rounds + 1,
    )
