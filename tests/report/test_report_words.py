from math import nan

import pytest

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


def test_a_sentence_begins_with_a_capital_and_leaves_names_as_they_are() -> None:
    assert words.capital("node 0 split on Conv1") == "Node 0 split on Conv1"


def test_every_threshold_and_every_measure_is_explained() -> None:
    assert set(words.THRESHOLDS) | set(words.THRESHOLDS.values()) <= set(words.METRICS)
    assert set(words.COMPARABLE) | set(words.SIMILARITIES) <= set(words.COMPARED_BY)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "split", "node": 1, "into": [2, 3], "layer": "fc"}, "node 1 split into 2 and 3 on fc"),
        ({"kind": "rejected", "reason": "not finite"}, "a number in the answer is not finite"),
        ({"kind": "rejected", "reason": "negative variance"}, "of a normalisation layer would be negative"),
        ({"kind": "diverged", "reason": "loss", "loss": None, "guessing": 2.3}, "loss is not finite; guessing has 2.3"),
        ({"kind": "reversed", "clients": [1]}, "they are not in its mean until they point forwards"),
        ({"kind": "doubted", "clients": [1]}, "these are split off, and others go on without them"),
        ({"kind": "oversized", "clients": [1]}, "much longer than those of the cluster; they are not in its mean"),
        ({"kind": "clipped", "clients": [1]}, "they count as if they were twice as long"),
        ({"kind": "copied", "clients": [1]}, "the same update as another client of the cluster, which counts once"),
        ({"kind": "multi_round", "node": 0}, "are trained beside one for all for some rounds, and compared then"),
        ({"kind": "multi_round_given_up", "node": 0}, "too few clients answered, or a model diverged"),
        ({"kind": "drifted", "clients": [1]}, "as when data change; all models are offered in the next round"),
        ({"kind": "join", "clients": [1]}, ""),
    ],
)
def test_an_event_is_described_where_its_keys_do_not_say_it(event: dict[str, object], text: str) -> None:
    assert words.event_text(event).endswith(text)
