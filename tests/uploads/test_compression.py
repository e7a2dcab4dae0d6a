"""Compressed updates: what travels, and what the server makes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import tensor

import fedstrata as fs
from builders import experiment, federation, keys, plan_of, report_of, run, task_of
from fedstrata.base.errors import ExperimentError, InputError
from fedstrata.core import TRAIN, Layout, Plan, Report, Result, TensorSpec
from fedstrata.engine import ClientStore
from fedstrata.play.recorder import traffic
from fedstrata.uploads.compression import CompressedUploads, Compression, CompressionKind
from test_every_algorithm import EAGER
from turns import first_plan_of

LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (4,)),
        TensorSpec("bn.running_mean", "bn", "buffer", (2,)),
        TensorSpec("fc.weight", "fc", "linear", (2, 3)),
    )
)
"""Twelve columns, of which two are running statistics."""

TASK = task_of([[0]], LAYOUT)
UPDATE = [3.0, -4.0, 0.0, 1.0, 7.0, 7.5, 0.5, -0.25, 2.0, 0.0, -8.0, 0.125]

KEYS = keys(data={"public": 32})
KINDS: dict[str, dict[str, Any]] = {
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "share": 0.1},
}


def plan(round: int = 1, **changes: Any) -> Plan:
    return plan_of([[0]], LAYOUT, round=round, **changes)


def report(update: list[float]) -> Report:
    return report_of(plan(), tensor([update]))


def decompressed(kind: CompressionKind, given: Plan, update: list[float], share: float, store: ClientStore) -> Result:
    compression = Compression(LAYOUT, kind, share, seed=0)
    return CompressedUploads(compression, store).of_report(given, report(update)).results[TRAIN]


def arrives(
    kind: CompressionKind, update: list[float], store: ClientStore | None = None, round: int = 1
) -> list[float]:
    """What the server has of an update in which top_k sends 3 of 10 numbers."""
    found: list[float] = decompressed(kind, plan(round), update, 0.3, store or ClientStore()).updates.values[0].tolist()
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
    other = Report({"half A": report(UPDATE).results[TRAIN]})
    CompressedUploads(Compression(LAYOUT, "top_k", 0.3, 0), store).of_report(plan_of(tasks={"half A": TASK}), other)
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


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_is_not_finite_arrives_as_such_and_is_not_remembered(kind: CompressionKind) -> None:
    store = ClientStore()
    found = tensor(arrives(kind, [torch.inf, *UPDATE[1:]], store=store))
    assert not bool(found.isfinite().all())
    assert not store.tensors()


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_of_zeros_arrives_as_zeros(kind: CompressionKind) -> None:
    assert arrives(kind, [0.0] * 12) == [0.0] * 12


@pytest.mark.parametrize(("kind", "size"), [("bfloat16", 2 * 10), ("int8", 10 + 2 * 4), ("top_k", 3 * 8)])
def test_the_bytes_of_a_round_are_those_of_the_compressed_form(kind: CompressionKind, size: int) -> None:
    compression = Compression(LAYOUT, kind, 0.3, 0)
    sent = traffic(LAYOUT, plan(), report(UPDATE), compression=compression)
    assert (sent.up, sent.buffers) == (size, traffic(LAYOUT, plan(), report(UPDATE)).buffers)
    (packed,) = compression.packed(plan(), TRAIN, report(UPDATE).results[TRAIN], ClientStore())
    assert sum(each.numel() * each.element_size() for each in packed.values()) == size


def test_tensors_that_are_sent_as_values_stay_whole() -> None:
    given = plan(upload_values=(False, False, True))
    arrived = decompressed("top_k", given, UPDATE, 0.25, ClientStore()).updates.values[0].tolist()
    assert arrived == [0.0, -4.0, 0.0, 0.0, *UPDATE[4:]]
    compression = Compression(LAYOUT, "top_k", 0.25, 0)
    assert traffic(LAYOUT, given, report(UPDATE), compression=compression).up == 8 + 6 * 4


def test_a_task_that_uploads_nothing_is_left_alone() -> None:
    compression = Compression(LAYOUT, "int8", 1.0, 0)
    given, nothing = plan(upload=LAYOUT.nothing), report([0.0] * 12)
    found = CompressedUploads(compression, ClientStore()).of_report(given, nothing)
    assert found.results[TRAIN] is nothing.results[TRAIN] and compression.forms(given.tasks[TRAIN]) == {}


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


def last_models(out: Path, **changes: Any) -> torch.Tensor:
    return run(out, KEYS, **changes).state.models


@pytest.mark.usefixtures("forked_workers")
def test_processes_send_the_same_bits(tmp_path: Path) -> None:
    network, processes = KINDS["top_k"], {"name": "processes", "workers": 2}
    whole = last_models(tmp_path / "whole", network=network)
    assert torch.equal(whole, last_models(tmp_path / "processes", network=network, engine=processes))


def test_a_resumed_run_goes_on_with_what_was_left_out(tmp_path: Path) -> None:
    network = KINDS["top_k"]
    whole = last_models(tmp_path / "whole", network=network)
    last_models(tmp_path / "half", network=network, rounds=2)
    assert torch.equal(whole, last_models(tmp_path / "half", network=network, resume=True))
    assert not torch.equal(whole, last_models(tmp_path / "plain"))


def test_runs_side_by_side_have_memories_of_their_own(tmp_path: Path) -> None:
    tables = keys(KEYS, network=KINDS["top_k"])
    fs.compare(tables, algorithms=["fedavg", "fedprox"], seeds=[0], out=tmp_path / "both", quiet=True)
    alone = last_models(tmp_path / "alone", network=KINDS["top_k"])
    assert torch.equal(fs.load(tmp_path / "both" / "fedavg-0").state.models, alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adacfl", "fedclust", "fedtsdp", "hicfl", "ifca", "layercfl", "lg_fedavg", "strata"])
def test_algorithms_of_all_kinds_run_with_compressed_updates(name: str, tmp_path: Path) -> None:
    changes = {"rounds": 2, "algorithm": {"name": name, **EAGER.get(name, {})}}
    plain = run(tmp_path / "plain", KEYS, **changes)
    small = run(tmp_path / "small", KEYS, network=KINDS["top_k"], **changes)
    assert small.summary["bytes_up"] < plain.summary["bytes_up"]


def test_training_on_all_data_sends_no_update_that_could_be_compressed(tmp_path: Path) -> None:
    central = {"algorithm": {"name": "centralized"}}
    plain = last_models(tmp_path / "plain", **central)
    assert torch.equal(plain, last_models(tmp_path / "small", network=KINDS["top_k"], **central))


@pytest.mark.parametrize(
    "tables", [{"privacy": {"kind": "local", "noise_multiplier": 0.5}}, {"attack": {"kind": "noise", "share": 0.25}}]
)
def test_local_noise_and_attacks_come_before_the_compression(tables: dict[str, Any]) -> None:
    """So that epsilon holds, as whatever is made of a noisy update is as private; and attackers send what fits."""
    setup = federation(KEYS, network=KINDS["top_k"], **tables)
    given = first_plan_of(setup)
    report = setup.clients.run(given)
    for step in setup.steps:
        report = step.of_report(given, report)
    sent = report.results[TRAIN].updates.values
    assert int((sent != 0).sum(dim=1).max()) == -(-setup.server.problem.layout.p // 10)


def test_a_memory_and_central_noise_exclude_each_other(tmp_path: Path) -> None:
    privacy = {"kind": "central", "noise_multiplier": 0.5}
    with pytest.raises(ExperimentError, match=r"network\.compression = 'top_k': expected 'none', 'bfloat16' or 'int8'"):
        run(tmp_path / "run", KEYS, privacy=privacy, network=KINDS["top_k"])
    run(tmp_path / "run", KEYS, privacy=privacy, network=KINDS["int8"])


def test_a_share_without_top_k_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no share with compression = 'int8'"):
        experiment(network={"compression": "int8", "share": 0.5})
