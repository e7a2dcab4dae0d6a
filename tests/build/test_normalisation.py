"""Data of a user's own are normalised by the samples that clients train on, and by no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data import load_dataset
from fedstrata.engine import ClientData
from fedstrata.play.run import run_experiment
from fedstrata.results.assign import assign
from own_data import arrays, as_test, built, keys, save, without


def trained_on(data: ClientData) -> np.ndarray:
    """The raw training samples of all clients, (samples, features)."""
    return np.concatenate([data.raw_samples(data.train(client))[0].numpy() for client in range(len(data))])


@pytest.mark.parametrize(
    "options",
    [{"test": 0.3}, {"test": 0.3, "validation": 0.3}, {"clients": 2}],
    ids=["test samples", "samples for validation", "clients that take no part"],
)
def test_only_training_samples_say_how_all_are_normalised(options: dict[str, Any], tmp_path: Path) -> None:
    data = built(tmp_path, arrays(), unit="trial", **options).client_data
    rows = trained_on(data)
    prepared = data.dataset.preparation
    assert prepared is not None
    assert prepared.mean[0] == pytest.approx(rows.mean(axis=0), abs=1e-5)
    assert prepared.std[0] == pytest.approx(rows.std(axis=0), abs=1e-5)
    assert prepared.mean[0] != pytest.approx(arrays()["x"].mean(axis=0), abs=1e-3)
    normalised = np.concatenate([data.samples(data.train(client))[0].numpy() for client in range(len(data))])
    assert normalised.mean(axis=0) == pytest.approx(0, abs=1e-5)


def test_test_samples_of_ones_own_have_no_say_either(tmp_path: Path) -> None:
    far = without(arrays(seed=1), "trial")
    data = built(tmp_path, without(arrays(), "trial") | as_test(far | {"x": far["x"] + 100})).client_data
    assert data.dataset.preparation is not None
    assert data.dataset.preparation.mean[0] == pytest.approx(arrays()["x"].mean(axis=0), abs=1e-5)


def test_numbers_that_are_not_to_be_normalised_stay(tmp_path: Path) -> None:
    data = built(tmp_path, arrays(), unit="trial", scale=False).client_data
    raw, _ = data.raw_samples(data.train(0))
    assert data.samples(data.train(0))[0].tolist() == raw.float().tolist()


def test_known_data_sets_keep_the_numbers_of_all_published_results() -> None:
    digits = load_dataset("digits")
    data = build_run(load_experiment({"data": {"clients": 3, "samples": 20}})).client_data
    assert (data.dataset.mean, data.dataset.std) == (digits.mean, digits.std)


def test_a_newcomer_is_normalised_as_the_clients_were(tmp_path: Path) -> None:
    """All of its samples are alike, so that its training loss is that of any of them, whichever are held out."""
    given = keys(save(tmp_path / "mine.npz", arrays()), unit="trial", test=0.4)
    run = run_experiment(load_experiment(given, ["algorithm=random_groups"]), tmp_path / "run", quiet=True)
    x = np.tile(np.array([[2.0, -1.0, 0.5]], np.float32), (8, 1))
    save(tmp_path / "new.npz", {"x": x, "y": np.zeros(8, np.int64), "trial": np.arange(8) // 4})
    (placed,) = assign(tmp_path / "run", [tmp_path / "new.npz"])
    losses = placed["evidence"]["losses"]
    assert len(losses) > 1
    for node, loss in losses.items():
        expected = -run.cluster_model(node).outputs(x)[0].log_softmax(0)[0]
        assert loss == pytest.approx(float(expected), abs=1e-5)
