"""Differential privacy on real devices: the noise of the simulator, from seeds that stay where the noise is added."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import in_process
import pytest
import torch
from in_process import Deployed, Loopback, absences

from fedstrata.base.errors import InputError, RecordError
from fedstrata.config import load_experiment
from fedstrata.flower.client_app import Device
from fedstrata.flower.server_app import run_config
from fedstrata.uploads.noise import SIMULATED_RUN, secret_seed

KEYS: dict[str, Any] = {**in_process.KEYS, "seed": 7, "rounds": 3, "algorithm": {"name": "strata"}}
PRIVACY: dict[str, dict[str, Any]] = {
    "central": {"kind": "central", "noise_multiplier": 0.5},
    "local": {"kind": "local", "noise_multiplier": 0.05},
}


def known_seeds(here: Deployed, out: Path) -> None:
    """Let everybody draw its noise from the seed and the name of a run, as the simulator does."""
    for folder in (out / "network", *(device.state for device in here.grid.devices.values())):
        folder.mkdir(parents=True)
        (folder / "noise_seed").write_text(f"{KEYS['seed']:032x}")
    (out / "network" / "run").write_text(SIMULATED_RUN)


@pytest.mark.parametrize("kind", PRIVACY)
def test_with_the_same_seed_a_federation_has_the_noise_of_the_simulator(
    kind: str, here: Deployed, tmp_path: Path
) -> None:
    out = tmp_path / "real"
    known_seeds(here, out)
    real = here.run(out, privacy=PRIVACY[kind])
    simulated = here.simulated(tmp_path / "simulated", privacy=PRIVACY[kind])
    assert torch.equal(real.state.models, simulated.state.models)
    assert real.summary["privacy"] == simulated.summary["privacy"]


def test_small_clusters_keep_their_model_as_in_the_simulator(here: Deployed, tmp_path: Path) -> None:
    """Six clients in three groups of two, and then in two of three."""
    for groups, moves in ((3, False), (2, True)):
        algorithm = {"name": "random_groups", "groups": groups}
        privacy = {"min_cluster": 3}
        real = here.run(tmp_path / f"real {groups}", algorithm=algorithm, privacy=privacy)
        simulated = here.simulated(tmp_path / f"simulated {groups}", algorithm=algorithm, privacy=privacy)
        assert torch.equal(real.state.models, simulated.state.models)
        assert torch.equal(real.state.models[0], real.state.models[1]) != moves


@pytest.mark.parametrize("kind", PRIVACY)
def test_the_seed_of_the_run_does_not_tell_the_noise(kind: str, here: Deployed, tmp_path: Path) -> None:
    real = here.run(tmp_path / "real", privacy=PRIVACY[kind])
    simulated = here.simulated(tmp_path / "simulated", privacy=PRIVACY[kind])
    assert not torch.equal(real.state.models, simulated.state.models)
    adding = [tmp_path / "real" / "network"]
    if kind == "local":
        adding = [device.state for device in here.grid.devices.values()]
    seeds = {secret_seed(folder / "noise_seed") for folder in adding}
    assert len(seeds) == len(adding) and not any((folder / "noise_seed").stat().st_mode & 0o077 for folder in adding)


@pytest.mark.parametrize("kind", PRIVACY)
def test_a_resumed_federation_goes_on_with_the_same_noise(kind: str, here: Deployed, tmp_path: Path) -> None:
    for name in ("whole", "half"):
        known_seeds(replace(here, grid=Loopback({})), tmp_path / name)
    whole = here.run(tmp_path / "whole", privacy=PRIVACY[kind])
    here.run(tmp_path / "half", privacy=PRIVACY[kind], rounds=2)
    resumed = here.run(tmp_path / "half", privacy=PRIVACY[kind], resume=True)
    assert torch.equal(resumed.state.models, whole.state.models)


@pytest.mark.parametrize("kind", PRIVACY)
def test_rounds_whose_models_have_left_the_server_are_not_done_again(kind: str, here: Deployed, tmp_path: Path) -> None:
    """A repeated round may have other answers, and so other noise: its model would be released twice, counted once."""
    here.run(tmp_path / "run", privacy=PRIVACY[kind], rounds=2)
    newest = max((tmp_path / "run" / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(b"damaged")
    with pytest.raises(RecordError, match="epsilon counts each round once"):
        here.run(tmp_path / "run", privacy=PRIVACY[kind], rounds=3, resume=True)


def test_a_device_can_demand_noise(here: Deployed, tmp_path: Path) -> None:
    """One of six devices demands twice the noise of the run: it sends nothing, and is absent."""
    here.grid.devices[100] = replace(here.grid.devices[100], least_noise=0.1)
    run = here.run(tmp_path / "real", privacy=PRIVACY["local"], rounds=1)
    assert len(run.rounds[0]["absent"]) == 1
    assert "of at least 0.1 here, found 0.05" in absences(tmp_path / "real")[0]["0"]


@pytest.mark.parametrize("found", [-1.0, math.nan, math.inf, "much", True])
def test_noise_that_a_device_cannot_demand_is_refused(found: Any) -> None:
    keys = {"client-key": "a", "data": "b", "state-dir": "c"}
    assert Device.of({**keys, "least-noise": 2}).least_noise == 2.0 and Device.of(keys).least_noise == 0.0
    with pytest.raises(InputError, match="expected least-noise to be a number of at least 0"):
        Device.of({**keys, "least-noise": found})


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": -1.0}, {"noise_multiplier": math.nan}, {"clip_norm": 0.0}, {"clip_norm": math.inf}],
    ids=str,
)
def test_noise_that_is_none_is_refused_by_devices(wrong: dict[str, Any], here: Deployed) -> None:
    config = run_config(load_experiment(KEYS), here.members, "0" * 16)
    with pytest.raises(InputError, match="the config of a run: expected that"):
        replace(config, **wrong)


def test_a_seed_that_was_damaged_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "noise_seed").write_text("no seed")
    with pytest.raises(RecordError, match="noise_seed: expected 32 hexadecimal digits"):
        secret_seed(tmp_path / "noise_seed")
