import errno
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

import fedstrata as fs
from fedstrata.base.errors import ExperimentError
from fedstrata.play.interrupt import Stopped
from fedstrata.play.progress import Progress
from fedstrata.records.tracking import metric_name, require, track

SMALL = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 4, "samples": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "cfl"},
    "engine": {"name": "loop"},
}
TEXT = 'seed = 0\n[data]\nname = "digits"\n'

Numbers = dict[tuple[str, int], list[float]]
"""What is logged under a name for a round, as often as it is."""


def events(folder: Path) -> Iterator[Event]:
    """What lies in TensorBoard's files: length, its checksum, the event, its checksum."""
    for path in folder.glob("events*"):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


def logged(folder: Path) -> Numbers:
    """Every number that was logged."""
    found: Numbers = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def texts(folder: Path) -> list[str]:
    """The experiment, as often as it is there."""
    values = [value for event in events(folder) for value in event.summary.value]
    return [value.tensor.string_val[0].decode() for value in values if value.tag == "experiment/text_summary"]


def record(round: int, **changes: Any) -> dict[str, Any]:
    return {"round": round, "acc_client": round / 8, "labels": [0, 1], "metrics": [], **changes}


METRICS = [
    {"name": "left_out", "value": 3.0},
    {"name": "p", "value": 0.5, "node": 3},
    {"name": "z", "value": float("inf")},
]


def test_every_finite_number_of_a_record_is_logged_at_its_round_and_the_experiment_once(tmp_path: Path) -> None:
    with track("tensorboard", tmp_path / "tracking", TEXT, []) as log:
        log(record(1, ari=None, loss=float("nan"), clusters=1))
        log(record(2, ari=0.5, metrics=METRICS))
    assert logged(tmp_path / "tracking") == {
        ("acc_client", 1): [0.125],
        ("clusters", 1): [1.0],
        ("acc_client", 2): [0.25],
        ("ari", 2): [0.5],
        ("metrics/left_out", 2): [3.0],
        ("metrics/p/node_3", 2): [0.5],
    }
    (text,) = texts(tmp_path / "tracking")
    assert TEXT in text


def test_a_run_that_is_stopped_and_goes_on_has_logged_what_its_records_say(tmp_path: Path) -> None:
    show = Progress.show

    def interrupted(progress: Progress, record: dict[str, Any]) -> None:
        show(progress, record)
        if record["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "show", interrupted)
        with pytest.raises(Stopped, match="after round 2 of 4"):
            fs.run({**SMALL, "records": {"track": "tensorboard"}}, tmp_path / "run", quiet=True)
    assert {round for _, round in logged(tmp_path / "run" / "tracking")} == {1, 2}
    finished = fs.run(None, tmp_path / "run", resume=True, quiet=True)
    found = logged(tmp_path / "run" / "tracking")
    assert {round for _, round in found} == {1, 2, 3, 4} and all(len(values) == 1 for values in found.values())
    for each in finished.rounds:
        for key in ("acc_client", "acc_worst", "acc_cluster", "loss", "clusters", "ari", "bytes_down", "seconds"):
            assert found[key, each["round"]] == [pytest.approx(each[key])], key
        # TensorBoard has no blanks in names.
        names = {metric_name(metric).replace(" ", "_") for metric in each["metrics"]}
        assert names == {key for key, round in found if key.startswith("metrics/") and round == each["round"]}
    assert 'name = "digits"' in texts(tmp_path / "run" / "tracking")[0]


def test_a_package_that_is_missing_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    message = r'^records.track = "tensorboard": expected the package tensorboardX, .* pip install "fedstrata\[track\]"'
    with pytest.raises(ExperimentError, match=message):
        fs.run({**SMALL, "records": {"track": "tensorboard"}}, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    require("none")


def test_numbers_that_cannot_be_written_end_the_run_instead_of_holding_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's own thread would die of it, and whoever has more numbers for it would wait without end."""

    written = list[bytes]()

    def full(writer: RecordWriter, data: bytes) -> None:
        written.append(data)
        if len(written) > 2:  # the version of the format, and the experiment
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    with (
        pytest.raises(OSError, match="No space left"),
        track("tensorboard", tmp_path / "tracking", TEXT, []) as log,
    ):
        log(record(1))
