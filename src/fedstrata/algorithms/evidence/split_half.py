"""Split-half rounds: clients also train on folds of their data, and a permutation test compares the folds.

In a split-half round the *participants* of a cluster train, besides their normal work, from the cluster's model on
disjoint folds of their data: on the halves A and B, or on four quarters where few clients are compared. This module
says when, who takes part, and on what they train. `fold_similarity` says what it shows. The tests of a cluster share an
error budget alpha.

The layer scan asks by this test which layer shows groups. Strata has the same rounds and levels. `fedstrata.clustering`
has the tests themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import smallest_sure_p
from fedstrata.clustering.patterns import MIN_TEST_CLIENTS
from fedstrata.core import TRAIN, LocalTask, Plan, Problem, Report, Result, Rows, State

_MAX_MEMBERS_OF_FOUR_FOLDS = 12
"""The largest number of members for which four folds are used. From 13 members on, the p that two clear groups are sure
to reach with two folds is below the levels of the first eight tests at alpha = 0.05."""

FULL_FOLD = 24
"""The number of samples that a fold needs where clients have them. A client with smaller folds does not take part."""

MIN_FOLD = 8
"""The number of samples that a fold needs where more than half of the members are too small for `FULL_FOLD`."""

MAX_PARTICIPANTS = 200
"""The largest number of participants. Of more members, so many are drawn at random, of those that the round selects."""

_FOLDS_BY_NUMBER = {2: ("A", "B"), 4: ("A1", "A2", "B1", "B2")}
"""The names of the folds, by how many a client trains on. Those of half A come first."""


# When to test, and at what level.


def is_split_half_round(round: int) -> bool:
    """Whether clients train on folds too: in rounds 2, 3, 4, 6, 9, 13, 19, 28 and so on, each 1.5 times the last."""
    scheduled = 2
    while scheduled < round:
        scheduled = scheduled * 3 // 2
    return scheduled == round


def split_half_rounds(rounds: int) -> int:
    """The number of split-half rounds in a run of so many rounds."""
    return sum(map(is_split_half_round, range(1, rounds + 1)))


def next_level(alpha: float, tests: int) -> float:
    """The level of a cluster's next test after so many (alpha spending): alpha / 2, / 6, / 12, ..., in sum alpha.

    Levels that fall faster would be too low for late tests, which rest on the evidence of many rounds.
    """
    return alpha / ((tests + 1) * (tests + 2))


# Who takes part.


@dataclass(frozen=True)
class Participants:
    """The clients of one cluster that train on folds in a split-half round.

    Attributes:
        cluster: The cluster.
        clients: Their ids, (m,).
        folds: The number of folds that each trains on.
        samples: The number of training samples that each needs.
    """

    cluster: int
    clients: torch.Tensor
    folds: int
    samples: int = 0


def needed_samples(sizes: torch.Tensor, folds: int) -> int:
    """The number of training samples that a member of a cluster needs to take part in a test.

    All participants train on equally many samples, so a small one would take away what the others have. Where more than
    half of the members of known size are too small for full folds, folds are as large as half of them can fill.

    Args:
        sizes: The training samples of each member, (m,); 0 where they are not known yet.
        folds: The number of folds.
    """
    known = sizes[sizes > 0].sort(descending=True).values
    if not len(known):
        return folds * FULL_FOLD
    half_of_them_have = int(known[(len(known) - 1) // 2])
    return folds * min(max(half_of_them_have // folds, MIN_FOLD), FULL_FOLD)


def select_participants(
    problem: Problem,
    state: State,
    sizes: torch.Tensor,
    cluster: int,
    folds: int | str,
    level: float,
    answering: int | None = None,
    cohort: torch.Tensor | None = None,
) -> Participants | None:
    """Who takes part in a test of a cluster; None where even two clear groups among them would not reach the level.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        sizes: The training samples of each client, (n,); 0 where they are not known yet.
        cluster: The cluster.
        folds: The number of folds, 2 or 4, or ``"auto"``.
        level: The level of the test.
        answering: The number of members that are likely to answer; None for all of them.
        cohort: The clients that the round selects, or those of them that have answered; None for everyone.
    """
    members = (state.labels == cluster).nonzero().flatten()
    likely = len(members) if answering is None else min(len(members), max(answering, 1))
    if isinstance(folds, int):
        numbers: tuple[int, ...] = (folds,)
    elif likely > _MAX_MEMBERS_OF_FOUR_FOLDS:
        numbers = (2,)
    else:
        # The first of equally many participants is taken. Four small folds are for where two show nothing.
        large_enough = needed_samples(sizes[members], 4) == 4 * FULL_FOLD
        numbers = (4, 2) if large_enough else (2, 4)
    found = list[Participants]()
    for number in numbers:
        # A client of unknown size may turn out to have too few samples. Then its answer is left out.
        needed = needed_samples(sizes[members], number)
        clients = members[(sizes[members] >= needed) | (sizes[members] == 0)]
        sizes_known = bool(sizes[clients].any())
        if len(clients) > MAX_PARTICIPANTS:
            clients = _drawn(problem, int(state.nodes[cluster]), clients, cohort)
        # With four folds, even four clients reach the levels of nine tests at alpha = 0.05. With two, few clients may
        # have too few permutations for any test.
        enough = len(clients) >= MIN_TEST_CLIENTS and sizes_known
        if enough and (number == 4 or smallest_sure_p(len(clients)) <= level):
            found.append(Participants(cluster, clients, number, needed))
    return max(found, key=lambda each: len(each.clients), default=None)


def _drawn(problem: Problem, node: int, clients: torch.Tensor, cohort: torch.Tensor | None) -> torch.Tensor:
    """The first `MAX_PARTICIPANTS` of the clients that a round selects, in an order that is the same in all rounds.

    So the same clients are compared again where many are selected, and where few are, no place is lost to absent ones.
    """
    # This name is a seed of random numbers, so it stays as it is.
    order = torch.randperm(problem.clients, generator=problem.generator(f"voters of node {node}"))
    order = order[torch.isin(order, clients)]
    if cohort is not None:
        order = order[torch.isin(order, cohort)]
    return order[:MAX_PARTICIPANTS].sort().values


# What they do.


def add_fold_tasks(
    plan: Plan, participants: Sequence[Participants], sizes: torch.Tensor, purpose: str = "test"
) -> Plan:
    """The plan in which all participants also train on each fold, from their cluster's model, on equally many samples.

    All folds start from the same model. Trained one after the other, the second fold would correct the noise of the
    first. A quarter of the data is gone through twice, so that its update has as many steps as that of a half. The
    first two or three steps from a common model point nearly the same way for every client.

    Args:
        plan: Its task ``"train"`` is the normal work.
        participants: The participants of every cluster that is tested.
        sizes: The training samples of each client, (n,); 0 where they are not known yet.
        purpose: The name of the test in the names of the tasks.
    """
    tasks = dict(plan.tasks)
    for folds in sorted({each.folds for each in participants}):
        task = _fold_task(plan, [each for each in participants if each.folds == folds], folds, sizes)
        for fold in _FOLDS_BY_NUMBER[folds]:
            tasks[_task_name(purpose, fold, folds)] = replace(task, fold=fold, stream=fold)
    return replace(plan, tasks=tasks)


def _fold_task(plan: Plan, participants: Sequence[Participants], folds: int, sizes: torch.Tensor) -> LocalTask:
    """The work on any one of so many folds."""
    candidates = torch.full((len(plan.cohort), 1), -1)
    max_samples = torch.zeros(len(plan.cohort), dtype=torch.int64)
    for each in participants:
        selected = torch.isin(plan.cohort, each.clients)
        known = sizes[each.clients]
        candidates[selected] = each.cluster
        # Of a sample of many clients, perhaps nobody has answered before.
        smallest = int(known[known > 0].min()) if bool(known.any()) else each.samples
        max_samples[selected] = smallest // each.folds
    normal = plan.tasks[TRAIN]
    training = replace(normal.training, epochs=normal.training.epochs * folds // 2)
    return replace(normal, candidates=candidates, max_samples=max_samples, training=training)


def _task_name(purpose: str, fold: str, folds: int) -> str:
    """The name of the task on one of so many folds."""
    return f"{purpose} {fold} of {folds}"


def fold_updates(
    report: Report, participants: Sequence[Participants], purpose: str = "test"
) -> Mapping[int, tuple[Rows, ...]]:
    """What the participants of each cluster sent: the updates of the same clients by every fold, (m', p) each.

    Args:
        report: The report of the plan that `add_fold_tasks` made.
        participants: As in the plan.
        purpose: As in the plan.
    """
    sent = dict[int, tuple[Rows, ...]]()
    for each, results in _answers(report, participants, purpose):
        # An update of zero says nothing about its client. Folds that are cut between independent units may be smaller
        # than asked for, and clients with more noise than others would look like a group.
        largest = _largest_size(results)
        able = set(each.clients.tolist())
        for result in results:
            sound = (result.sizes == largest) & (result.updates.values.double().norm(dim=1) > 0)
            able &= set(result.updates.clients[sound].tolist())
        ids = torch.tensor(sorted(able), dtype=torch.int64)
        sent[each.cluster] = tuple(Rows(ids, result.updates.of(ids)) for result in results)
    return sent


def usable_sizes(
    sizes: torch.Tensor, report: Report, participants: Sequence[Participants], purpose: str = "test"
) -> torch.Tensor:
    """The number of samples of each client that its folds can use, (n,); 0 where it is not known.

    A client of unknown size has the size that it reports now. A fold that is smaller than those of other clients lowers
    the size of its client. This happens where folds are cut between independent units.

    Args:
        sizes: The sizes that were known before, (n,).
        report: The report of the plan that `add_fold_tasks` made.
        participants: As in the plan.
        purpose: As in the plan.
    """
    result = report.results[TRAIN]
    known = sizes.clone()
    clients = result.updates.clients
    known[clients] = torch.where(known[clients] > 0, known[clients], result.sizes)
    for each, results in _answers(report, participants, purpose):
        largest = _largest_size(results)
        for fold in results:
            short = fold.sizes < largest
            ids = fold.updates.clients[short]
            known[ids] = torch.minimum(known[ids], each.folds * fold.sizes[short])
    return known


def selected_clients(report: Report) -> torch.Tensor:
    """The ids of the clients that a round selected; if the report does not say, of those that answered."""
    return report.results[TRAIN].updates.clients if report.cohort is None else report.cohort


def _answers(
    report: Report, participants: Sequence[Participants], purpose: str
) -> Iterator[tuple[Participants, list[Result]]]:
    """The results of each cluster's participants by every fold."""
    for each in sorted(participants, key=lambda one: one.folds):
        results = [report.results[_task_name(purpose, fold, each.folds)] for fold in _FOLDS_BY_NUMBER[each.folds]]
        yield each, [result.only(torch.isin(result.updates.clients, each.clients)) for result in results]


def _largest_size(results: Sequence[Result]) -> int:
    """The number of samples of the largest fold of any client."""
    return max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
