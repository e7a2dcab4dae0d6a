import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.core import Score
from fedstrata.records import Folder
from fedstrata.records.changed_labels import MANY_CLIENTS, ClusterLabels, completed, shortened
from fedstrata.records.schema import parse_rounds
from fedstrata.report.reader import read_rounds

N = MANY_CLIENTS + 1
SCORE = Score(torch.tensor([5]), torch.tensor([1]), torch.tensor([4]), torch.tensor([0.5]))


def record_of(round: int, labels: list[int], pending: list[int]) -> dict[str, Any]:
    """A finished round."""
    measures = ("acc_client", "acc_weighted", "acc_cluster", "acc_worst", "loss", "ari", "seconds")
    lists: dict[str, list[int]] = {name: [] for name in ("cohort", "absent", "rejected", "events", "metrics")}
    counts = {"round": round, "clusters": 2, "bytes_down": 8, "bytes_up": 8}
    return {**counts, **dict.fromkeys(measures, 0.5), **lists, "labels": labels, "pending": pending}


def split_run() -> list[dict[str, Any]]:
    """All in node 0; then clients 3 to 7 and 9 are in node 2, and all others wait; then client 0 is in node 1."""
    moved = [2 if 3 <= client <= 7 or client == 9 else 0 for client in range(N)]
    waiting = [client for client, node in enumerate(moved) if node == 0]
    return [
        record_of(1, [0] * N, []),
        record_of(2, moved, waiting),
        record_of(3, [1, *moved[1:]], waiting[1:]),
        record_of(4, [1, *moved[1:]], waiting[1:]),
    ]


def written(path: Path, records: list[dict[str, Any]]) -> Folder:
    folder = Folder(path / "run")
    folder.create("seed = 0\n")
    for record in records:
        folder.add(record, SCORE)
    return folder


def test_a_line_of_many_clients_has_what_changed(tmp_path: Path) -> None:
    folder = written(tmp_path, split_run())
    first, second, third, fourth = (json.loads(line) for line in folder.log.lines())
    assert first["labels"] == [0] * N and first["pending"] == []
    assert second["labels_changed"] == [[2, 3, 7], [2, 9, 9]] and "labels" not in second
    assert second["pending_changed"] == [[1, 0, 2], [1, 8, 8], [1, 10, N - 1]] and "pending" not in second
    assert third["labels_changed"] == [[1, 0, 0]] and third["pending_changed"] == [[0, 0, 0]]
    assert fourth["labels_changed"] == [] == fourth["pending_changed"]


def test_every_reader_of_the_lines_sees_whole_lists(tmp_path: Path) -> None:
    folder = written(tmp_path, split_run())
    assert folder.rounds() == split_run()
    read = read_rounds(folder.path, [])
    assert [list(each.labels) for each in read] == [each["labels"] for each in split_run()]
    assert [list(each.pending) for each in read] == [each["pending"] for each in split_run()]
    # A thousand rounds without a change need the memory of one.
    assert read[3].labels is read[2].labels and read[3].pending is read[2].pending


def test_up_to_a_thousand_clients_every_line_has_whole_lists(tmp_path: Path) -> None:
    n = MANY_CLIENTS
    folder = written(tmp_path, [record_of(1, [0] * n, []), record_of(2, [0] * n, [])])
    assert [json.loads(line)["labels"] for line in folder.log.lines()] == [[0] * n] * 2


def test_whole_lists_are_written_where_changes_are_longer(tmp_path: Path) -> None:
    """Of clients that go to and fro every second one changes: 3 numbers a client are more than 1."""
    other = [client % 2 for client in range(N)]
    waits = list(range(0, N, 2))
    folder = written(tmp_path, [record_of(1, [0] * N, []), record_of(2, other, waits)])
    line = json.loads(folder.log.lines()[1])
    assert line["labels"] == other and line["pending"] == waits


def test_a_run_of_an_earlier_version_goes_on_with_changes(tmp_path: Path) -> None:
    records = split_run()
    folder = written(tmp_path, records[:1])
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(records[1]) + "\n")
    later = Folder(folder.path)
    later.add(records[2], SCORE)
    assert later.rounds() == records[:3]
    assert "labels_changed" in json.loads(later.log.lines()[2])


def test_lines_after_a_rewind_are_those_of_an_unbroken_run(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", split_run())
    other = [*split_run()[:2], record_of(3, [2] * N, [])]
    broken = written(tmp_path / "broken", other)
    broken.rewind(3)  # round 3 is still without scores in the checkpoint of round 3
    for record in split_run()[2:]:
        broken.add(record, SCORE)
    assert broken.log.lines() == whole.log.lines() and broken.log.digest == whole.log.digest


DAMAGED: dict[str, Any] = {
    "a client that is not there": [[1, 0, N]],
    "a client twice": [[1, 0, 5], [2, 5, 6]],
    "the other way round": [[1, 5, 3]],
    "a negative client": [[1, -1, 3]],
    "no node": [[-2, 0, 0]],
    "a truth value": [[True, 0, 0]],
    "a fraction": [[1.0, 0, 0]],
    "two numbers": [[1, 0]],
    "no rows": [1, 0, 0],
    "no list": {"1": [0, 0]},
}


@pytest.mark.parametrize("rows", DAMAGED.values(), ids=DAMAGED)
def test_damaged_changes_are_refused(rows: Any) -> None:
    records = split_run()
    line = {**shortened(records[1], ClusterLabels.of(records[0])), "labels_changed": rows}
    with pytest.raises(ValueError, match="a row in labels_changed that is not a value"):
        completed(line, ClusterLabels.of(records[0]))


def test_a_client_waits_or_not() -> None:
    records = split_run()
    line = {**shortened(records[1], ClusterLabels.of(records[0])), "pending_changed": [[2, 0, 0]]}
    with pytest.raises(ValueError, match="a row in pending_changed"):
        completed(line, ClusterLabels.of(records[0]))


def test_changes_to_a_line_that_is_missing_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, split_run())
    lines = folder.log.lines()
    with pytest.raises(ValueError, match=r"line 2 of rounds\.jsonl has changes to the round before"):
        parse_rounds([lines[0], lines[2]])
    with pytest.raises(ValueError, match=r"line 1 of rounds\.jsonl has changes to the round before"):
        parse_rounds(lines[1:])


@given(st.lists(st.lists(st.sampled_from([-1, 0, 1, 7]), min_size=4, max_size=4), min_size=2, max_size=5), st.data())
def test_whatever_changes_comes_back(blocks: list[list[int]], data: st.DataObject) -> None:
    before: ClusterLabels | None = None
    known: ClusterLabels | None = None
    for round, block in enumerate(blocks, start=1):
        spread = data.draw(st.lists(st.integers(0, N - 1), max_size=30, unique=True))
        labels = [block[client * 4 // N] for client in range(N)]
        for client in spread:
            labels[client] = 9
        record = record_of(round, labels, sorted(spread))
        whole = completed(dict(shortened(record, before)), known)
        assert whole == record
        before, known = ClusterLabels.of(record), ClusterLabels.of(whole)
