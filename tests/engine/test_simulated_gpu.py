"""The program for CUDA without a card: the vectorized engine on a device that is simulated on the CPU."""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_gpu import CUDA, DeviceTensor, Note, SimulatedGPU, fetched
from small import dataset, fit_of, loop_of, network, partition_of, plan_of
from test_batched import ALGORITHMS, RECIPES, SIZES, Odd, assert_close, close, setting_of
from torch import Tensor, nn

from fedstrata.core import Evaluation, Layout, LocalTraining, Plan
from fedstrata.data import Dataset
from fedstrata.engine import ClientData, ClientStore, Loop
from fedstrata.engine.vectorized import Vectorized, run_together
from fedstrata.engine.vectorized.network import Network
from fedstrata.engine.vectorized.training import Stack, Trainer
from fedstrata.models import layout_of, make, row_of
from turns import play

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


def twins(module: nn.Module, data: Dataset, sizes: list[int], **options: Any) -> tuple[Loop, Vectorized, Layout]:
    """The loop, and the engine on the device that is there, over the same data."""
    client_data, layout = ClientData(data, partition_of(sizes), seed=0), layout_of(module)
    return Loop(module, layout, client_data), Vectorized(module, layout, client_data, device="cuda", **options), layout


def scored(plan: Plan, clients: int, layout: Layout) -> Plan:
    """A plan that also scores its first model."""
    evaluation = Evaluation(torch.arange(clients), torch.zeros(clients, 1, dtype=torch.int64), layout.nothing)
    return replace(plan, evaluations={"client": evaluation})


def counted(notes: Sequence[Note]) -> Counter[str]:
    """How often the host starts something or waits."""
    kinds = Counter(note.kind for note in notes if not note.recorded)
    return kinds + Counter(blocking=sum(note.blocking for note in notes if note.kind != "record"))


@pytest.mark.parametrize("name", SHAPES)
def test_the_papers_networks_are_trained_and_scored_as_without_a_device(name: str) -> None:
    module = make(name, SHAPES[name], 3, seed=0)
    start = row_of(module, layout_of(module))
    with SimulatedGPU() as gpu:
        _, engine, layout = twins(module, noise(SHAPES[name], 45), [12, 7, 10])
        plan = scored(plan_of(start[None], fit_of(layout, [[0]] * 3, training=PLAIN)), 3, layout)
        for _ in range(3):
            found = fetched(engine.run(plan))
    # Not the loop: max pooling of noise may choose another pixel after rounding.
    assert_close(found, Vectorized(module, layout, engine.client_data, im2col=True).run(plan))
    assert any(note.kind == "replay" for note in gpu.notes)


@pytest.mark.slow
@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
def test_every_recipe_equals_the_loop_when_its_steps_are_replayed(training: LocalTraining) -> None:
    with SimulatedGPU() as gpu:
        loop, engine, layout = twins(network(), dataset(80), SIZES)
        start = row_of(network(), layout)
        for round in (1, 2, 3, 4):
            task = fit_of(layout, [[0]] * 5, training=replace(training, lr=training.lr / round), prox_weight=0.1)
            plan = plan_of(start[None], task, round=round)
            found = fetched(engine.run(plan))
    assert_close(found, loop.run(plan))
    assert any(note.kind == "replay" for note in gpu.notes)


def test_batch_norms_personal_tensors_and_choices_equal_the_loop() -> None:
    with SimulatedGPU():
        loop, engine, layout = twins(network(norm=True), dataset(80), SIZES)
        start = row_of(network(norm=True), layout)
        for round in (1, 2, 3):
            task = fit_of(layout, [[0, 1]] * 5, training=RECIPES["momentum"], save_local=layout.everything)
            plan = scored(plan_of(torch.stack([start, start * 1.1]), task, round=round), 5, layout)
            assert_close(engine.run(plan), loop.run(plan))
            assert close(engine.store.tensors(), loop.store.tensors())


def test_masks_of_dropout_are_as_without_a_device() -> None:
    torch.manual_seed(3)
    module = Odd(dropout=0.5)
    start = row_of(module, layout_of(module))
    with SimulatedGPU():
        _, engine, layout = twins(module, dataset(80), SIZES)
        plans = [plan_of(start[None], fit_of(layout, [[0]] * 5), round=round) for round in (1, 2, 3)]
        found = [fetched(engine.run(plan)) for plan in plans]
    plain = Vectorized(module, layout, engine.client_data, im2col=True)
    for plan, report in zip(plans, found, strict=True):
        assert_close(report, plain.run(plan))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "fedper", "fedrep", "ifca", "layercfl", "pacfl", "strata"])
def test_algorithms_decide_the_same(name: str) -> None:
    """Averages and similarities are computed from rows that have landed in the computer's memory."""
    assert name in ALGORITHMS
    setup = setting_of(name)
    with SimulatedGPU():
        assert isinstance(setup.clients, Loop)
        engine = Vectorized(setup.clients._module, setup.server.problem.layout, setup.client_data, device="cuda")
        server = replace(setup.server, problem=replace(setup.server.problem, predict=engine.predict))
        fast = play(replace(setup, clients=engine, server=server), 2)
    slow = play(setup, 2)
    for one, other in zip(fast, slow, strict=True):
        assert torch.equal(one.after.labels, other.after.labels) and type(one.after.models) is Tensor
        apart = (one.after.models - other.after.models).norm(dim=1)
        assert bool((apart <= 1e-4 * other.after.models.norm(dim=1)).all())
        assert close(one.devices, other.devices, tolerance=1e-4)


@pytest.mark.parametrize("values", [True, False], ids=["values", "shapes"])
def test_a_round_of_training_never_waits_for_the_device(values: bool) -> None:
    with SimulatedGPU(values) as gpu:
        _, engine, layout = twins(network(norm=True), dataset(80), SIZES)
        start = row_of(network(norm=True), layout)
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


@pytest.mark.parametrize("federations", [1, 2])
def test_a_recorded_step_is_started_by_one_copy_and_one_replay(federations: int) -> None:
    """Its samples are read inside the recording, whoever owns them."""
    with SimulatedGPU(values=False) as gpu:
        engines = [twins(network(), dataset(80, seed), [20, 20])[1] for seed in range(federations)]
        layout = engines[0].trainers.network.layout
        plan = plan_of(row_of(network(), layout)[None], fit_of(layout, [[0]] * 2))
        for _ in range(2):
            before = len(gpu.notes)
            run_together([(engine, plan) for engine in engines])
    started = [note.kind for note in gpu.notes[before:] if not note.recorded]
    first, last = started.index("replay"), len(started) - started[::-1].index("replay")
    assert started[first:last] == ["replay", *["kernel", "replay"] * 7]  # 2 epochs of 4 steps


@pytest.mark.parametrize(
    ("optimizer", "kernels"),
    [
        ("sgd", ["addcmul_"] * 4),  # weight and bias of two layers
        ("adam", ["cat", "_foreach_add_", "_fused_adam_"]),  # gradients are put side by side, then weights move
    ],
)
def test_weights_move_in_few_kernels(optimizer: str, kernels: list[str]) -> None:
    with SimulatedGPU(values=False) as gpu:
        _, engine, layout = twins(network(), dataset(80), [20, 20])
        training = LocalTraining(batch=5, lr=0.1, optimizer=optimizer)
        engine.run(plan_of(row_of(network(), layout)[None], fit_of(layout, [[0]] * 2, training=training)))
    recorded = [note.name for note in gpu.notes if note.recorded]
    assert recorded[-len(kernels) :] == kernels
    assert all(recorded.count(name) == kernels.count(name) for name in kernels)


def test_a_round_is_only_waited_for_where_scores_are_read() -> None:
    with SimulatedGPU() as gpu:
        _, engine, layout = twins(network(), dataset(80), SIZES)
        plan = scored(plan_of(row_of(network(), layout)[None], fit_of(layout, [[0]] * 5)), 5, layout)
        for _ in range(4):
            before = len(gpu.notes)
            engine.run(plan)
    assert counted(gpu.notes[before:])["blocking"] == 2  # losses and hits of one chunk


def test_training_stays_on_the_device_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Tensor]()
    step = Trainer._step

    def watched(self: Trainer, stack: Stack, *inputs: Any) -> None:
        seen.extend(stack.tensors)
        step(self, stack, *inputs)
        seen.extend(stack.tensors)

    monkeypatch.setattr(Trainer, "_step", watched)
    with SimulatedGPU(values=False):
        _, engine, layout = twins(network(norm=True), dataset(80), SIZES)
        training = RECIPES["momentum"]
        plan = plan_of(row_of(network(norm=True), layout)[None], fit_of(layout, [[0]] * 5, training=training))
        engine.run(plan)
    assert seen and all(isinstance(tensor, DeviceTensor) and tensor.device == CUDA for tensor in seen)
    assert {tensor.dtype for tensor in seen} == {torch.float32}


def test_half_precision_multiplies_16_bits_and_keeps_weights_in_float32() -> None:
    with SimulatedGPU(own="cpu") as gpu:
        _, engine, layout = twins(network(), dataset(80), SIZES, precision="bfloat16")
        start = row_of(network(), layout)
        for round in (1, 2, 3):
            plan = plan_of(start[None], fit_of(layout, [[0]] * 5), round=round)
            found = fetched(engine.run(plan))
    plain = Vectorized(network(), layout, engine.client_data, precision="bfloat16", im2col=True)
    assert_close(found, plain.run(plan))
    products = [note for note in gpu.notes if note.flops]
    assert products and all(note.half for note in products)
    (trainer,) = engine.trainers._known.values()
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
        _, engine, layout = twins(network(), dataset(80), SIZES, precision=precision)
        plan = scored(plan_of(row_of(network(), layout)[None], fit_of(layout, [[0]] * 5)), 5, layout)
        engine.run(plan)  # how much memory a step needs is found out without its precision
        monkeypatch.setattr(Network, "logits", watched)
        engine.run(plan)
    assert precisions == {True: {products}, False: {"ieee"}}
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_several_federations_on_a_device_are_as_each_alone() -> None:
    loop, layout, start = loop_of(SIZES)
    far = ClientData(dataset(60, seed=5), partition_of([9, 14, 4], turns=[0, 1, 3]), seed=1)
    store, slow = ClientStore(), Loop(network(), layout, far)
    one = plan_of(start[None], fit_of(layout, [[0]] * 5))
    two = replace(plan_of(start[None], fit_of(layout, [[0]] * 3, save_local=layout.select("fc"))), seed=1)
    with SimulatedGPU():
        engine = Vectorized(network(), layout, loop._client_data, device="cuda")
        other = Vectorized(network(seed=4), layout, far, store, device="cuda")
        for round in (1, 2, 3):
            reports = run_together([(engine, replace(one, round=round)), (other, replace(two, round=round))])
        found = [fetched(report) for report in reports]
    assert_close(found[0], loop.run(replace(one, round=3)))
    assert_close(found[1], slow.run(replace(two, round=3)))


def test_personal_tensors_are_waited_for_once_for_each_client() -> None:
    with SimulatedGPU() as gpu:
        loop, engine, layout = twins(network(), dataset(80), SIZES)
        start = row_of(network(), layout)
        models = torch.stack([start, torch.full_like(start, torch.inf)])
        own = layout.everything
        plan = plan_of(models, fit_of(layout, [[1], [0], [0], [0], [0]], load_local=own, save_local=own))
        for _ in range(3):
            before = len(gpu.notes)
            engine.run(plan)
    loop.run(plan)
    assert engine.store.not_finite_clients(1) == loop.store.not_finite_clients(1) == (0,)
    assert all(values.untyped_storage().nbytes() == values.nbytes for values in engine.store.tensors().values())
    blocking = [note for note in gpu.notes[before:] if note.blocking and note.kind != "record"]
    assert [note.kind for note in blocking] == ["to host"] * 6  # of 5 clients, and whether they are finite


def test_copies_of_weights_do_not_count_as_samples_on_a_device() -> None:
    """Four samples of a wide layer seemed to keep its weights, so that few clients were trained together."""
    module = nn.Sequential(nn.Conv2d(1, 100, 3), nn.Conv2d(100, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    images = torch.zeros(1, 1, 6, 6)
    with SimulatedGPU():
        network = twins(module, dataset(20), [8])[1].trainers.network
        sample, copies = network.step_bytes(images.to("cuda"))
    assert copies == 4 * 100 * 4 * 9  # the weights of the second convolution, with channels first
    assert sample == 4 * (16 * 9 + 4 * 900 + 16)  # the patches of both convolutions, and what the linear layer reads
    plain = Vectorized(module, layout_of(module), ClientData(dataset(20), partition_of([8]), seed=0)).trainers.network
    assert plain.step_bytes(images)[1] == 0


class Curious(nn.Linear):
    """A network that looks at its values, which no recording can do."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = images.flatten(1)
        return super().forward(hidden[hidden.new_zeros(len(hidden)).bool().logical_not().nonzero()[:, 0]])


def test_a_network_that_looks_at_its_values_is_trained_without_recordings() -> None:
    module = Curious(36, 3)
    start = row_of(module, layout_of(module))
    with SimulatedGPU() as gpu:
        loop, engine, layout = twins(module, dataset(40), [20])
        for round in (1, 2, 3):
            plan = plan_of(start[None], fit_of(layout, [[0]], training=LocalTraining(batch=5, lr=0.1)), round=round)
            engine.trainers.network._step_bytes[1, 6, 6] = 1, 0  # one client: torch would refuse two
            found = fetched(engine.run(plan))
    assert_close(found, loop.run(plan))
    assert {note.kind for note in gpu.notes} >= {"wait"} and "replay" not in {note.kind for note in gpu.notes}


def test_the_simulated_device_refuses_what_cuda_refuses() -> None:
    here = torch.ones(3)
    with SimulatedGPU() as gpu:
        there = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        assert torch.equal((there + here.to("cuda")).cpu(), here)
        assert [note.kind for note in gpu.notes] == ["kernel", "to device", "kernel", "to host"]
        assert gpu.notes[1].blocking and not here.is_pinned() and here.pin_memory().is_pinned()
        pinned = torch.empty(3, pin_memory=True)
        pinned.copy_(there + 2, non_blocking=True)
        assert pinned.isnan().all()  # nobody has waited
        torch.cuda.synchronize()
        assert pinned.tolist() == [2, 2, 2] and float(there.sum()) == 0 and gpu.notes[-1].kind == "wait"
    with pytest.raises(RuntimeError, match="expected a simulated device"):
        there + 1
    assert not torch.cuda.is_available() or torch.cuda.device_count()


def test_a_recording_does_nothing_until_it_is_replayed_and_may_not_wait() -> None:
    with SimulatedGPU() as gpu:
        total, step = torch.zeros(2, device="cuda"), torch.ones(2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total.add_(step * 2)
        assert total.cpu().tolist() == [0, 0]
        for _ in range(2):
            graph.replay()
        step.fill_(5.0)
        graph.replay()
        assert total.cpu().tolist() == [14, 14]
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            total.sum().item()
    assert [note.kind for note in gpu.notes if note.recorded] == ["kernel"] * 6


@pytest.mark.parametrize("groups", [1, 2])
def test_operations_and_bytes_of_convolutions_are_counted_by_hand(groups: int) -> None:
    images, weight = torch.ones(3, 4, 5, 5), torch.ones(6, 4 // groups, 3, 3)
    with SimulatedGPU() as gpu:
        there = weight.to("cuda").requires_grad_()
        found = nn.functional.conv2d(images.to("cuda"), there, groups=groups)
        torch.autograd.grad(found.sum(), [there])
    forward, backward = (note for note in gpu.notes if note.flops)
    assert forward.flops == backward.flops == 2 * (3 * 6 * 3 * 3) * (4 // groups * 3 * 3)  # no gradient of images
    assert forward.bytes == 4 * (images.numel() + weight.numel() + found.numel())
