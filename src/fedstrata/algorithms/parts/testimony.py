"""Who is like whom by the folds of clients' data, summed over the rounds in which they trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.clustering import Confirmation, confirm, confirm_folds, fold_likeness, likeness
from fedstrata.core import Layout, Rows
from fedstrata.lazy import torch

FEWEST = 4
"""Clients below which nobody can be told apart."""


@dataclass(frozen=True)
class Testimony:
    """What the folds of a cluster's voters have shown.

    Attributes:
        clients: who, ascending ids (m,).
        folds: of each, f.
        alike: likeness by every layer, and all together, summed over twin rounds, (v, f m, f m) float32.
        seen: twin rounds in which both of a pair sent all folds, (m, m).
    """

    clients: torch.Tensor
    folds: int
    alike: torch.Tensor
    seen: torch.Tensor

    def only(self, kept: torch.Tensor) -> Testimony:
        """That of some of the clients, by a bool (m,)."""
        slots = kept.repeat(self.folds)
        return Testimony(self.clients[kept], self.folds, self.alike[:, slots][:, :, slots], self.seen[kept][:, kept])


def looked_at(layout: Layout) -> dict[str, torch.Tensor]:
    """What is looked at, and its columns: every layer, and all of them together."""
    names = layout.layers if len(layout.layers) == 1 else (*layout.layers, "all")
    return {name: layout.columns(layout.select(name)) for name in names}


def silence(layout: Layout, folds: int, clients: torch.Tensor | None = None) -> Testimony:
    """Nothing has been shown yet by some clients, by default none."""
    clients = torch.empty(0, dtype=torch.int64) if clients is None else clients
    m, v = len(clients), len(looked_at(layout))
    return Testimony(clients, folds, torch.zeros(v, folds * m, folds * m), torch.zeros(m, m, dtype=torch.int64))


def add(layout: Layout, known: Testimony, sent: Sequence[Rows]) -> Testimony:
    """What is known with what one more twin round showed: updates of the same clients by every fold, (m', p) each."""
    clients, looks, folds = sent[0].clients, looked_at(layout), len(sent)
    if len(clients) < FEWEST:
        return known
    if folds == 2:
        # Each half is measured by itself: what one half tells about the other is the whole question.
        halves = [[likeness(half.values[:, columns]) for half in sent] for columns in looks.values()]
        fresh = torch.stack([torch.block_diag(*each) for each in halves])
    else:
        fresh = fold_likeness(torch.stack([fold.values for fold in sent]), looks)
    whole = silence(layout, folds, torch.cat([known.clients, clients]).unique())
    for ids, alike, seen in ((known.clients, known.alike, known.seen), (clients, fresh.float(), torch.tensor(1))):
        place = torch.searchsorted(whole.clients, ids)
        slots = (place + torch.arange(folds)[:, None] * len(whole.clients)).flatten()
        whole.alike[:, slots[:, None], slots] += alike
        whole.seen[place[:, None], place] += seen
    return whole


def examine(
    layout: Layout, known: Testimony, generator: torch.Generator, level: float
) -> tuple[torch.Tensor, Confirmation]:
    """Whether clients form groups; and which were compared, ids (m',): every pair of them was seen in some round."""
    kept = torch.ones(len(known.clients), dtype=torch.bool)
    while bool((known.seen[kept][:, kept] == 0).any()):
        # Whoever shares no round with the most others is left out first, of equals the highest id.
        missing = ((known.seen == 0) & kept).sum(dim=1).where(kept, -1)
        kept[int((missing == missing.max()).nonzero()[-1])] = False
    some, names, m = known.only(kept), tuple(looked_at(layout)), int(kept.sum())
    mean = some.alike.double() / some.seen.repeat(some.folds, some.folds)
    if some.folds == 2:
        return some.clients, confirm(mean[:, :m, :m], mean[:, m:, m:], generator, level, names)
    return some.clients, confirm_folds(mean, some.folds, generator, level, names)
