import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_layouts import isolate, noise, write_images

from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, load_dataset
from fedstrata.data.cache import cache_folder, cached
from fedstrata.data.mapped import InputWriter


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return isolate(monkeypatch, tmp_path)


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

    def __call__(self, writer: InputWriter) -> Dataset:
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


def cut(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-5])


def alter(copy: Path) -> None:
    content = bytearray(copy.read_bytes())
    known = noise(3, (1, 4, 4)).tobytes() if copy.suffix == ".inputs" else np.array([1, 0, 1]).tobytes()
    content[content.index(known)] ^= 255
    copy.write_bytes(content)


def empty(copy: Path) -> None:
    copy.write_bytes(b"")


def replace(copy: Path) -> None:
    with copy.open("wb") as file:
        np.savez(file, inputs=np.zeros(1))


@pytest.mark.parametrize("suffix", [".npz", ".inputs"])
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


def test_a_write_that_fails_leaves_nothing_behind(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("fedstrata.data.cache.np.savez", full)
    cached([source], {}, Decode())
    assert list(cache_folder().iterdir()) == []


def test_an_error_of_the_decoding_is_not_kept(source: Path) -> None:
    def broken(writer: InputWriter) -> Dataset:
        raise DataError("row 3")

    with pytest.raises(DataError, match="row 3"):
        cached([source], {}, broken)
    assert not cache_folder().exists()


def test_a_link_to_nowhere_is_named(root: Path) -> None:
    (root / "gone").symlink_to(root / "nowhere")
    with pytest.raises(DataError, match="gone cannot be read"):
        cached([root / "gone"], {}, Decode())


def test_the_folder_is_ours_then_the_users_cache_then_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTRATA_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.setenv("FEDSTRATA_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "fedstrata"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c" / ".cache" / "fedstrata"


def test_writing_into_what_was_read_does_not_reach_the_copy(source: Path) -> None:
    decode = Decode()
    cached([source], {}, decode)
    cached([source], {}, decode).inputs.zero_()
    assert torch.equal(cached([source], {}, decode).inputs, decode.dataset.inputs)


def test_load_reads_the_copy_of_a_parquet_set_and_no_image_twice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = write_images(root / "mnist")
    load_dataset("mnist", root)
    monkeypatch.setattr("fedstrata.data.images.decode", None)
    assert np.array_equal(load_dataset("mnist", root).inputs.numpy(), pixels)
