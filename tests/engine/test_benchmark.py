"""The choice of an engine; time is told by the tests."""

from dataclasses import replace

import pytest
import torch
from small import dataset, network, partition_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedstrata.base.errors import ExperimentError, ModelError
from fedstrata.core import Clients, LocalTraining, Plan
from fedstrata.engine import ENGINES, Engine, Loop, Parallel, SimulationSpec, registry
from fedstrata.engine.registry import EngineCandidate, choose_engine, engine_candidates
from fedstrata.engine.vectorized import Vectorized
from fedstrata.models import make
from fedstrata.objective import Objective

pytestmark = pytest.mark.usefixtures("forked_workers")

SIZES = [40] * 20
TRAINING = LocalTraining(epochs=1, batch=5, lr=0.1)
COHORT = torch.arange(20)
ROUNDS = 10_000
IMAGES = {"mlp": (1, 28, 28), "mnist_cnn": (1, 28, 28), "fmnist_cnn": (1, 28, 28), "cifar_cnn": (3, 32, 32)}


@pytest.fixture
def spec() -> SimulationSpec:
    return SimulationSpec(network, dataset(sum(SIZES) + 80), partition_of(SIZES), seed=0)


class Clock:
    """Says how long each engine takes for a client, and notes what it was asked."""

    def __init__(self) -> None:
        self.times, self.asked = dict[type, float](), list[tuple[str, Plan]]()

    def __call__(self, clients: Clients, plan: Plan) -> float:
        self.asked.append((type(clients).__name__, plan))
        return self.times[type(clients)] * len(plan.cohort)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(registry, "measure_seconds", clock)
    return clock


def test_the_fastest_is_chosen_and_says_by_how_much(spec: SimulationSpec, clock: Clock) -> None:
    clock.times = {Loop: 0.040, Vectorized: 0.080, Parallel: 0.025}
    chosen, why = choose_engine(spec, engine_candidates(spec, 2, "cpu"), TRAINING, COHORT, ROUNDS)
    # Four steps of each client.
    assert why == "processes: 2 workers, 160 steps/s against 100 for loop and 50 for batched"
    assert chosen == EngineCandidate("processes", workers=2)
    assert [name for name, _ in clock.asked] == ["Loop", "Vectorized", "Parallel"]
    for _, plan in clock.asked:
        task = plan.tasks["train"]
        assert plan.cohort.tolist() == list(range(20))
        assert task.max_samples is not None and task.max_samples.unique().tolist() == [20] and task.training.batch == 5
        assert task.stream == "auto" and not any(task.save_local)


@pytest.mark.parametrize(("time", "name"), [(0.033, "loop"), (0.031, "batched")])
def test_the_one_that_rounds_otherwise_must_be_a_quarter_faster(
    spec: SimulationSpec, clock: Clock, time: float, name: str
) -> None:
    clock.times = {Loop: 0.040, Vectorized: time, Parallel: 1.0}
    chosen, _ = choose_engine(spec, engine_candidates(spec, 2, "cpu"), TRAINING, COHORT, ROUNDS)
    assert chosen.name == name


def test_a_small_run_takes_the_loop_untried(spec: SimulationSpec, clock: Clock) -> None:
    chosen, why = choose_engine(spec, engine_candidates(spec, 2, "cpu"), TRAINING, COHORT, 20)
    # 20 clients of 8 steps, 0.2 ms each, in 20 rounds; the samples hardly count.
    assert chosen.name == "loop" and not clock.asked
    assert why == "loop: some 0.6 s of work in all, which no other could shorten by much"


@pytest.mark.parametrize(("name", "shape"), IMAGES.items())
def test_the_estimate_of_operations_is_near_the_count_of_torch(name: str, shape: tuple[int, ...]) -> None:
    """Biases are counted with the weights, so the estimate is a little larger."""
    module = make(name, shape, 10, seed=0).eval()
    inputs = torch.zeros(2, *shape)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(inputs)
    assert registry._operations(module, inputs) == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_without_another_there_is_no_choice(spec: SimulationSpec) -> None:
    (only,) = engine_candidates(spec, device="mps")
    chosen, why = choose_engine(spec, (only,), TRAINING, COHORT, ROUNDS)
    assert (chosen.name, chosen.device) == ("loop", "mps")
    assert why == "loop on mps: there is no other on this device"


def test_what_only_the_loop_computes_has_no_vectorized_candidate(
    spec: SimulationSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for objective in (Objective(loss="mse", metric="r2"), Objective(metric="f1_macro"), Objective(transform="noise")):
        among = engine_candidates(replace(spec, objective=objective), 1, "auto")
        assert [candidate.title for candidate in among] == ["loop", "loop on cuda", "loop on mps"]
        with pytest.raises(
            ExperimentError, match=r"engine.name = 'batched': expected local\.(loss|metric|transform) = "
        ):
            Vectorized.at(replace(spec, objective=objective))


def test_a_network_whose_scores_depend_on_the_batch_has_no_vectorized_candidate(spec: SimulationSpec) -> None:
    """The samples of several clients are scored in one batch, which must not change what the network says of each."""

    def without_statistics() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
        )

    spec = replace(spec, network=without_statistics)
    assert [candidate.title for candidate in engine_candidates(spec, 1, "cpu")] == ["loop"]
    with pytest.raises(ExperimentError, match="expected running statistics in every BatchNorm, found none in 2; use"):
        Vectorized.at(spec)


@pytest.mark.parametrize("error", [ModelError("cannot"), torch.OutOfMemoryError("cannot"), RuntimeError("cannot")])
def test_an_engine_that_cannot_do_it_is_left_out(
    spec: SimulationSpec, clock: Clock, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Engine:
        raise error

    monkeypatch.setattr(registry, "ENGINES", {**ENGINES, "batched": fail})
    among = (EngineCandidate("loop"), EngineCandidate("batched"))
    clock.times = {Loop: 0.01}
    _, why = choose_engine(spec, among, LocalTraining(batch=0), COHORT, 100_000)
    assert why == "loop: 100 steps/s"
    with pytest.raises(type(error), match="cannot"):
        choose_engine(spec, among[::-1], TRAINING, COHORT, ROUNDS)


@pytest.mark.parametrize(
    ("device", "there", "names"),
    [
        ("auto", True, ["loop", "batched", "processes", "loop on cuda", "batched on cuda"]),
        ("auto", False, ["loop", "batched", "processes"]),
        ("cpu", True, ["loop", "batched", "processes"]),
        ("cuda", True, ["loop on cuda", "batched on cuda"]),
    ],
)
def test_the_candidates_are_those_of_the_machine(
    spec: SimulationSpec, device: str, there: bool, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert [candidate.title for candidate in engine_candidates(spec, 3, device)] == names
    assert "processes" not in {candidate.name for candidate in engine_candidates(spec, 1, device)}
