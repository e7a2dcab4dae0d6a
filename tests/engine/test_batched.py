"""The batched engine equals the loop but for rounding."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from forty import PLANS, SITE
from hypothesis import given, settings
from hypothesis import strategies as st
from small import RECIPES, dataset, fit_of, loop_of, network, plan_of, scored, updates_of
from torch import Tensor, nn

from fedstrata.base.errors import ModelError
from fedstrata.core import Layout, LocalTraining, Plan, Report
from fedstrata.engine import Loop
from fedstrata.engine.vectorized import Vectorized
from turns import same

SIZES = [12, 9, 16, 11, 3]
LEAST = 1
"""Bytes in which one client fits at a time, whatever it needs."""

few = settings(deadline=None, max_examples=15)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def twins(sizes: list[int], norm: bool = False, **options: Any) -> tuple[Loop, Vectorized, Layout, Tensor]:
    """Both engines over the same small data, their layout, and an initial row (p,)."""
    return twins_of(network(norm), sizes, **options)


def twins_of(module: nn.Module, sizes: list[int], **options: Any) -> tuple[Loop, Vectorized, Layout, Tensor]:
    """The same for another network."""
    loop, layout, start = loop_of(sizes, module=module)
    return loop, Vectorized(module, layout, loop._client_data, **options), layout, start


def assert_close(found: Report, expected: Report, tolerance: float = 1e-5) -> None:
    """Updates that differ by a share of their norm; everything that is counted is the same."""
    assert found.results.keys() == expected.results.keys() and found.scores.keys() == expected.scores.keys()
    for name, one in found.results.items():
        other = expected.results[name]
        assert torch.equal(one.updates.clients, other.updates.clients)
        assert torch.equal(one.chosen, other.chosen) and torch.equal(one.sizes, other.sizes)
        assert one.updates.values.dtype == torch.float32 and one.updates.values.shape == other.updates.values.shape
        torch.testing.assert_close(one.losses, other.losses, rtol=1e-5, atol=1e-6, equal_nan=True)
        apart = (one.updates.values - other.updates.values).norm(dim=1)
        assert bool((apart <= tolerance * other.updates.values.norm(dim=1)).all())
    for name, score in found.scores.items():
        said = expected.scores[name]
        assert torch.equal(score.clients, said.clients) and torch.equal(score.correct, said.correct)
        assert torch.equal(score.samples, said.samples)
        torch.testing.assert_close(score.loss, said.loss, rtol=1e-5, atol=1e-6)


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 1e-5) -> bool:
    """Whether two stores hold about the same."""
    return one.keys() == other.keys() and all(
        float((values - other[name]).norm()) <= tolerance * float(other[name].norm()) for name, values in one.items()
    )


@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_an_epoch_equals_the_loops(training: LocalTraining, norm: bool) -> None:
    module = network(norm)
    if norm:
        # What is added before a mean is taken away has no gradient but rounding, which Adam makes as large as any.
        module.get_parameter("conv.bias").requires_grad_(False)
    loop, batched, layout, start = twins_of(module, SIZES)
    plan = plan_of(start[None], fit_of(layout, [[0]] * 5, training=training))
    assert_close(batched.run(plan), loop.run(plan))


@few
@given(
    sizes=st.lists(st.integers(1, 13), min_size=1, max_size=6),
    batch=st.integers(0, 6),
    memory=st.sampled_from([1, 30_000, 1 << 30]),
    norm=st.booleans(),
)
def test_unequal_clients_and_any_memory_equal_the_loop(sizes: list[int], batch: int, memory: int, norm: bool) -> None:
    loop, batched, layout, start = twins(sizes, norm, memory=memory)
    training = LocalTraining(epochs=2, batch=batch, lr=0.05, momentum=0.5)
    plan = plan_of(start[None], fit_of(layout, [[0]] * len(sizes), training=training, prox_weight=0.1))
    assert_close(batched.run(plan), loop.run(plan))


def test_a_batch_of_one_sample_is_left_out_where_statistics_are_taken() -> None:
    loop, batched, layout, start = twins([6, 1], norm=True)
    plan = plan_of(start[None], fit_of(layout, [[0], [0]]))
    found = batched.run(plan)
    assert_close(found, loop.run(plan))
    assert not found.results["train"].updates.of(torch.tensor([1])).any()
    ones = plan_of(start[None], fit_of(layout, [[0], [0]], training=LocalTraining(batch=1)))
    assert not batched.run(ones).results["train"].updates.values.any()


def test_running_statistics_are_each_clients_own_and_only_move_where_they_are_trained() -> None:
    loop, batched, layout, start = twins(SIZES, norm=True)
    plan = plan_of(start[None], fit_of(layout, [[0]] * 5), fit_of(layout, [[0]] * 5, trainable=layout.select("all")))
    moved, still = batched.run(plan).results.values()
    statistics = layout.columns(tuple(slot.kind == "buffer" for slot in layout.tensors))
    rows = moved.updates.values[:, statistics]
    assert len(rows.unique(dim=0)) == 5 and not still.updates.values[:, statistics].any()
    assert_close(batched.run(plan), loop.run(plan))


def test_of_several_offers_the_one_of_lowest_training_loss_is_taken() -> None:
    loop, batched, layout, start = twins(SIZES)
    trained = start + loop.run(plan_of(start[None], fit_of(layout, [[0]]))).results["train"].updates.values[0]
    models = torch.stack([torch.full_like(start, torch.nan), start, trained])
    offers = [[0, 1, 2], [1, -1, -1], [2, 1, -1], [-1, -1, -1], [1, 1, -1]]
    task = fit_of(layout, offers, selection_fold="A")
    plan = plan_of(models, task)
    found = batched.run(plan)
    untrained = plan_of(models, replace(task, trainable=layout.nothing))
    assert_close(batched.run(untrained), loop.run(untrained))
    assert found.results["train"].chosen.tolist() == [2, 1, 2, 1]
    assert_close(found, loop.run(plan))


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_all_that_a_plan_can_ask_is_as_the_loop_has_it(plans: list[Plan]) -> None:
    loop, batched = Loop.at(SITE), Vectorized.at(SITE)
    for plan in plans:
        found, expected = batched.run(plan), loop.run(plan)
        assert_close(found, expected)
        assert same(found.client_stats, expected.client_stats)
        assert close(batched.store.tensors(), loop.store.tensors())


def test_a_client_whose_own_tensors_went_astray_is_spoilt_as_in_the_loop() -> None:
    loop, batched, layout, start = twins(SIZES)
    head = layout.select("fc")
    task = fit_of(layout, [[1], [0], [0], [0], [0]], load_local=head, save_local=head)
    plan = plan_of(torch.stack([start, torch.full_like(start, torch.inf)]), task)
    for engine in (batched, loop):
        engine.run(plan)
        assert engine.store.not_finite_clients(1) == (0,)
    assert all(values.isnan().all() for name, values in batched.store.tensors().items() if name.startswith("0/"))


class Odd(nn.Module):
    """Tied weights, a parameter without axes, strides, padding, pooling, and a leaky ReLU in place."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.conv1 = nn.Conv2d(1, 4, 3, stride=2, padding=(1, 0))
        self.conv2 = nn.Conv2d(4, 4, 2, bias=False)
        self.conv3 = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.act, self.pool, self.drop = nn.LeakyReLU(inplace=True), nn.AvgPool2d(2, 1), nn.Dropout2d(dropout)
        self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.weight = self.one.weight

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.conv1(images)))  # (b, 4, 3, 2)
        hidden = self.pool(self.conv3(self.conv2(hidden)) * self.scale + 1.0) if hidden.shape[3] > 2 else hidden
        found: Tensor = self.head(self.other(self.act(self.one(hidden.mean(dim=(2, 3))))))
        return found


@pytest.mark.parametrize("im2col", [False, True], ids=["groups", "im2col"])
def test_any_network_of_the_user_equals_the_loop(im2col: bool) -> None:
    torch.manual_seed(3)
    loop, batched, layout, start = twins_of(Odd(), SIZES, im2col=im2col)
    plan = plan_of(start[None], fit_of(layout, [[0]] * 5, training=RECIPES["momentum"]))
    assert_close(batched.run(plan), loop.run(plan))
    models = torch.stack([start, start * 1.1, start * 0.9])
    inputs = dataset(8).prepare(torch.arange(8))
    torch.testing.assert_close(batched.outputs(models, inputs), loop.outputs(models, inputs))


def test_a_network_with_other_randomness_than_dropout_layers_is_refused_in_one_line() -> None:
    class Noisy(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.flatten(1) + torch.rand(36))

    _, batched, layout, start = twins_of(Noisy(36, 3), [4])
    with pytest.raises(ModelError, match=r"'batched': Noisy cannot be computed .* \(.*random.*\); use loop") as caught:
        batched.run(plan_of(start[None], fit_of(layout, [[0]])))
    assert "\n" not in str(caught.value)


def test_dropout_hangs_on_seed_round_stream_and_client_and_on_nothing_else() -> None:
    torch.manual_seed(3)
    module = Odd(dropout=0.5)
    _, batched, layout, start = twins_of(module, SIZES)
    task = fit_of(layout, [[0]] * 5)
    rows = updates_of(batched, start, task)
    small = updates_of(Vectorized(module, layout, batched.client_data, memory=LEAST), start, task)
    torch.testing.assert_close(rows, small, rtol=1e-4, atol=1e-6)
    alone = batched.run(plan_of(start[None], fit_of(layout, [[0]]), cohort=[3])).results["train"].updates.values
    torch.testing.assert_close(rows[3:4], alone, rtol=1e-4, atol=1e-6)
    # One step: the order of samples means nothing.
    plain = fit_of(layout, [[0]], training=LocalTraining(batch=0, lr=1.0))
    changes = [plan_of(start[None], plain), plan_of(start[None], plain, round=2)]
    changes += [replace(changes[0], seed=8), plan_of(start[None], replace(plain, stream="other"))]
    drawn = [batched.run(plan).results["train"].updates.values for plan in changes]
    assert len(torch.cat(drawn).round(decimals=5).unique(dim=0)) == 4
    torch.manual_seed(0)
    assert torch.equal(batched.run(changes[0]).results["train"].updates.values, drawn[0])


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_recorded_step_that_is_replayed_equals_the_loop(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded reads and writes the same memory for ever, as a CUDA graph does."""
    replayed = []

    def record(function: Any) -> Any:
        replayed.append(function)
        return function

    monkeypatch.setattr("fedstrata.engine.vectorized.training.recorder", lambda device: record)
    loop, batched, layout, start = twins(SIZES, norm=optimizer == "momentum")
    for round in (1, 2, 3, 4):
        training = replace(RECIPES[optimizer], lr=0.02 / round)
        plan = plan_of(start[None], fit_of(layout, [[0]] * 5, training=training, prox_weight=0.1 * round), round=round)
        assert_close(batched.run(plan), loop.run(plan))
    # Steps of 5 for 5, 4 and 1 clients, and of the last 4, 2, 1 and 3: each is recorded once, and pays for it.
    assert 3 <= len(replayed) <= 8


@needs_cuda
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_on_cuda_equal_the_loop_and_repeat_bit_for_bit(recipe: str) -> None:
    loop, batched, layout, start = twins(SIZES, device="cuda")
    _, again, _, _ = twins(SIZES, device="cuda")
    task = fit_of(layout, [[0]] * 5, training=RECIPES[recipe])
    for round in range(1, 4):
        plan = plan_of(start[None], task, round=round)
        found, same = batched.run(plan), again.run(plan)
        assert_close(found, loop.run(plan))
        assert torch.equal(found.results["train"].updates.values, same.results["train"].updates.values)


@needs_cuda
@pytest.mark.parametrize("norm", [False, True])
def test_cuda_equals_the_loop(norm: bool) -> None:
    loop, batched, layout, start = twins(SIZES, norm, device="cuda")
    for round in range(1, 7):
        task = fit_of(layout, [[0, 1]] * 5, training=RECIPES["momentum"], prox_weight=0.1, save_local=layout.everything)
        plan = scored(plan_of(torch.stack([start, start * 1.1]), task, round=round), layout, 5)
        assert_close(batched.run(plan), loop.run(plan))
        assert close(batched.store.tensors(), loop.store.tensors())
