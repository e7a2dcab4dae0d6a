"""Who is like whom by the folds of clients' data, summed over the rounds in which they trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.clustering import Confirmation, confirm, confirm_folds, fold_likeness, likeness, norms
from fedstrata.clustering.similarity import STILL
from fedstrata.clustering.twins import untested
from fedstrata.core import Layout, Matrix, Rows
from fedstrata.lazy_torch import torch

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
        fresh: who sent them in the last one, bool (m,).
    """

    clients: torch.Tensor
    folds: int
    alike: torch.Tensor
    seen: torch.Tensor
    fresh: torch.Tensor

    def only(self, kept: torch.Tensor) -> Testimony:
        """That of some of the clients, by a bool (m,)."""
        slots = kept.repeat(self.folds)
        alike, seen = self.alike[:, slots][:, :, slots], self.seen[kept][:, kept]
        return Testimony(self.clients[kept], self.folds, alike, seen, self.fresh[kept])


def looked_at(layout: Layout) -> dict[str, torch.Tensor]:
    """What is looked at, and its columns: every layer, and all of them together."""
    names = layout.layers if len(layout.layers) == 1 else (*layout.layers, "all")
    return {name: layout.columns(layout.select(name)) for name in names}


def silence(layout: Layout, folds: int, clients: torch.Tensor | None = None) -> Testimony:
    """Nothing has been shown yet by some clients, by default none."""
    clients = torch.empty(0, dtype=torch.int64) if clients is None else clients
    m, v = len(clients), len(looked_at(layout))
    seen, fresh = torch.zeros(m, m, dtype=torch.int64), torch.zeros(m, dtype=torch.bool)
    return Testimony(clients, folds, torch.zeros(v, folds * m, folds * m), seen, fresh)


def add(layout: Layout, known: Testimony, sent: Sequence[Rows]) -> Testimony:
    """What is known with what one more twin round showed: updates of the same clients by every fold, (m', p) each."""
    looks, folds = looked_at(layout), len(sent)
    sent = _alive(sent, looks)
    clients = sent[0].clients
    if len(clients) < FEWEST:
        return replace(known, fresh=torch.zeros_like(known.fresh))
    if folds == 2:
        # Each half is measured by itself: what one half tells about the other is the whole question.
        halves = [likeness(half.values, looks.values()) for half in sent]
        fresh = torch.stack([torch.block_diag(*each) for each in zip(*halves, strict=True)])
    else:
        fresh = fold_likeness(torch.stack([fold.values for fold in sent]), looks)
    whole = silence(layout, folds, torch.cat([known.clients, clients]).unique())
    for ids, alike, seen in ((known.clients, known.alike, known.seen), (clients, fresh.float(), torch.tensor(1))):
        place = torch.searchsorted(whole.clients, ids)
        slots = (place + torch.arange(folds)[:, None] * len(whole.clients)).flatten()
        whole.alike[:, slots[:, None], slots] += alike
        whole.seen[place[:, None], place] += seen
    return replace(whole, fresh=torch.isin(whole.clients, clients))


def _alive(sent: Sequence[Rows], looks: Mapping[str, torch.Tensor]) -> list[Rows]:
    """The rows of clients that moved in every layer in which anyone did: whoever did not is like nobody."""
    # Rows that are 0 in one half are so in the other, a pattern that has nothing to do with the clients' data.
    still = torch.stack([norms(rows.values, looks.values()) <= STILL for rows in sent])  # (f, v, m)
    alive = ~(still & ~still.all(dim=2, keepdim=True)).any(dim=(0, 1))
    return [rows.at(alive) for rows in sent]


def examine(
    layout: Layout, known: Testimony, generator: torch.Generator, level: float
) -> tuple[torch.Tensor, Confirmation]:
    """Whether clients form groups; and which were compared, ids (m',): every pair of them was seen in some round."""
    kept = torch.ones(len(known.clients), dtype=torch.bool)
    while bool((known.seen[kept][:, kept] == 0).any()):
        # Whoever shares no round with the most others is left out first; of equals, who was away last, then the last.
        missing = (2 * ((known.seen == 0) & kept).sum(dim=1) + ~known.fresh).where(kept, -1)
        kept[int((missing == missing.max()).nonzero()[-1])] = False
    if int((kept & known.fresh).sum()) < FEWEST:
        # What was tested before is not tested again.
        reason = f"{int(known.fresh.sum())} members answered with all folds, at least {FEWEST} are needed"
        return known.clients[kept], untested(int(kept.sum()), level, reason)
    some, names, m = known.only(kept), tuple(looked_at(layout)), int(kept.sum())
    mean = some.alike.double() / some.seen.repeat(some.folds, some.folds)
    if some.folds == 2:
        return some.clients, confirm(mean[:, :m, :m], mean[:, m:, m:], generator, level, names)
    return some.clients, confirm_folds(mean, some.folds, generator, level, names)


def shown(layout: Layout, known: Testimony, node: int) -> list[Matrix]:
    """Who is like whom in every layer, by all folds together, for people."""
    m, f = len(known.clients), known.folds
    same = known.alike.reshape(len(known.alike), f, m, f, m).diagonal(dim1=1, dim2=3).mean(dim=-1)  # (v, m, m)
    values = same / known.seen.clamp(min=1)
    return [
        Matrix(node, name, "likeness", known.clients, alike)
        for name, alike in zip(looked_at(layout), values, strict=True)
    ]
