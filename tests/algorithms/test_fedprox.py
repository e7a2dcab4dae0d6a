import torch
from baseline_federation import federation, train

from fedstrata.algorithms.fedprox import FedProx
from fedstrata.testing import play, toy_problem


def test_the_pull_keeps_the_model_nearer_to_where_it_was() -> None:
    moves = []
    for mu in (0.0, 1.0, 5.0):
        setting = federation("fedprox", {"epochs": 3, "lr": 0.05}, mu=mu)
        state, _, _ = train(setting, rounds=1)
        moves.append(float((state.models[0] - setting.server.problem.fresh(0)).norm()))
    assert moves[0] > moves[1] > moves[2] > 0


def test_the_server_averages_as_fedavg_does() -> None:
    """semantics.md, golden case 12: (1, 2), (3, 4), (5, 0) with 1, 2 and 5 samples; then without client 1."""
    updates = torch.tensor([[1.0, 2], [3, 4], [5, 0]]).repeat(1, 3)
    sizes = torch.tensor([1, 2, 5])
    state, _ = play(FedProx(), toy_problem(3), [updates], sizes=sizes)
    assert state.models[0, :2].tolist() == [4.0, 1.25]
    state, _ = play(FedProx(), toy_problem(3), [updates], cohorts=[[0, 2]], sizes=sizes)
    assert torch.allclose(state.models[0, :2], torch.tensor([13 / 3, 1 / 3]))
