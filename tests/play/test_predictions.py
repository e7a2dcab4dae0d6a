"""What the model of each client predicts for its test samples, at the end of a run."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import fedstrata as fs
from builders import keys, run
from fedstrata.records.arrays import last_predictions
from fedstrata.report import build
from fedstrata.report.summary import summary_rows
from fedstrata.report.words import DASH

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS = keys(rounds=3)


def right(folder: Path) -> dict[int, tuple[int, int]]:
    """The test samples of each client, and how many of them its model recognises."""
    return {client: (len(rows.right), int(rows.right.sum())) for client, rows in last_predictions(folder).items()}


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


def test_numbers_are_predicted_too(tmp_path: Path) -> None:
    """The mean squared error of each client is that of its scores."""
    done = run(tmp_path / "numbers", KEYS, rounds=1, local={"loss": "mse", "metric": "mse", "lr": 0.001})
    scores = pq.read_table(done.folder / "clients" / "00001.parquet").to_pylist()
    for row in scores:
        found = last_predictions(done.folder)[row["client"]]
        assert np.mean((found.predicted - found.truth) ** 2) == pytest.approx(row["accuracy"], rel=1e-5)


def test_a_window_has_the_unit_of_its_recording_and_a_sample_its_place_in_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = {"who": ["a", "b"] * 20, "day": np.arange(40) // 4, "size": rng.normal(size=40), "y": [0, 0, 1, 1] * 10}
    pq.write_table(pa.table(frame), tmp_path / "days.parquet")
    data = {"name": str(tmp_path / "days.parquet"), "unit": "day", "label": "y"}
    keys = {"rounds": 1, "data": data, "partition": {"column": "who"}, "model": {"name": "mlp"}}
    for client, found in last_predictions(fs.run(keys, tmp_path / "run", quiet=True).folder).items():
        assert set(found.sample % 2) == {client}, "rows alternate between the clients"
        days = found.sample // 4
        assert all((found.unit[days == day] == found.unit[days == day][0]).all() for day in set(days))
        assert len(set(found.unit)) == len(set(days)) and np.isfinite(found.score).all()


def test_several_numbers_are_no_single_prediction(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = {name: tuple(rng.normal(size=(20, width)).astype(np.float32) for width in (6, 3)) for name in ("a", "b")}
    keys = {"rounds": 1, "local": {"loss": "mse", "metric": "mse"}}
    found = last_predictions(fs.run(keys, tmp_path / "run", clients=clients, quiet=True).folder)
    assert sorted(found) == [0, 1]
    assert all(np.isnan(rows.predicted).all() and len(rows.sample) for rows in found.values())


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", KEYS, rounds=1).folder
    assert (folder / "predictions.parquet").stat().st_mode & 0o077 == 0


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
