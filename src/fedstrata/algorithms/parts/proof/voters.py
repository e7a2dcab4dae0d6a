"""Who votes on whether a cluster has groups, on which folds of its data, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.proof.testimony import FEWEST
from fedstrata.clustering import surest
from fedstrata.core import Plan, Problem, Report, Result, Rows, State, Verdict
from fedstrata.lazy import torch

FEW = 12
"""Members up to which four folds are used, if they are large enough; with more, two reach the levels of eight tests."""

LEAST = 24
"""Samples of a fold below which a client does not vote."""

MOST = 200
"""Members of whom a random sample votes; the others follow the models."""

PARTS = {2: ("A", "B"), 4: ("A1", "A2", "B1", "B2")}
"""The folds; the first half of them is cut from half A."""


@dataclass(frozen=True)
class Hearing:
    """The voters of one cluster in a twin round, ids (m,), and the number of their folds."""

    cluster: int
    clients: torch.Tensor
    folds: int


def hearing(
    problem: Problem,
    state: State,
    sizes: torch.Tensor,
    cluster: int,
    folds: int | str,
    level: float,
    present: int | None = None,
) -> Hearing | None:
    """Who votes in a cluster; None where even two clear groups among them would not reach the level.

    Args:
        problem: fixed for the run.
        state: before the round.
        sizes: training samples of each client, (n,); 0 where they are not known yet.
        cluster: which.
        folds: of each voter, or ``"auto"``.
        level: of the test.
        present: members that are likely to answer; all of them by default.
    """
    members = (state.labels == cluster).nonzero().flatten()
    few = min(len(members), len(members) if present is None else max(present, 1)) <= FEW
    found = list[Hearing]()
    for count in ((4, 2) if few else (2,)) if isinstance(folds, str) else (folds,):
        # Whose samples are not known may turn out to have too few; then it is not heard.
        voters = members[(sizes[members] >= count * LEAST) | (sizes[members] == 0)]
        if len(voters) > MOST:
            draw = problem.generator(f"voters of node {int(state.nodes[cluster])}")
            voters = voters[torch.randperm(len(voters), generator=draw)[:MOST].sort().values]
        # Four folds tell any four clients apart, two need enough clients to be re-paired.
        able = len(voters) >= FEWEST and bool(sizes[voters].any())
        if able and (count == 4 or surest([len(voters)]) <= level):
            found.append(Hearing(cluster, voters, count))
    return max(found, key=lambda each: len(each.clients), default=None)


def unheard(state: State, sizes: torch.Tensor, cluster: int, folds: int | str = "auto") -> Verdict:
    """Why a cluster has no voters, in words."""
    members, count = state.labels == cluster, 2 if isinstance(folds, str) else folds
    able = f"{int((sizes[members] >= count * LEAST).sum())} of {int(members.sum())} members are known to have"
    why = f"{able} {count * LEAST} samples, enough for {count} folds; these are too few clients to tell apart"
    return Verdict(f"not tested in round {state.round + 1}: {why}")


def twins(plan: Plan, hearings: Sequence[Hearing], sizes: torch.Tensor) -> Plan:
    """The plan with one more training of every voter by each fold, from its cluster's model, on equally many samples.

    All from the same model: one after the other, the second would lean against the noise of the first. A quarter of the
    data is gone through twice, so that its update has as many steps behind it as that of a half: the first two or
    three from a common model turn nearly the same way for everyone.
    """
    work, first = list(plan.work), plan.work[0]
    for folds in sorted({each.folds for each in hearings}):
        offers, most = torch.full((len(plan.cohort), 1), -1), torch.zeros(len(plan.cohort), dtype=torch.int64)
        for each in hearings:
            if each.folds == folds:
                here, known = torch.isin(plan.cohort, each.clients), sizes[each.clients]
                offers[here], most[here] = each.cluster, int(known[known > 0].min()) // folds
        recipe = replace(first.recipe, epochs=first.recipe.epochs * folds // 2)
        fold = replace(first, offers=offers, most=most, recipe=recipe)
        work += [replace(fold, part=part, stream=part) for part in PARTS[folds]]
    return replace(plan, work=tuple(work))


def heard(report: Report, hearings: Sequence[Hearing], done: int) -> Mapping[int, tuple[Rows, ...]]:
    """What the voters of each cluster sent, by fold; only of those who sent all of them.

    Args:
        report: of the plan.
        hearings: as in the plan.
        done: results that come before those of the folds.
    """
    sent = dict[int, tuple[Rows, ...]]()
    for each, results in _answers(report, hearings, done):
        # A dead network does not move, and a diverged one is not let in: both say nothing about their clients. Folds
        # that are cut between independent units may fall short; unequal noise would look like groups.
        most = max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
        sound = [(fold.sizes == most) & (fold.updates.values.double().norm(dim=1) > 0) for fold in results]
        able = [set(fold.updates.clients[good].tolist()) for fold, good in zip(results, sound, strict=True)]
        ids = torch.tensor(sorted(set(each.clients.tolist()).intersection(*able)), dtype=torch.int64)
        sent[each.cluster] = tuple(Rows(ids, fold.updates.of(ids)) for fold in results)
    return sent


def counted(sizes: torch.Tensor, report: Report, hearings: Sequence[Hearing], done: int) -> torch.Tensor:
    """The samples (n,) that clients can share out among folds, 0 where not known, by what they have used.

    Args:
        sizes: as known before.
        report: of the plan.
        hearings: as in the plan.
        done: results that come before those of the folds.
    """
    first, known = report.results[0], sizes.clone()
    clients = first.updates.clients
    known[clients] = torch.where(known[clients] > 0, known[clients], first.sizes)
    for each, results in _answers(report, hearings, done):
        most = max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
        for result in results:
            short = result.updates.clients[result.sizes < most]
            known[short] = torch.minimum(known[short], each.folds * result.sizes[result.sizes < most])
    return known


def _answers(report: Report, hearings: Sequence[Hearing], done: int) -> Iterator[tuple[Hearing, list[Result]]]:
    """The results by every fold of the voters of each hearing."""
    for folds in sorted({each.folds for each in hearings}):
        results, done = report.results[done : done + folds], done + folds
        for each in hearings:
            if each.folds == folds:
                yield each, [result.only(torch.isin(result.updates.clients, each.clients)) for result in results]
