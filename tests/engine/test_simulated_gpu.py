"""The program for CUDA without a card: the vectorized engine on a device that is simulated on the CPU."""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_gpu import Note, SimulatedGPU, fetched
from small import RECIPES, fit_of, network, partition_of, plan_of, scored
from test_batched import SIZES, assert_close, close, twins, twins_of
from torch import Tensor, nn

from fedstrata.core import LocalTraining
from fedstrata.data import Dataset
from fedstrata.engine import ClientData
from fedstrata.engine.vectorized import Vectorized
from fedstrata.engine.vectorized.network import Network
from fedstrata.models import layout_of, make, row_of

SHAPES = {"mnist_cnn": (1, 28, 28), "fmnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32), "mlp": (1, 28, 28)}
PLAIN = LocalTraining(epochs=2, batch=5, lr=0.05)


@pytest.fixture(autouse=True)
def imported_modules_stay() -> None:
    """Garbage is collected before each recording, which takes longer than the recording if all modules are searched."""
    gc.collect()
    gc.freeze()


def noise(shape: tuple[int, ...], samples: int) -> Dataset:
    """Images without content in three classes."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.integers(0, 256, (samples, *shape), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 3, samples))
    return Dataset("noise", inputs, labels, 3, mean=(0.5,) * shape[0], std=(0.3,) * shape[0])


def counted(notes: Sequence[Note]) -> Counter[str]:
    """How often the host starts something or waits."""
    kinds = Counter(note.kind for note in notes if not note.recorded)
    return kinds + Counter(blocking=sum(note.blocking for note in notes if note.kind != "record"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_papers_networks_are_trained_and_scored_as_without_a_device(name: str) -> None:
    module = make(name, SHAPES[name], 3, seed=0)
    layout = layout_of(module)
    start = row_of(module, layout)
    client_data = ClientData(noise(SHAPES[name], 45), partition_of([12, 7, 10]), seed=0)
    with SimulatedGPU() as gpu:
        engine = Vectorized(module, layout, client_data, device="cuda")
        plan = scored(plan_of(start[None], fit_of(layout, [[0]] * 3, training=PLAIN)), layout, 3)
        for _ in range(3):
            found = fetched(engine.run(plan))
    # Not the loop: max pooling of noise may choose another pixel after rounding.
    assert_close(found, Vectorized(module, layout, client_data, im2col=True).run(plan))
    assert any(note.kind == "replay" for note in gpu.notes)


@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
def test_every_recipe_equals_the_loop_when_its_steps_are_replayed(training: LocalTraining) -> None:
    with SimulatedGPU() as gpu:
        loop, engine, layout, start = twins(SIZES, device="cuda")
        for round in (1, 2, 3, 4):
            task = fit_of(layout, [[0]] * 5, training=replace(training, lr=training.lr / round), prox_weight=0.1)
            plan = plan_of(start[None], task, round=round)
            found = fetched(engine.run(plan))
    assert_close(found, loop.run(plan))
    assert any(note.kind == "replay" for note in gpu.notes)


def test_batch_norms_personal_tensors_and_choices_equal_the_loop() -> None:
    with SimulatedGPU():
        loop, engine, layout, start = twins(SIZES, norm=True, device="cuda")
        for round in (1, 2, 3):
            task = fit_of(layout, [[0, 1]] * 5, training=RECIPES["momentum"], save_local=layout.everything)
            plan = scored(plan_of(torch.stack([start, start * 1.1]), task, round=round), layout, 5)
            assert_close(engine.run(plan), loop.run(plan))
            assert close(engine.store.tensors(), loop.store.tensors())


@pytest.mark.parametrize("values", [True, False], ids=["values", "shapes"])
def test_a_round_of_training_never_waits_for_the_device(values: bool) -> None:
    with SimulatedGPU(values) as gpu:
        _, engine, layout, start = twins(SIZES, norm=True, device="cuda")
        plan = plan_of(start[None], fit_of(layout, [[0]] * 5))
        for _ in range(4):
            before = len(gpu.notes)
            report = engine.run(plan)
        found = counted(gpu.notes[before:])
        assert type(report.results["train"].updates.values) is Tensor
    assert found["blocking"] == 0 and found["wait"] == 0
    # The model, the samples' order, three sets of rows that step aside, and the salts of no dropout.
    assert found["to device"] <= 7
    assert found["to host"] == 0  # the updates stay where they are until somebody reads them


def test_a_recorded_step_is_started_by_one_copy_and_one_replay() -> None:
    """Its samples are read inside the recording."""
    with SimulatedGPU(values=False) as gpu:
        _, engine, layout, start = twins([20, 20], device="cuda")
        plan = plan_of(start[None], fit_of(layout, [[0]] * 2))
        for _ in range(2):
            before = len(gpu.notes)
            engine.run(plan)
    started = [note.kind for note in gpu.notes[before:] if not note.recorded]
    first, last = started.index("replay"), len(started) - started[::-1].index("replay")
    assert started[first:last] == ["replay", *["kernel", "replay"] * 7]  # 2 epochs of 4 steps


def test_half_precision_multiplies_16_bits_and_keeps_weights_in_float32() -> None:
    with SimulatedGPU(own="cpu") as gpu:
        _, engine, layout, start = twins(SIZES, device="cuda", precision="bfloat16")
        for round in (1, 2, 3):
            plan = plan_of(start[None], fit_of(layout, [[0]] * 5), round=round)
            found = fetched(engine.run(plan))
    plain = Vectorized(network(), layout, engine.client_data, precision="bfloat16", im2col=True)
    assert_close(found, plain.run(plan))
    products = [note for note in gpu.notes if note.flops]
    assert products and all(note.half for note in products)
    trainer = engine.trainers.of(plan.tasks["train"])
    assert {tensor.dtype for tensor in trainer._stack.tensors} == {torch.float32}


@pytest.fixture
def tf32() -> Iterator[None]:
    """A user who allowed matrix products with 10 bits."""
    products: Any = torch.backends.cuda.matmul  # its annotations are incomplete
    before = products.fp32_precision
    products.fp32_precision = "tf32"
    yield
    products.fp32_precision = before


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(("precision", "products"), [("float32", "ieee"), ("tf32", "tf32")])
def test_products_are_exact_while_the_device_computes_unless_training_is_to_round_them(
    precision: str, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions = dict[bool, set[str]]()
    logits = Network.logits

    def watched(self: Network, names: Any, tensors: Any, inputs: Tensor, train: bool) -> Tensor:
        precisions.setdefault(train, set()).add(torch.backends.cuda.matmul.fp32_precision)
        return logits(self, names, tensors, inputs, train)

    with SimulatedGPU(values=False):
        _, engine, layout, start = twins(SIZES, device="cuda", precision=precision)
        plan = scored(plan_of(start[None], fit_of(layout, [[0]] * 5)), layout, 5)
        engine.run(plan)  # how much memory a step needs is found out without its precision
        monkeypatch.setattr(Network, "logits", watched)
        engine.run(plan)
    assert precisions == {True: {products}, False: {"ieee"}}
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


class Curious(nn.Linear):
    """A network that looks at its values, which no recording can do."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = images.flatten(1)
        return super().forward(hidden[hidden.new_zeros(len(hidden)).bool().logical_not().nonzero()[:, 0]])


def test_a_network_that_looks_at_its_values_is_trained_without_recordings() -> None:
    with SimulatedGPU() as gpu:
        loop, engine, layout, start = twins_of(Curious(36, 3), [20], device="cuda")
        for round in (1, 2, 3):
            plan = plan_of(start[None], fit_of(layout, [[0]], training=LocalTraining(batch=5, lr=0.1)), round=round)
            engine.trainers.network._step_bytes[1, 6, 6] = 1, 0  # one client: torch would refuse two
            found = fetched(engine.run(plan))
    assert_close(found, loop.run(plan))
    assert {note.kind for note in gpu.notes} >= {"wait"} and "replay" not in {note.kind for note in gpu.notes}
