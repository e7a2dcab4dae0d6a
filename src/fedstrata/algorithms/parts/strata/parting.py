"""Which groups of a trial get a cluster each: those that are proven to differ, and whose models do better.

A group is parted if its parts differ, or those inside it do, as a `duel` on the B halves proves; and if the best models
inside it have less loss than its own. The groups come from the A halves alone, so the B halves had no part in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.strata.trial import Trial
from fedstrata.clustering import duel
from fedstrata.core import Verdict
from fedstrata.lazy import torch


@dataclass(frozen=True)
class Parting:
    """Who goes where.

    Attributes:
        clients: who were compared, ids (m,).
        groups: of each, (m,); -1 where it is not known, because its side was parted without it.
        count: of groups; 1 if everyone stays together.
        verdict: why.
    """

    clients: torch.Tensor
    groups: torch.Tensor
    count: int
    verdict: Verdict


def parting(trial: Trial, round: int, *, benefit: bool) -> Parting:
    """What is to be done after a trial.

    Args:
        trial: in which enough have answered.
        round: of the answers.
        benefit: whether a split must pay.
    """
    groups, told = trial.groups, trial.told
    count = max(1, len(groups) // 2 - groups.proven)  # of splits that are still to be proven

    def loss(node: int) -> float:
        return float(trial.losses[groups.inside[node] & told, node].double().sum())

    def best(node: int) -> tuple[float, list[int], float]:
        """Loss of the best models inside a group, theirs, and the least p of a split there."""
        own, parts = loss(node), groups.children(node)
        if not parts or not all(bool((groups.inside[part] & told).any()) for part in parts):
            return own, [node], 1.0
        found = [best(part) for part in parts]
        known = groups.proven and not node
        p = min(1.0 if known else _p(trial, parts) * count, *(each[2] for each in found))
        pays = sum(each[0] for each in found) < own or not benefit
        if pays and (known or p <= trial.level):
            return sum(each[0] for each in found), [leaf for each in found for leaf in each[1]], p
        return own, [node], p

    least, leaves, p = best(0)
    labels = torch.full((len(trial.clients),), -1)
    for label, leaf in enumerate(leaves):
        labels[groups.inside[leaf]] = label
    rival = least if len(leaves) > 1 else sum(loss(part) for part in groups.children(0))
    gain = (loss(0) - rival) / int(told.sum())
    return Parting(trial.clients, labels, len(leaves), _told(trial, round, len(leaves), gain, p))


def halved(clients: torch.Tensor, second: torch.Tensor, verdict: Verdict) -> Parting:
    """The two sides of a proven split, without a trial.

    Args:
        clients: who were compared, ids (m,).
        second: which of them are on the second side, bool (m,).
        verdict: of the test.
    """
    return Parting(clients, second.long(), 2, verdict)


def _p(trial: Trial, parts: list[int]) -> float:
    one, other = (trial.groups.inside[part] & trial.told for part in parts)
    both = one | other
    own, away = (
        torch.where(one, trial.errors[:, first], trial.errors[:, second])[both]
        for first, second in (parts, parts[::-1])
    )
    return duel(own, away, one[both], trial.samples[both])


def _told(trial: Trial, round: int, leaves: int, gain: float, p: float) -> Verdict:
    """The verdict, once it is known whether models of their own serve the groups better."""
    why, criteria = trial.verdict.why, trial.verdict.criteria
    if not trial.groups.proven:
        chance = f"p = {p:.2g}, level {trial.level:.2g}"
        criteria = {"p": p, "level": trial.level}
        if p > trial.level:
            return Verdict(f"not split: {chance} in round {round}", criteria=criteria)
        why = f"round {round}: the models of others suit them less ({chance})"
    each = "a model for each side" if leaves <= 2 else f"a model for each of {leaves} groups"
    done = f"{each} lowers" if leaves > 1 else f"but {each} does not lower"
    why = f"{why}; {done} the loss of their members: by {gain:.2g} nats"
    return replace(trial.verdict, why=why, criteria={**criteria, "gain": gain})
