from pathlib import Path

import pytest

from fedstrata.base.quoting import dotted, one_line, printable, shown, without_paths


def test_a_long_value_is_cut_to_sixty_characters() -> None:
    assert shown("a" * 1_000_000) == "'" + "a" * 56 + "..."
    assert shown(True) == "true"
    assert shown(10**5000) == "(int, too long to be shown)"


def test_a_key_stays_on_one_line_however_strange_its_parts_are() -> None:
    assert dotted(["data", "a\nb", ""]) == r"data.'a\nb'.''"
    assert dotted(list("abcdefghij")) == "a.b.c.d.....h.i.j"


def test_what_a_terminal_would_obey_is_written_as_an_escape() -> None:
    assert printable("\x1b[31m\x00é\u202e\udcff") == r"\x1b[31m\x00é\u202e\udcff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\r\nof a log", "two lines of a log"),
        ("\x1b[31mred\x1b[0m \x07bell", "[31mred [0m bell"),
        ("a\u2028b\u2029c\x85d\x0be", "a b c d e"),
        ("left\u202eright\u2066 \u200bzero\ufeff", "left right zero"),
        ("nul\x00 and \ud800 alone", "nul and alone"),
        ("  spaces   go ", "spaces go"),
        ("Zürich, 東京", "Zürich, 東京"),
    ],
)
def test_what_could_forge_or_hide_a_line_of_a_log_becomes_a_space(text: str, shown: str) -> None:
    assert one_line(text) == shown and "\n" not in one_line(text)


def test_a_long_text_is_cut_before_it_is_looked_at() -> None:
    assert one_line("x" * 10**6) == "x" * 300
    assert one_line("\n" * 10**6 + "x") == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("data set '/srv/patients of may/anna.npz' not found", "data set 'anna.npz' not found"),
        ("/home/anna/data.npz: expected samples", "data.npz: expected samples"),
        ("[Errno 13] Permission denied: '/secret/anna.csv'", "[Errno 13] Permission denied: 'anna.csv'"),
        (r"C:\Users\anna\data.npz: expected samples", "data.npz: expected samples"),
        (r"\\server\share\anna.npz is gone", "anna.npz is gone"),
        ("~/data/x.npz and (/srv/x/y)", "x.npz and (y)"),
        ("/srv/data/", "data"),
        ("see https://flower.ai/docs/a, 1/2, and/or", "see https://flower.ai/docs/a, 1/2, and/or"),
    ],
)
def test_of_a_path_its_last_part_is_told(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def test_a_path_that_is_known_may_have_spaces_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "two words" / "x.npz"
    assert without_paths(f"{path}: expected samples", [path]) == "x.npz: expected samples"
    assert without_paths("data.npz is relative", [Path("data.npz")]) == "data.npz is relative"


def test_a_quote_without_an_end_takes_no_time() -> None:
    """A device may send one of many megabytes; each character of it once cost a look at all others."""
    text = "'/" + "a" * 2**22
    assert without_paths(f"expected no part {text}").endswith("aaa")
