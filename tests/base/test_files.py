import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstrata.base.errors import RecordError
from fedstrata.base.files import (
    append_line,
    parse_json,
    read_file,
    refuse_links,
    remove_drafts,
    replace_file,
    root_folder,
    subfolder,
)


def test_a_file_is_replaced_whole_and_no_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"two, longer", b""):
        replace_file(path, content)
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def full(*given: object) -> int:
    raise OSError(28, "No space left on device")


def test_where_writing_fails_the_old_file_stays_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    writers: list[Callable[[], None]] = [lambda: replace_file(path, b"new"), lambda: append_line(path, "line\n")]
    for write in writers:
        with pytest.raises(OSError, match="No space left"):
            write()
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_half_a_line_is_taken_back_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "a", os.write
    append_line(path, "one\n")

    def three(handle: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(handle, content[:3])

    monkeypatch.setattr(os, "write", three)
    with pytest.raises(OSError, match="No space left"):
        append_line(path, "two\n")
    assert path.read_text() == "one\n"


def test_files_and_the_names_of_files_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new name is on the disk once its folder is."""
    synced, fsync = list[str](), os.fsync

    def noted(handle: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    replace_file(tmp_path / "a", b"a")
    (draft, folder), synced[:] = synced, []
    assert draft.endswith(".draft") and folder == str(tmp_path)
    append_line(tmp_path / "b", "first\n")
    append_line(tmp_path / "b", "second\n")
    assert synced == [str(tmp_path / "b"), str(tmp_path), str(tmp_path / "b")]


def test_only_the_user_may_read_what_is_private(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"", private=True)
    append_line(tmp_path / "b", "\n", private=True)
    place = subfolder(tmp_path, "c", private=True)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "b", place)] == [0o600, 0o600, 0o700]


PLACES: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.parent / "other"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", PLACES)
def test_nothing_is_read_or_appended_through_what_is_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    path = tmp_path / "a"
    PLACES[name](path)
    with pytest.raises(RecordError, match="expected a file, found "):
        append_line(path, "line\n")
    with pytest.raises(RecordError, match="expected a file, found "):
        read_file(path)
    assert (tmp_path / "other").read_text() == "kept" and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", [name for name in PLACES if name != "a folder"])
def test_what_is_no_folder_is_not_used_as_one_and_is_replaced_but_not_what_it_leads_to(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("kept")
    PLACES[name](tmp_path / "a")
    with pytest.raises(RecordError, match="expected a folder, found something else"):
        subfolder(tmp_path, "a")
    replace_file(tmp_path / "a", b"new")
    assert not (tmp_path / "a").is_symlink() and (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "other").read_text() == "kept" and not (tmp_path / "nothing").exists()


def test_a_file_with_a_second_name_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    os.link(tmp_path / "other", tmp_path / "a")
    with pytest.raises(RecordError, match="another name"):
        append_line(tmp_path / "a", "line\n")
    assert (tmp_path / "other").read_text() == "kept"


def test_the_folder_itself_may_be_a_link_and_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert root_folder(tmp_path / "link") == tmp_path / "real"
    refuse_links(tmp_path / "link", ["a", "b"])
    (tmp_path / "real" / "b").symlink_to("nothing")
    with pytest.raises(RecordError, match=r"link/b: expected a file or folder, found a link"):
        refuse_links(tmp_path / "link", ["a", "b"])
    (tmp_path / "dangling").symlink_to("nothing")
    with pytest.raises(RecordError, match="found something else"):
        root_folder(tmp_path / "dangling")


def test_drafts_that_were_left_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    for name in ("run", "elsewhere"):
        (tmp_path / name / "clients").mkdir(parents=True)
        (tmp_path / name / "clients" / ".a.0123.draft").touch()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere" / "clients")
    (tmp_path / "run" / ".b.0123.draft").touch()
    remove_drafts(tmp_path / "run")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.draft"))
    assert left == ["elsewhere/clients/.a.0123.draft"]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 10**13)
    with pytest.raises(RecordError, match=r"expected at most 1,073,741,824 bytes, found 10,000,000,000,000"):
        read_file(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "b")


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[-Infinity]",
        "1e999",
        "-1e999",
        "[-" + "9" * 5000 + "]",
        "[" * 100_000,
        '"\\ud800"',
        "{",
        "",
        b"\xff",
        "{}".encode("utf-16"),
    ],
    ids=repr,
)
def test_json_that_is_not_safe_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
