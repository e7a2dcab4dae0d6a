import os
from pathlib import Path

from fedstrata.base.limits import MIB, file_problem, memory_problem


def test_data_may_be_a_hundred_times_as_large_in_memory_as_on_disk() -> None:
    assert memory_problem(100 * 3 * MIB, stored=3 * MIB) == ""
    assert "expected at most 100 times as many" in memory_problem(100 * 3 * MIB + 1, stored=3 * MIB)


def test_data_of_256_mib_may_take_any_space_on_disk() -> None:
    assert memory_problem(256 * MIB, stored=1) == ""
    assert memory_problem(256 * MIB + 1, stored=1) != ""


def test_no_data_are_larger_than_the_machine() -> None:
    assert "use a part of it" in memory_problem(10**18, stored=10**18)


def test_only_a_regular_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    assert file_problem(tmp_path / "file") == ""
    for name in ("", "pipe", "circle", "nothing", "a\0b"):
        assert file_problem(tmp_path / name) != ""
