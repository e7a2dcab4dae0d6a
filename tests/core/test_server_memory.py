import pytest
import torch

from builders import layout_with
from fedstrata.core import ServerMoments, ServerOptimizer

LAYOUT = layout_with({"w.weight": 2, "norm.running_mean": 1})
"""Two weights, and a running mean."""
UPDATE = torch.tensor([[0.1, -0.2, 5.0]])
THERE = torch.tensor([True])


def step(
    optimizer: ServerOptimizer, moments: ServerMoments | None, update: torch.Tensor = UPDATE
) -> tuple[torch.Tensor, ServerMoments]:
    moves, after = optimizer.step(LAYOUT, moments, [0], [0], update, THERE)
    assert after is not None
    return moves, after


def test_without_an_optimiser_a_model_moves_by_the_mean_update_times_the_rate() -> None:
    moves, after = ServerOptimizer(lr=2.0).step(LAYOUT, None, [0], [0], UPDATE, THERE)
    assert after is None and moves[0].tolist() == pytest.approx([0.2, -0.4, 5.0])


def test_momentum_adds_up_past_updates() -> None:
    optimizer = ServerOptimizer("momentum", lr=2.0, momentum=0.5)
    first, moments = step(optimizer, None)
    second, _ = step(optimizer, moments)
    assert first[0].tolist() == pytest.approx([0.2, -0.4, 5.0])
    assert second[0].tolist() == pytest.approx([0.3, -0.6, 5.0])


@pytest.mark.parametrize(
    ("name", "second"),
    [("adagrad", 1e-4 + 1e-2), ("adam", 0.75 * 1e-4 + 0.25 * 1e-2), ("yogi", 1e-4 + 0.25 * 1e-2)],
)
def test_adaptive_steps_divide_by_the_root_of_the_second_moment(name: str, second: float) -> None:
    """Algorithm 2 of Reddi et al., with v_0 = tau^2 = 0.01^2 and an update of 0.1."""
    optimizer = ServerOptimizer(name, lr=0.1, momentum=0.5, beta2=0.75, tau=0.01)  # type: ignore[arg-type]
    moves, moments = step(optimizer, None)
    assert float(moments.second[0, 0]) == pytest.approx(second)
    assert float(moves[0, 0]) == pytest.approx(0.1 * 0.5 * 0.1 / (second**0.5 + 0.01))
    assert float(moves[0, 2]) == 5.0, "a running mean moves by the mean update"


def test_yogi_forgets_slower_than_adam() -> None:
    still = torch.zeros_like(UPDATE)
    after = {}
    for name in ("yogi", "adam"):
        optimizer = ServerOptimizer(name, beta2=0.5)
        _, moments = step(optimizer, None)
        after[name] = float(step(optimizer, moments, still)[1].second[0, 0])
    assert after["yogi"] > after["adam"]


def test_children_inherit_the_moments_of_their_origin_and_founded_clusters_begin_anew() -> None:
    optimizer = ServerOptimizer("momentum", momentum=0.5)
    moments = ServerMoments(torch.tensor([0, 4]), torch.tensor([[1.0, 0, 0], [3.0, 0, 0]]), torch.empty(2, 0))
    nodes = [5, 6, 7]
    nothing = torch.zeros(3, 3)
    moves, after = optimizer.step(LAYOUT, moments, [4, 4, None], nodes, nothing, torch.ones(3).bool())
    assert moves[:, 0].tolist() == [1.5, 1.5, 0.0]
    assert after is not None and after.nodes.tolist() == nodes


def test_a_cluster_of_which_nobody_answered_stays_where_it_is() -> None:
    optimizer = ServerOptimizer("momentum", momentum=0.5)
    _, moments = step(optimizer, None)
    moves, after = optimizer.step(LAYOUT, moments, [0], [0], torch.zeros(1, 3), torch.tensor([False]))
    assert not moves.any() and after is not None and torch.equal(after.first, moments.first)


@pytest.mark.parametrize("name", ["none", "momentum", "adagrad", "adam", "yogi"])
def test_tensors_that_were_sent_as_values_move_by_the_mean_update_whatever_the_optimiser_does(name: str) -> None:
    optimizer = ServerOptimizer(name, lr=0.5)  # type: ignore[arg-type]
    _, moments = optimizer.step(LAYOUT, None, [0], [0], UPDATE, THERE)
    for update in (UPDATE, torch.zeros_like(UPDATE)):
        moves, _ = optimizer.step(LAYOUT, moments, [0], [0], update, THERE, sent_as_values=(True, False))
        assert torch.equal(moves[:, :2], update[:, :2])
