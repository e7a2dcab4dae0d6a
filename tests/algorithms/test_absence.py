"""Half of the clients are drawn in a round, and a fifth of those never answers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata as fs
from builders import answer
from fedstrata.algorithms.adacfl import AdaCFL
from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.hicfl import HiCFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.build.participation import Participation
from fedstrata.clustering import ari
from fedstrata.core import Algorithm, Plan, Report, Result, Rows, State, descends
from fedstrata.testing import toy_problem
from recorded import decision_of

CLIENTS, FRACTION, DROPOUT, ROUNDS = 20, 0.5, 0.2, 25
TRUTH = torch.arange(CLIENTS) % 4
CORNERS = torch.tensor([[4.0, 2.0], [4.0, -2.0], [-4.0, 2.0], [-4.0, -2.0]])

ALGORITHMS: dict[str, Algorithm[Any]] = {
    "cfl": CFL(eps1=10.0, eps2=0.2, gamma=0.5, min_split=3),
    "layercfl": LayerCFL(layers="conv", eps1=10.0, eps2=0.2, gamma=0.5, min_split=3),
    "hicfl": HiCFL(epsilon=0.05),
    "adacfl": AdaCFL(epsilon=0.5),
}


class Seekers:
    """Clients that go half of the way from their model to the corner of their group, and stray a little.

    They stray differently in every round, so that the mean of any other rows than those of a round is another.
    """

    def run(self, plan: Plan) -> Report:
        """Take the nearest of the offered models, which is the one of lowest loss."""
        results = dict[str, Result]()
        for name, task in plan.tasks.items():
            working = task.candidates.amax(dim=1) >= 0
            clients, offers = plan.cohort[working], task.candidates[working]
            corners = CORNERS[TRUTH[clients]].repeat(1, 3)
            losses = (plan.models[offers] - corners[:, None]).square().sum(dim=2).masked_fill(offers < 0, torch.inf)
            given = offers.gather(1, losses.argmin(dim=1, keepdim=True)).flatten()
            stray = torch.randn(CLIENTS, 6, generator=torch.Generator().manual_seed(plan.round))[clients]
            way = 1 - 0.5**task.training.epochs
            values = way * (corners - plan.models[given]) + 0.01 * stray
            results[name] = answer(clients, values, given, losses=losses)
        told = {"classes": 10.0, "entropy": 3.3}
        asked = {name: plan.cohort[who] for name, who in plan.client_stats.items()}
        facts = {name: Rows(ids, torch.full((len(ids), 1), told[name])) for name, ids in asked.items()}
        return Report(results, client_stats=facts)


@dataclass(frozen=True)
class Turn:
    """A round: who answered, the state before and after it, and what came back."""

    answering: torch.Tensor
    before: State
    report: Report
    after: State


def turns(algorithm: Algorithm[Any]) -> Iterator[Turn]:
    problem, clients = toy_problem(CLIENTS), Seekers()
    state = algorithm.init(problem)
    for round in range(1, ROUNDS + 1):
        cohort, absent = Participation(CLIENTS, seed=0, fraction=FRACTION, dropout=DROPOUT).sample(round)
        plan = algorithm.plan(problem, state, cohort)
        present = plan.only(~torch.isin(cohort, absent))
        report = replace(clients.run(present), cohort=cohort)
        after, _ = algorithm.update(problem, state, report)
        yield Turn(present.cohort, state, report, after)
        state = after


every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))


@every
def test_the_groups_are_found_and_everybody_is_in_one(algorithm: Algorithm[Any]) -> None:
    *_, last = turns(algorithm)
    assert len(last.after.models) == 4 and ari(last.after.labels, TRUTH) == 1.0
    found = last.after.models[last.after.labels]
    assert torch.allclose(found, CORNERS[TRUTH].repeat(1, 3), atol=0.05)


@every
def test_no_client_is_ever_lost(algorithm: Algorithm[Any]) -> None:
    waited = False
    for turn in turns(algorithm):
        state = turn.after
        leaves = [node for node in state.tree if node.split is None]
        placed = sorted(client for leaf in leaves for client in leaf.members)
        pending = (state.labels < 0).nonzero().flatten().tolist()
        assert sorted(placed + pending) == list(range(CLIENTS))
        for client in pending:
            waits = int(state.waiting[client])
            assert any(descends(state.tree, leaf.id, waits) for leaf in leaves)
        waited |= bool(pending)
    assert waited, "whoever is away when its cluster is split has to wait"


@every
def test_a_model_moves_by_the_mean_of_the_fresh_rows_that_were_trained_from_it_and_by_nothing_else(
    algorithm: Algorithm[Any],
) -> None:
    for turn in turns(algorithm):
        nodes, result = turn.before.nodes.tolist(), turn.report.results["train"]
        assert len(turn.answering) == 8 and set(result.updates.clients.tolist()) <= set(turn.answering.tolist())
        for cluster, node in enumerate(turn.after.nodes.tolist()):
            if node not in nodes and turn.after.tree[node].parent not in nodes:
                continue  # a newcomer founded it
            parent = nodes.index(node if node in nodes else turn.after.tree[node].parent)
            counted = (turn.after.labels[result.updates.clients] == cluster) & (result.chosen == parent)
            rows = result.updates.values[counted].double()
            move = rows.mean(dim=0) if len(rows) else torch.zeros(6, dtype=torch.float64)
            expected = turn.before.models[parent].double() + move
            assert torch.allclose(turn.after.models[cluster].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_a_quorum_that_nobody_reaches_decides_nothing(fraction: float) -> None:
    problem, clients, algorithm = toy_problem(CLIENTS), Seekers(), CFL(eps1=10.0, eps2=0.2, quorum=0.9, min_split=3)
    cohort, absent = Participation(CLIENTS, seed=0, fraction=fraction, dropout=DROPOUT).sample(1)
    plan = algorithm.plan(problem, algorithm.init(problem), cohort)
    report = clients.run(plan.only(~torch.isin(cohort, absent)))
    after, _ = algorithm.update(problem, algorithm.init(problem), replace(report, cohort=cohort))
    asked = round(fraction * CLIENTS)
    values = {"answered": asked * 4 // 5, "asked": asked, "not_ready": 0, "min_split": 3, "quorum": 0.9}
    assert decision_of(after).kind == "too_few_members" and decision_of(after).values == values


REAL: dict[str, dict[str, Any]] = {
    "cfl": {"eps1": 10.0, "eps2": 0.8, "gamma": 0.55, "min_split": 3},
    "layercfl": {"layers": "first_linear", "eps1": 10.0, "eps2": 0.6, "gamma": 0.55, "min_split": 3},
    "hicfl": {"epsilon": 0.2, "rho": 0.5, "window": 4},
    "adacfl": {"layers": "first_linear", "epsilon": 2.0, "precluster": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_federation_finds_its_groups(name: str, tmp_path: Path) -> None:
    tables = {
        "rounds": 20,
        "data": {"name": "digits", "clients": 12, "samples": 60, "test": 0.2},
        "partition": {"scheme": "rotation", "groups": 2},
        "local": {"lr": 0.5, "batch": 0, "epochs": 3},
        "cohort": {"fraction": FRACTION, "dropout": DROPOUT},
        "algorithm": {"name": name, **REAL[name]},
    }
    run = fs.run(tables, tmp_path / "run", quiet=True)
    # Six are asked, one of them is lost; and who has answered too rarely to be judged waits as well.
    assert max(len(record["pending"]) for record in run.rounds) >= 12 - 5
    assert run.summary["ari"] == 1.0 and run.summary["clusters"] == 2 and run.rounds[-1]["pending"] == []
