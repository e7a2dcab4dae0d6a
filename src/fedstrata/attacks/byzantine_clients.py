"""Which clients are Byzantine, and what the server gets in place of what they have trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from fedstrata.attacks.registry import Attack
from fedstrata.core import Plan, Report, Result
from fedstrata.lazy_torch import torch
from fedstrata.randomness import generator


def choose_byzantine(clients: int, share: float, groups: torch.Tensor | None, seed: int) -> tuple[int, ...]:
    """Draw the Byzantine clients, ascending.

    Args:
        clients: The number of clients, n.
        share: The share of them that is Byzantine, rounded up; with `groups` that of the largest group.
        groups: The true group of each client, (n,), to draw all of them from the largest; None draws them from all.
        seed: The seed of the run.
    """
    among = torch.arange(clients)
    if groups is not None:
        among = among[groups == groups.bincount().argmax()]
    drawn = torch.randperm(len(among), generator=generator(seed, "byzantine clients"))[: ceil(share * len(among))]
    return tuple(sorted(among[drawn].tolist()))


@dataclass(frozen=True)
class ByzantineClients:
    """Clients that send something else than they have trained.

    Attributes:
        ids: Their ids, ascending.
        attack: What they send; None where it is what they have trained, on changed data.
        strength: The strength of the attack; None is its usual one.
        from_round: The first round in which they attack.
        seed: The seed of the run.
    """

    ids: Sequence[int]
    attack: Attack | None
    strength: float | None = None
    from_round: int = 1
    seed: int = 0

    def corrupt(self, plan: Plan, report: Report) -> Report:
        """The report with the updates of the Byzantine clients replaced. What they score is not changed."""
        if self.attack is None or plan.round < self.from_round:
            return report
        return replace(report, results={name: self._replace(plan, name, each) for name, each in report.results.items()})

    def _replace(self, plan: Plan, name: str, result: Result) -> Result:
        """A result with their updates replaced, where clients upload something in its task."""
        task = plan.tasks[name]
        byzantine = torch.isin(result.updates.clients, torch.tensor(self.ids))
        if self.attack is None or not any(task.upload) or not bool(byzantine.any()):
            return result
        values = result.updates.values.clone()
        # What is not uploaded is zero in every update, and stays so.
        sent = (values != 0).any(dim=0)
        draw = generator(self.seed, f"attack {name}", plan.round)
        for model in result.chosen[byzantine].unique().tolist():
            here = result.chosen == model
            own = values[byzantine & here]
            made = self.attack(own, values[~byzantine & here], self.strength, draw)
            values[byzantine & here] = torch.where(sent, made, own)
        return replace(result, updates=replace(result.updates, values=values))
