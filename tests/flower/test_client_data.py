"""A device's data: what a simulator would give the client, or one clear line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv
from torch import nn

from fedstrata.base.errors import DataError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import FOLDS
from fedstrata.data import ReadOptions
from fedstrata.engine import ClientData
from fedstrata.flower.client_data import export_client_data, export_public_data, no_client_data, read_client_data
from fedstrata.flower.federation import Federation, Samples
from fedstrata.flower.requests import RunConfig
from fedstrata.flower.server_app import run_config
from fedstrata.objective import Objective
from turns import same

SAMPLES = Samples((2, 6), 3, (0.0, 1.0), (1.0, 2.0), "float32", test=0.25)
CONFIG = RunConfig("run", 5, 0, "mlp", "{}", "float32", SAMPLES)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2, 6)).astype("float32")
Y = np.arange(12) % 2


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_file_with_a_test_split_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X[:8], y=Y[:8], x_test=X[8:], y_test=Y[8:])
    client_data = read_client_data(path, 3, CONFIG)
    assert [len(client_data.train(c)) for c in range(5)] == [0, 0, 0, 8, 0]
    inputs, labels = client_data.samples(client_data.test(3))
    assert labels.tolist() == Y[8:].tolist()
    assert torch.allclose(inputs[:, 1], (torch.from_numpy(X[8:, 1]) - 1) / 2)
    assert client_data.dataset.classes == 3, "of the federation, not of this client's file"


def test_of_a_file_without_one_a_share_is_held_out_and_that_is_the_clients_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X, y=Y)
    held = [read_client_data(path, client, CONFIG).test(client).tolist() for client in (0, 0, 1)]
    assert held[0] == held[1] != held[2] and len(held[0]) == 3


def test_units_are_never_cut_through(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X, y=Y, trial=np.arange(12) // 3)
    client_data = read_client_data(path, 0, replace(CONFIG, samples=replace(SAMPLES, unit="trial")))
    assert len({index // 3 for index in client_data.test(0).tolist()}) == 1
    for half in ("A", "B"):
        assert len(client_data.train(0, half)) % 3 == 0


def test_classes_that_are_texts_have_the_federations_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", x=X, y=np.where(Y == 0, "walk", "sit"))
    config = replace(CONFIG, samples=replace(SAMPLES, names=("lie", "sit", "walk")))
    client_data = read_client_data(path, 0, config)
    labels = client_data.samples(torch.arange(12))[1]
    assert labels.tolist() == [2 - y for y in Y.tolist()]


def test_classes_that_are_texts_are_not_numbered_without_the_federations_names(tmp_path: Path) -> None:
    """Two clients would each call their own first class 0."""
    path = write(tmp_path / "a.npz", x=X, y=np.where(Y == 0, "walk", "sit"))
    with pytest.raises(DataError, match=r"expected classes of 0, 1, 2; found 2 others.*; give .* in samples.names"):
        read_client_data(path, 0, CONFIG)
    write(path, x=X, y=(Y + 1).astype(str))
    labels = read_client_data(path, 0, CONFIG).samples(torch.arange(12))[1]
    assert labels.tolist() == (Y + 1).tolist(), "as of a folder of images for each class"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("codes", [Y, Y.astype(bool)])
def test_numbers_of_a_table_are_no_classes_where_the_federation_has_texts(
    codes: np.ndarray, ending: str, tmp_path: Path
) -> None:
    """1 for ill, as most tables have it, would be the second name in the alphabet: well."""
    config = replace(CONFIG, samples=Samples((2,), 2, (0.0, 0.0), (1.0, 1.0), "float32", names=("ill", "well")))
    path = tmp_path / f"a.{ending}"
    write_table = csv.write_csv if ending == "csv" else pq.write_table
    write_table(pa.table({"a": X[:, 0, 0], "b": X[:, 0, 1], "y": codes}), path)
    with pytest.raises(DataError, match=r"expected classes of ill, well, found numbers"):
        read_client_data(path, 0, config)


def test_names_that_look_like_numbers_are_names_in_a_csv_file(tmp_path: Path) -> None:
    config = replace(CONFIG, samples=Samples((2,), 3, (0.0, 0.0), (1.0, 1.0), "float32", names=("10", "2", "3a")))
    csv.write_csv(pa.table({"a": X[:3, 0, 0], "b": X[:3, 0, 1], "y": [2, 10, 2]}), tmp_path / "a.csv")
    write(tmp_path / "a.npz", x=X[:3, 0, :2], y=np.array([2, 1, 2]))
    for name, expected in (("a.csv", [1, 0, 1]), ("a.npz", [2, 1, 2])):
        labels = read_client_data(tmp_path / name, 0, config).samples(torch.arange(3))[1]
        assert labels.tolist() == expected


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        ({"x": X[:, :1], "y": Y}, {}, r"expected samples of float32 \(2, 6\), found float32 \(1, 6\)"),
        ({"x": (X > 0).astype("uint8"), "y": Y}, {}, r"expected samples of float32 \(2, 6\), found uint8"),
        ({"x": X, "y": Y + 2}, {}, "expected classes 0 to 2, found 3"),
        ({"x": X, "y": Y}, {"unit": "trial"}, "expected the column trial, found none"),
        ({"x": X, "y": np.where(Y == 0, "run", "sit")}, {"names": ("sit", "lie", "walk")}, "found 1 others"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    arrays: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_client_data(path, 0, replace(CONFIG, samples=replace(SAMPLES, **changes)))


NUMBERS = replace(CONFIG, samples=replace(SAMPLES, classes=1, outputs=(1,)), objective=Objective("mse", "rmse"))
TOKENS = replace(CONFIG, samples=Samples((4,), 3, (), (), "int64", outputs=(4, 3)))


@pytest.mark.parametrize(
    ("arrays", "config", "message"),
    [
        ({"x": X, "y": RNG.normal(size=(12, 2))}, NUMBERS, r"targets of torch.float32 \(1,\) .*, found .* \(2,\)"),
        ({"x": Y[:, None] + np.arange(4), "y": np.full((12, 4), 3)}, TOKENS, "expected classes 0 to 2, found 3"),
        ({"x": Y[:, None] + np.arange(4), "y": Y}, TOKENS, r"targets of torch.int64 \(4,\) .*, found classes"),
        (
            {"x": X, "y": RNG.integers(0, 3, (12, 6))},
            CONFIG,
            r"expected targets of classes for each sample, found torch.int64 \(6,\)",
        ),
    ],
)
def test_targets_that_do_not_fit_the_outputs_are_refused(
    arrays: dict[str, Any], config: RunConfig, message: str, tmp_path: Path
) -> None:
    """Torch would stretch one number to two outputs, with a warning that nobody reads."""
    with pytest.raises(DataError, match=message):
        read_client_data(write(tmp_path / "a.npz", **arrays), 0, config)


def test_numbers_that_happen_to_be_whole_are_numbers(tmp_path: Path) -> None:
    client_data = read_client_data(write(tmp_path / "a.npz", x=X, y=Y + 7), 0, NUMBERS)
    assert client_data.samples(torch.arange(12))[1].tolist() == [[y + 7.0] for y in Y.tolist()]


def test_a_refusal_names_no_text_of_the_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server says which column has the classes, and is told why a device refuses; the node's log has the names."""
    table = pa.table({"a": [1.0, 2.0], "b": [1.0, 2.0], "patient": ["Ann Ode", "Bo Lind"], "y": [0, 1]})
    csv.write_csv(table, tmp_path / "mine.csv")
    samples = Samples((2,), 2, (0.0, 0.0), (1.0, 1.0), "float32", ("ill", "well"), features=("a", "b"))
    asked = replace(CONFIG, samples=samples, reading=ReadOptions(label="patient"))
    with pytest.raises(DataError, match="expected classes of ill, well; found 2 others") as refused:
        read_client_data(tmp_path / "mine.csv", 0, asked)
    assert "Ann" not in str(refused.value) and "Ann Ode, Bo Lind" in caplog.text


def test_images_are_resized_for_a_network_that_needs_it(tmp_path: Path) -> None:
    images = RNG.integers(0, 255, size=(6, 3, 28, 28)).astype("uint8")
    path = write(tmp_path / "a.npz", x=images, y=Y[:6])
    samples = Samples((3, 32, 32), 2, (0.0,) * 3, (1.0,) * 3)
    client_data = read_client_data(path, 0, replace(CONFIG, model="vgg11", samples=samples))
    assert client_data.samples(torch.arange(1))[0].shape == (1, 3, 32, 32)


def test_a_cut_federation_has_the_bits_and_the_units_of_the_simulated_one(tmp_path: Path) -> None:
    x, y = RNG.normal(3, 2, size=(48, 2, 6)).astype("float32"), np.array(["lie", "sit", "walk"] * 16)
    source = write(tmp_path / "set.npz", x=x, y=y, trial=np.arange(48) // 4)
    data = {"name": str(source), "clients": 2, "samples": 16, "test": 0.25, "unit": "trial"}
    experiment = load_experiment({"data": data, "model": {"name": "mlp"}, "engine": {"name": "loop"}})
    setup, paths = build_run(experiment), [tmp_path / "nodes" / f"{client}.npz" for client in range(2)]
    samples = export_client_data(setup, 0.25, paths)
    assert not any(path.stat().st_mode & 0o077 for path in paths)
    assert samples.unit == "trial" and export_public_data(setup, tmp_path / "public.npz") == ""
    assert samples.names == ("lie", "sit", "walk")
    assert (
        no_client_data(replace(CONFIG, samples=samples)).dataset.sample_format
        == setup.client_data.dataset.sample_format
    )
    for client, path in enumerate(paths):
        assert np.isin(np.load(path)["x"], x).all(), "a device holds samples as they were"
        own = read_client_data(path, client, replace(CONFIG, clients=2, samples=samples))
        assert_same_samples(setup.client_data, own, client)


def assert_same_samples(simulated: ClientData, own: ClientData, client: int) -> None:
    for part in FOLDS:
        pairs = [each.samples(each.train(client, part)) for each in (simulated, own)]
        assert same(pairs[0], pairs[1]), part
    assert same(*[each.samples(each.test(client)) for each in (simulated, own)])


def visits(count: int = 48) -> dict[str, Any]:
    """A table whose defaults would be wrong: its label is ``outcome``, and ``score`` is no feature."""
    found = {"score": RNG.normal(size=count), "age": RNG.integers(20, 80, count), "pulse": RNG.normal(size=count)}
    outcomes = np.array(["ill", "well"])[np.arange(count) % 2]
    return {**found, "outcome": outcomes, "patient": np.arange(count) // 4, "y": np.zeros(count, dtype=np.int64)}


def wards(count: int = 48) -> dict[str, Any]:
    """A table with gaps and texts, of which a client need not have all."""
    pulse = [None if RNG.random() < 0.2 else RNG.normal() for _ in range(count)]
    kinds = RNG.choice(list("abcd"), 2, replace=False)
    return {"pulse": pulse, "kind": RNG.choice([*kinds, None], count), "y": np.arange(count) % 2}


def rows_of_tokens(count: int = 48) -> dict[str, Any]:
    return {"text": list(RNG.integers(0, 9, (count, 6))), "y": np.arange(count) % 2}


def words(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))


def recordings(count: int = 8) -> dict[str, Any]:
    signals = [RNG.normal(size=(70, 2)).tolist() for _ in range(count)]
    activities = np.array(["sit", "walk"])[np.arange(count) % 2]
    return {"kind": activities, "trial": np.arange(count), "signal": signals}


@pytest.mark.parametrize(
    ("make", "ending", "keys"),
    [
        (visits, "csv", {"label": "outcome", "inputs": ["pulse", "age"], "unit": "patient"}),
        (visits, "parquet", {"label": "outcome", "unit": "patient", "scale": False}),
        (wards, "csv", {"indicators": True}),
        (wards, "parquet", {"statistics": "own"}),
        (visits, "csv", {"label": "age > 50", "inputs": ["pulse"]}),
        (visits, "csv", {"label": "outcome", "classes": {"well": "b", "ill": "a"}, "inputs": ["pulse"]}),
        (rows_of_tokens, "parquet", {"tokens": True}),
        (recordings, "parquet", {"label": "kind", "window": 16, "step": 8, "test": 0.34}),
    ],
)
def test_the_files_of_a_node_are_read_as_the_experiment_says(
    make: Any, ending: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    sites = {name: tmp_path / "sites" / f"{name}.{ending}" for name in ("Ghent", "Lyon")}
    sites["Ghent"].parent.mkdir()
    for file in sites.values():
        table = pa.table(make())
        csv.write_csv(table, file) if ending == "csv" else pq.write_table(table, file)
    keys = {"data": {"name": str(tmp_path / "sites"), "clients": 2, **keys}, "engine": {"name": "loop"}}
    network = f"{__name__}:words" if make is rows_of_tokens else "mlp"
    experiment = load_experiment(keys | {"model": {"name": network}})
    setup = build_run(experiment)
    paths = [tmp_path / f"{name}.npz" for name in sites]
    samples = export_client_data(setup, experiment.data.held_out_share, paths)
    for file_of in (sites.values(), paths):
        config = run_config(experiment, Federation(tuple(sites), samples), "run")
        known, own = no_client_data(config).dataset.sample_format, setup.client_data.dataset.sample_format
        assert known == own or (own.preparation is not None and known.preparation == own.preparation.of(0))
        for client, path in enumerate(file_of):
            assert_same_samples(setup.client_data, read_client_data(path, client, config), client)
