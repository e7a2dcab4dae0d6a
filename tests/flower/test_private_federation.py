"""Differential privacy on real devices: the noise of the simulator, from seeds that stay where the noise is added."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Loopback, Ticks, federation

from fedstrata.base.errors import ExperimentError, InputError, RecordError
from fedstrata.config import load_experiment
from fedstrata.flower.client_app import Device
from fedstrata.flower.federation import Federation
from fedstrata.flower.server_app import drive, run_config
from fedstrata.play.run import run_experiment
from fedstrata.results.run import Run
from fedstrata.uploads.noise import SIMULATED_RUN, secret_seed

KEYS: dict[str, Any] = {
    "seed": 7,
    "rounds": 3,
    "data": {"name": "digits", "clients": 6, "samples": 32, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "strata"},
    "engine": {"name": "loop", "device": "cpu"},
}
PRIVACY: dict[str, dict[str, Any]] = {
    "central": {"kind": "central", "noise_multiplier": 0.5},
    "local": {"kind": "local", "noise_multiplier": 0.05},
}


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Device], Federation]:
    made = federation(KEYS, tmp_path_factory.mktemp("devices"))
    truth = made.setup.server.problem.truth
    assert truth is not None
    keys = tuple(device.key for device in made.devices.values())
    return made.devices, Federation(keys, made.config.samples, truth=tuple(truth.tolist()), wait_seconds=5.0)


Here = tuple[Loopback, Federation]


@pytest.fixture
def here(devices: tuple[dict[int, Device], Federation], tmp_path: Path) -> Here:
    """The devices with states of their own."""
    fresh = {node: replace(device, state=tmp_path / device.key) for node, device in devices[0].items()}
    return Loopback(fresh), devices[1]


def driven(here: Here, out: Path, resume: bool = False, **changes: Any) -> Run:
    grid, members = here
    return drive(grid, load_experiment({**KEYS, **changes}), members, out, resume=resume, clock=Ticks().clock)


def known_seeds(here: Here, out: Path) -> None:
    """Let everybody draw its noise from the seed and the name of a run, as the simulator does."""
    for folder in (out / "network", *(device.state for device in here[0].devices.values())):
        folder.mkdir(parents=True)
        (folder / "noise_seed").write_text(f"{KEYS['seed']:x}")
    (out / "network" / "run").write_text(SIMULATED_RUN)


@pytest.mark.parametrize("kind", PRIVACY)
def test_with_the_same_seed_a_federation_has_the_noise_of_the_simulator(kind: str, here: Here, tmp_path: Path) -> None:
    out = tmp_path / "real"
    known_seeds(here, out)
    real = driven(here, out, privacy=PRIVACY[kind])
    simulated = run_experiment(load_experiment({**KEYS, "privacy": PRIVACY[kind]}), tmp_path / "simulated", quiet=True)
    assert torch.equal(real.state.models, simulated.state.models)
    assert real.summary["privacy"] == simulated.summary["privacy"]


def test_small_clusters_keep_their_model_as_in_the_simulator(here: Here, tmp_path: Path) -> None:
    """Six clients in three groups of two, and then in two of three."""
    for groups, moves in ((3, False), (2, True)):
        algorithm = {"name": "random_groups", "groups": groups}
        privacy = {"min_cluster": 3}
        real = driven(here, tmp_path / f"real {groups}", algorithm=algorithm, privacy=privacy)
        experiment = load_experiment({**KEYS, "algorithm": algorithm, "privacy": privacy})
        simulated = run_experiment(experiment, tmp_path / f"simulated {groups}", quiet=True)
        assert torch.equal(real.state.models, simulated.state.models)
        assert torch.equal(real.state.models[0], real.state.models[1]) != moves


@pytest.mark.parametrize("kind", PRIVACY)
def test_the_seed_of_the_run_does_not_tell_the_noise(kind: str, here: Here, tmp_path: Path) -> None:
    real = driven(here, tmp_path / "real", privacy=PRIVACY[kind])
    simulated = run_experiment(load_experiment({**KEYS, "privacy": PRIVACY[kind]}), tmp_path / "simulated", quiet=True)
    assert not torch.equal(real.state.models, simulated.state.models)
    adding = [tmp_path / "real" / "network"]
    if kind == "local":
        adding = [device.state for device in here[0].devices.values()]
    seeds = {secret_seed(folder / "noise_seed") for folder in adding}
    assert len(seeds) == len(adding) and not any((folder / "noise_seed").stat().st_mode & 0o077 for folder in adding)


@pytest.mark.parametrize("kind", PRIVACY)
def test_a_resumed_federation_goes_on_with_the_same_noise(kind: str, here: Here, tmp_path: Path) -> None:
    for name in ("whole", "half"):
        known_seeds((Loopback({}), here[1]), tmp_path / name)
    whole = driven(here, tmp_path / "whole", privacy=PRIVACY[kind])
    driven(here, tmp_path / "half", privacy=PRIVACY[kind], rounds=2)
    resumed = driven(here, tmp_path / "half", privacy=PRIVACY[kind], resume=True)
    assert torch.equal(resumed.state.models, whole.state.models)


@pytest.mark.parametrize("kind", PRIVACY)
def test_rounds_whose_models_have_left_the_server_are_not_done_again(kind: str, here: Here, tmp_path: Path) -> None:
    """A repeated round may have other answers, and so other noise: its model would be released twice, counted once."""
    driven(here, tmp_path / "run", privacy=PRIVACY[kind], rounds=2)
    newest = max((tmp_path / "run" / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(b"damaged")
    with pytest.raises(RecordError, match="epsilon counts each round once"):
        driven(here, tmp_path / "run", privacy=PRIVACY[kind], rounds=3, resume=True)


def test_cohorts_of_a_fixed_size_are_refused_where_clients_come_and_go(here: Here, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"cohort\.sampling = 'uniform': expected 'poisson'"):
        driven(here, tmp_path / "real", privacy=PRIVACY["central"], cohort={"fraction": 0.5})


def test_a_device_can_demand_noise(here: Here, tmp_path: Path) -> None:
    """One of six devices demands twice the noise of the run: it sends nothing, and is absent."""
    grid, members = here
    node, device = next(iter(grid.devices.items()))
    demanding = Loopback({**grid.devices, node: replace(device, least_noise=0.1)})
    run = driven((demanding, members), tmp_path / "real", privacy=PRIVACY["local"], rounds=1)
    assert len(run.rounds[0]["absent"]) == 1
    traffic = json.loads((tmp_path / "real" / "network" / "rounds.jsonl").read_text().splitlines()[0])
    assert "of at least 0.1, which this device requires, found 0.05" in json.dumps(traffic["absent"])


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
def test_noise_that_is_none_is_refused_by_devices(wrong: dict[str, Any], here: Here) -> None:
    config = run_config(load_experiment(KEYS), here[1], "0" * 16)
    with pytest.raises(InputError, match="the config of a run: expected that"):
        replace(config, **wrong)


def test_a_seed_that_was_damaged_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "noise_seed").write_text("no seed")
    with pytest.raises(RecordError, match="expected at most 32 hexadecimal digits"):
        secret_seed(tmp_path / "noise_seed")
