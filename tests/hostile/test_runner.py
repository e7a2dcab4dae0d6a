from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile.runner import GIB, Outcome, Runner, complaints

MIB = 2**20


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=5) as made:
        yield made


def test_a_call_without_an_end_is_killed(tmp_path: Path) -> None:
    with Runner(seconds=1) as impatient:
        outcome = impatient.call("signal:pause", [], folder=tmp_path)
        assert outcome.killed and outcome.status == -9
        assert impatient.call("builtins:int", ["7"], folder=tmp_path).status == 0


def test_memory_is_counted_from_the_beginning_of_the_call(runner: Runner, tmp_path: Path) -> None:
    outcome = runner.call("builtins:bytearray", [300 * MIB], folder=tmp_path)
    assert 295 * MIB < outcome.peak_bytes < 320 * MIB
    assert complaints(outcome, accepted=True) == []
    assert "GiB" in complaints(outcome, accepted=True, most_memory=200 * MIB)[0]


def test_a_request_for_more_memory_than_the_ceiling_fails(runner: Runner, tmp_path: Path) -> None:
    assert "MemoryError" in runner.call("builtins:bytearray", [5 * GIB], folder=tmp_path).error


def test_what_changes_outside_the_writable_folder_is_named(runner: Runner, tmp_path: Path) -> None:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    kept = tmp_path / "outside" / "kept"
    kept.write_text("kept")

    def remove(path: Path) -> Outcome:
        writable = [tmp_path / "inside"]
        return runner.call("os:remove", [str(path)], folder=tmp_path, surroundings=tmp_path, writable=writable)

    (tmp_path / "inside" / "gone").touch()
    assert remove(tmp_path / "inside" / "gone").changed == ()
    assert remove(kept).changed == (str(kept),)


@pytest.mark.parametrize(
    "err",
    ["", "two\nlines\n", "fedstrata: one\nfedstrata: two\n", "fedstrata: \x1b[31mred\n", f"fedstrata: {'x' * 1000}\n"],
)
def test_a_message_that_is_not_one_printable_line_is_a_complaint(err: str) -> None:
    outcome = Outcome(status=2, out="", err=err, error="", killed=False, peak_bytes=0, seconds=0.1)
    assert len(complaints(outcome)) == 1
