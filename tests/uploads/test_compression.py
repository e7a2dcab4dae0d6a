"""Compressed updates: what travels, and what the server makes of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import tensor

import fedstrata as fs
from fedstrata.base.errors import ExperimentError, InputError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import TRAIN, Layout, LocalTask, LocalTraining, Plan, Report, Result, Rows, TensorSpec
from fedstrata.engine import ClientStore
from fedstrata.play.recorder import traffic
from fedstrata.play.run import run_experiment
from fedstrata.uploads.compression import CompressedUploads, Compression, CompressionKind
from fedstrata.uploads.steps import through
from test_every_algorithm import EAGER
from turns import first_plan_of

pytestmark = pytest.mark.usefixtures("forked_workers")

LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (4,)),
        TensorSpec("bn.running_mean", "bn", "buffer", (2,)),
        TensorSpec("fc.weight", "fc", "linear", (2, 3)),
    )
)
"""Twelve columns, of which two are running statistics."""

TASK = LocalTask(
    candidates=tensor([[0]]),
    training=LocalTraining(),
    trainable=LAYOUT.everything,
    upload=LAYOUT.everything,
    load_local=LAYOUT.nothing,
    save_local=LAYOUT.nothing,
)
UPDATE = [3.0, -4.0, 0.0, 1.0, 7.0, 7.5, 0.5, -0.25, 2.0, 0.0, -8.0, 0.125]

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 8, "samples": 40, "test": 0.25, "public": 32},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.3, "batch": 20},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop"},
}
KINDS: dict[str, dict[str, Any]] = {
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "share": 0.1},
}


def plan_of(round: int = 1, **changes: Any) -> Plan:
    return Plan(round, 0, tensor([0]), torch.zeros(1, 12), {TRAIN: replace(TASK, **changes)})


def report_of(update: list[float]) -> Report:
    result = Result(Rows(tensor([0]), tensor([update])), tensor([0]), tensor([1]), tensor([[torch.nan]]))
    return Report({TRAIN: result})


def arrives(
    kind: CompressionKind, update: list[float], share: float = 0.3, store: ClientStore | None = None, round: int = 1
) -> list[float]:
    compression = Compression(LAYOUT, kind, share, seed=0)
    report = CompressedUploads(compression, store or ClientStore()).of_report(plan_of(round), report_of(update))
    found: list[float] = report.results[TRAIN].updates.values[0].tolist()
    return found


def test_bfloat16_keeps_eight_bits_of_each_number_and_statistics_whole() -> None:
    update = [1 + 2**-9, 1 + 2**-7, 0, 0, 7.001, 7, 0, 0, 0, 0, 0, 0]
    assert arrives("bfloat16", update)[:5] == [1.0, 1 + 2**-7, 0.0, 0.0, pytest.approx(7.001, rel=1e-7)]


def test_top_k_sends_the_largest_numbers_and_the_first_of_equal_ones() -> None:
    assert arrives("top_k", UPDATE) == [3.0, -4.0, 0, 0, 7.0, 7.5, 0, 0, 0, 0, -8.0, 0]
    assert arrives("top_k", [1.0] * 12) == [1.0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0]


def test_top_k_sends_later_what_it_has_left_out() -> None:
    """Stich et al., Algorithm 1: the memory is added to the next update, so that nothing is ever lost."""
    store, nothing = ClientStore(), [0.0] * 12
    rounds = [arrives("top_k", UPDATE if round == 1 else nothing, store=store, round=round) for round in (1, 2, 3)]
    # 3 of 10 numbers in each round, the largest ones first; the statistics travel in the first.
    assert rounds[0] == [3.0, -4.0, 0, 0, 7.0, 7.5, 0, 0, 0, 0, -8.0, 0]
    assert rounds[1] == [0, 0, 0, 1.0, 0, 0, 0.5, 0, 2.0, 0, 0, 0]
    assert torch.tensor(rounds).sum(dim=0).tolist() == UPDATE


def test_a_round_that_is_played_again_sends_the_same() -> None:
    store = ClientStore()
    arrives("top_k", UPDATE, store=store)
    second = arrives("top_k", UPDATE, store=store, round=2)
    assert arrives("top_k", UPDATE, store=store, round=2) == second


def test_what_other_tasks_upload_has_no_memory() -> None:
    store = ClientStore()
    plan = replace(plan_of(), tasks={"half A": TASK})
    report = Report({"half A": report_of(UPDATE).results[TRAIN]})
    CompressedUploads(Compression(LAYOUT, "top_k", 0.3, 0), store).of_report(plan, report)
    assert not store.tensors()


def test_int8_is_right_on_average_and_off_by_less_than_a_level() -> None:
    """QSGD, Lemma 3.1. A level of conv.weight is 4 / 127."""
    store = ClientStore()
    found = torch.tensor([arrives("int8", UPDATE, store=store, round=round) for round in range(1, 401)])
    # The largest number of a tensor, zeros and statistics are exact.
    assert all(bool((found[:, exact] == UPDATE[exact]).all()) for exact in (1, 2, 4, 5, 9, 10))
    assert float((found - tensor(UPDATE)).abs().max()) <= 8 / 127
    # The deviation of a mean of 400 is at most half a level / 20.
    assert torch.allclose(found.mean(dim=0), tensor(UPDATE), atol=5 * 8 / 127 / 2 / 20, rtol=0)
    assert len(found[:, 0].unique()) == 2


def test_the_draws_of_int8_are_of_client_and_round_and_task() -> None:
    assert arrives("int8", UPDATE, round=1) == arrives("int8", UPDATE, round=1)
    assert arrives("int8", UPDATE, round=1) != arrives("int8", UPDATE, round=2)


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "top_k"])
def test_an_update_that_is_not_finite_arrives_as_such_and_is_not_remembered(kind: CompressionKind) -> None:
    store = ClientStore()
    found = tensor(arrives(kind, [torch.inf, *UPDATE[1:]], store=store))
    assert not bool(found.isfinite().all())
    assert not store.tensors()


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "top_k"])
def test_an_update_of_zeros_arrives_as_zeros(kind: CompressionKind) -> None:
    assert arrives(kind, [0.0] * 12) == [0.0] * 12


@pytest.mark.parametrize(("kind", "size"), [("bfloat16", 2 * 10), ("int8", 10 + 2 * 4), ("top_k", 3 * 8)])
def test_the_bytes_of_a_round_are_those_of_the_compressed_form(kind: CompressionKind, size: int) -> None:
    compression = Compression(LAYOUT, kind, 0.3, 0)
    plan, report = plan_of(), report_of(UPDATE)
    sent = traffic(LAYOUT, plan, report, compression=compression)
    assert (sent.up, sent.buffers) == (size, traffic(LAYOUT, plan, report).buffers)
    (packed,) = compression.packed(plan, TRAIN, report.results[TRAIN], ClientStore())
    assert sum(each.numel() * each.element_size() for each in packed.values()) == size


def test_tensors_that_are_sent_as_values_stay_whole() -> None:
    values = (False, False, True)
    compression = Compression(LAYOUT, "top_k", 0.25, 0)
    plan, report = plan_of(upload_values=values), report_of(UPDATE)
    arrived = (
        CompressedUploads(compression, ClientStore()).of_report(plan, report).results[TRAIN].updates.values[0].tolist()
    )
    assert arrived == [0.0, -4.0, 0.0, 0.0, *UPDATE[4:]]
    assert traffic(LAYOUT, plan, report, compression=compression).up == 8 + 6 * 4


def test_a_task_that_uploads_nothing_is_left_alone() -> None:
    compression = Compression(LAYOUT, "int8", 1.0, 0)
    plan, report = plan_of(upload=LAYOUT.nothing), report_of([0.0] * 12)
    assert CompressedUploads(compression, ClientStore()).of_report(plan, report).results[TRAIN] is report.results[TRAIN]
    assert compression.forms(plan.tasks[TRAIN]) == {}


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        ("top_k", {"indices": [0, 5, 5], "values": [1.0, 2.0, 3.0]}),
        ("top_k", {"indices": [5, 0, 6], "values": [1.0, 2.0, 3.0]}),
        ("top_k", {"indices": [-1, 0, 6], "values": [1.0, 2.0, 3.0]}),
        ("top_k", {"indices": [0, 5, 10], "values": [1.0, 2.0, 3.0]}),
        ("int8", {"levels": [-128] + 9 * [0], "scales": [1.0, 1.0]}),
        ("int8", {"levels": 10 * [0], "scales": [1.0, -1.0]}),
    ],
)
def test_what_no_client_would_send_is_refused(kind: CompressionKind, packed: dict[str, list[float]]) -> None:
    with pytest.raises(InputError, match=r"^expected .*, found others$"):
        Compression(LAYOUT, kind, 0.3, 0).check(TASK, {name: tensor(values) for name, values in packed.items()})


# Whole runs.


def last_models(out: Path, **tables: Any) -> torch.Tensor:
    models: torch.Tensor = run_experiment(load_experiment({**KEYS, **tables}), out, quiet=True).state.models
    return models


@pytest.mark.slow
def test_processes_send_the_same_bits(tmp_path: Path) -> None:
    network, processes = KINDS["top_k"], {"name": "processes", "workers": 2}
    whole = last_models(tmp_path / "whole", network=network)
    assert torch.equal(whole, last_models(tmp_path / "processes", network=network, engine=processes))


def test_a_resumed_run_goes_on_with_what_was_left_out(tmp_path: Path) -> None:
    network = KINDS["top_k"]
    whole = last_models(tmp_path / "whole", network=network)
    last_models(tmp_path / "half", network=network, rounds=2)
    experiment = load_experiment({**KEYS, "network": network})
    resumed = run_experiment(experiment, tmp_path / "half", resume=True, quiet=True)
    assert torch.equal(whole, resumed.state.models)
    assert not torch.equal(whole, last_models(tmp_path / "plain"))


def test_runs_side_by_side_have_memories_of_their_own(tmp_path: Path) -> None:
    keys = {**KEYS, "network": KINDS["top_k"]}
    together = fs.compare(keys, algorithms=["fedavg", "fedprox"], seeds=[0], out=tmp_path / "both", quiet=True)
    alone = last_models(tmp_path / "alone", network=KINDS["top_k"])
    assert together is not None
    assert torch.equal(fs.load(tmp_path / "both" / "fedavg-0").state.models, alone)


@pytest.mark.parametrize("name", ["adacfl", "fedclust", "fedtsdp", "hicfl", "ifca", "layercfl", "lg_fedavg", "strata"])
def test_algorithms_of_all_kinds_run_with_compressed_updates(name: str, tmp_path: Path) -> None:
    tables = {**KEYS, "rounds": 2, "algorithm": {"name": name, **EAGER.get(name, {})}, "network": KINDS["top_k"]}
    plain = fs.run({**tables, "network": {}}, tmp_path / "plain", quiet=True).summary
    small = fs.run(tables, tmp_path / "small", quiet=True).summary
    assert small["bytes_up"] < plain["bytes_up"]


def test_training_on_all_data_sends_no_update_that_could_be_compressed(tmp_path: Path) -> None:
    central = {"algorithm": {"name": "centralized"}}
    plain = last_models(tmp_path / "plain", **central)
    assert torch.equal(plain, last_models(tmp_path / "small", network=KINDS["top_k"], **central))


def test_local_noise_is_added_before_the_compression(tmp_path: Path) -> None:
    """So that epsilon holds: whatever is made of a noisy update is as private."""
    privacy = {"kind": "local", "noise_multiplier": 0.5}
    setup = build_run(load_experiment({**KEYS, "privacy": privacy, "network": KINDS["top_k"]}))
    plan = first_plan_of(setup)
    sent = through(setup.steps, plan, setup.clients.run(plan)).results[TRAIN].updates.values
    assert bool(((sent != 0).sum(dim=1) == -(-setup.server.problem.layout.p // 10)).all())


def test_byzantine_clients_send_what_fits_into_the_form(tmp_path: Path) -> None:
    attack = {"kind": "noise", "share": 0.25}
    setup = build_run(load_experiment({**KEYS, "attack": attack, "network": KINDS["top_k"]}))
    plan = first_plan_of(setup)
    sent = through(setup.steps, plan, setup.clients.run(plan)).results[TRAIN].updates.values
    assert int((sent != 0).sum(dim=1).max()) == -(-setup.server.problem.layout.p // 10)


def test_a_memory_and_central_noise_exclude_each_other(tmp_path: Path) -> None:
    tables = {**KEYS, "privacy": {"kind": "central", "noise_multiplier": 0.5}}
    with pytest.raises(ExperimentError, match=r"network\.compression = 'top_k': expected 'none', 'bfloat16' or 'int8'"):
        fs.run({**tables, "network": KINDS["top_k"]}, tmp_path / "run", quiet=True)
    fs.run({**tables, "network": KINDS["int8"]}, tmp_path / "run", quiet=True)


def test_a_share_without_top_k_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no share with compression = 'int8'"):
        load_experiment({**KEYS, "network": {"compression": "int8", "share": 0.5}})
