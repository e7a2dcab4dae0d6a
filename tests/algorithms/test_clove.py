from collections.abc import Sequence
from typing import Any

import pytest
import torch
from baseline_federation import metrics_of

from builders import answer
from fedstrata.algorithms.baselines import random_groups
from fedstrata.algorithms.clove import CLoVE, CLoVEState
from fedstrata.base.errors import ExperimentError
from fedstrata.core import TRAIN, Diagnostics, Plan, Problem, Report, make_pending
from fedstrata.testing import toy_problem

TWO_GROUPS = [[1.0, 1.2], [1.2, 1.4], [0.4, 2.0], [0.6, 2.2]]
"""The losses of four clients, (4, 2). Model 0 is the better one for each of them."""


class Measuring:
    """Clients with given losses (n, k) and updates (n, p). Of several models they take the one of lowest loss."""

    def __init__(
        self, losses: Sequence[Sequence[float]], updates: torch.Tensor | None = None, sizes: Sequence[int] = ()
    ) -> None:
        self.losses = torch.tensor(losses)
        self.updates = torch.zeros(len(losses), 6) if updates is None else updates
        self.sizes = torch.tensor(sizes or [1] * len(losses))

    def run(self, plan: Plan) -> Report:
        results = {}
        for name, task in plan.tasks.items():
            asked = task.candidates[:, 0] >= 0
            clients, offered = plan.cohort[asked], task.candidates[asked]
            losses = self.losses[clients].gather(1, offered.clamp(min=0)).where(offered >= 0, torch.nan)
            best = losses.nan_to_num(torch.inf).argmin(dim=1, keepdim=True)
            sent = self.updates[clients] * any(task.upload)
            results[name] = answer(clients, sent, offered.gather(1, best)[:, 0], self.sizes[clients], losses)
        return Report(results, cohort=plan.cohort)


def step(
    algorithm: CLoVE, problem: Problem, state: CLoVEState, clients: Any, cohort: Sequence[int] | None = None
) -> tuple[CLoVEState, Diagnostics]:
    ids = torch.arange(problem.clients) if cohort is None else torch.tensor(cohort, dtype=torch.int64)
    return algorithm.update(problem, state, clients.run(algorithm.plan(problem, state, ids)))


def after(
    rounds: int, algorithm: CLoVE, problem: Problem, clients: Any, cohort: Sequence[int] | None = None
) -> tuple[CLoVEState, Diagnostics]:
    """The state after some rounds of the same clients, and the notes of the last one."""
    state, notes = algorithm.init(problem), Diagnostics()
    for _ in range(rounds):
        state, notes = step(algorithm, problem, state, clients, cohort)
    return state, notes


def measured(plan: Plan) -> list[int]:
    """The clients of a plan that measure models."""
    (losses,) = [task for name, task in plan.tasks.items() if name != TRAIN]
    return plan.cohort[losses.candidates[:, 0] >= 0].tolist()


def test_groups_of_like_losses_get_the_models_by_which_the_sum_of_all_losses_is_lowest() -> None:
    """semantics.md, golden case 14: everybody's loss is lower with model 0, but only one group can have it."""
    problem, algorithm = toy_problem(4), CLoVE(k=2)
    state, _ = after(2, algorithm, problem, Measuring(TWO_GROUPS))
    # Costs: 2.2 and 2.6 of clients 0 and 1; 1.0 and 4.2 of clients 2 and 3. And 2.6 + 1.0 < 2.2 + 4.2.
    assert state.labels.tolist() == [1, 1, 0, 0]
    assert state.centres.flatten().tolist() == pytest.approx([0.5, 2.1, 1.1, 1.3])
    updates = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None] * torch.ones(4, 6)
    state, _ = step(algorithm, problem, state, Measuring(TWO_GROUPS, updates, sizes=[1, 3, 1, 1]))
    assert state.models[:, 0].tolist() == [0.0 + 6.0, 1.0 + 1.75]  # (4 + 8) / 2, and (1 * 1 + 3 * 2) / 4


def test_the_groups_are_as_tight_as_those_of_wards_linkage() -> None:
    """Average and complete linkage lead to {0}, {1, 2, 3, 4}, {5}, with squares of 10 around the means and not 9.17."""
    losses = [[loss, 0.0, 0.0] for loss in (6.0, 15.0, 16.0, 18.0, 19.0, 22.0)]
    state, _ = after(2, CLoVE(k=3), toy_problem(6), Measuring(losses))
    assert numbered(state.labels) == [0, 1, 1, 2, 2, 2]


def test_the_first_groups_are_drawn_and_even_rounds_measure() -> None:
    problem, algorithm, clients = toy_problem(4), CLoVE(k=2), Measuring(TWO_GROUPS)
    state = algorithm.init(problem)
    first = algorithm.plan(problem, state, torch.arange(4))
    assert first.tasks[TRAIN].candidates[:, 0].tolist() == random_groups(problem, 2).tolist()
    asked = []
    for _ in range(8):
        asked.append(measured(algorithm.plan(problem, state, torch.arange(4))))
        state, _ = step(algorithm, problem, state, clients)
    everyone = [0, 1, 2, 3]
    assert asked == [[], everyone, [], everyone, [], everyone, [], []]  # the third clustering was the last


def test_the_clustering_ends_only_when_nobody_has_moved_for_so_many_times() -> None:
    problem, algorithm, clients = toy_problem(4), CLoVE(k=2, stable_rounds=2), Measuring(TWO_GROUPS)
    other = Measuring([*TWO_GROUPS[:1], [0.5, 2.1], *TWO_GROUPS[2:]])
    state, _ = after(2, algorithm, problem, clients)
    state, notes = step(algorithm, problem, step(algorithm, problem, state, other)[0], other)
    assert state.labels.tolist() == [1, 0, 0, 0] and metrics_of(notes)["moved"] == 1.0
    assert not state.settled and state.streaks.tolist() == [2, 1, 2, 2]
    state, notes = step(algorithm, problem, step(algorithm, problem, state, other)[0], other)
    assert state.settled and notes.events == ({"kind": "settled", "clusters": 2},)


class Learning:
    """Clients whose loss is the squared distance of a model to their target; training goes half as far beyond it."""

    def __init__(self, *targets: float) -> None:
        self.targets = torch.tensor(targets)

    def run(self, plan: Plan) -> Report:
        losses = (self.targets[:, None] - plan.models[:, 0]).square()
        report = Measuring(losses.tolist()).run(plan)
        trained = report.results[TRAIN]
        clients, chosen = trained.updates.clients, trained.chosen
        moves = 1.5 * (self.targets[clients] - plan.models[chosen, 0])
        result = answer(clients, moves[:, None].repeat(1, 6), chosen, losses=trained.losses)
        return Report({**report.results, TRAIN: result}, cohort=plan.cohort)


def test_two_ways_to_give_models_to_groups_never_take_turns() -> None:
    """Measured in every round, the groups {0, 3} and {1, 2} would swap their models for ever."""
    problem, algorithm, clients = toy_problem(4), CLoVE(k=2), Learning(4.0, -5.0, -7.0, 6.0)
    state, _ = after(2, algorithm, problem, clients)
    for _ in range(14):
        assert state.labels.tolist() == [1, 0, 0, 1]
        state, _ = step(algorithm, problem, state, clients)
    assert state.settled and state.models[:, 0].tolist() == pytest.approx([-6, 5], abs=0.01)


def test_a_newcomer_joins_the_nearest_mean_loss_vector_and_trains_the_best_model_until_then() -> None:
    newcomer = [1.0, 1.1]  # model 0 is better, but (1.1, 1.3) is nearer than (0.5, 2.1)
    problem, algorithm = toy_problem(5), CLoVE(k=2, stable_rounds=1)
    clients = Measuring([*TWO_GROUPS, newcomer], torch.ones(5, 6))
    state, _ = after(2, algorithm, problem, clients, cohort=[0, 1, 2, 3])
    assert state.settled and state.labels.tolist() == [1, 1, 0, 0, -1]
    before = state.models[0, 0]
    assert measured(algorithm.plan(problem, state, torch.arange(5))) == [4]
    state, _ = step(algorithm, problem, state, clients, cohort=[4])
    assert state.labels.tolist() == [1, 1, 0, 0, 1] and state.models[0, 0] == before + 1
    changed = make_pending(state, [0], node=0)
    assert changed.streaks.tolist()[0] == 0 and measured(algorithm.plan(problem, changed, torch.arange(5))) == [0]


def test_an_absent_client_stays_in_its_cluster() -> None:
    problem, algorithm = toy_problem(4), CLoVE(k=2)
    state, _ = after(3, algorithm, problem, Measuring(TWO_GROUPS))
    swapped = Measuring([TWO_GROUPS[2], TWO_GROUPS[3], TWO_GROUPS[0], TWO_GROUPS[1]])
    state, _ = step(algorithm, problem, state, swapped, cohort=[0, 2])
    assert state.labels.tolist() == [0, 1, 1, 0]


def test_fewer_groups_than_models_leave_models_as_they_are() -> None:
    problem, algorithm = toy_problem(4), CLoVE(k=3)
    alike = Measuring([[3.0, 1.0, 2.0]] * 4, torch.ones(4, 6))
    state, notes = after(2, algorithm, problem, alike)
    assert state.labels.tolist() == [1, 1, 1, 1] and metrics_of(notes)["groups"] == 1.0
    before = state.models.clone()
    state, _ = step(algorithm, problem, state, alike)
    assert (state.models - before)[:, 0].tolist() == [0.0, 1.0, 0.0]
    alone, _ = after(2, algorithm, problem, Measuring(torch.eye(4)[:, :3].tolist()), cohort=[2])
    assert alone.labels.tolist() == [-1, -1, 0, -1]  # losses 0, 0, 1


@pytest.mark.parametrize("loss", [torch.nan, torch.inf])
def test_a_client_without_a_finite_loss_stays_with_the_model_that_it_trained(loss: float) -> None:
    problem, algorithm = toy_problem(4), CLoVE(k=2)
    state, _ = after(2, algorithm, problem, Measuring([[loss, 1.0], *TWO_GROUPS[1:]]))
    assert state.labels.tolist() == [int(random_groups(problem, 2)[0]), 1, 0, 0]


def test_one_model_is_one_cluster() -> None:
    state, _ = after(3, CLoVE(k=1), toy_problem(3), Measuring([[1.0]] * 3, torch.ones(3, 6)))
    assert state.labels.tolist() == [0, 0, 0] and state.models[0, 0] == 3


def numbered(labels: torch.Tensor) -> list[int]:
    """Labels numbered by the first member of each group."""
    places = {label: place for place, label in enumerate(dict.fromkeys(labels.tolist()))}
    return [places[label] for label in labels.tolist()]


def in_pairs(*places: float) -> Measuring:
    """Pairs of clients whose losses under the first model are 0.1 apart, and 0 under the five others."""
    return Measuring([[place + offset, *[0.0] * 5] for place in places for offset in (0.0, 0.1)])


@pytest.mark.parametrize(
    ("clients", "labels"),
    [
        # Two groups have a silhouette of 0.79, four of 0.98.
        (in_pairs(0, 6, 20, 26), [0, 0, 1, 1, 2, 2, 3, 3]),
        # Two groups have a silhouette of 0.93, four of 0.98: less than 10 % more.
        (in_pairs(0, 6, 60, 66), [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_an_unknown_number_of_groups_is_the_one_of_the_best_silhouette(clients: Measuring, labels: list[int]) -> None:
    state, notes = after(2, CLoVE(k="auto", max_k=6), toy_problem(8), clients)
    assert numbered(state.labels) == labels
    assert metrics_of(notes)["groups"] == max(labels) + 1 and len(state.models) == 6


@pytest.mark.parametrize("cohort", [[0], [0, 1], [0, 1, 2]])
def test_few_participants_with_an_unknown_number_of_groups_are_grouped_all_the_same(cohort: list[int]) -> None:
    state, _ = after(2, CLoVE(k="auto", max_k=6), toy_problem(8), in_pairs(0, 6, 20, 26), cohort)
    assert bool((state.labels[cohort] >= 0).all())


def test_more_models_than_clients_are_refused_where_their_number_is_given() -> None:
    with pytest.raises(ExperimentError, match=r"algorithm.k = 3: expected at most the 2 clients"):
        CLoVE(k=3).init(toy_problem(2))
    assert len(CLoVE(k="auto", max_k=3).init(toy_problem(2)).models) == 3
