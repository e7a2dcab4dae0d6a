"""A finished run, extended: it ends as if it had had as many rounds from the beginning."""

import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import builders
import fedstrata
import own_data
from builders import left
from fedstrata.base.errors import RecordError
from fedstrata.config import load_experiment
from fedstrata.play.interrupt import Stopped
from fedstrata.play.run import run_experiment


def keys(rounds: int, algorithm: str = "ditto") -> dict[str, Any]:
    return builders.keys(rounds=rounds, cohort={"fraction": 0.8}, algorithm={"name": algorithm})


@pytest.mark.parametrize("algorithm", ["ditto", "strata"])
def test_an_extended_run_is_the_longer_run(algorithm: str, tmp_path: Path) -> None:
    fedstrata.run(keys(2, algorithm), tmp_path / "extended", quiet=True)
    extended = fedstrata.run(None, tmp_path / "extended", sets=["rounds=5"], resume=True, quiet=True)
    fedstrata.run(keys(5, algorithm), tmp_path / "longer", quiet=True)
    assert left(tmp_path / "extended") == left(tmp_path / "longer")
    assert extended.summary["rounds"] == 5 and len(extended.rounds) == 5
    again = fedstrata.run(keys(5, algorithm), tmp_path / "extended", resume=True, quiet=True)
    assert again.rounds == extended.rounds


def test_a_run_that_is_being_extended_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    fedstrata.run(keys(2), folder, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr("fedstrata.play.run.interruptible", lambda tell: nullcontext(SimpleNamespace(asked=True)))
        with pytest.raises(Stopped):
            fedstrata.run(None, folder, sets=["rounds=4"], resume=True, quiet=True)
    assert not (folder / "summary.json").exists()
    assert fedstrata.run(None, folder, resume=True, quiet=True).summary["rounds"] == 4


def test_a_comparison_is_extended(tmp_path: Path) -> None:
    fedstrata.compare(keys(2), ["fedavg", "ditto"], out=tmp_path / "compared", quiet=True)
    done = fedstrata.compare(keys(3), ["fedavg", "ditto"], out=tmp_path / "compared", resume=True, quiet=True)
    assert [run.summary and run.summary["rounds"] for run in done.runs] == [3, 3]
    run_experiment(load_experiment(keys(3)), tmp_path / "alone", quiet=True)
    assert left(tmp_path / "compared" / "ditto-0") == left(tmp_path / "alone")
    table = json.loads((tmp_path / "compared" / "comparison.json").read_text())["experiment"]
    assert table["rounds"] == 3


def swapped(columns: own_data.Arrays) -> own_data.Arrays:
    """The classes of one site are swapped."""
    return columns | {"y": np.where(columns["site"] == "Bern", 1 - columns["y"], columns["y"])}


def shorter(columns: own_data.Arrays) -> own_data.Arrays:
    """Some rows of one site are deleted."""
    rows = (columns["site"] != "Bern") | (columns["trial"] % own_data.TRIALS != 0)
    return {name: values[rows] for name, values in columns.items()}


@pytest.mark.parametrize("change", [swapped, shorter])
def test_a_run_does_not_go_on_with_other_data(
    change: Callable[[own_data.Arrays], own_data.Arrays], tmp_path: Path
) -> None:
    """The second half of a run was trained on other samples than the first, without a word."""
    file = own_data.save(tmp_path / "mine.npz", own_data.arrays())
    folder = tmp_path / "run"
    fedstrata.run(own_data.keys(file), folder, quiet=True)
    own_data.save(file, change(own_data.arrays()))
    before = left(folder)
    for sets in ([], ["rounds=2"]):
        with pytest.raises(RecordError, match="expected the data that the run began with, found others"):
            fedstrata.run(None, folder, sets=sets, resume=True, quiet=True)
    assert left(folder) == before and (folder / "summary.json").exists()
    own_data.save(file, own_data.arrays())
    assert fedstrata.run(None, folder, sets=["rounds=2"], resume=True, quiet=True).summary["rounds"] == 2


def test_a_run_goes_on_where_clients_join_and_get_other_data(tmp_path: Path) -> None:
    source = own_data.keys(own_data.save(tmp_path / "mine.npz", own_data.arrays()))
    events = {
        "join": [{"round": 2, "clients": [2]}],
        "change": [{"round": 3, "client": 1, "takes_data_of": 0}],
    }
    source |= {"events": events}
    for rounds in (3, 4, 5):
        sets = [f"rounds={rounds}"]
        fedstrata.run(source, tmp_path / "extended", sets=sets, resume=rounds > 3, quiet=True)
    fedstrata.run(source, tmp_path / "longer", sets=["rounds=5"], quiet=True)
    assert left(tmp_path / "extended") == left(tmp_path / "longer")


COSINE: dict[str, Any] = {"lr": 0.1, "batch": 10, "schedule": "cosine", "lr_min": 0.01}


def test_a_cosine_over_given_rounds_is_extended_and_one_over_all_rounds_is_refused(tmp_path: Path) -> None:
    given = {**COSINE, "schedule_rounds": 3}
    fedstrata.run(keys(2) | {"local": given}, tmp_path / "extended", quiet=True)
    fedstrata.run(None, tmp_path / "extended", sets=["rounds=4"], resume=True, quiet=True)
    fedstrata.run(keys(4) | {"local": given}, tmp_path / "longer", quiet=True)
    assert left(tmp_path / "extended") == left(tmp_path / "longer")
    before = fedstrata.run(keys(2) | {"local": COSINE}, tmp_path / "all", quiet=True)
    message = r"rounds was 2, is 4, for which local\.schedule = 'cosine' was computed .*local\.schedule_rounds"
    with pytest.raises(RecordError, match=message):
        fedstrata.run(None, tmp_path / "all", sets=["rounds=4"], resume=True, quiet=True)
    assert fedstrata.load(tmp_path / "all").rounds == before.rounds


def test_a_comparison_with_a_cosine_over_all_rounds_is_refused_in_the_same_line(tmp_path: Path) -> None:
    fedstrata.compare(keys(2) | {"local": COSINE}, ["fedavg", "ditto"], out=tmp_path / "compared", quiet=True)
    with pytest.raises(RecordError, match=r"rounds was 2, is 3, for which local\.schedule = 'cosine'"):
        longer = keys(3) | {"local": COSINE}
        fedstrata.compare(longer, ["fedavg", "ditto"], out=tmp_path / "compared", resume=True, quiet=True)


def noise(inputs: torch.Tensor) -> torch.Tensor:
    """A transform that draws from numpy and from Python."""
    drawn = np.random.normal(size=tuple(inputs.shape))  # noqa: NPY002  # as augmentations of users do
    return inputs + random.random() * torch.from_numpy(drawn).float()


def test_a_run_that_draws_from_numpy_and_python_is_extended_bit_for_bit(tmp_path: Path) -> None:
    local = {"local": {"lr": 0.1, "batch": 10, "transform": f"{__name__}:noise"}}
    fedstrata.run(keys(1) | local, tmp_path / "extended", quiet=True)
    fedstrata.run(None, tmp_path / "extended", sets=["rounds=2"], resume=True, quiet=True)
    fedstrata.run(keys(2) | local, tmp_path / "longer", quiet=True)
    assert left(tmp_path / "extended") == left(tmp_path / "longer")
