from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from fedstrata.report import words

SHOWN: dict[Callable[[Any], str], dict[Any, str]] = {
    words.format_number: {0.5: "0.500", 1200: "1,200", "b": "b", None: words.DASH, nan: words.DASH},
    words.brief: {0.000123456: "0.0001235", 7: "7", None: words.DASH},
    words.size: {12: "12 B", 1500: "1.5 kB", 2.5e9: "2.5 GB", 7.2e15: "7.2e+03 TB"},
    words.duration: {None: words.DASH, 3.21: "3.2 s", 75: "1 min 15 s", 7300: "2 h 1 min"},
    words.ranges: {(7, 0, 1, 2, 4, 5): f"0{words.DASH}2, 4, 5, 7"},
    words.joined: {(): "", (1,): "1", (1, 2): "1 and 2", (1, 2, 3): "1, 2 and 3"},
    words.slug: {"Conv2d (1)": "conv2d-1", "../x": "x", "...": "x", "mean_norm": "mean-norm"},
}
"""What is shown of some values."""


@pytest.mark.parametrize("show", SHOWN)
def test_a_value_is_shown_in_few_characters(show: Callable[[Any], str]) -> None:
    assert {value: show(value) for value in SHOWN[show]} == SHOWN[show]


def test_a_count_has_its_noun() -> None:
    assert [words.plural(count, "client") for count in (1, 2)] == ["1 client", "2 clients"]


def test_a_loss_that_diverges_is_not_written_out() -> None:
    shown = [words.format_number(value) for value in (1.7071e37, -2.5e6, 999_999.0)]
    assert shown == ["1.707e+37", "-2.5e+06", "999999.000"]


def test_a_sentence_begins_with_a_capital_and_a_key_does_not() -> None:
    for key in ("data.copies = 10: a test sample", "R\u00b2"):
        assert words.capital(key) == key
    assert words.capital("training diverged") == "Training diverged" and words.capital("all") == "All"
