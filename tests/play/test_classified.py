"""What the model of each client takes its test samples for, at the end of a run."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from builders import keys, run
from fedstrata.records.arrays import read_right_samples

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS = keys(rounds=3)


def right(folder: Path) -> dict[int, tuple[int, int]]:
    """The test samples of each client, and how many of them its model recognises."""
    return {client: (len(row), int(row.sum())) for client, row in read_right_samples(folder).items()}


def scored(folder: Path, rounds: int) -> dict[int, tuple[int, int]]:
    """The same, by the scores of the last round."""
    rows = pq.read_table(folder / "clients" / f"{rounds:05d}.parquet").to_pylist()
    return {row["client"]: (row["samples"], round(row["accuracy"] * row["samples"])) for row in rows}


@pytest.mark.parametrize("engine", ["loop", "batched", "processes"])
@pytest.mark.parametrize("algorithm", ["oracle", "ditto"])
def test_a_client_has_the_samples_and_the_hits_of_its_accuracy(engine: str, algorithm: str, tmp_path: Path) -> None:
    """With clusters' models, and with tensors of clients' own."""
    done = run(tmp_path / "run", KEYS, algorithm={"name": algorithm}, engine={"name": engine, "workers": 1})
    assert right(done.folder) == scored(done.folder, 3)


@pytest.mark.parametrize("method", ["finetune", "ditto"])
def test_personal_models_are_the_ones_that_are_judged(method: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", KEYS, algorithm={"name": "oracle"}, personal={"method": method})
    assert right(done.folder) == scored(done.folder, 3)


def test_a_client_is_judged_on_the_data_that_it_has_at_the_end(tmp_path: Path) -> None:
    events = {"change": [{"round": 2, "client": 0, "takes_data_of": 1}], "leave": [{"round": 3, "clients": [2]}]}
    done = run(tmp_path / "run", KEYS, events=events)
    assert right(done.folder) == scored(done.folder, 3)
    assert 2 not in right(done.folder)


def test_a_loss_of_ones_own_has_classes_too(tmp_path: Path) -> None:
    done = run(tmp_path / "run", KEYS, local={"loss": "torch.nn.functional:cross_entropy"})
    assert right(done.folder) == scored(done.folder, 3)


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    numbers = run(tmp_path / "numbers", KEYS, rounds=1, local={"loss": "mse", "lr": 0.001})
    assert not (numbers.folder / "classified.parquet").exists()


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", KEYS, rounds=1).folder
    assert (folder / "classified.parquet").stat().st_mode & 0o077 == 0
