from math import nan

from fedstrata.report import words


def test_numbers_are_shown_with_their_unit() -> None:
    assert [words.format_number(value) for value in (0.5, 1200, "b", None, nan)] == [
        "0.500",
        "1,200",
        "b",
        words.DASH,
        words.DASH,
    ]
    assert [words.brief(value) for value in (0.000123456, 7, None)] == ["0.0001235", "7", words.DASH]
    assert [words.size(count) for count in (12, 1500, 2.5e9, 7.2e15)] == ["12 B", "1.5 kB", "2.5 GB", "7.2e+03 TB"]
    assert [words.duration(value) for value in (None, 3.21, 75, 7300)] == [
        words.DASH,
        "3.2 s",
        "1 min 15 s",
        "2 h 1 min",
    ]
    assert words.ranges([7, 0, 1, 2, 4, 5]) == f"0{words.DASH}2, 4, 5, 7"
    assert [words.plural(count, "client") for count in (1, 2)] == ["1 client", "2 clients"]


def test_a_loss_that_diverges_is_not_written_out() -> None:
    assert [words.format_number(value) for value in (1.7071e37, -2.5e6, 999_999.0)] == [
        "1.707e+37",
        "-2.5e+06",
        "999999.000",
    ]


def test_a_sentence_begins_with_a_capital_and_a_key_does_not() -> None:
    texts = ("training diverged", "data.copies = 10: a test sample", "R\u00b2", "all")
    assert [words.capital(text) for text in texts] == [
        "Training diverged",
        "data.copies = 10: a test sample",
        "R\u00b2",
        "All",
    ]


def test_a_list_has_an_and_before_its_last() -> None:
    assert [words.joined(items) for items in ([], [1], [1, 2], [1, 2, 3])] == ["", "1", "1 and 2", "1, 2 and 3"]


def test_a_name_becomes_part_of_a_files_name() -> None:
    assert [words.slug(name) for name in ("Conv2d (1)", "../x", "...", "mean_norm")] == [
        "conv2d-1",
        "x",
        "x",
        "mean-norm",
    ]
