import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import edit, edit_nodes, edit_rounds, write

from fedstrata.base.errors import RecordError
from fedstrata.report import reader, runs
from fedstrata.report.reader import read
from fedstrata.report.runs import find_runs


def test_a_whole_folder_is_read_without_a_note(folder: Path) -> None:
    records = read(folder)
    assert records.notes == ()
    assert [each.round for each in records.rounds] == list(range(1, 13))
    assert len(records.tree) == 7
    assert records.scores[12].samples.tolist() == [100 + client for client in range(20)]
    assert {gap.measure for gap in records.gaps[12]} == {"dcos", "dl2"}


def instead(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Other content of a file; None is no file."""
    return lambda folder: (folder / name).unlink() if content is None else (folder / name).write_bytes(content)


def second_line_cut(folder: Path) -> None:
    first, second, *rest = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join([first, second[:30] + b"\n", *rest]))


def table_as_folder(folder: Path) -> None:
    (folder / "experiment.toml").unlink()
    (folder / "experiment.toml").mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "no folder at .*run; name one"),
        (instead("experiment.toml", None), r"holds no experiment\.toml"),
        (instead("experiment.toml", b"seed ="), "is not TOML"),
        (instead("experiment.toml", b"\xff\xfe"), "is not TOML"),
        (table_as_folder, "expected a file, found something else in its place"),
        (instead("rounds.jsonl", None), r"holds no rounds\.jsonl"),
        (second_line_cut, r"line 2 of rounds\.jsonl: "),
        (lambda folder: edit_rounds(folder, lambda line: {"round": 5}), r"line 1 of rounds\.jsonl is of round 5"),
        (lambda folder: edit_rounds(folder, lambda line: {"labels": "0, 1"}), "labels: input should be a valid list"),
        (instead("rounds.jsonl", b'{"round": 1}\n'), "seconds: field required"),
        (instead("rounds.jsonl", b"[1]\n"), "line 1 .*: input should be a valid dictionary"),
    ],
)
def test_what_is_no_run_is_one_line(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(RecordError, match=message) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_a_cut_off_last_line_is_left_out_and_remembered(folder: Path) -> None:
    file = folder / "rounds.jsonl"
    whole = file.read_bytes()
    for content, rounds in (
        (whole[:-40], 11),
        (whole + '{"round": 13, "why": "\N{EN DASH}'.encode()[:-1], 12),  # cut off inside a letter
        (b'{"round": 1, "sec', 0),
    ):
        file.write_bytes(content)
        records = read(folder)
        assert len(records.rounds) == rounds
        cut = f"The last line of rounds.jsonl is cut off, so round {rounds + 1} is missing from this page."
        assert cut in records.notes


def predicted(**columns: list[int] | list[float]) -> Callable[[Path], object]:
    """A file of predictions; by default of clients 0 and 1."""
    numbers = {"truth": [0.0, 1.0, 1.0], "predicted": [0.0, 0.0, 1.0]}
    found = {"client": [0, 0, 1], "sample": [0, 1, 2], "unit": [0, 1, 2], **numbers}
    table = pa.table({**found, "score": [0.0] * 3, **columns})
    return lambda folder: pq.write_table(table, folder / "predictions.parquet")


def second_node(**changes: int) -> Callable[[Path], object]:
    return lambda folder: edit_nodes(folder, lambda node: changes if node["id"] == 1 else {})


def unfitting_matrix(folder: Path) -> None:
    entries: dict[str, Any] = {"3|l2|fc": np.eye(3), "3|l2|fc|clients": np.arange(2)}
    np.savez(folder / "matrices" / "00010.npz", **entries)


def without_scores(folder: Path) -> None:
    for number in (2, 3, 4, 9):
        (folder / "clients" / f"{number:05d}.parquet").unlink()


@pytest.mark.parametrize(
    ("damage", "lost", "note"),
    [
        (instead("tree.json", b"["), "tree", "tree.json cannot be read, so this page is without it."),
        (instead("tree.json", b'[{"id": 0}]'), "tree", "tree.json cannot be read, so this page is without it."),
        (instead("tree.json", None), "tree", "tree.json is missing, so this page is without it."),
        # A walk over these trees would go in circles.
        (second_node(id=5), "tree", "tree.json cannot be read, so this page is without it."),
        (second_node(parent=1), "tree", "tree.json cannot be read, so this page is without it."),
        (second_node(parent=-1), "tree", "tree.json cannot be read, so this page is without it."),
        (instead("summary.json", b"{"), "summary", "summary.json cannot be read, so this page is without it."),
        (instead("summary.json", b"[]"), "summary", "summary.json cannot be read, so this page is without it."),
        (instead("summary.json", None), "summary", "This run is unfinished: the folder has no summary.json."),
        (
            predicted(client=[0, 0, 20]),
            "predictions",
            "predictions.parquet cannot be read, so this page",
        ),
        (predicted(client=[0, 1, 0]), "predictions", "predictions.parquet cannot be read, so this page"),
        (predicted(score=[0.0, 1e200, 1.0]), "predictions", "predictions.parquet cannot be read, so this page"),
        (without_scores, "", "clients/ has no file for round 2\N{EN DASH}4, 9, so this page is without it."),
        (instead("gaps/00005.parquet", b"PAR1"), "", "gaps/ cannot be read for round 5, so this page is without it."),
        (instead("matrices/00010.npz", b"no zip"), "", "matrices/ cannot be read for round 10, so this page"),
        (unfitting_matrix, "", "matrices/ cannot be read for round 10, so this page is without it."),
    ],
)
def test_what_is_damaged_or_missing_is_left_out_and_noted(
    folder: Path, damage: Callable[[Path], object], lost: str, note: str
) -> None:
    damage(folder)
    records = read(folder)
    assert len(records.notes) == 1 and records.notes[0].startswith(note)
    assert not lost or not getattr(records, lost)


@pytest.mark.parametrize("truth", [-1.0, 0.5, 2.0**40])
def test_predictions_of_numbers_are_none_of_classes(folder: Path, truth: float) -> None:
    predicted(truth=[truth, 0.0, 1.0])(folder)
    found = read(folder).predictions
    assert found is not None and not found.of_classes


def test_predictions_are_read_once_the_run_is_finished(folder: Path) -> None:
    predicted()(folder)
    found = read(folder).predictions
    assert found is not None and found.of_classes
    assert {client: rows.right.tolist() for client, rows in found.by_client().items()} == {0: [1, 0], 1: [1]}
    (folder / "summary.json").unlink()
    records = read(folder)
    assert records.predictions is None
    assert records.final("acc_client") == records.rounds[-1].acc_client


def test_what_a_round_need_not_have_is_unknown_and_every_other_accuracy_is_kept(folder: Path) -> None:
    more = {"acc_global": 0.25, "acc_odd": "no number", "seconds_training": 0.5, "bytes_data": 7}
    edit_rounds(folder, lambda line: more if line["round"] == 12 else {})
    first, *_, last = read(folder).rounds
    assert (first.seconds_training, first.bytes_data, first.other_uses) == (None, 0, {})
    assert (last.seconds_training, last.bytes_data, last.other_uses) == (0.5, 7, {"global": 0.25})


@pytest.fixture
def other(folder: Path) -> Path:
    """A run of FedAvg beside the run."""
    found = write(folder.parent / "other", count=12)
    edit(found / "summary.json", algorithm="fedavg", acc_client=0.33)
    keys = (folder / "experiment.toml").read_text(encoding="utf-8").replace('"layercfl"', '"fedavg"')
    (found / "experiment.toml").write_text(keys.replace('name = "loop"', 'name = "batched"'))
    return found


def test_the_fedavg_reference_is_a_finished_run_of_the_same_experiment(folder: Path, other: Path) -> None:
    assert read(folder).references["fedavg"].mean == 0.33
    assert "fedavg" not in read(other).references, "FedAvg is not compared with itself"
    keys = (other / "experiment.toml").read_text(encoding="utf-8")
    (other / "experiment.toml").write_text(keys.replace("[data]", '[data]\nroot = "elsewhere"'))
    assert read(folder).references["fedavg"].mean == 0.33, "wherever the data lie"
    (other / "experiment.toml").write_text(keys.replace("seed = 3", "seed = 4"))
    assert "fedavg" not in read(folder).references
    for place in (folder, other):
        (place / "experiment.toml").write_text('seed = 1\nalgorithm = "x"\n')
    assert read(folder).references["fedavg"].mean == 0.33, "an experiment may have no tables"
    for file in (other / "clients").glob("*"):
        file.write_bytes(b"damaged")
    assert read(folder).references["fedavg"] == (0.33, {}, {}), "without scores there is the mean alone"
    (folder / "summary.json").unlink()
    assert "fedavg" not in read(folder).references, "half of a run is not compared"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_folder_is_no_reference(folder: Path, other: Path, text: str) -> None:
    (other / "summary.json").write_text(text)
    assert "fedavg" not in read(folder).references


def rounds_and_nodes(folder: Path) -> set[tuple[int, int]]:
    return {(matrix.round, matrix.node) for matrix in read(folder).matrices}


def test_all_matrices_are_read_where_a_page_can_hold_them(folder: Path) -> None:
    early = {(number, 0) for number in (1, 2, 3, 4)} | {(number, node) for number in (5, 6, 7) for node in (1, 2)}
    assert rounds_and_nodes(folder) == early | {(10, node) for node in (3, 4, 5, 6)}
    (folder / "rounds.jsonl").write_text("", encoding="utf-8")
    records = read(folder)
    assert (records.matrices, records.gaps, records.scores) == ((), {}, {})


def test_of_many_matrices_those_that_decided_come_first_and_the_others_evenly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two layers: the splits in rounds 4 and 7 cost 400 and 184 cells, round 10 costs 100; each of 1, 2, 3 costs 400.
    monkeypatch.setattr(reader, "_MAX_PAIRS", 684)
    assert {number for number, _ in rounds_and_nodes(folder)} == {4, 7, 10}
    monkeypatch.setattr(reader, "_MAX_PAIRS", 1100)
    records = read(folder)
    assert {matrix.round for matrix in records.matrices} == {1, 4, 7, 10}
    assert records.notes == ("This page holds the matrices of 4 rounds; those of 4 rounds more are in matrices/.",)
    monkeypatch.setattr(reader, "_MAX_PAIRS", 0)
    assert {number for number, _ in rounds_and_nodes(folder)} == {4}, "one round is always shown"


def test_of_many_clients_some_stand_for_all_in_the_order_of_their_clusters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_CLIENTS", 8)
    records = read(folder)
    # Clusters 3 to 6 hold 0, 4, 8, ...; 1, 5, ...; and so on: of each the first and the one in its middle.
    assert {client for matrix in records.matrices for client in matrix.clients} == {0, 8, 1, 9, 2, 10, 3, 11}
    assert all(matrix.values.shape == (len(matrix.clients),) * 2 for matrix in records.matrices)
    assert records.notes == ("The matrices on this page show 8 of the clients; matrices/ holds all.",)
    matrix = next(each for each in records.matrices if (each.round, each.layer) == (4, "fc1"))
    with np.load(folder / "matrices" / "00004.npz") as entries:
        values = entries["0|dcos|fc1"]
    assert matrix.values[matrix.clients.index(8), matrix.clients.index(11)] == values[8, 11]


def test_a_last_line_longer_than_what_is_looked_at_is_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of a hundred thousand clients has a megabyte. What follows the last whole line is not looked at."""
    (known,) = find_runs(folder.parent)
    file = folder / "rounds.jsonl"
    *_, last = file.read_text().splitlines()
    long = json.dumps({**json.loads(last), "round": 13, "further": [0] * 100_000})
    file.write_text(f"{file.read_text()}{long}\n" + '{"round": 14')
    (found,) = find_runs(folder.parent)
    assert (found.state, found.round, found.acc_client) == (known.state, 13, known.acc_client)
    monkeypatch.setattr(runs, "_MOST_TAIL_BYTES", len(long) // 2)
    assert [each.state for each in find_runs(folder.parent)] == ["damaged"]
