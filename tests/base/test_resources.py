"""What the machine refuses is told in one line with what to do, and a run goes on from there as if nothing had been."""

import errno
import hashlib
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from builders import DISK_EVENTS, left, records_of
from fedstrata.base.errors import EngineError, MachineError, ResourceError
from fedstrata.base.files import replace_file
from fedstrata.base.resources import SHORTAGES, resource_error, resource_errors
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import State
from fedstrata.engine.device import one_thread
from fedstrata.play.recorder import OnRound
from fedstrata.play.rounds import answer_plans, timed_reply
from fedstrata.play.steps import run_steps
from forked import Done, command, run

HERE = Path(__file__).parents[1]
EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 6, "samples": 24},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "faulty:make"},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "layercfl"},
    "engine": {"name": "loop"},
}
SOUND = {**EXPERIMENT, "model": {"name": "mlp", "hidden": [8]}}
"""The same with a network that does nothing wrong."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_the_system_refuses_is_told_with_what_to_do() -> None:
    for number, (needed, remedy) in SHORTAGES.items():
        named = resource_error(OSError(number, "Error writing bytes. Detail: and\nmore", "a file"))
        assert isinstance(named, ResourceError)
        assert named.reason == f"'a file': expected {needed}, found: {os.strerror(number)}; {remedy}"
        # Arrow and open files raise errors without a name; then the run folder says which disk it is.
        nameless = resource_error(OSError(number, os.strerror(number)), Path("runs/a"))
        assert nameless is not None and nameless.reason.partition("expected")[0] in ("'runs/a': ", "")


def test_the_error_of_a_run_that_has_begun_says_how_to_resume_it(tmp_path: Path) -> None:
    def fail(error: Exception) -> MachineError:
        with pytest.raises(MachineError) as caught, resource_errors(tmp_path):
            raise error
        return caught.value

    assert fail(MemoryError()).folder is None
    (tmp_path / "experiment.toml").touch()
    lost = fail(EngineError("workers were lost"))
    assert fail(MemoryError()).folder == lost.folder == tmp_path
    assert str(lost) == f"workers were lost; then resume with resume=True and out={str(tmp_path)!r}"


class Failure:
    """A command that failed for want of something.

    Attributes:
        reason: What it said.
        again: The arguments of the command that it named.
    """

    def __init__(self, done: Done) -> None:
        assert done.status == 1 and "Traceback" not in done.err, done.err
        *warnings, line = done.err.splitlines()
        assert all("lost a worker process" in warning for warning in warnings), done.err
        self.reason, _, again = line.partition(", then go on with: ")
        self.again = shlex.split(again)[1:]


def resumed(failure: Failure) -> object:
    """What is left when the command is given that was named."""
    with pytest.raises(SystemExit) as end:
        from fedstrata import cli

        cli.main([*failure.again, "--quiet"])
    assert not end.value.code
    return left(Path(failure.again[-1]))


def write_experiment(**engine: object) -> None:
    from fedstrata.config import dumps, load_experiment

    Path("mine.toml").write_text(dumps(load_experiment({**EXPERIMENT, "engine": {"name": "loop", **engine}})))


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("fault", "engine", "reason"),
    [
        ("files", "loop", "expected to open another file, found: Too many open files; raise the limit on open files"),
        ("tensors", "loop", "expected enough memory, found: can't allocate memory: you tried to allocate 268435456"),
        ("bytes", "loop", "expected enough memory, found: no memory left; free some"),
        ("bytes", "processes", "expected enough memory, found: no memory left; free some"),
        ("killed", "processes", "lost one in each of 3 attempts, the last one with exit status -9; if memory"),
        ("stopped", "processes", "in each of 3 attempts, the last one as it made no progress for 1 s; if its work"),
    ],
)
def test_a_run_that_the_machine_ends_says_so_in_one_line_and_is_resumed_bit_for_bit(
    fault: str, engine: str, reason: str, here: Path
) -> None:
    write_experiment(name=engine, workers=2, timeout=1)
    Path("fault").write_text(f"{fault} a/checkpoint/00001.sha256")
    failure = Failure(run(command, "run", "mine.toml", "--out", "a", "--quiet"))
    assert reason in failure.reason and failure.again == ["run", "--resume", "--out", "a"]
    assert not Path("a/summary.json").exists() and Path("a/checkpoint/00001.sha256").exists()
    Path("fault").unlink()
    whole = fs.run(EXPERIMENT, "whole", quiet=True)
    assert resumed(failure) == left(whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2_000, 1_000_000])  # less than a checkpoint, and less than a page
def test_a_limit_on_the_size_of_files_ends_a_run_in_one_line(size: int, here: Path) -> None:
    write_experiment()
    limits = {resource.RLIMIT_FSIZE: size}
    failure = Failure(run(command, "run", "mine.toml", "--out", "a", "--quiet", limits=limits))
    assert failure.reason.startswith("fedstrata: 'a': expected to write a file of this size, found: File too large")
    whole = fs.run(EXPERIMENT, "whole", quiet=True)
    assert resumed(failure) == left(whole.folder) and Path("a/report.html").exists()


@pytest.mark.slow
def test_a_full_disk_ends_a_run_wherever_it_is_and_a_resumed_run_is_as_never_interrupted(
    here: Path,
) -> None:
    disk = here / "disk"
    disk.mkdir()
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True)
    if tried.returncode:
        pytest.skip("expected that disks can be mounted, which takes the rights of root")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, str(HERE / "full_disk.py"), json.dumps(SOUND), str(disk)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 9 and all(equal for _, _, equal in found)
    assert all("found: No space left on device; free some" in said for _, said, _ in found)
    # With the least room not even the experiment can be written, so that there is nothing to go on with.
    assert [said.startswith("True: ") for _, said, _ in found] == [False] + [True] * 8


WRITING = os.O_WRONLY | os.O_RDWR
FAULT: dict[str, Any] = {}
"""Which opening of a file for writing fails: its folder, how many succeed before, how many fail, the error's number."""


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Fail at one of the files that are opened for writing."""
    if event != "open" or not FAULT or not args[2] & WRITING or FAULT["folder"] not in str(args[0]):
        return
    FAULT["left"] -= 1
    if -FAULT["times"] <= FAULT["left"] < 0:
        raise OSError(FAULT["number"], os.strerror(FAULT["number"]), args[0])


@contextmanager
def refusing(folder: str, after: int, number: int, times: int = 10**9) -> Iterator[None]:
    """Let only so many files in a folder be opened for writing, and then, after so many failures, all."""
    if not FAULT.get("hooked"):
        sys.addaudithook(refuse)  # which cannot be taken away again
    FAULT.update(folder=folder, left=after, number=number, times=times, hooked=True)
    try:
        yield
    finally:
        FAULT["folder"] = "/\0"


def test_a_disk_that_becomes_read_only_ends_a_run_and_the_resumed_run_is_as_never_interrupted(here: Path) -> None:
    said = "file system that can be written, found: Read-only"
    with pytest.raises(ResourceError, match=said) as caught, refusing("protected", 8, errno.EROFS):
        fs.run(SOUND, "protected", quiet=True)
    assert caught.value.folder == Path("protected")
    resumed = fs.run(None, "protected", resume=True, quiet=True)
    assert left(resumed.folder) == left(fs.run(SOUND, "whole", quiet=True).folder)


@pytest.mark.slow
def test_whichever_file_cannot_be_written_the_resumed_run_is_as_never_interrupted(here: Path) -> None:
    experiment = {**SOUND, "rounds": 2}
    whole = left(fs.run(experiment, "whole", quiet=True).folder)
    for after in range(100):
        folder = f"run-{after}"
        try:
            with refusing(folder, after, errno.EIO):
                fs.run(experiment, folder, quiet=True)
        except ResourceError as error:
            assert "Input/output error" in error.reason
            begun = Path(folder, "experiment.toml").exists()
            assert error.folder == (Path(folder) if begun else None)
            again = fs.run(None if begun else experiment, folder, resume=begun, quiet=True)
            assert left(again.folder) == whole
        else:
            break
    # The experiment, two files of a checkpoint and the tree in each of two rounds, and what comes at the end.
    assert 12 < after < 99


FIVE_ROUNDS = {**SOUND, "rounds": 5}
OF_A_CHECKPOINT = 2
"""Files that are opened for a checkpoint: its checksum, and itself. After the first fails, the second is not tried."""


def without_notes(folder: Path) -> tuple[object, list[tuple[int, str]]]:
    """What a run has left, and the rounds of the events that a disk caused, which are taken out of it."""
    noted = [(each["round"], event["kind"]) for each in records_of(folder) for event in each["events"]]
    return left(folder, without=DISK_EVENTS), [each for each in noted if each[1] in DISK_EVENTS]


def sound_checkpoints(folder: Path) -> list[int]:
    """The rounds of the checkpoints of a run, whose checksums are compared; nothing else is beside them."""
    found = sorted((folder / "checkpoint").glob("*.safetensors"))
    assert {path.name for path in (folder / "checkpoint").iterdir()} == {
        name for path in found for name in (path.name, path.with_suffix(".sha256").name)
    }
    for path in found:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert path.with_suffix(".sha256").read_text().split() == [digest, str(path.stat().st_size)]
    return [int(path.stem) for path in found]


def lines_of(
    folder: Path, *, may_skip_checkpoints: bool = True, on_round: OnRound = lambda record, state: None
) -> list[str]:
    """Run five rounds, and return what the user is told."""
    told = list[str]()
    experiment = load_experiment(FIVE_ROUNDS)
    setup = build_run(experiment)
    with one_thread(), resource_errors(folder):
        steps = run_steps(
            experiment, setup, folder, on_round=on_round, tell=told.append, may_skip_checkpoints=may_skip_checkpoints
        )
        answer_plans(steps, partial(timed_reply, setup.clients))
    return told


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What five rounds leave on a sound disk."""
    folder = tmp_path_factory.mktemp("sound") / "whole"
    lines_of(folder)
    return without_notes(folder)[0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EFBIG])
def test_a_disk_that_refuses_checkpoints_for_some_rounds_changes_no_bit(number: int, whole: Any, here: Path) -> None:
    with refusing("a/checkpoint", OF_A_CHECKPOINT, number, times=2):
        warning, end = [line for line in lines_of(here / "a") if line.startswith(("WARNING: round", "round"))]
    assert warning.startswith("WARNING: round 2: its checkpoint cannot be written: ")
    assert os.strerror(number) in warning and warning.endswith("it is resumed from round 1")
    assert end == "round 4: checkpoints can be written again"
    assert without_notes(here / "a") == (whole, [(2, "unsaved"), (3, "unsaved")])
    assert sound_checkpoints(here / "a") == [1, 4, 5]


def test_a_checkpoint_whose_tensors_do_not_reach_the_disk_leaves_no_half_file(
    whole: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum does, and the draft of its tensors has been written before the disk says that it is full."""

    def fill_up(path: Path, content: bytes, *, private: bool = False) -> None:
        if path.name == "00002.safetensors":
            with refusing_to_sync():
                replace_file(path, content, private=private)
        replace_file(path, content, private=private)

    monkeypatch.setattr("fedstrata.records.checkpoint.replace_file", fill_up)
    lines_of(here / "a")
    assert without_notes(here / "a") == (whole, [(2, "unsaved")])
    assert sound_checkpoints(here / "a") == [3, 4, 5]


@contextmanager
def refusing_to_sync() -> Iterator[None]:
    """Let no content reach the disk."""

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield


def test_a_run_that_is_interrupted_while_it_has_no_checkpoints_repeats_its_rounds(whole: Any, here: Path) -> None:

    def interrupt(record: Mapping[str, Any], state: State) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with refusing("a/checkpoint", OF_A_CHECKPOINT, errno.ENOSPC), pytest.raises(KeyboardInterrupt):
        lines_of(here / "a", on_round=interrupt)
    assert sound_checkpoints(here / "a") == [1]
    resumed = fs.run(None, "a", resume=True, quiet=True)
    assert without_notes(resumed.folder) == (whole, [(1, "resume")])


def test_a_run_without_its_last_checkpoint_ends_in_one_line_and_is_resumed(whole: Any, here: Path) -> None:
    with (
        refusing("a/checkpoint", OF_A_CHECKPOINT, errno.ENOSPC),
        pytest.raises(ResourceError, match="expected free space on the disk") as caught,
    ):
        lines_of(here / "a")
    assert caught.value.folder == here / "a"
    assert sound_checkpoints(here / "a") == [1] and not Path("a/summary.json").exists()
    assert without_notes(fs.run(None, "a", resume=True, quiet=True).folder) == (whole, [(1, "resume")])


@pytest.mark.parametrize(("after", "may_skip_checkpoints"), [(0, True), (OF_A_CHECKPOINT, False)])
def test_a_run_that_could_not_be_resumed_ends_at_its_first_checkpoint_that_fails(
    after: int, may_skip_checkpoints: bool, here: Path
) -> None:
    """Without any checkpoint nothing can be resumed, and real devices go back one round and not several."""
    with refusing("a/checkpoint", after, errno.ENOSPC), pytest.raises(ResourceError, match="free space"):
        lines_of(here / "a", may_skip_checkpoints=may_skip_checkpoints)
    assert not Path("a/rounds.jsonl").exists() or len(Path("a/rounds.jsonl").read_text().splitlines()) < 2


def test_a_full_disk_before_a_run_begins_leaves_nothing_in_the_way_of_the_same_command(here: Path) -> None:
    once = {**SOUND, "rounds": 1}
    for start in (partial(fs.run, once, "a"), partial(fs.compare, once, ["fedavg", "cfl"], out="a")):
        with pytest.raises(ResourceError) as caught, refusing("a/", 0, errno.ENOSPC):
            start(quiet=True)
        assert caught.value.folder is None
        start(quiet=True)
        Path("a").rename(f"finished-{start.func.__name__}")
