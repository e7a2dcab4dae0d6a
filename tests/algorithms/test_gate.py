"""``proof = "twins"``: what the algorithms propose must be found again in another part of the clients' data."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.hicfl import HiCFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.algorithms.parts.proof.dossier import Dossier
from fedstrata.algorithms.parts.recursive.recursion import Watched
from fedstrata.clustering import ari
from fedstrata.core import Decision, Plan, Report, Result, Rows, make_pending, reassign
from fedstrata.records import load as restore
from fedstrata.records import save
from fedstrata.testing import toy_layout, toy_problem

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
        return Report(tuple(self._result(plan, task) for task in plan.tasks), cohort=plan.cohort)

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
    state: Watched | None = None,
    asked: Callable[[int], list[int]] | None = None,
) -> Watched:
    """Some rounds; `asked` says who answers in each."""
    problem = toy_problem(len(clients.pattern), LAYOUT)
    state = algorithm.init(problem) if state is None else state
    assert state is not None
    for _ in range(rounds):
        everyone = torch.arange(problem.clients)
        plan = algorithm.plan(problem, state, everyone)
        here = everyone if asked is None else torch.tensor(asked(state.round + 1), dtype=torch.int64)
        report = replace(clients.run(plan.only(torch.isin(everyone, here))), cohort=everyone)
        state, _ = algorithm.update(problem, state, report)
    return state


def why(state: Watched, node: int = 0) -> str:
    decision = state.tree[node].decision
    assert decision is not None
    return decision.why


def dossier(state: Watched, cluster: int = 0) -> Dossier:
    assert state.gate is not None
    return state.gate.dossiers[cluster]


def test_clients_that_are_alike_are_split_no_more_often_than_alpha() -> None:
    """A rule that always proposes, and 60 federations of noise: the tests spend 0.2 (1/2 + 1/6 + 1/12) = 0.15, so 9."""
    split = 0
    for seed in range(60):
        clients = Folded(groups(14), seed=seed)
        split += len(play(CFL(**EAGER, proof="twins", alpha=0.2), clients, 4).models) > 1
    assert 3 <= split <= 16
    assert len(play(CFL(**EAGER), Folded(groups(14)), 1).models) == 2


@pytest.mark.parametrize(
    "algorithm",
    [
        CFL(**EAGER, proof="twins"),
        LayerCFL(**EAGER, layers="conv", proof="twins"),
        LayerCFL(**EAGER, layers="auto", norm_scope="full", proof="twins"),
        HiCFL(epsilon=1e9, rho=1.0, clear=0.0, require_negative_cross=False, proof="twins"),
    ],
    ids=["cfl", "layercfl", "auto", "hicfl"],
)
def test_groups_are_split_as_soon_as_they_are_proposed_and_confirmed(algorithm: Any) -> None:
    """Two groups that point apart; the rule proposes anything, the test says that there is something."""
    pattern = groups(10, 10)
    pattern[10:] = -pattern[:10]
    state = play(algorithm, Folded(pattern), 6)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0
    assert "hold in the other (Z = " in why(state) and ", p = 0.001, level 0.025)" in why(state)
    decision = state.tree[0].decision
    assert decision is not None and decision.values["p"] == 0.001 and decision.values["level"] == pytest.approx(0.025)


def test_a_split_that_is_proposed_but_not_confirmed_says_so() -> None:
    algorithm = CFL(**EAGER, proof="twins")
    state = play(algorithm, Folded(groups(14)), 1)
    assert len(state.models) == 1 and why(state).startswith("proposed but not confirmed: no test so far; ")
    state = play(algorithm, Folded(groups(14)), 1, state)
    assert why(state).startswith("proposed but not confirmed: p = 0.") and ", level 0.025 in round 2; " in why(state)
    assert why(state).endswith("is above gamma = 0.000")
    again = play(algorithm, Folded(groups(14)), 3, state)
    assert ", level 0.0042 in round 4; " in why(again) and dossier(again).tests == 3


def test_folds_are_trained_in_twin_rounds_by_members_of_clusters_that_are_not_cleared() -> None:
    algorithm, problem, clients = CFL(eps1=0.0, proof="twins"), toy_problem(20, LAYOUT), Folded(groups(10, 10))
    state, parts = algorithm.init(problem), []
    for _ in range(4):
        plan = algorithm.plan(problem, state, torch.arange(20))
        parts.append([task.fold for task in plan.tasks])
        state, _ = algorithm.update(problem, state, clients.run(plan))
    # Nothing is proposed with eps1 = 0, yet the cluster is cleared in round 2 and trains on folds no more.
    assert parts == [["all"], ["all", "A", "B"], ["all"], ["all"]]
    assert len(state.models) == 1 and dossier(state).cleared == tuple(range(20)) and dossier(state).tests == 1


def test_without_proof_nothing_is_remembered_and_nothing_more_is_asked() -> None:
    problem = toy_problem(6, LAYOUT)
    for algorithm in (CFL(), LayerCFL(), HiCFL()):
        state = play(algorithm, Folded(groups(6)), 2)
        assert state.gate is None
        plan = algorithm.plan(problem, state, torch.arange(6))  # type: ignore[arg-type]  # each has a state of its own
        assert len(plan.tasks) == 1


def test_children_begin_with_a_budget_and_evidence_of_their_own() -> None:
    state = play(CFL(**EAGER, proof="twins"), Folded(groups(14, 14, apart=8.0), seed=1), 4)
    assert state.labels.bincount().tolist() == [14, 14]
    for cluster in (0, 1):
        known = dossier(state, cluster)
        assert known.tests == 2 and not known.cleared  # in rounds 3 and 4
        assert known.evidence is not None and int(known.evidence.seen.max()) == 2
        assert ", level 0.0083 in round 4" in why(state, known.node)


def test_too_few_samples_or_members_are_no_test_and_no_split() -> None:
    algorithm = CFL(**EAGER, proof="twins")
    state = play(algorithm, Folded(groups(10, 10), samples=40), 4)
    assert "not confirmed: not tested in round 2: 0 of 20 members " in why(state)
    assert len(state.models) == 1 and dossier(state).tests == 0
    few = play(algorithm, Folded(groups(3, 3), samples=48), 4)
    assert len(few.models) == 1 and "not confirmed: not tested in round 2: " in why(few)


def test_few_members_are_told_apart_by_four_folds() -> None:
    state = play(CFL(**EAGER, proof="twins"), Folded(groups(3, 3, apart=8.0), samples=200), 2)
    assert state.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_members_that_are_away_in_a_twin_round_have_no_vote() -> None:
    away = [0, 10]
    here = [client for client in range(20) if client not in away]
    algorithm = CFL(eps1=0.0, proof="twins")
    state = play(algorithm, Folded(groups(10, 10)), 2, asked=lambda round: here if round == 2 else list(range(20)))
    assert dossier(state).cleared == tuple(here)
    state = play(CFL(**EAGER, proof="twins"), Folded(groups(10, 10)), 1, state)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0
    nobody = play(CFL(**EAGER, proof="twins"), Folded(groups(10, 10)), 2, asked=lambda round: [])
    assert nobody.round == 2 and dossier(nobody).tests == 0 and len(nobody.models) == 1


def test_a_cluster_that_lost_some_of_those_who_differed_is_tested_again() -> None:
    cleared = play(CFL(eps1=0.0, proof="twins"), Folded(groups(10, 10)), 2)
    left = make_pending(cleared, [3], node=0)
    assert dossier(left).of(left.labels == 0).decision == Decision("some of those who differed have left since")
    algorithm, problem = CFL(**EAGER, proof="twins"), toy_problem(20, LAYOUT)
    plan = algorithm.plan(problem, left, torch.tensor([c for c in range(20) if c != 3]))
    assert len(plan.tasks) == 3  # in round 3 it is tested again
    state = play(algorithm, Folded(groups(10, 10)), 1, left, asked=lambda round: [c for c in range(20) if c != 3])
    assert dossier(state).tests == 2 and len(state.models) == 2
    evidence = dossier(state).evidence
    assert evidence is not None and 3 not in evidence.clients.tolist()
    assert state.gate is not None and int(state.gate.sizes[3]) == 0  # it may come back with other data


def test_newcomers_of_a_cleared_cluster_do_not_have_to_prove_anything() -> None:
    algorithm, everyone = CFL(eps1=0.0, proof="twins"), list(range(20))
    problem, clients = toy_problem(20, LAYOUT), Folded(groups(10, 10))
    state = make_pending(algorithm.init(problem), [19], node=0)
    state = play(algorithm, clients, 2, state, asked=lambda round: everyone[:19])
    assert dossier(state).cleared == tuple(range(19))
    state = play(CFL(**EAGER, proof="twins"), clients, 1, state)
    assert ari(state.labels, torch.arange(20) // 10) == 1.0


def test_evidence_follows_the_tree_node_through_misplaced_clients_and_merged_clusters() -> None:
    algorithm = HiCFL(epsilon=1e9, rho=1.0, clear=0.0, ending="reorganise", patience=2, proof="twins")
    pattern = groups(12, 12)
    pattern[12:] = -pattern[:12]
    clients = Folded(pattern)
    state = play(algorithm, clients, 5)
    assert len(state.models) == 2
    state = play(algorithm, clients, 1, reassign(state, {0: 1}))
    for cluster in (0, 1):
        evidence = dossier(state, cluster).evidence
        assert evidence is not None
        assert evidence.clients.tolist() == (state.labels == cluster).nonzero().flatten().tolist()
    state = play(algorithm, clients, 6, state)
    assert state.gate is not None and [d.node for d in state.gate.dossiers] == state.nodes.tolist()


def test_an_ending_splits_only_what_is_confirmed() -> None:
    keys: dict[str, Any] = {"epsilon": 1e9, "rho": 1.0, "ending": "personal", "patience": 1}
    assert len(play(HiCFL(**keys), Folded(groups(16)), 9).models) > 2
    assert len(play(HiCFL(**keys, proof="twins"), Folded(groups(16)), 9).models) == 1


def test_a_measured_gamma_and_a_scouted_layer_keep_their_results_beside_the_folds() -> None:
    algorithm = LayerCFL(layers="auto", eps1=1e9, eps2=0.0, gamma="bootstrap", norm_scope="full", proof="twins")
    problem, state = toy_problem(20, LAYOUT), algorithm.init(toy_problem(20, LAYOUT))
    state = play(algorithm, Folded(groups(10, 10)), 1)  # type: ignore[assignment]  # play returns the base class
    plan = algorithm.plan(problem, state, torch.arange(20))
    assert [task.fold for task in plan.tasks] == ["all", "A", "B", "A", "B", "A", "B"]
    assert [task.max_samples is None for task in plan.tasks] == [True, True, True, False, False, False, False]


def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    algorithm, clients = CFL(eps1=0.0, proof="twins"), Folded(groups(10, 10, apart=2.0))
    half = play(algorithm, clients, 3)
    save(tmp_path, half, {}, {})
    found = restore(tmp_path, type(half))
    assert found is not None and found[0].gate is not None and half.gate is not None
    assert found[0].gate.dossiers[0].decision == half.gate.dossiers[0].decision
    eager = CFL(**EAGER, proof="twins")
    one, other = (play(eager, clients, 3, state) for state in (half, found[0]))
    assert torch.equal(one.labels, other.labels) and one.tree == other.tree and torch.equal(one.models, other.models)
