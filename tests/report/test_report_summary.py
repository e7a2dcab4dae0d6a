import json
import re
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from synthetic_run import write

from fedstrata.report import words
from fedstrata.report.groups import Groups
from fedstrata.report.read import read
from fedstrata.report.records import Records
from fedstrata.report.summary import described, sentence, tiles, title


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return read(write(tmp_path / "run"))


def told(records: Records) -> str:
    return sentence(Groups(records))


def test_the_sentence_says_groups_accuracy_and_what_one_model_would_have_given(records: Records) -> None:
    beside = replace(records, one_model=0.333)
    assert told(beside).startswith(
        "20 clients fell into 4 groups by round 9; accuracy 0.86 against 0.33 for one model, worst client 0.78;"
    )
    assert ("One model", "0.333", "mean accuracy of FedAvg in the run beside this one") in tiles(Groups(beside))
    assert "one model" not in told(records).lower()


def test_the_sentence_tells_what_is_known(tmp_path: Path) -> None:
    records = read(write(tmp_path / "run", count=8, finished=False))
    assert "(1 still waiting to be placed)" in told(records)
    plain = [replace(each, acc_worst=None, ari=None, pending=[]) for each in records.rounds]
    unplanned = replace(records, settings={}, rounds=tuple(plain))
    assert re.fullmatch(r"After 8 rounds, 20 clients are in 4 groups; accuracy 0\.\d\d\.", told(unplanned))
    silent = replace(unplanned, rounds=tuple(replace(each, acc_client=None) for each in plain))
    assert told(silent) == "After 8 rounds, 20 clients are in 4 groups."
    assert title(unplanned) == "run"
    lone = replace(silent, rounds=(replace(plain[0], labels=[0], acc_client=None),))
    assert told(lone) == "After 1 round, 1 client is in 1 group."


def test_one_group_is_one_that_everybody_stayed_in(records: Records) -> None:
    whole = tuple(replace(each, clusters=1, labels=[0] * 20) for each in records.rounds)
    assert told(replace(records, rounds=whole)).startswith("20 clients stayed in one group; accuracy")


def test_a_method_that_never_groups_does_not_speak_of_groups(records: Records) -> None:
    root = replace(records.tree[0], split=None, why="", layer=None, criteria={})
    alone = replace(
        records, tree=(root,), rounds=tuple(replace(each, clusters=1, labels=[0] * 20) for each in records.rounds)
    )
    assert told(alone) == "20 clients; accuracy 0.86, worst client 0.78."
    assert {"ARI", "Purity", "By cluster"}.isdisjoint(name for name, *_ in tiles(Groups(alone)))
    assert told(replace(alone, summary=None)).startswith("After 30 of 30 rounds, 20 clients; accuracy")
    told_why = replace(alone, tree=(replace(root, why="nobody differs"),))
    assert "stayed in one group" in told(told_why), "an algorithm that says why it did not split does group"


def test_every_other_way_of_using_the_models_has_a_tile(records: Records) -> None:
    last = replace(records.rounds[-1], others={"global": 0.25})
    shown = tiles(Groups(replace(records, rounds=(*records.rounds[:-1], last))))
    assert ("Global", "0.250", "mean accuracy with the global model") in shown


def test_data_that_was_sent_counts_as_traffic(records: Records) -> None:
    summary = {**(records.summary or {}), "bytes_data": 55_000, "bytes_down": 0, "bytes_up": 0}
    shown = {name: (figure, text) for name, figure, text in tiles(Groups(replace(records, summary=summary)))}
    assert shown["Traffic"] == ("55 kB", "55 kB of data, sent once; 0 B of tensors")


def test_an_unfinished_run_counts_its_own_rounds(records: Records) -> None:
    shown = {name: figure for name, figure, _ in tiles(Groups(replace(records, summary=None)))}
    assert shown["Traffic"] == words.size(30 * 9_600_000 - 480_000)
    assert shown["Time"] == words.duration(sum(each.seconds or 0 for each in records.rounds))


def test_the_experiment_is_described_by_what_it_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "run")
    assert described(read(folder)) == [
        ("partition", "rotation"),
        ("model", "mlp"),
        ("seed", "3"),
        ("rounds", "30 of 30"),
    ]
    (folder / "experiment.toml").write_text("", encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps({}))
    assert described(read(folder)) == [("rounds", "30")]


def test_figures_read_as_people_write_them() -> None:
    assert [words.number(value) for value in (0.5, 1200, "b", None, nan)] == [
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


def test_a_list_has_an_and_before_its_last() -> None:
    assert [words.listed(items) for items in ([], [1], [1, 2], [1, 2, 3])] == ["", "1", "1 and 2", "1, 2 and 3"]


def test_a_name_becomes_part_of_a_files_name() -> None:
    assert [words.slug(name) for name in ("Conv2d (1)", "../x", "...", "mean_norm")] == [
        "conv2d-1",
        "x",
        "x",
        "mean-norm",
    ]


def test_a_sentence_begins_with_a_capital_and_leaves_names_as_they_are() -> None:
    assert words.capital("node 0 split on Conv1") == "Node 0 split on Conv1"
    assert words.measure("dcos") == "Cosine similarity of the updates"
    assert words.measure("own") == "own"
