"""Partitions that the data cannot have are refused, in place of a run whose groups do not differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import federation
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
