"""What the model of each client takes its test samples for, at the end of a run."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import fedstrata as fs
from builders import keys, run
from fedstrata.records.arrays import read_right_samples
from fedstrata.report import build
from fedstrata.report.summary import summary_rows
from fedstrata.report.words import DASH

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


def test_probabilities_are_those_of_the_models_that_clients_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test samples of one client are of one class, so that it has no curve; the page shows both."""
    rng = np.random.default_rng(0)

    def site(classes: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(40) % classes
        return rng.normal(size=(40, 3)) + y[:, None], y

    clients = {"Ghent": (site(2), site(2)), "Bern": (site(2), site(1))}
    data = {"label": "y < 1", "classes": {"yes": "well", "no": "ill"}}
    keys = {"rounds": 2, "data": data, "local": {"lr": 0.1, "class_weights": [2, 1]}}
    done = fs.run(keys, tmp_path / "run", clients=clients)
    told = capsys.readouterr().err
    assert "\nnetwork: mlp, 386 parameters\n" in told
    assert "\nclasses: y < 1: well (100 samples), ill (60 samples); weights 2, 1\n" in told
    found = done.summary["probabilities"]
    said = [done.predict_proba(name, test[0])[:, 1] for name, (_, test) in clients.items()]
    truth = [test[1] == 1 for _, test in clients.values()]
    assert found["classes"] == ["well", "ill"] and found["samples"] == 80
    assert found["roc_auc"] == pytest.approx(roc_auc_score(np.concatenate(truth), np.concatenate(said)))
    ghent, bern = found["clients"]
    assert ghent["roc_auc"] == pytest.approx(roc_auc_score(truth[0], said[0])) and bern["roc_auc"] is None
    assert bern["brier"] == pytest.approx(np.mean((said[1] - truth[1]) ** 2))
    rows = {key: (value, meaning) for key, value, meaning in summary_rows(done.summary, done.metric)}
    assert rows["roc_auc"][0] == f"{found['roc_auc']:.4g}" and "none for 1 client alone" in rows["roc_auc"][1]
    page = build(done.folder).read_text()
    assert f"<td>{ghent['roc_auc']:.3f}</td>\n<td>{ghent['brier']:.3f}</td>" in page
    assert f"<td>{DASH}</td>\n<td>{bern['brier']:.3f}</td>" in page
