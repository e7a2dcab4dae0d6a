"""What LayerCFL compares: which layers, and how it comes by them where none are given; and which updates of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from fedstrata.algorithms.parts.proof.hearings import Hearing
from fedstrata.algorithms.parts.proof.voters import twins
from fedstrata.algorithms.parts.recursive.recursion import Watched
from fedstrata.algorithms.parts.recursive.steadiness import Windowed
from fedstrata.algorithms.parts.scout.look import conclude, due, level_of, twinned
from fedstrata.algorithms.parts.scout.sighting import WHOLE, Sighting, forget, see, unseen, views, watching
from fedstrata.core import Mask, Plan, Problem, Report, Rows, assign_pending
from fedstrata.errors import ExperimentError
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Travelled(Watched):
    """Adds which layers are compared, and what every client moved them by since it came to its cluster.

    Attributes:
        compared: their selectors; none while they are being scouted.
        sighting: what the scout has seen since its last look; of no client unless ``layers = "auto"``.
        path: sum of the updates that a client sent as a member, (n, q); empty unless ``delta = "accumulated"``.
        origin: tree node of the cluster in which its path began, (n,); -1 before the first update.
    """

    compared: tuple[str, ...]
    sighting: Sighting
    path: torch.Tensor
    origin: torch.Tensor


@dataclass(frozen=True)
class Attentive(Travelled, Windowed):
    """With the windows that ``trigger = "stability"`` needs."""


T = TypeVar("T", bound=Travelled)


def setting_out(problem: Problem, watched: Watched, compared: tuple[str, ...], measure: str, delta: str) -> Travelled:
    """The first state, from one of `recursion` or `steadiness`.

    Raises:
        LayoutError: when a selector of the compared layers matches nothing.
        ExperimentError: when weights are to be compared, but of sums of updates, which no client has trained.
    """
    if delta == "accumulated" and not measure.startswith("d"):
        raise ExperimentError(
            f"algorithm.measure = {measure!r}: compares weights, and algorithm.delta = 'accumulated' sums of updates, "
            "which are nobody's; expected measure = 'dcos' or 'dl2', or delta = 'last'"
        )
    n, selected = problem.clients, mask_of(problem, compared)
    q = len(problem.layout.columns(selected)) if delta == "accumulated" else 0
    kind = Attentive if isinstance(watched, Windowed) else Travelled
    return kind(
        **vars(watched),
        compared=compared,
        sighting=unseen(problem.layout, 0 if compared else n),
        path=torch.zeros(n, q),
        origin=torch.full((n,), -1),
    )


def mask_of(problem: Problem, compared: tuple[str, ...]) -> Mask:
    """The tensors of the compared layers, (l,); of all layers while none are known."""
    return problem.layout.select(*(compared or (WHOLE,)))


def travel(problem: Problem, state: T, report: Report) -> tuple[T, Rows]:
    """What is compared of those that answered, (m, q): their updates, or the sums of all since they came."""
    updates = report.results[0].updates.only(problem.layout.columns(mask_of(problem, state.compared)))
    if not state.path.shape[1]:
        return state, updates
    clients, node = updates.clients, state.nodes[assign_pending(state, report)[updates.clients]]
    # A path that began in another cluster, or before the data changed, says nothing about this one.
    goes_on = (state.labels[clients] >= 0) & (state.origin[clients] == node)
    path = torch.where(goes_on[:, None], state.path[clients], 0.0) + updates.values
    paths, origin = state.path.index_copy(0, clients, path), state.origin.index_copy(0, clients, node)
    return replace(state, path=paths, origin=origin), Rows(clients, path)


def scouting(problem: Problem, state: Travelled, plan: Plan) -> Plan:
    """The plan in which clients also train on folds if the scout wants to see them."""
    return twins(plan, _hearings(problem, state), state.sighting.sizes)


def scouted(problem: Problem, state: T, report: Report, done: int) -> tuple[T, tuple[dict[str, object], ...]]:
    """While no layer is known, what folds show is gathered; after the last round of a look, one may be chosen.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: of the round.
        done: results that come before those of the scout's folds.

    Returns:
        The state, and an event for a look.
    """
    if state.compared:
        return state, ()
    round, layout = state.round + 1, problem.layout
    before = forget(state.sighting, state.labels < 0)
    sighting = see(layout, before, report, _hearings(problem, state), done)
    if not due(round):
        return replace(state, sighting=sighting), ()
    finding = conclude(layout, sighting, problem.generator("scout", round), level_of(round))
    event: dict[str, object] = {"kind": "scout", "layer": finding.layer, "why": finding.sentence}
    if finding.layer is None:
        anew = replace(unseen(layout, problem.clients), longest=sighting.longest, sizes=sighting.sizes)
        return replace(state, sighting=anew), (event,)
    # From here on all is as if this layer had been given from the start: its peak, and its columns of the paths.
    compared, view = (finding.layer,), list(views(layout)).index(finding.layer)
    peaks = torch.stack([state.peaks[:, 0], sighting.longest[view : view + 1]], dim=1)
    kept = torch.isin(*(layout.columns(mask_of(problem, some)) for some in ((), compared)))
    path = state.path[:, kept] if state.path.shape[1] else state.path
    return replace(state, compared=compared, sighting=unseen(layout, 0), peaks=peaks, path=path), (event,)


def _hearings(problem: Problem, state: Travelled) -> tuple[Hearing, ...]:
    """Who trains on folds for the scout in the coming round."""
    round = state.round + 1
    wanted = not state.compared and twinned(round)
    return watching(problem, state, forget(state.sighting, state.labels < 0), level_of(round)) if wanted else ()
