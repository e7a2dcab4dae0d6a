"""What the model of each client takes its test samples for, at the end of a run."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fedstrata as fs
from fedstrata.play import used_models
from fedstrata.records.arrays import read_right_samples

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 6, "samples": 40},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.2, "batch": 8},
    "engine": {"name": "loop"},
}


def counted(folder: Path) -> dict[int, tuple[int, int]]:
    """The test samples of each client, and how many of them its model recognises."""
    found: dict[int, tuple[int, int]] = {}
    for row in pq.read_table(folder / "confusion.parquet").to_pylist():
        samples, right = found.get(row["client"], (0, 0))
        hits = row["samples"] if row["truth"] == row["predicted"] else 0
        found[row["client"]] = samples + row["samples"], right + hits
    return found


def right(folder: Path) -> dict[int, tuple[int, int]]:
    """The same, by the list of the samples that are classified correctly."""
    return {client: (len(row), int(row.sum())) for client, row in read_right_samples(folder).items()}


def scored(folder: Path, rounds: int) -> dict[int, tuple[int, int]]:
    """The same, by the scores of the last round."""
    rows = pq.read_table(folder / "clients" / f"{rounds:05d}.parquet").to_pylist()
    return {row["client"]: (row["samples"], round(row["accuracy"] * row["samples"])) for row in rows}


@pytest.mark.parametrize("engine", ["loop", "batched", "processes"])
@pytest.mark.parametrize("algorithm", ["oracle", "ditto"])
def test_the_matrix_of_a_client_has_the_samples_and_the_hits_of_its_accuracy(
    engine: str, algorithm: str, tmp_path: Path
) -> None:
    """With clusters' models, and with tensors of clients' own."""
    keys = {**KEYS, "algorithm": algorithm, "engine": {"name": engine, "workers": 1}}
    run = fs.run(keys, tmp_path / "run", quiet=True)
    assert counted(run.folder) == scored(run.folder, 3)
    assert right(run.folder) == scored(run.folder, 3)


@pytest.mark.parametrize("method", ["finetune", "ditto"])
def test_personal_models_are_the_ones_that_are_judged(method: str, tmp_path: Path) -> None:
    keys = {**KEYS, "algorithm": "oracle", "personal": {"method": method}}
    run = fs.run(keys, tmp_path / "run", quiet=True)
    assert counted(run.folder) == scored(run.folder, 3)


def test_a_client_is_judged_on_the_data_that_it_has_at_the_end(tmp_path: Path) -> None:
    events = {"change": [{"round": 2, "client": 0, "takes_data_of": 1}], "leave": [{"round": 3, "clients": [2]}]}
    run = fs.run({**KEYS, "algorithm": "fedavg", "events": events}, tmp_path / "run", quiet=True)
    assert counted(run.folder) == scored(run.folder, 3)
    assert 2 not in counted(run.folder)


def test_a_loss_of_ones_own_has_confusions_too(tmp_path: Path) -> None:
    loss = {**KEYS["local"], "loss": "torch.nn.functional:cross_entropy"}
    run = fs.run({**KEYS, "local": loss, "algorithm": "fedavg"}, tmp_path / "run", quiet=True)
    assert counted(run.folder) == scored(run.folder, 3)


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    local = {**KEYS["local"], "loss": "mse", "lr": 0.001}
    run = fs.run({**KEYS, "rounds": 1, "local": local, "algorithm": "fedavg"}, tmp_path / "run", quiet=True)
    assert not (run.folder / "confusion.parquet").exists()
    assert not (run.folder / "right_samples.parquet").exists()


def test_too_many_pairs_of_classes_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used_models, "MOST_ROWS", 5)
    run = fs.run({**KEYS, "rounds": 1, "algorithm": "fedavg"}, tmp_path / "run", quiet=True)
    assert not (run.folder / "confusion.parquet").exists()


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    run = fs.run({**KEYS, "rounds": 1, "algorithm": "fedavg"}, tmp_path / "run", quiet=True)
    for name in ("confusion.parquet", "right_samples.parquet"):
        assert (run.folder / name).stat().st_mode & 0o077 == 0
