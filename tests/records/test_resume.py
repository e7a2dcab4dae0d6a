"""What a run goes on from: checkpoints together with the records of the rounds before them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import builders
import fedstrata as fs
from builders import change_checkpoint, keys, records_of
from fedstrata.base.errors import InputError, RecordError
from fedstrata.config import load_experiment
from fedstrata.play.run import run_experiment
from fedstrata.records.resume import machine
from fedstrata.records.resume import versions as found_versions

EXPERIMENT = keys(rounds=5, local={"lr": 0.1}, algorithm={"name": "layercfl", "eps1": 9.0, "eps2": 0.0})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of five rounds, with the checkpoints of rounds 3 to 5."""
    return fs.run(EXPERIMENT, tmp_path_factory.mktemp("whole") / "run", quiet=True).folder


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def resume(folder: Path) -> fs.Run:
    return fs.run(None, folder, resume=True, quiet=True)


def left(folder: Path) -> object:
    return builders.left(folder, without=("resume",))


def said(folder: Path) -> dict[int, str]:
    """Round whose record has an event about resuming -> why."""
    events = [(record["round"], event) for record in records_of(folder) for event in record["events"]]
    return {round: event["why"] for round, event in events if event["kind"] == "resume"}


def edit_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "rounds.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return edit


def test_a_run_that_was_not_damaged_says_nothing_when_it_goes_on(whole: Path, broken: Path) -> None:
    (broken / "summary.json").unlink()
    resume(broken)
    assert left(broken) == left(whole) and said(broken) == {}


REPAIRED: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "the last two lines are lost": (edit_lines(lambda found: found[:-2]), 4, "holds 3 of the 4 rounds before it"),
    "a line is cut short": (edit_lines(lambda found: [*found[:3], found[3][:40]]), 4, "holds 3 of the 4 rounds"),
    "a line of a later round is changed": (
        edit_lines(lambda found: [*found[:3], found[3].replace(b'"clusters": ', b'"clusters": 7'), found[4]]),
        4,
        "the first 4 lines of rounds.jsonl are not those that were written",
    ),
    "the newest checkpoint is damaged": (
        lambda folder: (folder / "checkpoint" / "00005.safetensors").write_bytes(b""),
        4,
        "00005.safetensors: its size differs",
    ),
    "the two newest checkpoints are gone": (
        lambda folder: list(map(os.remove, [folder / "checkpoint" / f"0000{round}.safetensors" for round in (4, 5)])),
        3,
        "2 recorded rounds after round 3 are repeated",
    ),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_records_that_an_older_checkpoint_can_write_again_are_repaired_and_it_is_said(
    name: str, whole: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, round, why = REPAIRED[name]
    damage(broken)
    fs.run(None, broken, resume=True)
    assert left(broken) == left(whole)
    assert list(said(broken)) == [round] and why in said(broken)[round]
    assert f"resumed from round {round}: " in " ".join(capsys.readouterr().err.split())


REFUSED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a hole": (lambda found: [found[0], *found[2:]], "not those"),
    "a round twice": (lambda found: [found[0], *found], "not those"),
    "another order": (lambda found: found[::-1], "not those"),
    "a number changed": (lambda found: [found[0].replace(b'"bytes_up": ', b'"bytes_up": 1'), *found[1:]], "not those"),
    "no number": (lambda found: [found[0].replace(b'"loss": ', b'"loss": "'), *found[1:]], "not those"),
    "no lines": (lambda found: [], "holds 0 of the 2 rounds before it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_records_that_no_checkpoint_can_write_again_are_refused_and_stay(name: str, broken: Path) -> None:
    change, why = REFUSED[name]
    edit_lines(change)(broken)
    before = (broken / "rounds.jsonl").read_bytes()
    with pytest.raises(RecordError, match=why) as caught:
        resume(broken)
    assert "\n" not in str(caught.value) and (broken / "rounds.jsonl").read_bytes() == before


def test_models_that_are_not_finite_are_not_gone_on_from(whole: Path, broken: Path) -> None:
    path = broken / "checkpoint" / "00005.safetensors"
    models = load_file(path)["state.models"]
    change_checkpoint(path, {"state.models": torch.full_like(models, torch.inf)})
    resume(broken)
    assert left(broken) == left(whole)
    assert said(broken)[4] == (
        "the checkpoint 00005.safetensors: its models are not finite; 1 recorded rounds after round 4 are repeated"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("lr = 0.1", "lr = 0.05", "local.lr was 0.1, is 0.05"),
        ("seed = 0", "seed = 1", "seed was 0, is 1"),
        ("rounds = 5", "rounds = 4", "rounds was 5, is 4"),
        ("batch = 10", "batch = 20", "local.batch was 10, is 20"),
        ("eps1 = 9.0", "eps1 = 8.0", "algorithm.eps1 was 9.0, is 8.0"),
    ],
)
def test_an_experiment_that_was_edited_is_refused_key_by_key_and_nothing_is_lost(
    old: str, new: str, why: str, broken: Path
) -> None:
    path = broken / "experiment.toml"
    path.write_text(path.read_text().replace(old, new))
    before = left(broken), path.read_text()
    with pytest.raises(RecordError, match=f"the run was started with, found another: {why}; resume with"):
        resume(broken)
    assert (left(broken), path.read_text()) == before


def test_what_no_result_depends_on_may_change(whole: Path, broken: Path) -> None:
    path = broken / "experiment.toml"
    text = path.read_text()
    assert "workers = 0" in text
    path.write_text(text.replace("workers = 0", "workers = 2"))
    (broken / "summary.json").unlink()
    resume(broken)
    assert left(broken) == left(whole)


def test_only_keys_that_no_result_depends_on_may_differ() -> None:
    from fedstrata.records.schema import differences

    before = {"seed": 0, "data": {"name": "digits", "root": "a"}, "engine": {"name": "loop", "workers": 0}}
    free = {"seed": 0, "data": {"name": "digits", "root": "b"}, "engine": {"name": "processes", "workers": 4}}
    assert differences(before, {**free, "records": {"track": "tensorboard"}, "algorithms": {"cfl": {}}}) == []
    assert differences(before, {**before, "engine": {"name": "batched", "workers": 0}}) == [
        'engine.name was "loop", is "batched"'
    ]
    assert differences({"a": {"b": 1}}, {"c": "d"}) == ["a.b was 1, is not set", 'c was not set, is "d"']


def test_another_version_of_a_library_is_said(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = found_versions()
    monkeypatch.setattr("fedstrata.records.resume.versions", lambda: {**versions, "torch": "99"})
    resume(broken)
    assert f"torch was {versions['torch']}, is 99" in said(broken)[5]


def test_another_processor_is_said(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.records.resume.machine", lambda device: {**machine(device), "processor": "another"})
    resume(broken)
    assert f"processor was {machine()['processor']}, is another" in said(broken)[5]


def test_records_without_a_checkpoint_are_not_started_over(broken: Path) -> None:
    shutil.rmtree(broken / "checkpoint")
    with pytest.raises(RecordError, match="expected a checkpoint beside the records of 5 rounds, found none"):
        resume(broken)
    assert len((broken / "rounds.jsonl").read_bytes().splitlines()) == 5


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(whole: Path, broken: Path) -> None:
    shutil.rmtree(broken / "checkpoint")
    (broken / "rounds.jsonl").write_bytes(b"")
    resume(broken)
    assert left(broken) == left(whole)


def test_a_run_is_not_begun_where_one_is_already(broken: Path) -> None:
    before = left(broken)
    with pytest.raises(InputError, match="expected no run in this folder, found one; resume it"):
        run_experiment(load_experiment(broken / "experiment.toml"), broken, quiet=True)
    assert left(broken) == before
