import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_run import write

from fedstrata.base.errors import RecordError
from fedstrata.report.reader import read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", count=12)


def rewrite(file: Path, **changes: object) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | changes)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_whole_folder_is_read_without_a_note(folder: Path) -> None:
    records = read(folder)
    assert records.notes == ()
    assert [each.round for each in records.rounds] == list(range(1, 13))
    assert len(records.tree) == 7
    assert records.scores[12].samples.tolist() == [100 + client for client in range(20)]
    assert {gap.measure for gap in records.gaps[12]} == {"dcos", "dl2"}


def test_no_folder_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no folder at .*nowhere") as caught:
        read(tmp_path / "nowhere")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["experiment.toml", "rounds.jsonl"])
def test_a_folder_without_experiment_or_rounds_is_no_run(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(RecordError, match=f"holds no {name}"):
        read(folder)


def test_an_experiment_that_is_not_toml_or_not_text_is_refused(folder: Path) -> None:
    (folder / "experiment.toml").write_text("seed =", encoding="utf-8")
    with pytest.raises(RecordError, match="is not TOML"):
        read(folder)
    (folder / "experiment.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="is not TOML"):
        read(folder)
    (folder / "experiment.toml").unlink()
    (folder / "experiment.toml").mkdir()
    with pytest.raises(RecordError, match="expected a file, found a folder"):
        read(folder)


def test_a_cut_off_last_line_is_left_out_and_remembered(folder: Path) -> None:
    file = folder / "rounds.jsonl"
    file.write_text(file.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    records = read(folder)
    assert len(records.rounds) == 11
    assert records.notes == ("The last line of rounds.jsonl is cut off, so round 12 is missing from this page.",)


def test_a_line_cut_off_inside_a_letter_is_left_out(folder: Path) -> None:
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write('{"round": 13, "why": "\N{EN DASH}'.encode()[:-1])
    records = read(folder)
    assert len(records.rounds) == 12
    assert "round 13 is missing" in records.notes[0]


def test_a_cut_off_first_line_leaves_no_rounds(folder: Path) -> None:
    (folder / "rounds.jsonl").write_text('{"round": 1, "sec', encoding="utf-8")
    records = read(folder)
    assert records.rounds == ()
    assert "round 1 is missing" in records.notes[0]


def test_a_broken_line_before_the_last_names_its_place(folder: Path) -> None:
    file = folder / "rounds.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([lines[0], lines[1][:30], *lines[2:]]), encoding="utf-8")
    with pytest.raises(RecordError, match=r"line 2 of rounds.jsonl is not JSON"):
        read(folder)


def test_a_round_that_is_no_object_lacks_a_key_or_holds_another_type_is_refused(folder: Path) -> None:
    file = folder / "rounds.jsonl"
    rewrite(file, labels="0, 1")
    with pytest.raises(RecordError, match=r"line 12 of rounds.jsonl: labels: input should be a valid list"):
        read(folder)
    file.write_text('{"round": 1}\n', encoding="utf-8")
    with pytest.raises(RecordError, match=r"line 1 of rounds.jsonl: seconds: field required"):
        read(folder)
    file.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"line 1 of rounds.jsonl: input should be a valid dictionary"):
        read(folder)


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    records = read(write(tmp_path / "run", count=5, finished=False))
    assert records.summary is None
    assert records.notes == ("This run is unfinished: the folder has no summary.json.",)
    assert records.final("acc_client") == records.rounds[-1].acc_client


@pytest.mark.parametrize(
    ("tree", "note"),
    [
        ("[", "tree.json cannot be read"),
        ('[{"id": 0}]', "tree.json cannot be read"),
        (None, "tree.json is missing"),
    ],
)
def test_a_tree_that_is_missing_or_damaged_is_left_out(folder: Path, tree: str | None, note: str) -> None:
    (folder / "tree.json").unlink()
    if tree is not None:
        (folder / "tree.json").write_text(tree, encoding="utf-8")
    records = read(folder)
    assert records.tree == ()
    assert records.notes[0].startswith(note)


@pytest.mark.parametrize("change", [{"id": 5}, {"parent": 1}, {"parent": -1}])
def test_a_tree_that_would_send_a_walk_in_circles_is_left_out(folder: Path, change: dict[str, int]) -> None:
    nodes = json.loads((folder / "tree.json").read_text(encoding="utf-8"))
    nodes[1] |= change
    (folder / "tree.json").write_text(json.dumps(nodes), encoding="utf-8")
    assert read(folder).tree == ()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_summary_is_left_out(folder: Path, text: str) -> None:
    (folder / "summary.json").write_text(text, encoding="utf-8")
    records = read(folder)
    assert records.summary is None
    assert records.notes == ("summary.json cannot be read, so this page is without it.",)


def test_what_a_round_of_an_older_run_lacks_is_unknown_and_every_other_accuracy_is_kept(folder: Path) -> None:
    file = folder / "rounds.jsonl"
    rewrite(file, acc_global=0.25, acc_odd="no number", seconds_training=0.5, bytes_data=7)
    first, *_, last = read(folder).rounds
    assert (first.seconds_training, first.bytes_data, first.other_uses) == (None, 0, {})
    assert (last.seconds_training, last.bytes_data, last.other_uses) == (0.5, 7, {"global": 0.25})


def with_reference(folder: Path, name: str, **changes: object) -> Path:
    other = write(folder.parent / name, count=12)
    summary = json.loads((other / "summary.json").read_text(encoding="utf-8"))
    (other / "summary.json").write_text(json.dumps(summary | {"algorithm": "fedavg", "acc_client": 0.33} | changes))
    keys = (folder / "experiment.toml").read_text(encoding="utf-8").replace('"layercfl"', '"fedavg"')
    (other / "experiment.toml").write_text(keys.replace('name = "loop"', 'name = "batched"'))
    return other


def test_the_fedavg_reference_is_a_run_of_the_same_experiment(folder: Path) -> None:
    assert "fedavg" not in read(folder).references
    other = with_reference(folder, "other")
    assert read(folder).references["fedavg"].mean == 0.33
    assert "fedavg" not in read(other).references, "FedAvg is not compared with itself"
    keys = (other / "experiment.toml").read_text(encoding="utf-8")
    (other / "experiment.toml").write_text(keys.replace("[data]", '[data]\nroot = "elsewhere"'))
    assert read(folder).references["fedavg"].mean == 0.33, "wherever the data lie"
    (other / "experiment.toml").write_text(keys.replace("seed = 3", "seed = 4"))
    assert "fedavg" not in read(folder).references


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_folder_is_no_reference(folder: Path, text: str) -> None:
    (with_reference(folder, "other") / "summary.json").write_text(text)
    assert "fedavg" not in read(folder).references


def test_half_of_a_run_is_not_compared_with_a_reference(folder: Path) -> None:
    with_reference(folder, "other")
    (folder / "summary.json").unlink()
    assert "fedavg" not in read(folder).references


def test_an_experiment_without_tables_has_nothing_with_reference(folder: Path) -> None:
    other = with_reference(folder, "other")
    for place in (folder, other):
        (place / "experiment.toml").write_text('seed = 1\nalgorithm = "x"\n')
    assert read(folder).references["fedavg"].mean == 0.33


def write_confusion(folder: Path, **columns: list[int]) -> None:
    """A file of confused classes; by default of clients 0 and 1."""
    found = {"client": [0, 0, 1], "truth": [0, 1, 1], "predicted": [0, 0, 1], "samples": [5, 2, 7], **columns}
    pq.write_table(pa.table(found), folder / "confusion.parquet")


def test_confused_classes_are_read_once_the_run_is_finished(folder: Path) -> None:
    assert read(folder).confusion is None and read(folder).notes == ()
    write_confusion(folder)
    found = read(folder).confusion
    assert found is not None and found.samples.tolist() == [5, 2, 7]
    (folder / "summary.json").unlink()
    assert read(folder).confusion is None


@pytest.mark.parametrize(
    "columns", [{"client": [0, 0, 20]}, {"truth": [0, -1, 1]}, {"predicted": [0, 2**40, 1]}, {"samples": [5, -2, 7]}]
)
def test_confused_classes_of_no_run_are_left_out_and_noted(folder: Path, columns: dict[str, list[int]]) -> None:
    write_confusion(folder, **columns)
    records = read(folder)
    assert records.confusion is None
    assert records.notes == ("confusion.parquet cannot be read, so this page is without it.",)
