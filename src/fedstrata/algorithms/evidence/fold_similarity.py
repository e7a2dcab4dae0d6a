"""How similar the folds of clients are over rounds, and the permutation test of whether they form groups.

In each round in which clients train on folds, the similarities of all folds of the participants are added up
(`FoldSimilarity`). If the clients form groups, the similarities by one half of the folds agree with those by the other
half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.evidence.split_half import MAX_PARTICIPANTS
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import PermutationResult, fold_test, in_views, likeness, norms, not_tested, split_half_test
from fedstrata.clustering.patterns import MIN_TEST_CLIENTS
from fedstrata.clustering.similarity import STILL
from fedstrata.core import Layout, Rows

_REMEMBERED = 2 * MAX_PARTICIPANTS
"""The largest number of clients whose similarity is kept over rounds. Of more, only those of the last round are."""


@dataclass(frozen=True)
class FoldSimilarity:
    """How similar the folds of participants are, summed over the rounds of a scan.

    Attributes:
        clients: Who took part, ascending ids (m,).
        folds: The number of folds of each, f.
        similarity: The `likeness` of all folds in every view, summed over rounds, (v, f m, f m) float32. A view is a
            layer, or all layers together. The first fold of all clients comes first.
        rounds: The number of rounds in which both of a pair sent all folds, (m, m).
        fresh: Who sent them in the last round, bool (m,).
    """

    clients: torch.Tensor
    folds: int
    similarity: torch.Tensor
    rounds: torch.Tensor
    fresh: torch.Tensor

    def only(self, kept: torch.Tensor) -> FoldSimilarity:
        """The same of some of the clients, by a bool (m,)."""
        slots = kept.repeat(self.folds)
        return FoldSimilarity(
            clients=self.clients[kept],
            folds=self.folds,
            similarity=self.similarity[:, slots][:, :, slots],
            rounds=self.rounds[kept][:, kept],
            fresh=self.fresh[kept],
        )


def compared_views(layout: Layout) -> dict[str, torch.Tensor]:
    """The views that are compared, and their columns: every layer, and all of them together."""
    names = layout.layers if len(layout.layers) == 1 else (*layout.layers, "all")
    return {name: layout.columns(layout.select(name)) for name in names}


def _empty_similarity(layout: Layout, folds: int, clients: torch.Tensor | None = None) -> FoldSimilarity:
    """The similarity of some clients, by default none, before any round."""
    clients = torch.empty(0, dtype=torch.int64) if clients is None else clients
    m = len(clients)
    return FoldSimilarity(
        clients=clients,
        folds=folds,
        similarity=torch.zeros(len(compared_views(layout)), folds * m, folds * m),
        rounds=torch.zeros(m, m, dtype=torch.int64),
        fresh=torch.zeros(m, dtype=torch.bool),
    )


def with_round(layout: Layout, known: FoldSimilarity | None, sent: Sequence[Rows]) -> FoldSimilarity:
    """The similarity with that of one more round.

    Args:
        layout: The layout of the network.
        known: The similarity of earlier rounds. That of another number of folds is forgotten.
        sent: The updates of the same clients by every fold, (m', p) each.
    """
    if known is None or known.folds != len(sent):
        known = _empty_similarity(layout, len(sent))
    layers = compared_views(layout)
    sent = _without_zero_layers(sent, layers)
    clients = sent[0].clients
    if len(clients) < MIN_TEST_CLIENTS:
        return replace(known, fresh=torch.zeros_like(known.fresh))
    again = torch.isin(known.clients, clients)
    if int((~again).sum()) + len(clients) > _REMEMBERED:
        known = known.only(again)
    if len(sent) == 2:
        # Each half is centred and scaled by itself, so that neither half enters the similarities of the other.
        halves = [likeness(half.values, in_views(layers.values())) for half in sent]
        measured = torch.stack([torch.block_diag(*each) for each in zip(*halves, strict=True)])
    else:
        measured = likeness(torch.cat([fold.values for fold in sent]), in_views(layers.values()))
    total = _empty_similarity(layout, len(sent), torch.cat([known.clients, clients]).unique())
    _add(total, known.clients, known.similarity, known.rounds)
    _add(total, clients, measured.float(), torch.tensor(1))
    return replace(total, fresh=torch.isin(total.clients, clients))


def _add(total: FoldSimilarity, clients: torch.Tensor, similarity: torch.Tensor, rounds: torch.Tensor) -> None:
    """Add what was measured of some clients to a similarity, in place."""
    places = torch.searchsorted(total.clients, clients)
    slots = (places + torch.arange(total.folds)[:, None] * len(total.clients)).flatten()
    total.similarity[:, slots[:, None], slots] += similarity
    total.rounds[places[:, None], places] += rounds


def _without_zero_layers(sent: Sequence[Rows], layers: Mapping[str, torch.Tensor]) -> list[Rows]:
    """The updates of clients that have no layer of zeros, except where the layer is zero for all clients."""
    # A layer with dead units has the update zero by all folds of a client. This would replicate like a group.
    zero = torch.stack([norms(rows.values, in_views(layers.values())) <= STILL for rows in sent])  # (f, v, m)
    sound = ~(zero & ~zero.all(dim=2, keepdim=True)).any(dim=(0, 1))
    return [rows.at(sound) for rows in sent]


def groups_test(
    layout: Layout, known: FoldSimilarity, generator: torch.Generator, level: float
) -> tuple[torch.Tensor, PermutationResult]:
    """Test whether clients form groups. Return the clients that were compared, ids (m',), and the result.

    Every two of the clients took part in the same round at least once.
    """
    kept = torch.ones(len(known.clients), dtype=torch.bool)
    while bool((known.rounds[kept][:, kept] == 0).any()):
        # The client that lacks a common round with the most others is left out first. Of equal ones it is one that was
        # absent in the last round, then the one with the largest id.
        missing = (2 * ((known.rounds == 0) & kept).sum(dim=1) + ~known.fresh).where(kept, -1)
        kept[int((missing == missing.max()).nonzero()[-1])] = False
    if int((kept & known.fresh).sum()) < MIN_TEST_CLIENTS:
        # Too few have answered anew. The old similarities have been tested already.
        return known.clients[kept], not_tested(int((kept & known.fresh).sum()), level, "too_few_answers")
    some = known.only(kept)
    m = len(some.clients)
    mean = some.similarity.double() / some.rounds.repeat(some.folds, some.folds)
    # A frozen layer has no pattern, and could only be named where no other layer has one.
    moving = mean.abs().amax(dim=(1, 2)) > 0
    if not bool(moving.any()):
        moving = torch.ones_like(moving)
    names = tuple(name for name, moves in zip(compared_views(layout), moving.tolist(), strict=True) if moves)
    mean = mean[moving]
    if some.folds == 2:
        return some.clients, split_half_test(mean[:, :m, :m], mean[:, m:, m:], generator, level, names)
    return some.clients, fold_test(mean, some.folds, generator, level, names)
