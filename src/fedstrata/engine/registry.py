"""The engines by name, the devices on which each computes, and which is the fastest for an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedstrata.base.errors import ExperimentError, FedstrataError
from fedstrata.core import TRAIN, Clients, LocalTask, LocalTraining, Plan
from fedstrata.engine.client_data import SimulationSpec
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.device import has_device
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel import Parallel, Processes, Ray
from fedstrata.engine.parallel.ray import MISSING
from fedstrata.engine.vectorized import Vectorized, why_not_vectorized
from fedstrata.models import layout_of, row_of
from fedstrata.objective.objective import in_user_code

DEVICES: Mapping[str, tuple[str, ...]] = {
    "loop": ("cpu", "cuda", "mps"),
    "batched": ("cpu", "cuda"),
    "processes": ("cpu",),
    "ray": ("cpu",),
}
"""The devices that each engine can use."""

_FIRST_WITH_TF32 = (8, 0)
"""The compute capability of the first GPUs whose tensor cores have TF32, NVIDIA's Ampere."""


class Engine(Clients, Protocol):
    """Simulated clients.

    Attributes:
        store: The tensors that the clients keep to themselves.
    """

    store: ClientStore

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """The outputs (r, b, ...) of models (r, p) for inputs (b, ...), in evaluation mode, on the CPU."""


ENGINES: Mapping[str, Callable[[SimulationSpec, str, int, int], Engine]] = {
    "loop": lambda spec, device, workers, timeout: Loop.at(spec, device=device),
    "batched": lambda spec, device, workers, timeout: Vectorized.at(spec, device=device),
    "processes": lambda spec, device, workers, timeout: Parallel(spec, Processes(spec, workers, timeout)),
    "ray": lambda spec, device, workers, timeout: Parallel(spec, Ray(spec, workers, timeout)),
}
"""The function that makes an engine, by the engine's name. It takes the network and the data, the device, the number of
workers (0 is one for each core), and the seconds without progress after which a worker is replaced (0 is never).
Nothing runs before the first plan."""


def resolve_engine(name: str, device: str) -> tuple[str, str]:
    """The name and the device of an engine, with "auto" as the device replaced.

    Args:
        name: A name in `ENGINES`, or "auto", which stays; `choose_engine` replaces it.
        device: The device: "cpu", "cuda", "mps" or "auto".

    Raises:
        ExperimentError: When the engine cannot compute on this device, or is not installed.
    """
    if name == "ray" and find_spec("ray") is None:
        raise ExperimentError(MISSING)
    able = [engine for engine, devices in DEVICES.items() if device in devices]
    if device != "auto" and name not in ("auto", *able):
        wanted = " or ".join(f'"{engine}"' for engine in able)
        raise ExperimentError(f'engine.device = "{device}": expected engine.name = {wanted}, found {name!r}; use "cpu"')
    if device != "auto" and not has_device(device):
        raise ExperimentError(
            f'engine.device = "{device}": expected a device of {device.upper()}, found none; use "cpu" or "auto"'
        )
    if name == "auto" or device != "auto":
        return name, device
    return name, "cuda" if name == "batched" and torch.cuda.is_available() else "cpu"


def check_tf32(precision: str, device: str) -> None:
    """Refuse TF32 where it is not certain to be used: everything else computes in float32 without a word.

    Args:
        precision: The precision of training.
        device: The device as it was asked for, "auto" included. If it is "cuda", there is one.

    Raises:
        ExperimentError: When the precision is "tf32", and the device is not "cuda" or has no TF32.
    """
    if precision != "tf32":
        return
    if device != "cuda":
        raise ExperimentError(
            f'engine.precision = "tf32": expected engine.device = "cuda", found "{device}"; set it, or use "float32"'
        )
    capability = torch.cuda.get_device_capability()
    if capability < _FIRST_WITH_TF32:
        raise ExperimentError(
            'engine.precision = "tf32": expected a GPU of compute capability 8.0 or more, found '
            f'{".".join(map(str, capability))}; use "float32"'
        )


_MIN_SECONDS = 10.0
"""Seconds on one core below which a run is not worth a benchmark: starting processes takes some of them."""
_BENCHMARK_SECONDS = 0.3
"""Seconds that the benchmark takes in the loop engine, about."""
_BENCHMARK_STEPS = 4
"""Steps of each client in the benchmark. A CUDA graph is recorded at the fourth."""
_SECONDS_PER_STEP = 2e-4
"""Seconds that torch needs for a training step of a tiny network."""
_FLOPS_PER_SECOND = 2e10
"""Floating-point operations of one core in a second."""
_REPEATED_BATCH = 8
"""Samples of a step at most where it is tried whether a client that trains again has the same update."""
_CLEARLY_FASTER = 1.25
"""How many times as fast another way of rounding must be: a noisy clock is not to decide how a run rounds."""


def require_repeatable(spec: SimulationSpec, training: LocalTraining) -> None:
    """Refuse code of the user's own with which a client that trains again from the same model ends elsewhere.

    With it, results would depend on the engine and on which clients a process has trained before. What `OutsideState`
    gives back is no reason for this, and neither is what is drawn from the global generators.

    Args:
        spec: The network and the data.
        training: The training of round 1. The first client is trained so on a few samples.

    Raises:
        ExperimentError: When the second update, or what the network says afterwards, is not the first one.
    """
    loop = Loop.at(spec)
    if not loop.has_users_code:
        return
    training = replace(training, batch=min(training.batch or _REPEATED_BATCH, _REPEATED_BATCH))
    plan, _ = _benchmark_plan(spec, training, torch.tensor([0]))
    inputs, _ = spec.client_data.samples(spec.client_data.train(0)[:2])
    outputs = list[Tensor]()
    updates = list[Tensor]()
    for _ in range(2):
        outputs.append(loop.outputs(plan.models, inputs))
        updates.append(loop.run(plan).results[TRAIN].updates.values)
    for first, second in (outputs, updates):
        # Last bits do not matter, and neither does that training diverges.
        largest = float(first.nan_to_num().abs().max())
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-5 * largest, equal_nan=True):
            own = [f"local.{key} = {getattr(spec.objective, key)!r}" for key in spec.objective.users_functions]
            raise ExperimentError(
                f"{' or '.join([*own, f'the network {type(spec.network()).__name__}'])}: expected the same update when "
                "a client trains again from the same model, found another; keep what batches leave in attributes, not "
                "in globals or closures, and draw from torch, numpy.random or random, not from another generator"
            )


@dataclass(frozen=True)
class EngineCandidate:
    """An engine that could be chosen, by its name, its device, its workers and their timeout as in `ENGINES`."""

    name: str
    device: str = "cpu"
    workers: int = 1
    timeout: int = 0

    @property
    def rounds_otherwise(self) -> bool:
        """Whether its results differ from those of the loop on the CPU in the last bits."""
        return self.name == "batched" or self.device != "cpu"

    @property
    def title(self) -> str:
        """The name of the engine for people."""
        return self.name if self.device == "cpu" else f"{self.name} on {self.device}"


def engine_candidates(
    spec: SimulationSpec, workers: int = 0, device: str = "auto", timeout: int = 0
) -> tuple[EngineCandidate, ...]:
    """The engines that this machine offers on a device; "auto" stands for every device."""
    count = Processes(spec, workers).workers
    fit = {"loop": True, "batched": not why_not_vectorized(spec), "processes": count > 1, "ray": False}
    found = list[EngineCandidate]()
    for kind in ("cpu", "cuda", "mps"):
        if device == kind or (device == "auto" and has_device(kind)):
            able = [name for name, devices in DEVICES.items() if kind in devices and fit[name]]
            found += [EngineCandidate(name, kind) for name in able if name != "processes"]
            if "processes" in able:
                found.append(EngineCandidate("processes", kind, count, timeout))
    return tuple(found)


def measure_seconds(clients: Clients, plan: Plan) -> float:
    """The seconds that clients take for a plan when they do it for the second time."""
    clients.run(plan)
    began = perf_counter()
    clients.run(plan)
    return perf_counter() - began


def choose_engine(
    spec: SimulationSpec,
    candidates: Sequence[EngineCandidate],
    training: LocalTraining,
    cohort: Tensor,
    rounds: int,
) -> tuple[EngineCandidate, str]:
    """Time the candidates on a few clients and batches of a run, and take the fastest.

    The run's random streams and its clients' stores are not touched. A run of less than 10 s, as estimated from the
    operations of its network, takes the first candidate unmeasured.

    Args:
        spec: The network and the data.
        candidates: The engines, at least one.
        training: The training of round 1.
        cohort: The clients of one round, (m,) ids. Other rounds may have other clients, but as many.
        rounds: The number of rounds.

    Returns:
        The engine, and the reason in one line.

    Raises:
        FedstrataError: When the first candidate cannot do the work. Others that cannot do it are left out.
    """
    first = candidates[0]
    if len(candidates) == 1:
        return first, _reason(first, "there is no other on this device")
    sizes = [len(spec.client_data.train(client)) for client in cohort.tolist()]
    expected = _seconds_per_round(spec, training, cohort, sizes) * rounds
    if expected < _MIN_SECONDS:
        return first, _reason(first, f"some {expected:.1f} s of work in all, which no other could shorten by much")
    plan, steps = _benchmark_plan(spec, training, cohort)
    rates = {first: steps / _time(spec, first, plan)}
    for candidate in candidates[1:]:
        # One that cannot do it is not chosen, whatever its device says: too little memory is a RuntimeError as well.
        with suppress(FedstrataError, RuntimeError, MemoryError, OSError):
            rates[candidate] = steps / _time(spec, candidate, plan)
    # The others equal the loop bit for bit. The batched engine and accelerators round otherwise: they must be clearly
    # faster.
    worth = {each: rate / (_CLEARLY_FASTER if each.rounds_otherwise else 1) for each, rate in rates.items()}
    best, *others = sorted(rates, key=worth.__getitem__, reverse=True)
    slower = " and ".join(f"{_number(rates[candidate])} for {candidate.title}" for candidate in others)
    return best, _reason(best, f"{_number(rates[best])} steps/s" + (f" against {slower}" if slower else ""))


def _reason(candidate: EngineCandidate, why: str) -> str:
    several = f"{candidate.workers} workers, " if candidate.workers > 1 else ""
    return f"{candidate.title}: {several}{why}"


def _operations(network: nn.Module, inputs: Tensor) -> int:
    """An estimate of the floating-point operations of a forward pass: two for each weight at each place of an output.

    The places of a convolution are the pixels of its output, those of other layers all but the last axis. An embedding
    computes nothing. FlopCounterMode would count the operations, but for it torch imports its compiler, which takes
    about as long as torch itself.
    """
    counts = list[int]()

    def count(layer: nn.Module, _: object, output: object) -> None:
        weights = [weight for weight in layer.parameters(recurse=False) if weight.ndim > 0]
        first = next((part for part in tree_leaves(output) if isinstance(part, Tensor)), None)
        if weights and first is not None and first.ndim > 1:
            is_convolution = weights[0].ndim > 2
            places = first.numel() // first.shape[1 if is_convolution else -1] if first.numel() else 0
            counts.append(2 * sum(weight.numel() for weight in weights) * places)

    for layer in network.modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.register_forward_hook(count)
    with torch.no_grad():
        network(inputs)
    return sum(counts)


def _seconds_per_round(spec: SimulationSpec, training: LocalTraining, cohort: Tensor, sizes: Sequence[int]) -> float:
    """An estimate of the seconds that one core needs for clients (m,) with so many samples, m."""
    # Two samples, as some networks do not take one.
    inputs, _ = spec.client_data.samples(spec.client_data.train(int(cohort[0]))[:2])
    network = spec.network().eval()
    operations = in_user_code(f"the network {type(network).__name__}", _operations, network, inputs) / len(inputs)
    flops = 3 * operations  # the backward pass takes twice as many as the forward pass
    samples = sum(map(training.samples_seen, sizes))
    return samples * flops / _FLOPS_PER_SECOND + sum(map(training.steps_of, sizes)) * _SECONDS_PER_STEP


def _benchmark_plan(spec: SimulationSpec, training: LocalTraining, cohort: Tensor) -> tuple[Plan, int]:
    """A few batches of clients that are spread over the cohort, and their number of steps."""
    m = len(cohort)
    training = training.with_epochs(1)
    most = _BENCHMARK_STEPS * training.batch
    held = [len(spec.client_data.train(client)) for client in cohort.tolist()]
    sizes = [min(size, most) if most else size for size in held]
    count = int(_BENCHMARK_SECONDS * m / _seconds_per_round(spec, training, cohort, sizes))
    places = torch.linspace(0, m - 1, min(m, max(count, 1))).long()
    module = spec.network()
    layout = layout_of(module)
    task = LocalTask(
        candidates=torch.zeros(len(places), 1, dtype=torch.int64),
        training=training,
        trainable=layout.everything,
        upload=layout.everything,
        load_local=layout.nothing,
        save_local=layout.nothing,
        max_samples=torch.full((len(places),), most) if most else None,
        stream="auto",
    )
    plan = Plan(0, spec.seed, cohort[places], row_of(module, layout)[None], {TRAIN: task})
    return plan, sum(training.steps_of(sizes[place]) for place in places.tolist())


def _time(spec: SimulationSpec, candidate: EngineCandidate, plan: Plan) -> float:
    """The seconds of a candidate for a plan, by an engine that is closed afterwards."""
    engine = ENGINES[candidate.name](spec, candidate.device, candidate.workers, candidate.timeout)
    try:
        return max(measure_seconds(engine, plan), 1e-9)
    finally:
        if isinstance(engine, Parallel):
            engine.close()


def _number(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
