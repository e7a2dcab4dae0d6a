"""Whether a split pays: the models of the sides against one model of all, on data that trained none of them.

All three start from the cluster's model and move by the mean update of members' A halves: of the one side, of the
other, of both. The members say how well each does on their B halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.core import Layout, Plan, Problem, Report, Rows, Verdict
from fedstrata.lazy import torch


@dataclass(frozen=True)
class Trial:
    """A confirmed split of one cluster.

    Attributes:
        clients: who were compared, ids (m,).
        second: which of them are on the second side, bool (m,).
        models: of the first side, of the second, of both, (3, p).
        verdict: of the test that confirmed it.
    """

    clients: torch.Tensor
    second: torch.Tensor
    models: torch.Tensor
    verdict: Verdict

    def told(self, gain: float) -> Verdict:
        """The verdict, once it is known by how much the sides' models have less loss."""
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
) -> Trial:
    """A trial of a split.

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
    rows = Rows(ids, torch.stack([half.of(ids) for half in halves]).mean(dim=0))
    equal = torch.ones(len(ids))
    moves = torch.cat([problem.mean(rows, equal, side, 2), problem.mean(rows, equal, torch.zeros_like(side), 1)])
    return Trial(clients, second, start + moves, verdict)


def offered(plan: Plan, layout: Layout, trials: Sequence[Trial | None]) -> Plan:
    """The plan in which the members of trials also weigh their models; nothing is trained for it."""
    running = [trial for trial in trials if trial is not None]
    if not running:
        return plan
    offers = torch.full((len(plan.cohort), 3), -1)
    for place, trial in enumerate(running):
        offers[torch.isin(plan.cohort, trial.clients)] = len(plan.models) + 3 * place + torch.arange(3)
    none = layout.nothing
    fit = replace(plan.work[0], offers=offers, train=none, upload=none, part="B", compare="B", stream="benefit")
    return replace(plan, models=torch.cat([plan.models, *(trial.models for trial in running)]), work=(*plan.work, fit))


def gains(report: Report, trials: Sequence[Trial | None]) -> Mapping[int, float]:
    """By how much the model of its own side has less loss than that of both, in nats, for each cluster on trial.

    The mean over the members that answered; a cluster is left out where none of them did.
    """
    means = dict[int, float]()
    for cluster, trial in enumerate(trials):
        if trial is not None:
            result = report.results[1]
            here = torch.isin(trial.clients, result.updates.clients)
            losses = Rows(result.updates.clients, result.losses).of(trial.clients[here])
            own = losses.gather(1, trial.second[here].long()[:, None])[:, 0]
            if bool(here.any()):
                means[cluster] = float((losses[:, 2] - own).double().mean())
    return means
