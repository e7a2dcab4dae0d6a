"""Which clients are Byzantine, and what the server gets in place of what they have trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import generator
from fedstrata.core import Layout, Plan, Report, Result, Rows
from fedstrata.uploads.attacks.updates import Attack, Knowledge

Losses = Literal["honest", "for_splits", "against_splits"]
"""What Byzantine clients say about models that they compare: the truth; that the models of groups have no error, and
that of all has a very large one; or the opposite."""

_WORST_LOSS = 1e3
"""The loss that a lie claims, in nats. It is larger than that of any model that is worth a comparison."""


def choose_byzantine(
    clients: int, share: float, groups: torch.Tensor | None, seed: int, idle: Collection[int] = ()
) -> tuple[int, ...]:
    """Draw the Byzantine clients, ascending.

    Args:
        clients: The number of clients, n.
        share: The share of those that take part that is Byzantine, rounded up; with `groups` that of the largest group.
        groups: The true group of each client, (n,), to draw all of them from the largest; None draws them from all.
        seed: The seed of the run.
        idle: The clients that never take part, of which none is drawn.
    """
    among = torch.tensor([client for client in range(clients) if client not in idle], dtype=torch.int64)
    if groups is not None:
        here = groups[among]
        among = among[here == here.bincount().argmax()]
    order = torch.randperm(len(among), generator=generator(seed, "byzantine clients"))
    return tuple(sorted(among[order[: rounded_up(share, len(among))]].tolist()))


def rounded_up(share: float, count: int) -> int:
    """The number of things that a share of so many is, rounded up: at least one of any, for a share above 0."""
    if not count or not share:
        return 0
    # 0.07 of 100 is 7.000000000000001 by floating point.
    return max(1, ceil(round(share * count, 9)))


@dataclass(frozen=True)
class ByzantineClients:
    """A step in which clients send something else than they have trained.

    Attributes:
        ids: Their ids, ascending.
        layout: The tensors of the network.
        attack: What they send; None where it is what they have trained, perhaps on changed data.
        strength: The strength of the attack; None is its usual one.
        from_round: The first round in which they attack.
        seed: The seed of the run.
        groups: The true group of each client when the run begins, (n,); None where there are none.
        losses: What they say about the models that they are asked to compare.
    """

    ids: Sequence[int]
    layout: Layout
    attack: Attack | None
    strength: float | None = None
    from_round: int = 1
    seed: int = 0
    groups: torch.Tensor | None = None
    losses: Losses = "honest"

    def of_report(self, plan: Plan, report: Report) -> Report:
        """The report with the updates of the Byzantine clients replaced, and what they say about models."""
        if plan.round < self.from_round or (self.attack is None and self.losses == "honest"):
            return report
        return report.with_results(partial(self._with_lies, plan)).with_results(partial(self._replace, plan))

    def _replace(self, plan: Plan, name: str, result: Result) -> Result:
        """A result with their updates replaced, where clients upload something in its task."""
        task = plan.tasks[name]
        byzantine = self._rows(result)
        if self.attack is None or not any(task.upload) or not bool(byzantine.any()):
            return result
        columns = self.layout.columns(task.upload)
        sent = result.updates.values.clone()
        # Of tensors that are sent as they are, an update is what is added to the model that the client was given.
        origins = None
        if any(task.upload_values):
            origins = plan.models[result.chosen] * self.layout.column_mask(task.upload_values)
        updates = result.updates if origins is None else Rows(result.updates.clients, sent - origins)
        # Whoever has diverged is no example: its update would make nan of all that is sent.
        known = ~byzantine & sent.isfinite().all(dim=1)
        draw = generator(self.seed, f"attack {name}", plan.round)
        for model in result.chosen[byzantine].unique().tolist():
            here = result.chosen == model
            knowledge = Knowledge(
                updates=updates,
                columns=columns,
                senders=byzantine & here,
                known=known,
                same_model=here,
                byzantine=torch.tensor(self.ids),
                groups=self.groups,
                strength=self.strength,
                round=plan.round,
                from_round=self.from_round,
                seed=self.seed,
                generator=draw,
                task=name,
                layers=self._layers(columns),
            )
            # Indexing by two tensors would pair them.
            rows = (byzantine & here).nonzero()
            sent[rows, columns] = self.attack(knowledge)
            if origins is not None:
                sent[rows, columns] += origins[rows, columns]
        return replace(result, updates=Rows(result.updates.clients, sent))

    def _layers(self, columns: torch.Tensor) -> dict[str, torch.Tensor]:
        """The places of each layer's weights among some columns, of those layers that are there."""
        own = {layer: self.layout.columns(self.layout.select(layer)) for layer in self.layout.layers}
        places = {layer: torch.isin(columns, each).nonzero().flatten() for layer, each in own.items()}
        return {layer: each for layer, each in places.items() if len(each)}

    def _with_lies(self, plan: Plan, name: str, result: Result) -> Result:
        """A result with their lies, where clients compare models and upload nothing.

        So Strata's clients compare the models of candidate groups, in one task or several. The first that each is given
        is that of all.
        """
        task = plan.tasks[name]
        byzantine = self._rows(result)
        if self.losses == "honest" or any(task.upload) or not bool(byzantine.any()):
            return result
        rows = torch.searchsorted(plan.cohort, result.updates.clients[byzantine])
        whole = task.candidates[rows] == _first_models(plan)[rows]
        lies = torch.where(whole == (self.losses == "for_splits"), _WORST_LOSS, 0.0)
        losses = result.losses.clone()
        # A client that was given one model has nothing to compare, and no loss.
        losses[byzantine] = torch.where(losses[byzantine].isnan(), torch.nan, lies)
        return replace(result, losses=losses)

    def _rows(self, result: Result) -> torch.Tensor:
        """Which rows of a result are theirs, bool (m,)."""
        return torch.isin(result.updates.clients, torch.tensor(self.ids))


def _first_models(plan: Plan) -> torch.Tensor:
    """The first of all models that each client of the cohort compares, (m, 1)."""
    compared = [task.candidates for task in plan.tasks.values() if not any(task.upload)]
    # Where a client is given one model it compares nothing: it trains its own model (Ditto).
    choices = [each.masked_fill((each >= 0).sum(dim=1, keepdim=True) < 2, -1) for each in compared]
    candidates = torch.cat(choices, dim=1)
    return torch.where(candidates < 0, len(plan.models), candidates).amin(dim=1, keepdim=True)
