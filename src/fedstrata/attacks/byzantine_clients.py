"""Which clients are Byzantine, and what the server gets in place of what they have trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from fedstrata.attacks.registry import Attack
from fedstrata.core import Layout, Plan, Report, Result
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
    # 0.07 of 100 is 7.000000000000001 by floating point.
    drawn = torch.randperm(len(among), generator=generator(seed, "byzantine clients"))[
        : ceil(round(share * len(among), 9))
    ]
    return tuple(sorted(among[drawn].tolist()))


@dataclass(frozen=True)
class ByzantineClients:
    """Clients that send something else than they have trained.

    Attributes:
        ids: Their ids, ascending.
        layout: The tensors of the network.
        attack: What they send; None where it is what they have trained, on changed data.
        strength: The strength of the attack; None is its usual one.
        from_round: The first round in which they attack.
        seed: The seed of the run.
    """

    ids: Sequence[int]
    layout: Layout
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
        columns = self.layout.columns(task.upload)
        values = result.updates.values.clone()
        # Whoever has diverged is no example: its update would make nan of all that is sent.
        known = ~byzantine & result.updates.values.isfinite().all(dim=1)
        draw = generator(self.seed, f"attack {name}", plan.round)
        for model in result.chosen[byzantine].unique().tolist():
            here = result.chosen == model
            own, honest = (values[rows & here][:, columns] for rows in (byzantine, known))
            # Indexing by two tensors would pair them.
            values[(byzantine & here).nonzero(), columns] = self.attack(own, honest, self.strength, draw)
        return replace(result, updates=replace(result.updates, values=values))
