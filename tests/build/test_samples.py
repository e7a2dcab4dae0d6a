"""Partitions that the data cannot have are refused, in place of a run whose groups do not differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import federation, keys
from fedstrata.base.errors import PartitionError
from fedstrata.build.run_setup import RunSetup


def built(file: Path, x: Any, y: Any, **partition: Any) -> RunSetup:
    """What a run of such samples is built from."""
    np.savez(file, x=x, y=y)
    data = {"name": str(file), "clients": 4, "test": 0.2}
    local = {} if y.dtype == np.int64 else {"loss": "mse"}
    return federation(data=data, partition=partition, local=local)


CLASSES = np.arange(200) % 2
NUMBERS = np.linspace(0.0, 1.0, 200)


@pytest.mark.parametrize(
    ("shape", "groups", "found"),
    [
        ((200, 3), 2, r"expected images .*, found samples of shape \(3,\)"),
        ((200, 1, 8), 2, r"expected images .*, found samples of shape \(1, 8\)"),
        ((200, 1, 4, 8), 4, r"expected images .* as high as wide, found samples of shape \(1, 4, 8\)"),
    ],
)
def test_what_cannot_be_turned_is_refused(tmp_path: Path, shape: tuple[int, ...], groups: int, found: str) -> None:
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    with pytest.raises(PartitionError, match=rf"^partition.scheme = 'rotation': {found}"):
        built(tmp_path / "own.npz", x, CLASSES, scheme="rotation", groups=groups)


@pytest.mark.parametrize(
    "partition",
    [
        {"scheme": "dirichlet", "alpha": 0.1},
        {"scheme": "dirichlet", "alpha": 0.1, "over": "classes"},
        {"scheme": "shards"},
    ],
)
def test_mixes_of_classes_need_classes(tmp_path: Path, partition: dict[str, Any]) -> None:
    x = np.random.default_rng(0).random((200, 3), dtype=np.float32)
    with pytest.raises(PartitionError, match=rf"'{partition['scheme']}': expected samples of several classes"):
        built(tmp_path / "numbers.npz", x, NUMBERS, **partition)
    built(tmp_path / "classes.npz", x, CLASSES, **partition)


def of_sites(file: Path, seed: int, **data: Any) -> RunSetup:
    """What a run of two sites, of 6 and 5 patients with 4 samples each, is built from."""
    patient = np.repeat(np.arange(11), 4)
    site = np.where(patient < 6, "Ghent", "Lyon")
    x = np.random.default_rng(0).normal(size=(44, 3)).astype(np.float32)
    np.savez(file, x=x, y=patient % 2, site=site, patient=patient)
    wanted = {"name": str(file), "unit": "patient", "clients": 2, "samples": 0, **data}
    return federation(keys(data=wanted, partition={"scheme": "natural", "column": "site"}, seed=seed))


def test_runs_with_the_seeds_of_a_repeat_test_every_row_once(tmp_path: Path) -> None:
    """Patients stay whole, and what is held out for choices is taken from the rows to train on."""
    patient = np.repeat(np.arange(11), 4)
    for repeat in (0, 7):
        seeds = range(repeat * 3, repeat * 3 + 3)
        runs = [of_sites(tmp_path / "a.npz", seed, folds=3, validation=0.3).client_data for seed in seeds]
        for client, rows in enumerate([range(24), range(24, 44)]):
            assert sorted(row for run in runs for row in run.test(client).tolist()) == list(rows)
            for run in runs:
                splits = (run.train(client), run.held_out(client, "validation"), run.test(client))
                assert sorted(np.concatenate(splits).tolist()) == list(rows)
                assert sum(len(set(patient[split])) for split in splits) == len(rows) / 4


def test_a_site_with_fewer_patients_than_folds_is_named(tmp_path: Path) -> None:
    expected = r"data.folds = 6: client Lyon cannot be split: it has 5 independent units and needs 6.*; lower"
    with pytest.raises(PartitionError, match=expected):
        of_sites(tmp_path / "a.npz", 0, folds=6)
