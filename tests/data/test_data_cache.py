import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_layouts import noise

from fedstrata.data import Dataset
from fedstrata.data.cache import cache_folder, cached
from fedstrata.data.mapped import Collect


class Decode:
    """Makes one data set, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0
        self.dataset = Dataset(
            name="small",
            inputs=torch.from_numpy(noise(3, (1, 4, 4))),
            labels=torch.tensor([1, 0, 1]),
            classes=2,
            mean=(0.1,),
            std=(0.2,),
            columns={"who": np.array(["bo", "al", "bo"]), "age": np.array([1.5, 2.5, np.nan])},
            unit="who",
            class_names=("a", "b"),
        )

    def __call__(self, collect: Collect) -> Dataset:
        self.calls += 1
        return self.dataset


@pytest.fixture
def source(root: Path) -> Path:
    file = root / "source"
    file.write_bytes(b"source")
    return file


def test_the_second_time_nothing_is_decoded_and_everything_is_the_same(source: Path) -> None:
    decode = Decode()
    first, second = (cached([source], {}, decode) for _ in range(2))
    assert decode.calls == 1
    for name in ("name", "classes", "mean", "std", "unit", "class_names"):
        assert getattr(first, name) == getattr(second, name)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)
    assert list(second.columns) == ["who", "age"]
    for name, column in first.columns.items():
        np.testing.assert_array_equal(second.columns[name], column)


def test_other_parameters_or_a_changed_source_are_decoded_again(source: Path) -> None:
    decode = Decode()
    cached([source], {"window": 1}, decode)
    cached([source], {"window": 2}, decode)
    assert decode.calls == 2
    os.utime(source, ns=(1, 1))
    cached([source], {"window": 1}, decode)
    assert decode.calls == 3


def test_a_file_of_the_same_size_and_time_is_another_one(source: Path) -> None:
    """Archives and copies keep the time of a file."""
    decode = Decode()
    cached([source], {}, decode)
    before = source.stat()
    source.write_bytes(b"SOURCE")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    cached([source], {}, decode)
    assert decode.calls == 2


def cut(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-5])


def alter(copy: Path) -> None:
    content = bytearray(copy.read_bytes())
    content[content.index(np.array([1, 0, 1]).tobytes() if copy.suffix == ".npz" else b"shape")] ^= 255
    copy.write_bytes(content)


def empty(copy: Path) -> None:
    copy.write_bytes(b"")


def replace(copy: Path) -> None:
    with copy.open("wb") as file:
        np.savez(file, inputs=np.zeros(1))


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("damage", [cut, alter, empty, replace, Path.unlink])
def test_a_damaged_copy_is_ignored_and_written_anew(source: Path, damage: Any, suffix: str) -> None:
    decode = Decode()
    cached([source], {}, decode)
    (copy,) = cache_folder().glob(f"*{suffix}")
    damage(copy)
    assert torch.equal(cached([source], {}, decode).inputs, decode.dataset.inputs)
    assert decode.calls == 2
    cached([source], {}, decode)
    assert decode.calls == 2


def test_a_folder_that_cannot_be_written_does_not_fail_the_run(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTRATA_CACHE", str(source / "below a file"))
    decode = Decode()
    cached([source], {}, decode)
    cached([source], {}, decode)
    assert decode.calls == 2
