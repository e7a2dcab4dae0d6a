"""Whether a split pays: the models of the sides against one model of all, on data that trained none of them.

All three start from the cluster's model and move by the mean update of members' A halves: of the one side, of the
other, of both. The members say how well that of their side and that of both do on their B halves; it is decided once
half of them have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedstrata.core import Layout, Plan, Problem, Report, Rows, Verdict
from fedstrata.lazy import torch

BOTH = 2
"""Place of the model of all among those of a trial, behind the ones of the two sides."""

WORST = 1e3
"""Loss in nats of a model that leads to nothing finite, or to more."""


@dataclass(frozen=True)
class Trial:
    """A confirmed split of one cluster.

    Attributes:
        clients: who were compared, ids (m,).
        second: which of them are on the second side, bool (m,).
        models: of the first side, of the second, of both, (3, p).
        gains: by how much each has less loss with the model of its side than with that of both, in nats, (m,); nan
            while it has not said.
        verdict: of the test that confirmed it.
    """

    clients: torch.Tensor
    second: torch.Tensor
    models: torch.Tensor
    gains: torch.Tensor
    verdict: Verdict

    @property
    def gain(self) -> float | None:
        """The mean, of those that have said; None before half of them have."""
        told = self.gains[~self.gains.isnan()]
        return float(told.double().mean()) if 2 * len(told) >= len(self.gains) else None

    def only(self, kept: torch.Tensor) -> Trial | None:
        """That of some of the clients, by a bool (m,); None where a side is left without any."""
        second = self.second[kept]
        left = bool(second.any()) and not bool(second.all())
        return replace(self, clients=self.clients[kept], second=second, gains=self.gains[kept]) if left else None

    def told(self) -> Verdict:
        """The verdict, once it is known whether the sides' models have less loss."""
        gain = self.gain or 0.0
        done = "a model for each side lowers" if gain > 0 else "but a model for each side does not lower"
        why = f"{self.verdict.why}; {done} the loss of their members: by {gain:.2g} nats"
        return replace(self.verdict, why=why, criteria={**self.verdict.criteria, "gain": gain})


def tried(
    problem: Problem,
    start: torch.Tensor,
    clients: torch.Tensor,
    second: torch.Tensor,
    sent: Sequence[Rows],
    verdict: Verdict,
) -> Trial | None:
    """A trial of a split; None where nobody of a side has sent anything in this round.

    Args:
        problem: fixed for the run.
        start: the cluster's model, (p,).
        clients: who were compared, ids (m,).
        second: which of them are on the second side, bool (m,).
        sent: what members sent in this round, by fold.
        verdict: of the test.
    """
    halves = sent[: len(sent) // 2]
    here = torch.isin(clients, halves[0].clients)
    ids, side = clients[here], second[here].long()
    if len(side.unique()) < 2:
        return None
    rows = Rows(ids, torch.stack([half.of(ids) for half in halves]).mean(dim=0))
    equal = torch.ones(len(ids))
    moves = torch.cat([problem.mean(rows, equal, side, 2), problem.mean(rows, equal, torch.zeros_like(side), 1)])
    return Trial(clients, second, start + moves, torch.full((len(clients),), torch.nan), verdict)


def offered(plan: Plan, layout: Layout, trials: Sequence[Trial | None]) -> Plan:
    """The plan in which members of trials also weigh the model of their side against that of both, without training."""
    running = [trial for trial in trials if trial is not None]
    if not running:
        return plan
    offers = torch.full((len(plan.cohort), 2), -1)
    for place, trial in enumerate(running):
        here = torch.isin(plan.cohort, trial.clients[trial.gains.isnan()])
        side = Rows(trial.clients, trial.second.long()[:, None]).of(plan.cohort[here])
        offers[here] = len(plan.models) + 3 * place + torch.cat([side, torch.full_like(side, BOTH)], dim=1)
    none = layout.nothing
    fit = replace(plan.work[0], offers=offers, train=none, upload=none, part="B", compare="B", stream="benefit")
    return replace(plan, models=torch.cat([plan.models, *(trial.models for trial in running)]), work=(*plan.work, fit))


def weighed(report: Report, trials: Sequence[Trial | None]) -> list[Trial | None]:
    """The trials, with what their members that answered have said."""
    if all(trial is None for trial in trials):
        return list(trials)
    told = list[Trial | None]()
    for trial in trials:
        result = report.results[1]
        if trial is not None:
            here = torch.isin(trial.clients, result.updates.clients) & trial.gains.isnan()
            losses = Rows(result.updates.clients, result.losses).of(trial.clients[here])
            losses = losses.nan_to_num(nan=WORST).clamp(max=WORST)
            gains = trial.gains.masked_scatter(here, losses[:, 1] - losses[:, 0])
            trial = replace(trial, gains=gains)
        told.append(trial)
    return told
