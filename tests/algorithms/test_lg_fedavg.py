from pathlib import Path

import pytest
import torch
from baseline_federation import CLIENTS, PARAMETERS, device, federation, recorded, train

from fedstrata.algorithms.lg_fedavg import LGFedAvg
from fedstrata.core import Layout, TensorSpec
from fedstrata.testing import toy_problem

FIRST = 64 * 12 + 12


@pytest.mark.parametrize(("depth", "local"), [(4, 2), (3, 1), (2, 1), (1, 1)])
def test_by_itself_it_shares_the_two_deepest_layers_and_keeps_at_least_one(depth: int, local: int) -> None:
    """semantics.md, A32: FL-bench shares the shallow layers instead, which is the wrong way round."""
    layout = Layout(tuple(TensorSpec(f"{i}.weight", f"{i}", "linear", (1,)) for i in range(depth)))
    problem, algorithm = toy_problem(2, layout), LGFedAvg()
    fit = algorithm.plan(problem, algorithm.init(problem), torch.arange(2)).tasks["train"]
    assert fit.load_local == fit.save_local == (True,) * local + (False,) * (depth - local)
    assert fit.upload == (False,) * local + (True,) * (depth - local)


def test_shallow_layers_differ_between_clients_and_deep_ones_are_averaged() -> None:
    setting = federation("lg_fedavg")
    state, _, _ = train(setting)
    start = setting.server.problem.fresh(0)
    assert torch.equal(state.models[0, :FIRST], start[:FIRST])
    assert not torch.equal(state.models[0, FIRST:], start[FIRST:])
    own = torch.stack([device(setting, client) for client in range(CLIENTS)])
    assert own.shape == (CLIENTS, FIRST) and len(own.unique(dim=0)) == CLIENTS


def test_told_to_keep_the_head_it_is_fedper() -> None:
    ours, _, scores = train(federation("lg_fedavg", personal="head"), fraction=0.5)
    other, _, expected = train(federation("fedper"), fraction=0.5)
    assert torch.equal(ours.models, other.models) and torch.equal(scores["client"].loss, expected["client"].loss)


def test_the_deep_layers_travel_every_round(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "lg_fedavg")
    deep = CLIENTS * 4 * (PARAMETERS - FIRST)
    assert [record["bytes_down"] for record in run.rounds] == [CLIENTS * 4 * PARAMETERS, deep, deep]
    assert [record["bytes_up"] for record in run.rounds] == [deep] * 3
