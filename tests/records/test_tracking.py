import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # chosen when it is imported

import fedstrata as fs
from fedstrata.base.errors import ExperimentError
from fedstrata.play.interrupt import Stopped
from fedstrata.play.progress import Progress
from fedstrata.records.tracking import metric_name, require, track
from forked import command
from forked import run as run_forked

SMALL = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 4, "samples": 20},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "cfl"},
    "engine": {"name": "loop"},
}
TEXT = 'seed = 0\n[data]\nname = "digits"\n'
TRACKERS = ("tensorboard", "wandb")

Numbers = dict[tuple[str, int], list[float]]
"""What is logged under a name for a round, as often as it is."""


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Weights & Biases begins anew, and leaves nothing in the cache of whoever runs the tests."""
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    yield
    wandb.teardown()


def events(folder: Path) -> Iterator[Event]:
    """What lies in TensorBoard's files: length, its checksum, the event, its checksum."""
    for path in folder.glob("events*"):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


def entries(folder: Path) -> Iterator[Record]:
    """What lies in the files of Weights & Biases: checksum, length and kind of a part, in blocks of 32 KiB."""
    wandb.teardown()  # waits for its service, which is still writing when a run has been finished
    for path in folder.rglob("run-*.wandb"):
        data, at, whole = path.read_bytes(), 7, b""
        while at < len(data):
            room = 2**15 - at % 2**15
            if room < 7:
                at += room
                continue
            _, size, kind = struct.unpack("<IHB", data[at : at + 7])
            whole += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # the only part, or the last one
                yield Record.FromString(whole)
                whole = b""


def logged(name: str, folder: Path) -> Numbers:
    """Every number that a tracker was given."""
    found: Numbers = {}
    if name == "tensorboard":
        for event in events(folder):
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found.setdefault((value.tag, event.step), []).append(value.simple_value)
        return found
    for entry in entries(folder):
        for item in entry.history.item:
            if not item.nested_key[0].startswith("_"):
                key = item.nested_key[0], entry.history.step.num
                found.setdefault(key, []).append(float(item.value_json))
    return found


def texts(name: str, folder: Path) -> list[str]:
    """The experiment, as often as it is there."""
    if name == "tensorboard":
        values = [value for event in events(folder) for value in event.summary.value]
        return [value.tensor.string_val[0].decode() for value in values if value.tag == "experiment/text_summary"]
    return [entry.run.notes for entry in entries(folder) if entry.run.notes]


def record(round: int, **changes: Any) -> dict[str, Any]:
    return {"round": round, "acc_client": round / 8, "labels": [0, 1], "metrics": [], **changes}


METRICS = [
    {"name": "left_out", "value": 3.0},
    {"name": "p", "value": 0.5, "node": 3},
    {"name": "z", "value": float("inf")},
]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_every_finite_number_of_a_record_is_logged_at_its_round_and_the_experiment_once(
    name: str, tmp_path: Path
) -> None:
    with track(name, tmp_path / "tracking", TEXT, []) as log:
        log(record(1, ari=None, loss=float("nan"), clusters=1))
        log(record(2, ari=0.5, metrics=METRICS))
    assert logged(name, tmp_path / "tracking") == {
        ("acc_client", 1): [0.125],
        ("clusters", 1): [1.0],
        ("acc_client", 2): [0.25],
        ("ari", 2): [0.5],
        ("metrics/left_out", 2): [3.0],
        ("metrics/p/node 3" if name != "tensorboard" else "metrics/p/node_3", 2): [0.5],
    }
    (text,) = texts(name, tmp_path / "tracking")
    assert TEXT in text


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_that_is_stopped_and_goes_on_has_logged_what_its_records_say(name: str, tmp_path: Path) -> None:
    show = Progress.show

    def interrupted(progress: Progress, record: dict[str, Any]) -> None:
        show(progress, record)
        if record["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "show", interrupted)
        with pytest.raises(Stopped, match="after round 2 of 4"):
            fs.run({**SMALL, "records": {"track": name}}, tmp_path / "run", quiet=True)
    assert {round for _, round in logged(name, tmp_path / "run" / "tracking")} == {1, 2}
    finished = fs.run(None, tmp_path / "run", resume=True, quiet=True)
    found = logged(name, tmp_path / "run" / "tracking")
    assert {round for _, round in found} == {1, 2, 3, 4} and all(len(values) == 1 for values in found.values())
    for each in finished.rounds:
        for key in ("acc_client", "acc_worst", "acc_cluster", "loss", "clusters", "ari", "bytes_down", "seconds"):
            assert found[key, each["round"]] == [pytest.approx(each[key])], key
        # TensorBoard has no blanks in names.
        names = {metric_name(metric).replace(" ", "_" if name == "tensorboard" else " ") for metric in each["metrics"]}
        assert names == {key for key, round in found if key.startswith("metrics/") and round == each["round"]}
    assert 'name = "digits"' in texts(name, tmp_path / "run" / "tracking")[0]


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_package_that_is_missing_is_told_before_anything_is_made(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = f'^records.track = "{name}": expected the package {package}, .* pip install "fedstrata\\[track\\]"'
    with pytest.raises(ExperimentError, match=message):
        fs.run({**SMALL, "records": {"track": name}}, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    require("none")


def command_in(variables: dict[str, str], *arguments: str) -> None:
    """Be the command line with further variables. Libraries of other tests may call somebody from this process."""
    os.environ.update(variables)
    command(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_nobody_is_called(name: str, tmp_path: Path) -> None:
    """All who would call somebody are told to do so through a door behind which we wait."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        address = f"http://127.0.0.1:{door.getsockname()[1]}"
        ways = {each: address for name in ("http_proxy", "https_proxy", "all_proxy") for each in (name, name.upper())}
        variables = {**ways, "WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40}
        keys = [f"--set={key}" for key in (f"records.track={name}", "rounds=2", "engine.name=loop")]
        done = run_forked(command_in, variables, "run", *keys, "--out", str(tmp_path / "run"), "--quiet")
        assert done.status == 0 and done.err == "", done.err
        with pytest.raises(BlockingIOError):
            door.accept()
    assert logged(name, tmp_path / "run" / "tracking")["clusters", 2] == [1.0]


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
