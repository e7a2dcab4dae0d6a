"""``split_guard = "split_half"``: what the algorithms propose must be found again in another part of the data."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.hicfl import HiCFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.algorithms.shared import split_guard
from fedstrata.clustering import ari
from fedstrata.core import Decision, Plan, Report, Result, Rows, make_pending, reassign
from fedstrata.records.checkpoint import find_checkpoint, save
from fedstrata.testing import toy_layout, toy_problem
from recorded import decision_of

LAYOUT = toy_layout(conv=8, linear=8)
PARTS = {"all": 1, "A": 2, "B": 2, "A1": 4, "A2": 4, "B1": 4, "B2": 4}
EAGER: dict[str, Any] = {"eps1": 1e9, "eps2": 0.0, "gamma": 0.0}
"""Always proposes."""


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Folded:
    """Clients that send a pattern (n, p), and noise of its own for every part of their data."""

    def __init__(self, pattern: torch.Tensor, samples: int | Sequence[int] = 100, seed: int = 0) -> None:
        self.pattern, self.seed, n = pattern, seed, len(pattern)
        self.samples = torch.tensor([samples] * n if isinstance(samples, int) else samples)

    def run(self, plan: Plan) -> Report:
        return Report({name: self._result(plan, task) for name, task in plan.tasks.items()}, cohort=plan.cohort)

    def _result(self, plan: Plan, task: Any) -> Result:
        draw = seeded(hash((self.seed, plan.round, list(PARTS).index(task.fold))) % 2**31)
        sent = self.pattern + torch.randn(self.pattern.shape, generator=draw)
        busy, clients = task.candidates[:, 0] >= 0, plan.cohort
        sizes = self.samples[clients] // PARTS[task.fold]
        sizes = sizes if task.max_samples is None else sizes.minimum(task.max_samples)
        losses = torch.full(task.candidates.shape, torch.nan)
        return Result(Rows(clients, sent[clients]), task.candidates[:, 0], sizes, losses).only(busy)


def groups(*sizes: int, apart: float = 4.0) -> torch.Tensor:
    """Directions of groups, (n, p); 0 of a single one."""
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    directions = apart * torch.nn.functional.one_hot(labels, LAYOUT.p).float()
    return directions if len(sizes) > 1 else torch.zeros_like(directions)


def play(
    algorithm: Any,
    clients: Folded,
    rounds: int,
    state: Any = None,
    asked: Callable[[int], list[int]] | None = None,
) -> Any:
    """Some rounds; `asked` says who answers in each."""
    problem = toy_problem(len(clients.pattern), LAYOUT)
    state = algorithm.init(problem) if state is None else state
    for _ in range(rounds):
        everyone = torch.arange(problem.clients)
        plan = algorithm.plan(problem, state, everyone)
        here = everyone if asked is None else torch.tensor(asked(state.round + 1), dtype=torch.int64)
        report = replace(clients.run(plan.only(torch.isin(everyone, here))), cohort=everyone)
        state, _ = algorithm.update(problem, state, report)
    return state


def known_about(state: Any, cluster: int = 0) -> split_guard.TestState:
    assert state.guard is not None
    known = state.guard.tests[cluster]
    assert isinstance(known, split_guard.TestState)
    return known


def test_clients_that_are_alike_are_split_no_more_often_than_alpha() -> None:
    """A rule that always proposes, and 60 federations of noise: the tests spend 0.2 (1/2 + 1/6 + 1/12) = 0.15, so 9."""
    split = 0
    for seed in range(60):
        clients = Folded(groups(14), seed=seed)
        split += len(play(CFL(**EAGER, split_guard="split_half", alpha=0.2), clients, 4).models) > 1
    assert 3 <= split <= 16
    assert len(play(CFL(**EAGER), Folded(groups(14)), 1).models) == 2


@pytest.mark.parametrize(
    "algorithm",
    [
        CFL(**EAGER, split_guard="split_half"),
        LayerCFL(**EAGER, layers="conv", split_guard="split_half"),
        LayerCFL(**EAGER, layers="auto", norm_scope="full", split_guard="split_half"),
        HiCFL(epsilon=1e9, rho=1.0, split_guard="split_half"),
    ],
    ids=["cfl", "layercfl", "auto", "hicfl"],
)
def test_groups_are_split_as_soon_as_they_are_proposed_and_confirmed(algorithm: Any) -> None:
    """Two groups that point apart; the rule proposes anything, the test says that there is something."""
    pattern = groups(10, 10)
    pattern[10:] = -pattern[:10]
    state = play(algorithm, Folded(pattern), 6)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0
    decision = decision_of(state)
    assert decision.kind == "split_confirmed" and decision.values["z"] > 3
    assert decision.values["p"] == 0.001 and decision.values["level"] == pytest.approx(0.025)


def test_a_cluster_of_which_few_answer_in_a_round_uses_four_folds() -> None:
    """Two folds of eight clients reach p = 0.029, which is above the level; so nothing would ever be tested."""
    algorithm = CFL(**EAGER, quorum=0.0, split_guard="split_half")
    pattern = groups(20, 20)
    problem = toy_problem(40, LAYOUT)
    state = algorithm.init(problem)
    clients = Folded(pattern)
    for round in range(1, 10):
        cohort = torch.randperm(40, generator=seeded(round))[:8].sort().values
        state, _ = algorithm.update(problem, state, clients.run(algorithm.plan(problem, state, cohort)))
    assert len(state.models) > 1 and decision_of(state).kind == "split_confirmed"


def test_a_split_that_is_proposed_but_not_confirmed_says_so() -> None:
    algorithm = CFL(**EAGER, split_guard="split_half")
    state = play(algorithm, Folded(groups(14)), 1)
    assert len(state.models) == 1 and decision_of(state).kind == "split_awaits_test"
    state = play(algorithm, Folded(groups(14)), 1, state)
    values = decision_of(state).values
    assert decision_of(state).kind == "split_not_confirmed" and values["p"] > values["level"] == pytest.approx(0.025)
    assert values["test_round"] == 2 and values["gamma"] == 0.0 and values["first_part"] + values["second_part"] == 14
    again = play(algorithm, Folded(groups(14)), 3, state)
    assert decision_of(again).values["test_round"] == 4 and known_about(again).tests == 3
    assert decision_of(again).values["level"] == pytest.approx(0.05 / 12)


def test_members_of_clusters_whose_groups_are_not_confirmed_train_on_parts_of_their_data_in_some_rounds() -> None:
    algorithm, problem, clients = (
        CFL(eps1=0.0, split_guard="split_half"),
        toy_problem(20, LAYOUT),
        Folded(groups(10, 10)),
    )
    state, parts = algorithm.init(problem), []
    for _ in range(4):
        plan = algorithm.plan(problem, state, torch.arange(20))
        parts.append([task.fold for task in plan.tasks.values()])
        state, _ = algorithm.update(problem, state, clients.run(plan))
    # Nothing is proposed with eps1 = 0, yet the test confirms groups in round 2 and trains on folds no more.
    assert parts == [["all"], ["all", "A", "B"], ["all"], ["all"]]
    assert len(state.models) == 1 and known_about(state).confirmed == tuple(range(20)) and known_about(state).tests == 1


def test_without_a_guard_nothing_is_remembered_and_nothing_more_is_asked() -> None:
    problem = toy_problem(6, LAYOUT)
    for algorithm in (CFL(), LayerCFL(), HiCFL()):
        state = play(algorithm, Folded(groups(6)), 2)
        assert state.guard is None
        plan = algorithm.plan(problem, state, torch.arange(6))
        assert len(plan.tasks) == 1


def test_children_begin_with_a_budget_and_evidence_of_their_own() -> None:
    state = play(CFL(**EAGER, split_guard="split_half"), Folded(groups(14, 14, apart=8.0), seed=1), 4)
    assert state.labels.bincount().tolist() == [14, 14]
    for cluster in (0, 1):
        known = known_about(state, cluster)
        assert known.tests == 2 and not known.confirmed  # in rounds 3 and 4
        assert known.evidence is not None and int(known.evidence.rounds.max()) == 2
        values = decision_of(state, known.node).values
        assert values["test_round"] == 4 and values["level"] == pytest.approx(0.05 / 6)


def test_too_few_samples_or_members_are_no_test_and_no_split() -> None:
    algorithm = CFL(**EAGER, split_guard="split_half")
    state = play(algorithm, Folded(groups(10, 10), samples=15), 4)
    assert decision_of(state).kind == "split_not_tested_for_samples" and decision_of(state).values["test_round"] == 2
    assert decision_of(state).values["able_members"] == 0 and decision_of(state).values["tested_members"] == 20
    assert len(state.models) == 1 and known_about(state).tests == 0
    few = play(algorithm, Folded(groups(3, 3), samples=24), 4)
    assert len(few.models) == 1 and decision_of(few).kind == "split_not_tested_for_samples"


def test_few_members_are_told_apart_by_four_folds() -> None:
    state = play(CFL(**EAGER, split_guard="split_half"), Folded(groups(3, 3, apart=8.0), samples=200), 2)
    assert state.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_members_that_are_away_in_a_twin_round_have_no_vote() -> None:
    away = [0, 10]
    here = [client for client in range(20) if client not in away]
    algorithm = CFL(eps1=0.0, split_guard="split_half")
    state = play(algorithm, Folded(groups(10, 10)), 2, asked=lambda round: here if round == 2 else list(range(20)))
    assert known_about(state).confirmed == tuple(here)
    state = play(CFL(**EAGER, split_guard="split_half"), Folded(groups(10, 10)), 1, state)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0
    nobody = play(CFL(**EAGER, split_guard="split_half"), Folded(groups(10, 10)), 2, asked=lambda round: [])
    assert nobody.round == 2 and known_about(nobody).tests == 0 and len(nobody.models) == 1


def test_a_cluster_that_lost_some_of_those_who_differed_is_tested_again() -> None:
    known = play(CFL(eps1=0.0, split_guard="split_half"), Folded(groups(10, 10)), 2)
    left = make_pending(known, [3], node=0)
    assert known_about(left).of(left.labels == 0).decision == Decision(kind="members_left")
    algorithm, problem = CFL(**EAGER, split_guard="split_half"), toy_problem(20, LAYOUT)
    plan = algorithm.plan(problem, left, torch.tensor([c for c in range(20) if c != 3]))
    assert len(plan.tasks) == 3  # in round 3 it is tested again
    state = play(algorithm, Folded(groups(10, 10)), 1, left, asked=lambda round: [c for c in range(20) if c != 3])
    assert known_about(state).tests == 2 and len(state.models) == 2
    evidence = known_about(state).evidence
    assert evidence is not None and 3 not in evidence.clients.tolist()
    assert state.guard is not None and int(state.guard.sizes[3]) == 0  # it may come back with other data


def test_newcomers_of_a_cluster_of_confirmed_groups_need_no_test() -> None:
    algorithm, everyone = CFL(eps1=0.0, split_guard="split_half"), list(range(20))
    problem, clients = toy_problem(20, LAYOUT), Folded(groups(10, 10))
    state = make_pending(algorithm.init(problem), [19], node=0)
    state = play(algorithm, clients, 2, state, asked=lambda round: everyone[:19])
    assert known_about(state).confirmed == tuple(range(19))
    state = play(CFL(**EAGER, split_guard="split_half"), clients, 1, state)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0


def test_evidence_follows_the_tree_node_through_misplaced_clients_and_merged_clusters() -> None:
    algorithm = HiCFL(
        epsilon=1e9,
        rho=1.0,
        variant="robust",
        min_t_statistic=0.0,
        ending="reorganise",
        patience=2,
        split_guard="split_half",
    )
    pattern = groups(12, 12)
    pattern[12:] = -pattern[:12]
    clients = Folded(pattern)
    state = play(algorithm, clients, 5)
    assert len(state.models) == 2
    state = play(algorithm, clients, 1, reassign(state, {0: 1}))
    for cluster in (0, 1):
        evidence = known_about(state, cluster).evidence
        assert evidence is not None
        assert evidence.clients.tolist() == (state.labels == cluster).nonzero().flatten().tolist()
    state = play(algorithm, clients, 6, state)
    assert state.guard is not None and [d.node for d in state.guard.tests] == state.nodes.tolist()


def test_an_ending_splits_only_what_is_confirmed() -> None:
    keys: dict[str, Any] = {"epsilon": 1e9, "rho": 1.0, "ending": "personal", "patience": 1}
    assert len(play(HiCFL(**keys), Folded(groups(16)), 9).models) > 2
    assert len(play(HiCFL(**keys, split_guard="split_half"), Folded(groups(16)), 9).models) == 1


def test_a_measured_gamma_and_a_scouted_layer_keep_their_results_beside_the_folds() -> None:
    algorithm = LayerCFL(layers="auto", eps1=1e9, eps2=0.0, gamma="halves", norm_scope="full", split_guard="split_half")
    problem, state = toy_problem(20, LAYOUT), algorithm.init(toy_problem(20, LAYOUT))
    state = play(algorithm, Folded(groups(10, 10)), 1)
    plan = algorithm.plan(problem, state, torch.arange(20))
    assert [task.fold for task in plan.tasks.values()] == ["all", "A", "B", "A", "B", "A", "B"]
    assert [task.max_samples is None for task in plan.tasks.values()] == [True, True, True, False, False, False, False]


def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    algorithm, clients = CFL(eps1=0.0, split_guard="split_half"), Folded(groups(10, 10, apart=2.0))
    half = play(algorithm, clients, 3)
    save(tmp_path, half, {}, {})
    found = find_checkpoint(tmp_path, type(half))
    assert found is not None and found.state.guard is not None and half.guard is not None
    assert found.state.guard.tests[0].decision == half.guard.tests[0].decision
    eager = CFL(**EAGER, split_guard="split_half")
    one, other = (play(eager, clients, 3, state) for state in (half, found.state))
    assert torch.equal(one.labels, other.labels) and one.tree == other.tree and torch.equal(one.models, other.models)
