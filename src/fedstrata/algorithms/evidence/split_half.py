"""Split-half rounds, and what the layer scan asks of clients: training on folds of their data.

The *participants* of a scan train, besides their normal work, from the model of all on disjoint folds of their data: on
the halves A and B, or on four quarters where few clients are compared. This module says who takes part, and on what
they train. `fold_similarity` says what it shows.

Strata shares the rounds and the levels, whose tests have an error budget alpha together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import norms, smallest_sure_p
from fedstrata.clustering.patterns import MIN_TEST_CLIENTS
from fedstrata.core import TRAIN, Plan, Problem, Report, Result, Rows, State

_MAX_MEMBERS_OF_FOUR_FOLDS = 12
"""The largest number of members for which four folds are used. From 13 members on, the p that two clear groups are sure
to reach with two folds is below the levels of the first eight tests at alpha = 0.05."""

FULL_FOLD = 24
"""The number of samples that a fold needs where clients have them. A client with smaller folds does not take part."""

MIN_FOLD = 8
"""The number of samples that a fold needs where more than half of the members are too small for `FULL_FOLD`. Strata
needs as many in each half."""

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

    Levels that fall faster would be too low for late tests.
    """
    return alpha / ((tests + 1) * (tests + 2))


# Who takes part.


@dataclass(frozen=True)
class Participants:
    """The clients that train on folds of their data.

    Attributes:
        clients: Their ids, (m,).
        folds: The number of folds that each trains on, 2 or 4.
        samples: The number of training samples that each needs.
    """

    clients: torch.Tensor
    folds: int
    samples: int = 0

    def tasks(self) -> Mapping[str, str]:
        """The fold of each task, by the name of the task."""
        return {f"scan {fold} of {self.folds}": fold for fold in _FOLDS_BY_NUMBER[self.folds]}


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
    level: float,
    answering: int | None = None,
    cohort: torch.Tensor | None = None,
) -> Participants | None:
    """Who takes part in a test of all clients; None where even two clear groups among them would not reach the level.

    Args:
        problem: What is fixed for the run.
        state: The state before the round, with one cluster.
        sizes: The training samples of each client, (n,); 0 where they are not known yet.
        level: The level of the test.
        answering: The number of members that are likely to answer; None for all of them.
        cohort: The clients that the round selects, or those of them that have answered; None for everyone.
    """
    members = (state.labels == 0).nonzero().flatten()
    likely = len(members) if answering is None else min(len(members), max(answering, 1))
    if likely > _MAX_MEMBERS_OF_FOUR_FOLDS:
        numbers: tuple[int, ...] = (2,)
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
            clients = _drawn(problem, int(state.nodes[0]), clients, cohort)
        # With four folds, even four clients reach the levels of nine tests at alpha = 0.05. With two, few clients may
        # have too few permutations for any test.
        enough = len(clients) >= MIN_TEST_CLIENTS and sizes_known
        if enough and (number == 4 or smallest_sure_p(len(clients)) <= level):
            found.append(Participants(clients, number, needed))
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


def add_fold_tasks(plan: Plan, asked: Participants | None, sizes: torch.Tensor) -> Plan:
    """The plan in which all participants also train on each fold, from the model of all, on equally many samples.

    All folds start from the same model. Trained one after the other, the second fold would correct the noise of the
    first. A quarter of the data is gone through twice, so that its update has as many steps as that of a half. The
    first two or three steps from a common model point nearly the same way for every client.

    Args:
        plan: Its task ``"train"`` is the normal work.
        asked: The participants; None for nobody.
        sizes: The training samples of each client, (n,); 0 where they are not known yet.
    """
    if asked is None:
        return plan
    selected = torch.isin(plan.cohort, asked.clients)
    known = sizes[asked.clients]
    # Of a sample of many clients, perhaps nobody has answered before.
    smallest = int(known[known > 0].min()) if bool(known.any()) else asked.samples
    normal = plan.tasks[TRAIN]
    task = replace(
        normal,
        candidates=torch.where(selected, 0, -1)[:, None],
        max_samples=torch.where(selected, smallest // asked.folds, 0),
        training=replace(normal.training, epochs=normal.training.epochs * asked.folds // 2),
    )
    on_folds = {name: replace(task, fold=fold, stream=fold) for name, fold in asked.tasks().items()}
    return replace(plan, tasks={**plan.tasks, **on_folds})


def fold_updates(report: Report, asked: Participants) -> tuple[Rows, ...]:
    """What the participants sent: the updates of the same clients by every fold, (m', p) each.

    Args:
        report: The report of the plan that `add_fold_tasks` made.
        asked: The participants.
    """
    results = _answers(report, asked)
    # An update of zero says nothing about its client. Folds that are cut between independent units may be smaller
    # than asked for, and clients with more noise than others would look like a group.
    largest = _largest_size(results)
    able = set(asked.clients.tolist())
    for result in results:
        sound = (result.sizes == largest) & (norms(result.updates.values) > 0)
        able &= set(result.updates.clients[sound].tolist())
    ids = torch.tensor(sorted(able), dtype=torch.int64)
    return tuple(Rows(ids, result.updates.of(ids)) for result in results)


def usable_sizes(sizes: torch.Tensor, report: Report, asked: Participants | None) -> torch.Tensor:
    """The number of samples of each client that its folds can use, (n,); 0 where it is not known.

    A client of unknown size has the size that it reports now. A fold that is smaller than those of other clients lowers
    the size of its client. This happens where folds are cut between independent units.

    Args:
        sizes: The sizes that were known before, (n,).
        report: The report of the plan that `add_fold_tasks` made.
        asked: The participants; None for nobody.
    """
    result = report.results[TRAIN]
    known = sizes.clone()
    clients = result.updates.clients
    known[clients] = torch.where(known[clients] > 0, known[clients], result.sizes)
    if asked is None:
        return known
    results = _answers(report, asked)
    largest = _largest_size(results)
    for fold in results:
        short = fold.sizes < largest
        ids = fold.updates.clients[short]
        known[ids] = torch.minimum(known[ids], asked.folds * fold.sizes[short])
    return known


def selected_clients(report: Report) -> torch.Tensor:
    """The ids of the clients that a round selected; if the report does not say, of those that answered."""
    return report.results[TRAIN].updates.clients if report.cohort is None else report.cohort


def _answers(report: Report, asked: Participants) -> list[Result]:
    """The results of the participants by every fold."""
    results = [report.results[name] for name in asked.tasks()]
    return [result.only(torch.isin(result.updates.clients, asked.clients)) for result in results]


def _largest_size(results: Sequence[Result]) -> int:
    """The number of samples of the largest fold of any client."""
    return max((int(result.sizes.max()) for result in results if len(result.sizes)), default=0)
