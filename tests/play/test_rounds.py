import math
import os
import signal
from collections.abc import Callable
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata as fs
from builders import left, records_of, run
from fedstrata import data
from fedstrata.base.errors import InputError
from fedstrata.base.files import replace_file
from fedstrata.play.interrupt import Stopped
from fedstrata.play.progress import Progress
from fedstrata.records.checkpoint import save
from fedstrata.records.folder import Folder
from forked import run as run_forked

SMALL = {
    "rounds": 5,
    "data": {"name": "digits", "clients": 8, "samples": 40, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "local": {"lr": 0.1, "batch": 10},
    "algorithm": {"name": "layercfl", "eps1": 0.3, "eps2": 0.2, "gamma": 0.5, "min_split": 3},
    "cohort": {"fraction": 0.75, "dropout": 0.2},
    "probe": {"gap": ["dcos"]},
}


def test_a_run_leaves_every_record_of_the_contract(tmp_path: Path) -> None:
    finished = run(tmp_path / "run", SMALL)
    files = "experiment.toml rounds.jsonl clients gaps tree.json models checkpoint matrices summary.json report.html"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= set(files.split())
    assert [record["round"] for record in finished.rounds] == [1, 2, 3, 4, 5]
    contract = (
        "round seconds clusters labels acc_client acc_weighted acc_cluster acc_worst loss ari bytes_down bytes_up "
        "cohort absent rejected events"
    )
    assert finished.rounds[0].keys() >= set(contract.split())
    summary = (
        "algorithm dataset partition model seed rounds clusters ari purity acc_client acc_weighted acc_cluster "
        "acc_worst rounds_to_partition bytes_down bytes_up seconds seconds_training seconds_server versions"
    )
    assert finished.summary.keys() >= set(summary.split())
    assert len(finished.rounds[0]["cohort"]) == 6 and len(finished.rounds[0]["absent"]) == 1
    assert finished.tree == finished.state.tree


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tmp_path / name, SMALL, seed=seed)
    assert left(tmp_path / "a") == left(tmp_path / "b") != left(tmp_path / "c")


def test_the_resolved_experiment_makes_the_same_run_again(tmp_path: Path) -> None:
    run(tmp_path / "a", SMALL)
    fs.run(tmp_path / "a" / "experiment.toml", tmp_path / "b", quiet=True)
    assert left(tmp_path / "a") == left(tmp_path / "b")


def test_torch_gets_its_threads_back(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    run(tmp_path / "run", SMALL, rounds=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 2


def run_and_die(place: str, count: int) -> None:
    """Run an experiment in a process that is killed the given time that it comes to a place."""
    calls = count_from(1)

    def dying(function: Callable[..., object], after: bool) -> Callable[..., None]:
        def wrapped(*given: object, **named: object) -> None:
            now = next(calls) == count
            if not now or after:
                function(*given, **named)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)

        return wrapped

    places: dict[str, tuple[str, Callable[..., object], bool]] = {
        "before checkpoint": ("fedstrata.play.recorder.save", save, False),
        "after checkpoint": ("fedstrata.play.recorder.save", save, True),
        "inside checkpoint": ("fedstrata.records.checkpoint.replace_file", replace_file, True),
        "after records": ("fedstrata.records.folder.Folder.add", Folder.add, True),
    }
    name, function, after = places[place]
    pytest.MonkeyPatch().setattr(name, dying(function, after))
    fs.run("experiment.toml", "broken", quiet=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    return run(tmp_path_factory.mktemp("uninterrupted") / "run", SMALL, engine={"name": "loop"}).folder


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("before checkpoint", 1),
        ("after checkpoint", 5),
        ("inside checkpoint", 3),
        ("inside checkpoint", 6),
        ("after records", 4),
    ],
)
def test_a_run_that_was_killed_ends_with_the_same_models(
    place: str, count: int, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text((uninterrupted / "experiment.toml").read_text())
    killed = run_forked(run_and_die, place, count)
    assert killed.status == -9, killed.err
    fs.run("experiment.toml", "broken", resume=True, quiet=True)
    assert left(tmp_path / "broken") == left(uninterrupted)


def interrupt_after(round: int, patch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when a round is told: its models are scored then, and the next round is under way."""
    show = Progress.show

    def interrupted(progress: Progress, record: dict[str, Any]) -> None:
        show(progress, record)
        if record["round"] == round:
            signal.raise_signal(signal.SIGINT)

    patch.setattr(Progress, "show", interrupted)


@pytest.mark.parametrize("told", [1, 2])
def test_ctrl_c_ends_a_run_after_its_round_and_resumed_it_is_as_never_stopped(told: int, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", SMALL)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(told, patch)
        with pytest.raises(Stopped, match=f"^stopped after round {told + 1} of 5; ") as stop:
            run(tmp_path / "broken", SMALL)
    assert stop.value.folder == tmp_path / "broken"
    assert [each["loss"] for each in records_of(tmp_path / "broken")] == [
        each["loss"] for each in whole.rounds[: told + 1]
    ]
    fs.run(None, tmp_path / "broken", resume=True, quiet=True)
    assert left(tmp_path / "broken") == left(whole.folder)


@pytest.mark.parametrize("layers", ["convv", ["conv"]])  # the mlp has none
def test_a_layer_pattern_that_matches_nothing_is_found_before_data_is_read(
    layers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "load_dataset", None)
    with pytest.raises(InputError, match=r"algorithm.layers = .*matches no layer"):
        run(tmp_path / "run", SMALL, algorithm={"name": "layercfl", "layers": layers})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", "ditto", "local"])
def test_a_client_whose_own_tensors_are_not_finite_starts_again_from_the_received_ones(
    algorithm: str, tmp_path: Path
) -> None:
    """Steps of 1e30 in round 1, of 0.1 in round 2. FedRep's heads are finite after the first, but useless."""
    local = {"lr": 1e30, "lr_decay": 1e-31, "batch": 10}
    partition, cohort = {"scheme": "iid"}, {"fraction": 1.0, "dropout": 0.0}
    changes = {
        "algorithm": {"name": algorithm},
        "local": local,
        "partition": partition,
        "cohort": cohort,
        "probe": {"gap": []},
    }
    finished = run(tmp_path / "run", SMALL, rounds=2, **changes)
    first, second = finished.rounds
    reset = {"kind": "reset", "clients": list(range(8))}
    assert reset in first["events"] and second["events"] == []
    assert second["rejected"] == [] and math.isfinite(second["loss"]) and math.isfinite(first["loss"])
    # Who has lost its own layers is sent them anew.
    assert second["bytes_down"] == first["bytes_down"]


def test_who_was_not_drawn_says_nothing_about_absence(tmp_path: Path) -> None:
    finished = run(tmp_path / "run", SMALL, rounds=1, cohort={"fraction": 0.5, "dropout": 0.5})
    decision = finished.tree[0].decision
    assert decision and decision.kind == "too_few_members"
    assert (decision.values["answered"], decision.values["asked"], decision.values["min_split"]) == (2, 4, 3)


def test_damaged_checkpoints_are_never_silently_started_over(tmp_path: Path) -> None:
    whole = run(tmp_path / "run", SMALL)
    for path in (whole.folder / "checkpoint").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    with pytest.raises(InputError, match="expected a sound checkpoint"):
        fs.run(None, whole.folder, resume=True, quiet=True)
    assert len((whole.folder / "rounds.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(("lr", "rounds", "clients"), [(0.1, [], 0), (1e6, [1, 2, 3], 0), (1e30, [1, 2, 3], 8)])
def test_training_that_diverges_in_every_round_is_an_event_of_each_and_in_the_summary(
    lr: float, rounds: list[int], clients: int, tmp_path: Path
) -> None:
    local, cohort = {"lr": lr, "batch": 10}, {"fraction": 1.0, "dropout": 0.0}
    finished = run(tmp_path / "run", SMALL, local=local, cohort=cohort, rounds=3)
    for record in finished.rounds:
        assert any(event["kind"] == "diverged" for event in record["events"]) == bool(rounds)
    assert finished.summary["diverged"] == {"rounds": rounds, "clients": clients}
    page = (finished.folder / "report.html").read_text().lower()
    assert finished.diverged == bool(rounds) == ("training diverged in 3 of 3 rounds" in page)
    assert bool(finished.state.models.isfinite().all())
