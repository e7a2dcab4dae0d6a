"""Flower's own simulation of a federation: the same bits as fedstrata's, and what it needs."""

import sys
from pathlib import Path

import pytest
from in_process import KEYS, models

import fedstrata as fs
from builders import keys
from fedstrata.base.errors import InputError
from fedstrata.flower import deploy
from fedstrata.flower.simulation import simulate_federation

EXPERIMENT = keys(KEYS, algorithm={"name": "strata"})


@pytest.mark.deploy
def test_virtual_nodes_give_the_bits_of_the_simulator(tmp_path: Path) -> None:
    deploy.init(tmp_path / "federation", EXPERIMENT)
    there = simulate_federation(EXPERIMENT, tmp_path / "federation", tmp_path / "there", workers=2)
    here = fs.run(EXPERIMENT, tmp_path / "here", quiet=True)
    run = fs.load(there)
    assert [each["labels"] for each in run.rounds] == [each["labels"] for each in here.rounds]
    assert models(there) == models(tmp_path / "here")
    assert (there / "report.html").exists()


def test_without_ray_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy.init(tmp_path / "federation", EXPERIMENT)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedstrata\[flower,ray\]'"):
        simulate_federation(EXPERIMENT, tmp_path / "federation", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_simulated_is_said_before_anything_starts(tmp_path: Path) -> None:
    home, out = tmp_path / "federation", tmp_path / "run"
    with pytest.raises(InputError, match="deploy init"):
        simulate_federation(EXPERIMENT, tmp_path, out)
    deploy.init(home, EXPERIMENT)
    with pytest.raises(InputError, match="attack"):
        simulate_federation({**EXPERIMENT, "attack": {"kind": "sign_flip", "share": 0.2}}, home, out)
    (home / "nodes/site-3/data.npz").unlink()
    with pytest.raises(InputError, match="expected the data of the client site-3"):
        simulate_federation(EXPERIMENT, home, out)
    assert not out.exists()
