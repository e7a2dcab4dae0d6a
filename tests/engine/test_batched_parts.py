"""What the batched engine is made of: who steps together, dropout by salt, recordings, samples near a device."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import dataset, partition_of
from torch import nn

from fedstrata.core import rows
from fedstrata.core.rows import rows_for
from fedstrata.engine import ClientData
from fedstrata.engine.device import exact, products_in
from fedstrata.engine.vectorized import cuda_graphs
from fedstrata.engine.vectorized.batches import (
    Resident,
    arrange,
    chunks,
    epoch_steps,
    full_batches_and_rest,
    read_samples,
    sample_source,
    undo_arrange,
)
from fedstrata.engine.vectorized.cuda_graphs import Replay, recorder, session
from fedstrata.engine.vectorized.network import (
    BATCH_BYTES,
    Dropout,
    Im2colConv2d,
    LeftLinear,
    Network,
    budget,
    vmappable_copy,
)
from fedstrata.models import layout_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

few = settings(deadline=None, max_examples=50)
lengths = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@few
@given(lengths, st.integers(0, 7), st.integers(1, 2))
def test_every_client_takes_its_own_batches_in_order_and_none_of_others(
    sizes: list[int], batch: int, least: int
) -> None:
    sizes = sorted(sizes, key=lambda size: full_batches_and_rest(size, batch), reverse=True)
    orders = [100 * client + torch.arange(size) for client, size in enumerate(sizes)]
    table = arrange(orders, batch)
    taken: list[list[list[int]]] = [[] for _ in sizes]
    for step in epoch_steps(sizes, batch, least):
        assert step.whole == (list(step.clients) == list(range(len(step.clients))))
        for client in step.clients:
            taken[client].append(table[client, step.column : step.column + step.size].tolist())
    for order, found in zip(orders, taken, strict=True):
        batches = [part.tolist() for part in order.split(batch or len(order))]
        assert found == [part for part in batches if len(part) >= least]
    edge = full_batches_and_rest(sizes[0], batch)[0] * batch
    for order, row in zip(orders, table, strict=True):
        assert torch.equal(undo_arrange(row, len(order), batch, edge), order)


def test_clients_with_fewer_batches_drop_out() -> None:
    found = [(list(step.clients), step.size) for step in epoch_steps([12, 10, 9, 7, 4], 5)]
    assert found == [([0, 1, 2, 3], 5), ([0, 1], 5), ([2, 4], 4), ([0, 3], 2)]  # 5+5+2, 5+5, 5+4, 5+2, 4


@few
@given(st.integers(1, 50), st.integers(1, 60))
def test_chunks_are_few_and_even(count: int, most: int) -> None:
    found = list(chunks(count, most))
    sizes = [part.stop - part.start for part in found]
    assert [row for part in found for row in range(count)[part]] == list(range(count))
    assert max(sizes) <= most and max(sizes) - min(sizes) <= 1 and len(found) == -(-count // most)


def salted(layer: nn.Module) -> Dropout:
    """A dropout of torch with masks that depend on a salt."""
    found = vmappable_copy(layer, im2col=False)
    assert isinstance(found, Dropout)
    return found


def dropped(layer: Dropout, salt: int, *shape: int) -> torch.Tensor:
    """Where a layer keeps values."""
    layer.salt.fill_(salt)
    found: torch.Tensor = layer.train()(torch.ones(shape))
    return found > 0


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    layer = salted(nn.Dropout(0.3))
    values = layer.train()(torch.ones(1000, 100))
    assert sorted(values.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float(values.mean()) == pytest.approx(1, abs=0.01)  # 4 standard deviations are 0.0083
    assert torch.equal(layer.eval()(values), values)
    assert not salted(nn.Dropout(1.0)).train()(torch.ones(5, 5)).any()


def test_masks_of_other_salts_and_of_the_next_call_are_independent() -> None:
    layer = salted(nn.Dropout(0.5))
    one, other = dropped(layer, 1, 400, 100), dropped(layer, 2, 400, 100)
    again = dropped(layer, 1, 400, 100)
    following = layer(torch.ones(400, 100)) > 0
    assert torch.equal(one, again)
    for mask in (other, following, one.roll(1, 0), one.roll(1, 1)):
        assert float((one == mask).float().mean()) == pytest.approx(0.5, abs=0.01)  # 4 standard deviations


def test_channelwise_dropout_drops_whole_channels() -> None:
    kept = dropped(salted(nn.Dropout2d(0.5)), 3, 20, 8, 5, 5).flatten(2)
    assert torch.equal(kept.all(dim=2), kept.any(dim=2)) and 40 < int(kept[:, :, 0].sum()) < 120


def test_only_plain_convolutions_become_products() -> None:
    kinds: list[dict[str, Any]] = [
        {"padding": 1, "stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
    ]
    convs = [nn.Conv2d(2, 4, 3, **kind) for kind in kinds]
    parametrised = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3))
    network = nn.Sequential(*convs, parametrised)
    found = vmappable_copy(network, im2col=True)
    assert [isinstance(layer, Im2colConv2d) for layer in found.children()] == [True, *[False] * 5]
    assert found.state_dict().keys() == network.state_dict().keys() and isinstance(network[0], nn.Conv2d)
    images = torch.randn(3, 2, 7, 9)
    torch.testing.assert_close(found.get_submodule("0")(images), network[0](images))


class Marked(nn.Linear):
    """A linear layer of the user's own."""


def test_linear_layers_keep_their_hooks_and_parameters_when_their_weight_comes_first() -> None:
    torch.manual_seed(1)
    hooked, normal, bare = nn.Linear(4, 3), nn.utils.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 2, bias=False)
    hooked.register_forward_hook(lambda layer, given, found: found * 2)
    network = nn.Sequential(hooked, normal, bare, Marked(2, 2)).eval()
    found = vmappable_copy(network, im2col=True)
    assert [type(layer) for layer in found.children()] == [*[LeftLinear] * 3, Marked]
    assert all(isinstance(layer, nn.Linear) for layer in found.children())
    assert found.state_dict().keys() == network.state_dict().keys()
    for inputs in (torch.randn(5, 4), torch.randn(2, 5, 4)):
        torch.testing.assert_close(found(inputs), network(inputs))
        assert found(inputs).is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_a_left_weight_lies_in_memory_as_the_weight_does(bias: bool) -> None:
    layer = vmappable_copy(nn.Linear(4, 3, bias), im2col=True).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(torch.randn(5, 4)).sum(), [layer.get_parameter("weight")])
    assert gradient.is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(5, 4)).dtype == torch.bfloat16


class Scaled(nn.Module):
    """A network that reads attributes of its layers, one of which has a hook and one a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.conv.register_forward_hook(lambda layer, given, found: found * 2)
        self.own = nn.Conv2d(4, 4, 3)
        self.own.forward = lambda input: input + 1  # type: ignore[method-assign]
        self.drop = nn.Dropout(0.5)
        self.drop.register_forward_hook(lambda layer, given, found: found - 7)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.drop(self.own(self.conv(images)))
        return found * (self.conv.out_channels - self.drop.p)


def test_layers_keep_their_attributes_hooks_and_own_functions() -> None:
    network = Scaled().eval()
    found, images = vmappable_copy(network, im2col=True), torch.randn(3, 2, 7, 9)
    assert isinstance(found.conv, Im2colConv2d) and isinstance(found.drop, Dropout)
    torch.testing.assert_close(found(images), (network.conv(images) + 1 - 7) * (4 - 0.5))


class OwnNorm(nn.Module):
    """A batch norm of the user's own."""

    running_var: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_var", torch.ones(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(images, torch.zeros(3), self.running_var, training=True)


def test_a_copy_of_a_norm_computes_with_its_own_tensors() -> None:
    found, images = vmappable_copy(nn.BatchNorm2d(3), im2col=True), torch.randn(4, 3, 2, 2)
    copy = deepcopy(found)
    nn.init.constant_(copy.get_parameter("weight"), 5.0)
    torch.testing.assert_close(copy(images), 5 * found(images))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True), OwnNorm()])
def test_norms_of_several_clients_are_computed_without_cudnn(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[bool]()
    for name in ("batch_norm", "instance_norm"):
        monkeypatch.setattr(nn.functional, name, lambda *_, **__: used.append(torch.backends.cudnn.enabled))
    vmappable_copy(norm, im2col=True)(torch.randn(4, 3, 2, 2))
    assert used == [False] and torch.backends.cudnn.enabled


def test_padded_products_are_those_of_images_with_a_margin_bit_for_bit() -> None:
    conv, images = nn.Conv2d(3, 4, 3, padding=(1, 2)), torch.randn(2, 3, 7, 9)
    bare = nn.Conv2d(3, 4, 3)
    bare.load_state_dict(conv.state_dict())
    padded, product = (vmappable_copy(layer, im2col=True) for layer in (conv, bare))
    assert torch.equal(padded(images), product(nn.functional.pad(images, (2, 2, 1, 1))))


@pytest.mark.parametrize(("norm", "shape"), [(nn.BatchNorm1d(3), (4, 3)), (nn.BatchNorm2d(3), (4, 3, 2, 2))])
def test_batch_norms_are_given_float32(norm: nn.Module, shape: tuple[int, ...]) -> None:
    found, inputs = vmappable_copy(norm, im2col=True), torch.randn(shape, dtype=torch.bfloat16)
    assert found(inputs).dtype == torch.float32 and norm(inputs).dtype == torch.bfloat16
    assert torch.equal(found(inputs), norm(inputs.float()))


def test_a_dropout_that_is_used_twice_has_one_salt() -> None:
    drop = nn.Dropout(0.5)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), drop, nn.Linear(4, 3), drop)
    found = vmappable_copy(network, im2col=False)
    assert isinstance(found.get_submodule("2"), Dropout) and found.get_submodule("2") is found.get_submodule("4")
    made = Network(network, layout_of(network), CPU, "float32", 1 << 20, False)
    assert made.salts == ["2.salt"]


def test_networks_are_only_batched_together_if_they_compute_the_same() -> None:
    def identity(slope: float, seed: int, train: bool = True) -> str:
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.LeakyReLU(slope), nn.Linear(4, 3)).train(train)
        return Network(network, layout_of(network), CPU, "float32", 1 << 20, False).identity

    assert identity(0.1, seed=0) == identity(0.1, seed=1, train=False) != identity(0.2, seed=0)


class Masked(nn.Module):
    """A network with a buffer that is no tensor of its layout, as it is not saved."""

    mask: torch.Tensor

    def __init__(self, mask: Sequence[float]) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 3)
        self.register_buffer("mask", torch.tensor(mask), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(inputs.flatten(1))
        return logits * self.mask


def test_networks_with_other_values_of_a_fixed_buffer_do_not_compute_the_same() -> None:
    def identity(mask: Sequence[float]) -> str:
        network = Masked(mask)
        return Network(network, layout_of(network), CPU, "float32", 1 << 20, False).identity

    assert identity([1.0, 0.0, 1.0]) == identity([1.0, 0.0, 1.0]) != identity([1.0, 1.0, 0.0])


class Described(nn.Module):
    """A network that computes with things that are no parameters and no buffers."""

    def __init__(self, **things: object) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 3)
        vars(self).update(things)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(inputs.flatten(1))
        return logits


def identity_of(network: nn.Module) -> str:
    return Network(network, layout_of(network), CPU, "float32", 1 << 20, False).identity


@pytest.mark.parametrize(
    ("one", "other"),
    [(torch.tensor(1.0), torch.tensor(10.0)), ({"scale": 1}, {"scale": 10}), ((1, [2]), (1, [3]))],
)
def test_networks_that_hold_other_things_do_not_compute_the_same(one: object, other: object) -> None:
    assert identity_of(Described(a=one)) == identity_of(Described(a=one)) != identity_of(Described(a=other))


def test_networks_of_which_something_cannot_be_described_are_batched_with_none() -> None:
    def scaled(scale: float) -> nn.Module:
        class Scaled(Described):
            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return scale * super().forward(inputs)

        return Scaled()

    def hooked() -> nn.Module:
        network = Described()
        network.fc.register_forward_hook(lambda layer, given, found: 2 * found)
        return network

    def with_function() -> nn.Module:
        return Described(a=lambda number: number)

    makers: tuple[Callable[[], nn.Module], ...] = (with_function, partial(scaled, 1.0), hooked)
    for make in makers:
        assert identity_of(make()) != identity_of(make())
    assert identity_of(Described(a=torch.tanh)) == identity_of(Described(a=torch.tanh))


def test_recordings_start_after_a_warm_up_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "_MAX_RECORDINGS", 1)
    recorded, total = list[Any](), torch.zeros(())

    def add(value: torch.Tensor) -> None:
        total.add_(value)

    def record(function: Any) -> Any:
        recorded.append(function)
        return function

    replay = Replay(record)
    for number in range(6):
        replay("a", add, torch.tensor(1.0 + number))
        replay("b", add, torch.tensor(0.5))
    assert float(total) == 21 + 3 and len(recorded) == 1


def test_what_cannot_be_recorded_is_computed_and_not_tried_again() -> None:
    tries, total = list[Any](), torch.zeros(())

    def add(value: torch.Tensor) -> None:
        total.add_(value)

    def refuse(function: Any) -> None:
        tries.append(function)

    replay = Replay(refuse)
    for number in range(6):
        replay("a", add, torch.tensor(1.0 + number))
        replay("b", add, torch.tensor(0.5))
    assert float(total) == 21 + 3 and len(tries) == 1


class Graph:
    """A CUDA graph that is none."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def pool(self) -> str:
        return f"pool of {id(self)}"

    def replay(self) -> None:
        self.calls.append("replay")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls to a device that is not there, and what was the current stream."""
    calls, current = list[Any](), list[Any](["default"])

    class Stream:
        def wait_stream(self, stream: Any) -> None:
            calls.append(("wait", stream))

        def synchronize(self) -> None:
            calls.append(("synchronize", current[-1] is self))

    @contextmanager
    def enter(stream: Any) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    @contextmanager
    def graph(made: Graph, pool: str | None, stream: Any) -> Iterator[None]:
        calls.append(("capture", pool, stream is current[-1], gc.isenabled()))
        yield

    fake = SimpleNamespace(
        stream=enter,
        current_stream=lambda device=None: current[-1],
        CUDAGraph=Graph,
        graph=graph,
        get_device_properties=lambda device: SimpleNamespace(total_memory=24 << 30),
    )
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(cuda_graphs, "_FAILED_DEVICES", set())
    # With a GPU, an earlier test has left a real stream.
    monkeypatch.setattr(cuda_graphs, "_stream", cache(lambda device: Stream()))
    return calls


def recorded(function: Callable[[], None]) -> Callable[[], None]:
    record = recorder(CUDA)
    assert record is not None
    replay = record(function)
    assert replay is not None
    return replay


def test_on_cuda_a_recording_is_a_graph_made_on_the_sessions_own_stream(cuda: list[Any]) -> None:
    """Without the device: which calls are made, in which order."""
    assert recorder(CPU) is None
    with session(CUDA):
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        replay: Any = recorded(lambda: cuda.append("work"))
        replay()
    assert cuda == [("wait", "default"), ("capture", None, True, False), "work", ("synchronize", True)]
    assert replay.__self__.calls == ["replay"]
    assert torch.backends.cudnn.allow_tf32 and gc.isenabled()


def test_recordings_that_live_share_a_pool_and_one_after_all_are_gone_has_a_new_one(cuda: list[Any]) -> None:
    """Torch refuses a pool whose last recording is gone, so no handle may be kept."""
    one: Any = recorded(lambda: None)
    pool = one.__self__.pool()
    other: list[Any] = [recorded(lambda: None)]
    assert [call[1] for call in cuda] == [None, pool]
    del one
    other += [recorded(lambda: None), other]  # a cycle: it is only gone once garbage is collected
    assert cuda[-1][1] == other[0].__self__.pool()
    del other
    recorded(lambda: None)
    assert cuda[-1][1] is None


def test_where_a_recording_failed_nothing_is_recorded_any_more(cuda: list[Any]) -> None:
    def look() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    def fill() -> None:
        raise torch.OutOfMemoryError("too much")

    record = recorder(CUDA)
    assert record is not None
    with pytest.raises(torch.OutOfMemoryError):
        record(fill)
    assert record(look) is None and gc.isenabled() and len(cuda) == 2
    other = recorder(CUDA)
    assert other is not None and other(lambda: None) is None and len(cuda) == 2


@pytest.fixture
def flags() -> Iterator[dict[tuple[Any, str], object]]:
    """What a user may have set: as precisions of their own, at which `cudnn.flags` raises."""
    cudnn: Any = torch.backends.cudnn
    products: Any = torch.backends.cuda.matmul
    chosen: dict[tuple[Any, str], object] = {(cudnn, "deterministic"): False, (cudnn, "benchmark"): True}
    for owner, precision in ((products, "tf32"), (cudnn.conv, "ieee"), (cudnn.rnn, "tf32")):
        chosen[owner, "fp32_precision"] = precision
    before = {flag: getattr(*flag) for flag in chosen}
    for flag, value in chosen.items():
        setattr(*flag, value)
    yield chosen
    for flag, value in before.items():
        setattr(*flag, value)


def test_cuda_computes_exactly_in_a_session_and_as_the_user_wants_afterwards(
    flags: dict[tuple[Any, str], object],
) -> None:
    with pytest.raises(KeyError), exact():
        assert [getattr(*flag) for flag in flags] == [True, False, "ieee", "ieee", "ieee"]
        raise KeyError
    assert {flag: getattr(*flag) for flag in flags} == flags


def test_a_step_in_tf32_rounds_products_and_leaves_the_rest_of_a_session_exact(
    flags: dict[tuple[Any, str], object],
) -> None:
    with exact():
        with products_in("tf32"):
            assert [getattr(*flag) for flag in flags] == [True, False, "tf32", "tf32", "tf32"]
        for precision in ("float32", "bfloat16"):
            with products_in(precision):
                assert [getattr(*flag) for flag in flags] == [True, False, "ieee", "ieee", "ieee"]
    assert {flag: getattr(*flag) for flag in flags} == flags


def test_updates_that_do_not_fit_into_memory_are_not_pinned_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    room = rows_for(CUDA, 2, 3)  # without the device, pinning would fail
    assert room.shape == (2, 3) and not room.is_pinned()


def test_of_an_accelerators_memory_a_quarter_is_worked_on(cuda: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert budget(CUDA) == 6 << 30 and budget(CPU) == BATCH_BYTES["cpu"]
    monkeypatch.setitem(BATCH_BYTES, "cuda", 1 << 30)
    assert budget(CUDA) == 1 << 30


def test_samples_kept_near_a_device_are_those_of_the_holdings() -> None:
    client_data = ClientData(dataset(40), partition_of([12, 16], turns=[0, 1]), seed=0)
    near, index = Resident(client_data, CPU), torch.tensor([3, 20, 35, 0, 12])
    for found, expected in zip(near.samples(index), client_data.samples(index), strict=True):
        assert torch.equal(found, expected)
    assert near.samples(index)[0].is_contiguous(memory_format=torch.channels_last)
    meta = torch.device("meta")
    assert sample_source(client_data, CPU) is client_data and sample_source(client_data, meta) is sample_source(
        client_data, meta
    )


def test_samples_of_several_federations_are_read_client_by_client() -> None:
    one, other = (ClientData(dataset(40, seed), partition_of([12, 16]), seed=0) for seed in (0, 1))
    index = torch.tensor([[3, 4], [5, 6], [3, 4]])
    inputs, labels = read_samples([one, other, other], index)
    assert inputs.shape == (3, 2, 1, 6, 6) and labels.shape == (3, 2)
    for row, client_data in enumerate((one, other, other)):
        assert torch.equal(inputs[row], client_data.samples(index[row])[0])
        assert torch.equal(labels[row], client_data.samples(index[row])[1])
