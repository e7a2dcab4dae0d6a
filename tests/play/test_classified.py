"""What the model of each client takes its test samples for, at the end of a run."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from builders import keys, run
from fedstrata.play import used_models
from fedstrata.records.arrays import read_right_samples

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS = keys(rounds=3)


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
    done = run(tmp_path / "run", KEYS, algorithm={"name": algorithm}, engine={"name": engine, "workers": 1})
    assert counted(done.folder) == right(done.folder) == scored(done.folder, 3)


@pytest.mark.parametrize("method", ["finetune", "ditto"])
def test_personal_models_are_the_ones_that_are_judged(method: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", KEYS, algorithm={"name": "oracle"}, personal={"method": method})
    assert counted(done.folder) == scored(done.folder, 3)


def test_a_client_is_judged_on_the_data_that_it_has_at_the_end(tmp_path: Path) -> None:
    events = {"change": [{"round": 2, "client": 0, "takes_data_of": 1}], "leave": [{"round": 3, "clients": [2]}]}
    done = run(tmp_path / "run", KEYS, events=events)
    assert counted(done.folder) == scored(done.folder, 3)
    assert 2 not in counted(done.folder)


def test_a_loss_of_ones_own_has_confusions_too(tmp_path: Path) -> None:
    done = run(tmp_path / "run", KEYS, local={"loss": "torch.nn.functional:cross_entropy"})
    assert counted(done.folder) == scored(done.folder, 3)


def test_numbers_are_no_classes_and_too_many_pairs_of_classes_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = run(tmp_path / "numbers", KEYS, rounds=1, local={"loss": "mse", "lr": 0.001})
    assert not (numbers.folder / "right_samples.parquet").exists()
    monkeypatch.setattr(used_models, "MOST_ROWS", 5)
    for done in (numbers, run(tmp_path / "many", KEYS, rounds=1)):
        assert not (done.folder / "confusion.parquet").exists()


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", KEYS, rounds=1).folder
    for name in ("confusion.parquet", "right_samples.parquet"):
        assert (folder / name).stat().st_mode & 0o077 == 0
