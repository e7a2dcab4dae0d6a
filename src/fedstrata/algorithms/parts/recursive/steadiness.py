"""Model stability: how steadily the layers of a client's updates turn from round to round.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, sections III-B and IV-C. All of it happens on the server, from uploads that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge

from fedstrata.algorithms.parts.keys import Norm
from fedstrata.algorithms.parts.recursive.recursion import Watched, watch
from fedstrata.clustering import stability
from fedstrata.core import Problem, Report, assign_pending
from fedstrata.lazy_torch import torch

Window = Annotated[int, Ge(3)]
"""One value of stability needs three uploads."""

Change = Norm | Literal["auto", "lr"]
"""How much an update must have changed in a weight for stability to look at it (xi): more than the median of its layer
(auto), more than `XI` of the step size (lr), or than a number."""

XI = 0.05
"""Share of the step size (section V-A). It kept 36 to 55 % of the weights in the paper's networks and 1 to 5 % in ours,
for that hangs on how large updates are; the median keeps half of every layer whatever they are."""


@dataclass(frozen=True)
class Windowed(Watched):
    """Remembers the last uploads of every client since its lineage began: since it came to its cluster.

    Attributes:
        uploads: the last W - 1 of each client, the newest last, conv and linear columns, (n, W - 1, q); the next one
            completes the window.
        count: uploads since the lineage began, (n,) int64.
        chosen: columns that stability looks at, (n, q) bool.
        lineage: tree node of the cluster in which the uploads were made, (n,) int64; -1 before the first.
    """

    uploads: torch.Tensor
    count: torch.Tensor
    chosen: torch.Tensor
    lineage: torch.Tensor


H = TypeVar("H", bound=Windowed)


def remember(problem: Problem, window: int) -> Windowed:
    """Everyone in one cluster, no upload seen yet."""
    n, q = problem.clients, len(problem.layout.columns(problem.layout.select("all")))
    return Windowed(
        **vars(watch(problem)),
        uploads=torch.zeros(n, window - 1, q),
        count=torch.zeros(n, dtype=torch.int64),
        chosen=torch.ones(n, q, dtype=torch.bool),
        lineage=torch.full((n,), -1),
    )


def observe(
    problem: Problem, state: H, report: Report, xi: Change | None, signed: bool = False
) -> tuple[H, torch.Tensor]:
    """Take in a round's uploads, and say how steadily those of each client turn.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: of the round.
        xi: change of an update above which its weight is unstable, and looked at; None looks at all weights.
        signed: whether only growth counts as change (Eq. 19, literally).

    Returns:
        The state with these uploads, and the mean stability over the window of each client and layer, (n, layers)
        float64; infinity where a window is not full, or nothing was uploaded.
    """
    layout, updates = problem.layout, report.results[0].updates
    clients, compared = updates.clients, layout.columns(layout.select("all"))
    node = state.nodes[assign_pending(state, report)[clients]]
    # A lineage ends with a split, a merge, and when a client is put or placed into another cluster; its uploads
    # stay until they are overwritten, but count no more.
    goes_on = (state.labels[clients] >= 0) & (state.lineage[clients] == node)
    count = torch.where(goes_on, state.count[clients], 0) + 1
    window = torch.cat([state.uploads[clients], updates.values[:, None, compared]], dim=1)
    layers = [torch.isin(compared, layout.columns(layout.select(layer))) for layer in layout.layers]
    chosen = state.chosen[clients] | (count == 1)[:, None]
    if xi is not None:
        change = window[:, -1] - window[:, -2]
        least = problem.training_of(state.round + 1).lr * XI if xi == "lr" else xi
        unstable = _unstable(change if signed else change.abs(), layers, least)
        chosen = torch.where((count == 2)[:, None], unstable, chosen)

    steady = torch.full((problem.clients, len(layers)), torch.inf, dtype=torch.float64)
    for row in (count >= window.shape[1]).nonzero().flatten().tolist():
        for place, layer in enumerate(layers):
            steady[clients[row], place] = stability(window[row][:, layer & chosen[row]]).mean()  # Eq. 14
    seen = replace(
        state,
        uploads=state.uploads.index_copy(0, clients, window[:, 1:]),
        count=state.count.index_copy(0, clients, count),
        chosen=state.chosen.index_copy(0, clients, chosen),
        lineage=state.lineage.index_copy(0, clients, node),
    )
    return seen, steady


def _unstable(change: torch.Tensor, layers: Sequence[torch.Tensor], least: float | str) -> torch.Tensor:
    """The columns that changed by more than `least`, (m, q) bool; of a layer in which none did, all."""
    unstable = torch.zeros_like(change, dtype=torch.bool)
    for layer in layers:
        within = change[:, layer]
        bound = within.median(dim=1, keepdim=True).values if isinstance(least, str) else least
        beyond = within > bound  # Eq. 19
        unstable[:, layer] = beyond | ~beyond.any(dim=1, keepdim=True)
    return unstable


def curves(problem: Problem, state: Windowed, steady: torch.Tensor) -> dict[str, float]:
    """Mean stability of every layer over the clients with a full window, and the share of weights that it is of."""
    known, selected = steady[steady.isfinite().all(dim=1)], state.chosen[state.count >= 2]
    names = [f"stability {layer}" for layer in problem.layout.layers] if len(known) else []
    used = {"weights used": float(selected.double().mean())} if len(selected) else {}
    return {**dict(zip(names, known.mean(dim=0).tolist(), strict=False)), **used}
