"""The page on recordings, as somebody would follow it; then every number of its comparison, without the library."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from blocks import follow
from fedstrata import cli
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment

pytestmark = pytest.mark.pages

WINDOW, STEP = 64, 32
ALGORITHMS = ("fedavg", "local", "ditto", "cfl", "ifca", "layercfl", "strata")


class Recording(NamedTuple):
    """A recording as its file has it, cut into windows by numpy alone."""

    subject: str
    activity: str
    trial: int
    windows: NDArray[np.float32]
    """(windows, channels, readings)."""

    @property
    def name(self) -> str:
        return f"{self.subject}/{self.activity}/{self.trial}"


@pytest.fixture(scope="module", autouse=True)
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page is followed in a folder, which stays the current one."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("recordings")
        patch.chdir(folder)
        patch.setenv("FEDSTRATA_CACHE", str(folder / "cache"))
        follow("data/recordings.md", folder)
        yield


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    rows = pq.read_table("people.parquet").to_pylist()
    return [Recording(row["subject"], row["activity"], row["trial"], cut(np.array(row["signal"]))) for row in rows]


@pytest.fixture(scope="module")
def held_out() -> dict[str, set[str]]:
    """The trials on which each person is tested, as the library chose them."""
    setup = build_run(load_experiment("motion.toml"))
    data = setup.client_data
    return {name: set(data.unit_values(data.test(client))) for client, name in enumerate(setup.names)}


def cut(signal: NDArray[Any]) -> NDArray[np.float32]:
    starts = range(0, len(signal) - WINDOW + 1, STEP)
    return np.stack([signal[start : start + WINDOW].T for start in starts]).astype(np.float32)


def folder_of(algorithm: str) -> Path:
    return Path("runs/compared") / f"{algorithm}-0"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_block_does_what_it_says() -> None:
    assert all(folder_of(algorithm).is_dir() for algorithm in ALGORITHMS)


def test_clients_are_the_people_with_all_of_their_windows(recordings: list[Recording]) -> None:
    people = sorted({each.subject for each in recordings})
    for algorithm in ALGORITHMS:
        found = read(folder_of(algorithm) / "data.json")
        assert found["warnings"] == []
        assert [client["name"] for client in found["clients"]] == people
        for client in found["clients"]:
            count = sum(len(each.windows) for each in recordings if each.subject == client["name"])
            assert client["train"] + client["test"] == count


def test_whole_trials_of_every_activity_are_held_out(
    recordings: list[Recording], held_out: Mapping[str, set[str]]
) -> None:
    for person, trials in held_out.items():
        own = [each for each in recordings if each.subject == person]
        assert trials < {each.name for each in own}
        assert {each.activity for each in own if each.name in trials} == {each.activity for each in own}
        (client,) = [each for each in read(folder_of("strata") / "data.json")["clients"] if each["name"] == person]
        assert client["test"] == sum(len(each.windows) for each in own if each.name in trials)
        assert 0.15 < client["test"] / (client["test"] + client["train"]) < 0.3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_recorded_accuracies_are_those_of_the_exported_programs_on_raw_windows(
    algorithm: str, recordings: list[Recording], held_out: Mapping[str, set[str]], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", str(folder_of(algorithm)), str(tmp_path / "out"), "--format", "torch"])
    assert not ended.value.code
    index = read(tmp_path / "out" / "models.json")
    activities = sorted({each.activity for each in recordings})
    assert index["samples"]["class_names"] == activities
    tested = [each for each in recordings if each.name in held_out[each.subject]]
    trained = np.concatenate([each.windows for each in recordings if each.name not in held_out[each.subject]])
    std = trained.std(axis=(0, 2), dtype=np.float64)
    assert index["scale"] == pytest.approx(1 / std, rel=1e-4)
    assert index["shift"] == pytest.approx(-trained.mean(axis=(0, 2), dtype=np.float64) / std, rel=1e-3, abs=1e-5)
    found = {}
    for model in index["models"]:
        program = torch.export.load(tmp_path / "out" / model["program"]).module()
        for person in model["clients"]:
            own = [each for each in tested if each.subject == person]
            answers = [program(torch.from_numpy(each.windows)).argmax(1).numpy() for each in own]
            right = [answer == activities.index(each.activity) for answer, each in zip(answers, own, strict=True)]
            found[person] = float(np.concatenate(right).mean())
    table = pq.read_table(max((folder_of(algorithm) / "clients").glob("*.parquet"))).to_pydict()
    names = [client["name"] for client in read(folder_of(algorithm) / "data.json")["clients"]]
    recorded = {names[client]: value for client, value in zip(table["client"], table["accuracy"], strict=True)}
    assert found == pytest.approx(recorded, abs=1e-12)
    (row,) = [row for row in read(Path("runs/compared/comparison.json"))["table"] if row["algorithm"] == algorithm]
    assert row["figures"]["acc_client"]["mean"] == pytest.approx(np.mean(list(found.values())), abs=1e-12)
    assert row["figures"]["acc_worst"]["mean"] == pytest.approx(min(found.values()), abs=1e-12)
