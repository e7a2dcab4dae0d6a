"""Samples that clients are tested on."""

from pathlib import Path

import numpy as np
import pytest

import fedstrata
from fedstrata.base.errors import DataError, PartitionError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.records.arrays import last_scores
from own_data import SITES, Arrays, arrays, as_test, built, keys, save, without


def recordings_of_classes(classes: int) -> Arrays:
    """Six trials for each site, of so many classes in turn."""
    columns = arrays()
    columns["y"] = columns["trial"] % classes
    return columns


def test_clients_with_few_test_samples_of_a_class_are_named(tmp_path: Path) -> None:
    """A fifth of 24 samples of a class are five; Oslo has ten of class 1, and Bern none."""
    columns = without(arrays(), "trial")
    assert built(tmp_path, columns).warnings == ()
    later = np.arange(len(columns["y"])) % 48 >= 20
    fewer = (columns["y"] == 1) & ((columns["site"] == "Bern") | ((columns["site"] == "Oslo") & later))
    (warning,) = built(tmp_path, {name: values[~fewer] for name, values in columns.items()}).warnings
    assert warning.startswith("1 of 4 clients (Oslo) have fewer than 5 test samples")


def test_clients_with_few_units_of_a_class_are_told_to_hold_out_more(tmp_path: Path) -> None:
    """Two classes of three trials each: of each, one can be tested on and two be trained on, one in each half."""
    (warning,) = built(tmp_path, recordings_of_classes(2), unit="trial").warnings
    assert "4 of 4 clients (Bern, " in warning and "raise data.test" in warning
    setup = built(tmp_path, recordings_of_classes(2), unit="trial", test=0.34)
    assert setup.warnings == ()
    held = setup.client_data
    for client in range(4):
        assert held.samples(held.test(client))[1].bincount().tolist() == [8, 8]
        for half in "AB":
            assert held.samples(held.train(client, half))[1].bincount().tolist() == [8, 8]


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        ({"personal": {"method": "best"}}, "personal.method = 'best'"),
        ({"algorithm": {"name": "strata"}}, "the trials of Strata"),
        ({}, ""),
    ],
)
def test_what_cannot_act_on_halves_that_lack_a_class_is_named(
    changes: dict[str, object], who: str, tmp_path: Path
) -> None:
    """Of two trials of a class, one is tested on, and the other one is in one half of the training samples."""
    file = save(tmp_path / "mine.npz", recordings_of_classes(3))
    found = build_run(load_experiment({**keys(file, unit="trial", test=0.5), **changes})).warnings
    told = [line for line in found if "one half of their training samples lacks it" in line]
    assert len(told) == bool(who) and all(f"it: {who} cannot act" in line for line in told)


def test_clients_that_are_tested_on_a_class_of_one_unit_are_told(tmp_path: Path) -> None:
    """Six classes of one trial each: one must be tested, nobody can train on it, and no share can do better."""
    setup = built(tmp_path, recordings_of_classes(6), unit="trial")
    assert any(
        warning.startswith("4 of 4 clients (Bern, Ghent, Lyon, Oslo) are tested on classes that they do not train on")
        for warning in setup.warnings
    )
    assert [len(setup.client_data.test(client)) for client in range(4)] == [8] * 4


def test_own_test_arrays_are_those_of_the_clients_that_they_name(tmp_path: Path) -> None:
    train, test = arrays(), arrays(seed=1)
    test["trial"] += 100
    # Only half of the test samples, in another order.
    shuffled = {name: values[::-2] for name, values in test.items()}
    setup = built(tmp_path, train | as_test(shuffled), unit="trial")
    (warning,) = setup.warnings
    assert (
        "Ghent" in warning and "fewer than 5 test samples" in warning
    )  # those of every second row are of the other class
    held = setup.client_data
    assert [len(held.train(client)) for client in range(4)] == [48] * 4
    inputs, _ = held.samples(held.test(setup.names.index("Ghent")))
    raw = shuffled["x"][shuffled["site"] == "Ghent"]
    mean, std = train["x"].mean(axis=0), train["x"].std(axis=0)
    assert np.allclose(inputs.numpy(), (raw - mean) / std, atol=1e-4)


def test_classes_on_one_side_of_the_users_split_are_told(tmp_path: Path) -> None:
    """Class 1 has samples for testing alone, class 0 some on both sides; then the other way round."""
    columns = without(arrays(), "trial")
    labels = columns["y"] % 2
    within = np.arange(len(labels)) % 4
    for testing, message in (
        ((labels == 1) | (within == 0), "tested on classes that nobody trains on: 96 samples of 1"),
        ((labels == 0) & (within == 0), "4 of 4 clients (Bern, Ghent, Lyon, Oslo) have fewer than 5 test samples"),
    ):
        split = np.where(testing, "test", "train")
        setup = built(tmp_path, columns | {"y": labels, "split": split}, unit="none")
        assert any(message in warning for warning in setup.warnings), setup.warnings


def test_a_split_column_divides_the_samples_as_it_says(tmp_path: Path) -> None:
    columns = without(arrays(), "trial")
    split = np.where(np.arange(len(columns["y"])) % 4 == 3, "test", "train")
    setup = built(tmp_path, columns | {"split": split})
    held = setup.client_data
    assert [len(held.train(client)) for client in range(4)] == [36] * 4
    assert [len(held.test(client)) for client in range(4)] == [12] * 4


def test_a_split_column_with_other_values_is_refused(tmp_path: Path) -> None:
    columns = arrays()
    with pytest.raises(DataError, match=r"'split' holds neither train nor test.*; found 'val'"):
        built(tmp_path, columns | {"split": np.where(columns["y"] == 1, "val", "train")})


def test_test_samples_without_the_column_of_the_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'site'"):
        built(tmp_path, arrays() | as_test(without(arrays(seed=1), "site")), unit="none")


def test_a_client_without_test_samples_is_refused_by_its_name(tmp_path: Path) -> None:
    test = arrays(seed=1)
    there = {name: values[test["site"] != "Oslo"] for name, values in test.items()}
    with pytest.raises(PartitionError, match="client Oslo has no test samples"):
        built(tmp_path, arrays() | as_test(there), unit="none")


def test_without_a_column_of_clients_own_test_samples_follow_the_classes_of_training_samples(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.npz"
    save(file, without(arrays(), "site", "trial") | as_test(without(arrays(seed=1), "site", "trial")))
    groups = {"scheme": "label_groups", "labels": [[0], [1]]}
    experiment = load_experiment(keys(file, clients=4) | {"partition": groups})
    assert experiment.data.test == "own"
    held = build_run(experiment).client_data
    for client, label in enumerate([0, 0, 1, 1]):
        _, labels = held.samples(held.test(client))
        assert labels.tolist() == [label] * 48


def test_test_samples_of_a_client_without_training_samples_are_counted(tmp_path: Path) -> None:
    test = without(arrays(seed=1, sites=(*SITES, "Rome")), "trial")
    (warning,) = built(tmp_path, without(arrays(), "trial") | as_test(test)).warnings
    assert "48 of the 240 test samples" in warning


def test_a_client_whose_r2_is_unknown_is_named_and_the_others_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = x.sum(axis=1)
    clients = {"Ghent": (x, y), "Lyon": (x[:4] + 1, y[:4]), "Oslo": (x + 2, y)}
    sets = ["local.loss=mse", "rounds=1", "engine.name=loop"]
    run = fedstrata.run(clients=clients, model="mlp", algorithm="fedavg", sets=sets, out=tmp_path / "run", quiet=True)
    (warning,) = run.warnings
    assert warning.startswith("1 of 3 clients (Lyon) have fewer than 5 test samples")
    scores = {client: value for client, (_, value) in last_scores(run.folder).items()}
    assert scores.keys() == {0, 2}
    assert run.summary["acc_client"] == pytest.approx(sum(scores.values()) / 2)
    assert run.summary["acc_worst"] == min(scores.values())
    rmse = [*sets, "local.metric=rmse"]
    other = fedstrata.run(clients=clients, model="mlp", algorithm="fedavg", sets=rmse, out=tmp_path / "b", quiet=True)
    assert last_scores(other.folder).keys() == {0, 1, 2}
