"""What folds of the clients' data prove: who votes in a cluster, when, at what price, and what came of it.

A cluster has a budget for the chance of splitting it although all its members are alike, and its tests share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.testimony import FEWEST, Testimony, add, looked_at, silence
from fedstrata.clustering import Confirmation, surest
from fedstrata.core import Layout, Matrix, Plan, Problem, Report, Rows, State, Verdict
from fedstrata.lazy import torch

FIRST = 0.6
"""Share of a cluster's budget that its first test spends, and each later one of what is left."""

FEW = 12
"""Members up to which four folds are used, if they are large enough: with more, two reach the levels of four tests."""

LEAST = 32
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


def is_twin_round(round: int) -> bool:
    """Whether clients train on folds too: in rounds 2, 3, 4, 6, 9, 13, 19, 28 and so on, each half as late again."""
    turn = 2
    while turn < round:
        turn = turn * 3 // 2
    return turn == round


def level(alpha: float, tests: int) -> float:
    """What the next test of a cluster may spend of its budget after so many; all of them together spend alpha."""
    return alpha * FIRST * (1 - FIRST) ** tests


def hearing(
    problem: Problem, state: State, sizes: torch.Tensor, cluster: int, folds: int | str, level: float
) -> Hearing | None:
    """Who votes in a cluster; None where even two clear groups among them would not reach the level.

    Args:
        problem: fixed for the run.
        state: before the round.
        sizes: training samples of each client, (n,); 0 where they are not known yet.
        cluster: which.
        folds: of each voter, or ``"auto"``.
        level: of the test.
    """
    members = (state.labels == cluster).nonzero().flatten()
    counts = ((4, 2) if len(members) <= FEW else (2,)) if isinstance(folds, str) else (folds,)
    for count in counts:
        voters = members[sizes[members] >= count * LEAST]
        if len(voters) > MOST:
            draw = problem.generator(f"voters of node {int(state.nodes[cluster])}")
            voters = voters[torch.randperm(len(voters), generator=draw)[:MOST].sort().values]
        # Four folds tell any four clients apart, two need enough clients to be re-paired.
        if len(voters) >= FEWEST and (count == 4 or surest([len(voters)]) <= level):
            return Hearing(cluster, voters, count)
    return None


def twins(plan: Plan, hearings: Sequence[Hearing], sizes: torch.Tensor) -> Plan:
    """The plan with one more training of every voter by each fold, from its cluster's model, on equally many samples.

    All from the same model: one after the other, the second would lean against the noise of the first.
    """
    work, first = list(plan.work), plan.work[0]
    for folds in sorted({each.folds for each in hearings}):
        offers, most = torch.full((len(plan.cohort), 1), -1), torch.zeros(len(plan.cohort), dtype=torch.int64)
        for each in hearings:
            if each.folds == folds:
                here = torch.isin(plan.cohort, each.clients)
                offers[here], most[here] = each.cluster, int(sizes[each.clients].min()) // folds
        work += [replace(first, offers=offers, most=most, part=part, stream=part) for part in PARTS[folds]]
    return replace(plan, work=tuple(work))


def heard(report: Report, hearings: Sequence[Hearing], done: int) -> Mapping[int, tuple[Rows, ...]]:
    """What the voters of each cluster sent, by fold; only of those who sent all of them.

    Args:
        report: of the plan.
        hearings: as in the plan.
        done: results that come before those of the folds.
    """
    sent = dict[int, tuple[Rows, ...]]()
    for folds in sorted({each.folds for each in hearings}):
        rows, done = [result.updates for result in report.results[done : done + folds]], done + folds
        # A dead network does not move, and a diverged one is not let in: both say nothing about their clients.
        moved = [set(fold.clients[fold.values.double().norm(dim=1) > 0].tolist()) for fold in rows]
        for each in hearings:
            if each.folds == folds:
                ids = torch.tensor(sorted(set(each.clients.tolist()).intersection(*moved)), dtype=torch.int64)
                sent[each.cluster] = tuple(Rows(ids, fold.of(ids)) for fold in rows)
    return sent


def gathered(layout: Layout, known: Testimony | None, sent: Sequence[Rows], members: torch.Tensor) -> Testimony:
    """What is known of the members of a cluster, a bool (n,), with what they sent in this round."""
    if known is None or known.folds != len(sent):
        known = silence(layout, len(sent))
    return add(layout, known.only(members[known.clients]), sent)


def spoken(found: Confirmation, round: int) -> Verdict:
    """A test in words."""
    if not found.tested:
        return Verdict(f"not tested in round {round}: {found.reason}")
    chance = f"p = {found.p:.2g}, level {found.level:.2g}"
    criteria = {
        "z": found.statistic,
        "contrast": found.contrast,
        "p": found.p,
        "level": found.level,
        "floor": found.floor,
    }
    why = f"not split: {chance} in round {round}"
    if found.confirmed:
        groups = "the groups found in one part of the data hold in the other"
        why = f"round {round}, {found.layer}: {groups} (Z = {found.statistic:.1f}, {chance})"
    return Verdict(why, found.layer, criteria)


def shown(layout: Layout, known: Testimony, node: int) -> list[Matrix]:
    """Who is like whom in every layer, by all folds together, for people."""
    m, f = len(known.clients), known.folds
    same = known.alike.reshape(-1, f, m, f, m).diagonal(dim1=1, dim2=3).mean(dim=-1)  # (v, m, m)
    values = same / known.seen.clamp(min=1)
    return [
        Matrix(node, name, "likeness", known.clients, alike)
        for name, alike in zip(looked_at(layout), values, strict=True)
    ]
