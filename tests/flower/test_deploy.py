"""What the three commands write, hand over and refuse; with real processes in ``test_real_processes.py``."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Loopback

from fedstrata.config import load
from fedstrata.errors import DataError, EngineError, ExperimentError, InputError, RecordError
from fedstrata.flower import certificates, deploy, server
from fedstrata.flower.certificates import certify
from fedstrata.flower.device import Device
from fedstrata.flower.federation import Federation, read_federation, write_federation
from fedstrata.flower.remote import Rules
from fedstrata.flower.terms import Samples
from fedstrata.train import run

EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 3, "samples": 24, "test": 0.2, "public": 16},
    "partition": {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedtsdp", "threshold": 0.5, "radius1": 0.02},
    "engine": {"name": "loop", "device": "cpu"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "federation"
    said = deploy.init(folder, EXPERIMENT, host="server.example", port=9000)
    assert "deploy run" in said and f"{folder}/nodes/site-0/start.sh" in said
    return folder


def test_init_writes_the_app_the_keys_the_data_and_a_script_for_each_machine(made: Path) -> None:
    app = tomllib.loads((made / "app/pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedstrata.flower.server_app:app"
    assert (made / "app/LICENSE").exists() and load(made / "experiment.toml") == load(EXPERIMENT)
    federation = read_federation(made / "federation.toml")
    assert federation.clients == ("site-0", "site-1", "site-2") and federation.public == "public.npz"
    assert sorted(set(federation.truth)) == [0, 1, 2]
    for script in ("superlink.sh", "register.sh", "nodes/site-2/start.sh"):
        assert (made / script).stat().st_mode & 0o100
        subprocess.run(["sh", "-n", str(made / script)], check=True)
    start = (made / "nodes/site-1/start.sh").read_text()
    assert "--superlink server.example:9000 --host 127.0.0.1 --port 9002" in start
    assert {path.name for path in (made / "nodes/site-1").iterdir()} == {
        "ca.crt",
        "data.npz",
        "key",
        "key.pub",
        "start.sh",
    }
    assert (made / "nodes/site-0/key.pub").read_text() != (made / "nodes/site-1/key.pub").read_text()
    assert (made / "nodes/site-0/key").stat().st_mode & 0o077 == 0, "a private key is its owner's to read"
    connection = tomllib.loads((made / "cli/config.toml").read_text())["superlink"]["here"]
    assert connection == {"address": "server.example:9000", "root-certificates": str(made / "certificates/ca.crt")}


def test_the_certificate_holds_for_the_host_and_is_signed_by_the_authority(made: Path) -> None:
    def openssl(*words: str) -> str:
        done = subprocess.run(
            ["openssl", *words], cwd=made / "certificates", capture_output=True, text=True, check=True
        )
        return done.stdout

    names = openssl("x509", "-in", "server.crt", "-noout", "-ext", "subjectAltName")
    assert all(name in names for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:server.example"))
    assert "server.crt: OK" in openssl("verify", "-CAfile", "ca.crt", "server.crt")


def test_an_address_is_certified_as_one(tmp_path: Path) -> None:
    certify(tmp_path, "10.0.0.7")
    shown = ["openssl", "x509", "-in", "server.crt", "-noout", "-ext", "subjectAltName"]
    assert "IP Address:10.0.0.7" in subprocess.run(shown, cwd=tmp_path, capture_output=True, text=True).stdout


def test_a_program_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected the program no-such-program, found none; install it"):
        certificates._do(["no-such-program"], tmp_path)
    with pytest.raises(InputError, match="openssl nonsense failed in"):
        certificates._do(["openssl", "nonsense"], tmp_path)


def test_a_folder_that_holds_something_is_left_alone(made: Path) -> None:
    with pytest.raises(RecordError, match="expected a new or empty"):
        deploy.init(made, EXPERIMENT)


def test_init_without_flower_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(InputError, match="expected Flower"):
        deploy.init(tmp_path / "federation", EXPERIMENT)
    assert not (tmp_path / "federation").exists()


class Flwr:
    """Stands for the program ``flwr``: the server runs here, on devices here.

    Args:
        folder: of the federation.
        works: whether there is a SuperLink.
    """

    def __init__(self, folder: Path, works: bool = True) -> None:
        self.folder, self.works = folder, works
        self.configs: list[dict[str, Any]] = []

    def __call__(self, command: list[str], env: dict[str, str], check: bool) -> None:
        assert command[:4] == ["flwr", "run", str(self.folder / "app"), "here"] and not check
        assert env["FLWR_HOME"] == str(self.folder / "cli") and env["PATH"].startswith(str(Path(sys.executable).parent))
        config = tomllib.loads(Path(command[-1]).read_text())
        self.configs.append(config)
        if self.works:
            nodes = [self.folder / "nodes" / f"site-{client}" for client in range(3)]
            devices = {100 + c: Device(path.name, path / "data.npz", path / "state") for c, path in enumerate(nodes)}
            server.serve(Loopback(devices), config)


def test_run_gives_what_a_simulated_run_gives(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With unlabelled samples on the server, which FedTSDP groups by."""
    monkeypatch.setattr(subprocess, "run", flwr := Flwr(made))
    out = deploy.run(EXPERIMENT, made, tmp_path / "real", ["rounds=2"])
    assert flwr.configs[0]["out"] == str(out) and not flwr.configs[0]["resume"]
    simulated = run(load(EXPERIMENT, ["rounds=2"]), tmp_path / "simulated", quiet=True)
    assert len(simulated.rounds) == 2
    for path in (tmp_path / "simulated" / "models").iterdir():
        assert path.read_bytes() == (out / "models" / path.name).read_bytes()
    assert (out / "report.html").exists() and json.loads((out / "summary.json").read_text())["rounds"] == 2


def test_a_run_that_was_lost_is_resumed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = Flwr(made, works=False)
    monkeypatch.setattr(subprocess, "run", flwr)
    out = tmp_path / "real"
    with pytest.raises(EngineError, match=f"did not finish; .*fedstrata deploy resume {out} --federation"):
        deploy.run(EXPERIMENT, made, out)
    run(load(EXPERIMENT, ["rounds=3"]), out, quiet=True)
    (out / "summary.json").unlink()
    flwr.works = True
    assert deploy.resume(out, made) == out and flwr.configs[-1]["resume"]
    with pytest.raises(RecordError, match="expected a run folder"):
        deploy.resume(tmp_path / "nothing", made)
    flwr.works = False
    with pytest.raises(EngineError, match="did not finish"):
        deploy.resume(out, made)


def test_a_folder_that_is_no_federation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"expected the folder of a federation, found no federation\.toml"):
        deploy.run(EXPERIMENT, tmp_path, tmp_path / "run")


SAMPLES = Samples((1, 8, 8), 10, (0.5,), (0.25,))


def test_a_federation_survives_its_file(tmp_path: Path) -> None:
    federation = Federation(("a", "b"), SAMPLES, Rules(30.0, 0.5, 2, 4), 1, 10.0, 500, (0, 1), "public.npz")
    write_federation(tmp_path / "federation.toml", federation)
    assert read_federation(tmp_path / "federation.toml") == federation
    write_federation(tmp_path / "federation.toml", replace(federation, rounds=Rules(), truth=(), public=""))
    assert read_federation(tmp_path / "federation.toml").rounds == Rules()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients", "cleints", "cleints: expected one of clients, samples"),
        ("deadline", "deadlines", r"rounds\.deadlines: expected one of deadline, enough"),
        ("patience = 300.0", 'patience = "long"', "patience = 'long': input should be a valid number"),
        ("enough = 1.0", "enough = 0.0", "rounds: expected that enough is above 0"),
        ("patience = 300.0", "patience", "expected the file of a federation"),
    ],
)
def test_a_wrong_key_of_a_federation_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    write_federation(path, Federation(("a",), SAMPLES))
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read_federation(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3)}, "expected a .npz file with an array x"),
        ({"x": np.zeros((3, 1, 4, 4), "uint8")}, r"expected samples of uint8 \(1, 8, 8\), found uint8 \(1, 4, 4\)"),
    ],
)
def test_public_samples_that_do_not_fit_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(DataError, match=message):
        server._public(tmp_path / "public.npz", Federation(("a",), SAMPLES))
