"""Samples on the disk are those in memory, in every form that data come in, whatever the blocks that are read."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from data_layouts import encode, noise, recordings, structs, write, write_images
from pyarrow import csv

from fedstrata.base import limits
from fedstrata.base.errors import DataError
from fedstrata.data import Dataset, ReadOptions, find, has_own_test, load_both, load_dataset
from fedstrata.data.cache import cache_folder
from fedstrata.data.mapped import MappedInputs

ROWS = 23
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are many blocks."""
    monkeypatch.setattr("fedstrata.data.csv_files._BLOCK_BYTES", 1500)
    monkeypatch.setattr("fedstrata.data.tables.ROWS_BYTES", 100)
    monkeypatch.setattr("fedstrata.data.tables.ROWS", 4)
    monkeypatch.setattr("fedstrata.data.mapped.BLOCK_SAMPLES", 5)


def table(rows: int = ROWS, **more: Any) -> Any:
    """Numbers whose type is known after some rows only, texts, dates and missing numbers."""
    mixed = [1.0] * (rows - 2) + [0.5, 2.0]
    columns = {
        "a": RNG.normal(size=rows),
        "whole": np.arange(rows),
        "label": np.array(["x", "y", "z"])[np.arange(rows) % 3],
        "site": np.arange(rows) // 6,
        "age_id": pa.array([None, *range(rows - 1)]),
        "note_id": ["7"] * (rows - 1) + ["seven"],
        "date": ["2024-05-01"] * rows,
        "patient_id": ["12"] * (rows - 1) + ["007"],
    }
    return pa.table({**columns, "mixed": mixed, **more})


def columns(content: Any) -> dict[str, Any]:
    return dict(zip(content.column_names, content.columns, strict=True))


def write_csv(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    csv.write_csv(content, file)


def one_csv(root: Path) -> dict[str, Any]:
    write_csv(root / "all.csv", table())
    return {"name": root / "all.csv"}


def wide_csv_per_client(root: Path) -> dict[str, Any]:
    for name in ("Ghent", "Lyon"):
        more: dict[str, Any] = {f"f{place}": RNG.normal(size=ROWS) for place in range(40)}
        write_csv(root / "sites" / f"{name}.csv", table(**more))
    return {"name": root / "sites"}


def split_column(root: Path) -> dict[str, Any]:
    split = np.array(["train", "test"])[(np.arange(ROWS) % 4 == 1).astype(int)]
    write(root / "all.parquet", columns(table(split=split)))
    return {"name": root / "all.parquet"}


def csv_per_client(root: Path) -> dict[str, Any]:
    for name in ("Ghent", "Lyon"):
        write_csv(root / "sites" / "train" / f"{name}.csv", table())
    write_csv(root / "sites" / "test" / "Lyon.csv", table(9))
    return {"name": root / "sites", "label": "label", "inputs": ("whole", "a")}


def parquet_per_client(root: Path) -> dict[str, Any]:
    # One client has whole numbers only.
    for name, kind in (("Ghent", np.int64), ("Lyon", np.float64)):
        own = {"a": np.arange(ROWS).astype(kind), "b": RNG.normal(size=ROWS), "y": np.arange(ROWS) % 2}
        write(root / "sites" / f"{name}.parquet", own)
    return {"name": root / "sites"}


def archive_per_client(root: Path) -> dict[str, Any]:
    (root / "sites").mkdir()
    for name in ("Ghent", "Lyon"):
        x = RNG.integers(0, 256, (ROWS, 4, 4), dtype=np.uint8)
        np.savez(root / "sites" / f"{name}.npz", x=x, y=np.arange(ROWS) % 2, trial=np.arange(ROWS) // 4)
    return {"name": root / "sites"}


def archive(root: Path) -> dict[str, Any]:
    x = RNG.normal(size=(ROWS, 2, 12))
    np.savez(root / "all.npz", inputs=x, labels=x[:, 0, 0], inputs_test=x[:5], labels_test=x[:5, 0, 0])
    return {"name": root / "all.npz"}


def compressed_images(root: Path) -> dict[str, Any]:
    np.savez_compressed(root / "all.npz", x=noise(ROWS, (8, 8, 3)), y=np.arange(ROWS) % 2)
    return {"name": root / "all.npz"}


def image_column(root: Path) -> dict[str, Any]:
    write_images(root / "set", (3, 8, 8), labels={"label": [0, 1] * 9})
    write_images(root / "set", (3, 8, 8), labels={"label": [0, 1] * 3}, split="test", seed=1)
    return {"name": root / "set"}


def grey_then_colour(root: Path) -> dict[str, Any]:
    pixels = [*noise(7, (1, 8, 8)), *noise(4, (3, 8, 8)), *noise(3, (1, 8, 8))]
    write(root / "all.parquet", {"image": structs([encode(one) for one in pixels]), "label": np.arange(14) % 2})
    return {"name": root / "all.parquet"}


def lists(root: Path) -> dict[str, Any]:
    write(root / "set" / "train.parquet", {"x": list(RNG.normal(size=(ROWS, 5))), "y": RNG.normal(size=ROWS)})
    return {"name": root / "set"}


def windows(root: Path) -> dict[str, Any]:
    own = recordings((40, 9, 33, 71))
    write(root / "all.parquet", own)
    return {"name": root / "all.parquet", "window": 16, "step": 5, "label": "activity"}


def features(root: Path) -> dict[str, Any]:
    for split, rows in (("train", ROWS), ("test", 9)):
        write(root / "set" / f"{split}.parquet", columns(table(rows)))
    return {"name": root / "set"}


def photos(root: Path) -> dict[str, Any]:
    for split, count in (("train", 12), ("test", 5)):
        for place in range(count):
            folder = root / "photos" / split / ("Ghent", "Lyon")[place % 2] / ("cat", "dog")[place % 3 > 0]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{place}.png").write_bytes(encode(noise(1, (1 if place < 4 else 3, 9, 7), place)[0]))
    return {"name": root / "photos", "size": 8}


LAYOUTS = (
    one_csv,
    wide_csv_per_client,
    split_column,
    csv_per_client,
    parquet_per_client,
    archive_per_client,
    archive,
    compressed_images,
    image_column,
    grey_then_colour,
    lists,
    windows,
    features,
    photos,
)


def load(keys: dict[str, Any], memory: Any, split: Any = "train") -> Dataset:
    options = {key: value for key, value in keys.items() if key != "name"}
    return load_dataset(str(keys["name"]), split=split, options=ReadOptions(memory=memory, **options))


def load_all(keys: dict[str, Any], memory: Any) -> Dataset:
    options = {key: value for key, value in keys.items() if key != "name"}
    both, tests = load_both(str(keys["name"]), options=ReadOptions(memory=memory, **options))
    assert len(both) == len(load(keys, memory)) + tests
    return both


def same(one: Dataset, other: Dataset) -> None:
    """Every field, and what a network reads, in every bit and in the same memory layout."""
    for field in fields(Dataset):
        first, second = (getattr(each, field.name) for each in (one, other))
        if field.name == "columns":
            assert list(first) == list(second)
            for name in first:
                assert first[name].dtype == second[name].dtype
                np.testing.assert_array_equal(first[name], second[name])
        elif isinstance(first, torch.Tensor) and field.name != "inputs":
            assert torch.equal(first, second)
        elif field.name != "inputs":
            assert first == second, field.name
    index = torch.from_numpy(np.random.default_rng(1).permutation(len(one)))
    for part in (index, index[:1]):
        read = [each.channels_last().prepare(part) for each in (one, other)]
        assert torch.equal(*read) and read[0].stride() == read[1].stride() and read[0].dtype == read[1].dtype


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_on_the_disk_are_those_in_memory(layout: Callable[[Path], dict[str, Any]], root: Path) -> None:
    keys = layout(root)
    in_memory, on_disk = load(keys, "ram"), load(keys, "disk")
    assert on_disk.on_disk and not in_memory.on_disk
    same(in_memory, on_disk)
    # What was converted is read again, from the same file.
    again = load(keys, "disk")
    assert again.inputs.path == on_disk.inputs.path
    same(in_memory, again)
    if has_own_test(find(str(keys["name"]))):
        same(load(keys, "ram", "test"), load(keys, "disk", "test"))
        both = [load_all(keys, memory) for memory in ("ram", "disk")]
        assert both[1].on_disk
        same(*both)
        some = np.arange(len(both[0])) % 3 == 0
        same(*(each.rows(some) for each in both))
        same(*(each.rows(some).rows(np.array([2, 0, 1])) for each in both))
    assert not list(cache_folder().glob("*.partial")) and not list(cache_folder().glob("tmp*"))


def test_images_are_resized_and_tokens_are_whole_numbers_on_the_disk_too(root: Path) -> None:
    keys = image_column(root)
    same(*(load(keys, memory).resized(13) for memory in ("ram", "disk")))
    np.savez(root / "tokens.npz", x=RNG.integers(0, 9, (ROWS, 5)), y=np.arange(ROWS) % 2)
    keys = {"name": root / "tokens.npz"}
    same(*(load(keys, memory).as_tokens() for memory in ("ram", "disk")))
    with pytest.raises(DataError, match=r"data.tokens = true: expected samples of .* that are rows of whole numbers"):
        load(archive(root), "disk").as_tokens()


@pytest.mark.parametrize("layout", [wide_csv_per_client, archive, image_column, photos])
def test_samples_that_take_too_much_memory_are_left_on_the_disk(
    layout: Callable[[Path], dict[str, Any]], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = layout(root)
    assert not load(keys, "auto").on_disk
    monkeypatch.setattr(limits, "DATA_BYTES", 2000)
    found = load(keys, "auto")
    assert found.on_disk
    with pytest.raises(DataError, match=r"in memory; expected at most 2,000; leave .* data.memory = 'disk'"):
        load(keys, "ram")
    monkeypatch.undo()
    same(load(keys, "ram"), found)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_converted_file_that_is_gone_or_cut_is_made_again_and_named_by_who_has_it_open(
    damage: Callable[[Path], Any], root: Path
) -> None:
    keys = one_csv(root)
    inputs = load(keys, "disk").inputs
    assert isinstance(inputs, MappedInputs)
    damage(inputs.path)
    with pytest.raises(DataError, match=r"expected the converted inputs of a data set .*; run again"):
        replace(inputs).rows.sum()
    same(load(keys, "ram"), load(keys, "disk"))
