import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from data_layouts import write, write_images

from fedstrata.base.errors import DataError
from fedstrata.data import find, has_own_test


def hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> list[dict[str, Any]]:
    """Stand in for the hub's client; returns the calls that it gets."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(**options: Any) -> str:
        calls.append(options)
        return download(options["local_files_only"])

    client = ModuleType("huggingface_hub")
    client.snapshot_download = snapshot_download  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return calls


def test_the_experiments_root_comes_before_the_environments(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "other"))
    write_images(tmp_path / "other" / "mnist")
    assert find("mnist", root).train[0].is_relative_to(tmp_path / "other")
    write_images(root / "mnist")
    assert find("mnist", root).train[0].is_relative_to(root)
    assert find("mnist").train[0].is_relative_to(tmp_path / "other")


@pytest.mark.parametrize("inner", [".", "data", "plain_text"])
def test_files_are_found_in_the_folder_its_data_or_its_only_configuration(root: Path, inner: str) -> None:
    write_images(root / "cifar10" / inner, (3, 32, 32), "img")
    write_images(root / "cifar10" / inner, (3, 32, 32), "img", split="test")
    location = find("cifar10", root)
    assert [file.name for file in location.train] == ["train-00000-of-00001.parquet"]
    assert [file.name for file in location.test] == ["test-00000-of-00001.parquet"]


def test_the_registry_chooses_between_the_configurations_of_a_set(root: Path) -> None:
    write_images(root / "svhn" / "cropped_digits", (3, 32, 32))
    write_images(root / "svhn" / "full_numbers", (3, 32, 32))
    assert find("svhn", root).train[0].parent.name == "cropped_digits"


def test_shards_come_in_order_and_none_may_be_missing(root: Path) -> None:
    files = [write(root / "mine" / f"train-{i:05}-of-00003.parquet", {"x": [1]}) for i in (2, 0, 1)]
    assert find("mine", root).train == tuple(sorted(files))
    files[2].unlink()
    with pytest.raises(DataError, match="holds 2 of the 3 files"):
        find("mine", root)


def test_a_path_is_used_directly_and_a_known_name_never_means_a_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(root / "mnist")
    monkeypatch.chdir(root)
    assert find(str(root / "mnist")).info is None
    assert find("./mnist").train
    with pytest.raises(DataError, match=r"neither data.root nor FEDSTRATA_DATA is set"):
        find("mnist")


def test_an_npz_file_says_by_its_arrays_whether_it_has_a_test_split(root: Path) -> None:
    np.savez(root / "plain.npz", x=np.zeros((2, 1)), y=np.zeros(2, int))
    np.savez(root / "both.npz", x=np.zeros((2, 1)), y=np.zeros(2, int), x_test=np.zeros((1, 1)), y_test=[0])
    assert not has_own_test(find("plain.npz", root))
    assert has_own_test(find(str(root / "both.npz")))


def test_a_missing_set_says_where_was_looked_and_what_to_do_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "other"))
    with pytest.raises(DataError) as caught:
        find("mnist", root)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        str(root / "mnist"),
        str(tmp_path / "other" / "mnist"),
        "data.root",
        "FEDSTRATA_DATA",
        "fedstrata[hub]",
    ):
        assert part in message


def test_a_file_that_is_there_and_not_read_is_not_called_missing(root: Path) -> None:
    (root / "one.tsv").write_text("a\tlabel\n1\t2\n")
    with pytest.raises(DataError, match=r"one.tsv': nothing that is read is in .* others are a file"):
        find(str(root / "one.tsv"))


def test_the_hubs_cached_copy_is_used_without_a_network(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_images(tmp_path / "copy" / "mnist")
    write_images(tmp_path / "copy" / "mnist", split="test")
    calls = hub(monkeypatch, lambda cached: str(tmp_path / "copy"))
    assert find("mnist", root).train[0].is_relative_to(tmp_path / "copy")
    assert [call["local_files_only"] for call in calls] == [True]
    assert calls[0]["repo_id"] == "ylecun/mnist"
    assert calls[0]["repo_type"] == "dataset"
    assert "*train-*.parquet" in calls[0]["allow_patterns"]


def test_what_is_not_cached_is_downloaded(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(cached: bool) -> str:
        if cached:
            raise FileNotFoundError("not cached")
        write_images(tmp_path / "copy" / "cropped_digits", (3, 32, 32))
        write_images(tmp_path / "copy" / "cropped_digits", (3, 32, 32), split="test")
        return str(tmp_path / "copy")

    calls = hub(monkeypatch, download)
    assert find("svhn", root).test
    assert [call["local_files_only"] for call in calls] == [True, False]
    assert "cropped_digits/train-*.parquet" in calls[0]["allow_patterns"]


def test_without_a_network_the_error_is_one_clear_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(cached: bool) -> str:
        raise OSError("Got: ConnectError: name not known\nAn error happened while trying to locate the files")

    hub(monkeypatch, download)
    with pytest.raises(DataError) as caught:
        find("mnist", root)
    message = str(caught.value)
    assert "ylecun/mnist could not be downloaded (Got: ConnectError: name not known)" in message
    assert "\n" not in message
