"""Which groups of a trial get a cluster each: those whose models suit them better than those of others do.

A group is parted if a `duel` on the B halves proves that its parts differ, and if the best models inside it have less
loss than its own. Groups and models come from the A halves alone, so the B halves had no part in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedstrata.algorithms.parts.strata.trial import Trial
from fedstrata.clustering import duel
from fedstrata.core import Decision
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Parting:
    """Who goes where.

    Attributes:
        clients: who were compared, ids (m,).
        groups: of each, (m,); -1 where it is not known, because its side was parted without it.
        count: of groups; 1 if everyone stays together.
        decision: why.
    """

    clients: torch.Tensor
    groups: torch.Tensor
    count: int
    decision: Decision


class Best(NamedTuple):
    """The best that can be done inside a group.

    Attributes:
        losses: of each client, (m,).
        leaves: the groups whose models are used.
        p: the largest p of a duel that this rests on; 0 if on none.
    """

    losses: torch.Tensor
    leaves: tuple[int, ...]
    p: float


def parting(trial: Trial, round: int, *, benefit: bool) -> Parting:
    """What is to be done after a trial.

    Args:
        trial: in which enough have answered.
        round: of the answers.
        benefit: whether a split must pay.
    """
    groups, answered = trial.groups, trial.answered

    def best(node: int) -> Best:
        whole, parts = Best(trial.losses[:, node], (node,), 0.0), groups.children(node)
        if not parts or not all(bool((groups.inside[part] & answered).any()) for part in parts):
            return whole
        p = 0.0 if groups.known(parts[0]) else _p(trial, node)
        here, one, other = groups.inside[node] & answered, best(parts[0]), best(parts[1])
        finer = _parted(trial, node, (one.losses, other.losses))
        pays = float(finer[here].double().sum()) < float(whole.losses[here].double().sum())
        if p > trial.level or (benefit and not pays):
            return whole
        return Best(finer, one.leaves + other.leaves, max(p, one.p, other.p))

    found = best(0)
    labels = torch.full((len(trial.clients),), -1)
    for label, leaf in enumerate(found.leaves):
        labels[groups.inside[leaf]] = label
    refused = [trial.losses[:, part] for part in groups.children(0)]
    losses = found.losses if len(found.leaves) > 1 else _parted(trial, 0, refused)
    gain = float((trial.losses[:, 0] - losses)[answered].double().mean())
    p = found.p if len(found.leaves) > 1 or groups.proven else _p(trial, 0)
    return Parting(trial.clients, labels, len(found.leaves), _told(trial, round, found.leaves, gain, p))


def halved(clients: torch.Tensor, second: torch.Tensor, decision: Decision) -> Parting:
    """The two sides of a proven split, without a trial.

    Args:
        clients: who were compared, ids (m,).
        second: which of them are on the second side, bool (m,).
        decision: of the test.
    """
    return Parting(clients, second.long(), 2, decision)


def _parted(trial: Trial, node: int, of_parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Loss of each client if a group is parted, by the losses of each part, (m,); who is in none keeps its own."""
    losses = trial.losses[:, node]
    for part, own in zip(trial.groups.children(node), of_parts, strict=True):
        losses = torch.where(trial.groups.inside[part], own, losses)
    return losses


def _p(trial: Trial, node: int) -> float:
    """That a group's two parts look so different by chance, among all splits that are to be proven."""
    groups = trial.groups
    first, second = groups.children(node)
    one, other = (groups.inside[part] & trial.answered for part in (first, second))
    both = one | other
    own = torch.where(one, trial.errors[:, first], trial.errors[:, second])
    away = torch.where(one, trial.errors[:, second], trial.errors[:, first])
    return min(1.0, groups.unproven * duel(own[both], away[both], one[both], trial.samples[both]))


def _told(trial: Trial, round: int, leaves: Sequence[int], gain: float, p: float) -> Decision:
    """The verdict, once it is known whether models of their own serve the groups better."""
    why, criteria, groups = trial.decision.why, trial.decision.values, trial.groups
    chance = f"p = {p:.2g}, level {trial.level:.2g}"
    if not groups.proven:
        criteria = {"p": p, "level": trial.level}
        if p > trial.level:
            return Decision(f"not split: {chance} in round {round}", values=criteria)
        why = f"round {round}: the models of others suit them less ({chance})"
    elif not all(map(groups.known, leaves)):
        why = f"{why}; inside, the models of others suit them less ({chance})"
    each = "a model for each side" if len(leaves) <= 2 else f"a model for each of {len(leaves)} groups"
    done = f"{each} lowers" if len(leaves) > 1 else f"but {each} does not lower"
    why = f"{why}; {done} the loss of their members: by {gain:.2g} nats"
    return replace(trial.decision, why=why, values={**criteria, "gain": gain})
