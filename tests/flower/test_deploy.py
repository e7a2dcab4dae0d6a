"""What the three commands write, hand over and refuse; with real processes in ``test_real_processes.py``."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from in_process import Loopback, models

from builders import keys
from fedstrata.base.errors import DataError, EngineError, ExperimentError, InputError, RecordError
from fedstrata.config import load_experiment
from fedstrata.flower import deploy, server_app
from fedstrata.flower.client_app import Device
from fedstrata.flower.credentials import certify, read_public_keys, refuse_another_app
from fedstrata.flower.federation import Federation, RoundRules, Samples, read_federation, write_federation
from fedstrata.flower.members import Members
from fedstrata.flower.scaffold import node_keys
from fedstrata.play.run import run_experiment

EXPERIMENT = keys(
    in_process.KEYS,
    rounds=3,
    data={"clients": 3, "samples": 24, "public": 16},
    partition={"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]},
    algorithm={"name": "fedtsdp", "threshold": 0.5, "radius1": 0.02},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "a federation"
    said = deploy.init(folder, EXPERIMENT, host="server.example", port=9000)
    lines = [shlex.split(line) for line in said.splitlines()]
    assert lines[2][0] == f"{folder}/nodes/site-0/start.sh"
    assert lines[3] == ["fedstrata", "deploy", "run", f"{folder}/experiment.toml", "--federation", str(folder)]
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A federation that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "federation"))


def openssl(folder: Path, *words: str) -> str:
    return subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_init_writes_an_experiment_and_the_keys_data_and_scripts_of_each_machine(made: Path) -> None:
    assert load_experiment(made / "experiment.toml") == load_experiment(EXPERIMENT)
    federation = read_federation(made / "federation.toml")
    assert federation.clients == ("site-0", "site-1", "site-2") and federation.public == "public.npz"
    assert sorted(set(federation.truth)) == [0, 1, 2]
    for script in made.rglob("*.sh"):
        assert script.stat().st_mode & 0o100
        subprocess.run(["sh", "-n", str(script)], check=True)
    names = {"ca.crt", "data.npz", "key", "key.pub", "nginx.conf", "start.sh", "tls.crt", "tls.key"}
    assert {path.name for path in (made / "nodes/site-1").iterdir()} == names
    assert (made / "nodes/site-0/key.pub").read_text() != (made / "nodes/site-1/key.pub").read_text()
    for private in ("key", "tls.key"):
        assert (made / "nodes/site-0" / private).stat().st_mode & 0o077 == 0, "a private key is its owner's to read"


def test_a_name_in_a_nodes_certificate_tells_nobody_which_clients_there_are(made: Path) -> None:
    """A proxy sends the names of all that it lets in to whoever connects."""
    shown = ("x509", "-in", "tls.crt", "-noout", "-subject")
    names = {openssl(made / "nodes" / client, *shown) for client in ("site-0", "site-1", "site-2")}
    assert len(names) == 3 and not any("site" in name for name in names)


def limits(home: Path) -> list[int]:
    """Bytes of a body that the proxy lets through: of a list of objects, of an object."""
    files = [(home / "proxy" / name).read_text() for name in ("list.conf", "object.conf")]
    return [int(text.split(";")[0].split()[1]) for text in files]


def test_the_proxy_lets_through_what_replies_about_the_model_need(home: Path) -> None:
    """Four tensors, the largest fact of 10 x 5 x 64 numbers; 16 updates, each tensor beside one piece; 4 facts."""
    list_bytes, object_bytes = limits(home)
    assert object_bytes == 64 * 1024 + 4 * 10 * 3 * 64
    assert list_bytes == 16 * 1024 + 80 * (2 * (16 * 4 + 4) + 4 * 16)
    deploy._fit_proxy(home, load_experiment(EXPERIMENT, ["model.hidden=[4096]"]))
    assert limits(home) == [list_bytes, 64 * 1024 + 4 * 64 * 4096]
    deploy._fit_proxy(home, load_experiment(EXPERIMENT))
    assert limits(home) == [list_bytes, 64 * 1024 + 4 * 64 * 4096], "limits never fall: another run may need them"


def test_the_proxy_lets_through_an_update_that_is_one_array(home: Path) -> None:
    """Of many tensors none is large, and devices send them side by side; nginx once refused this with status 413."""
    deep = ["model.hidden=[64, 64, 64, 64, 64, 64, 64, 64]", 'network.compression="int8"']
    experiment = load_experiment({**EXPERIMENT, "algorithm": {"name": "fedavg"}}, deep)
    deploy._fit_proxy(home, experiment)
    p = 64 * 64 * 8 + 64 * 8 + 64 * 10 + 10
    assert limits(home)[1] == 64 * 1024 + 4 * p


def test_another_process_that_has_the_number_of_a_killed_proxy_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda *signal: pytest.fail("it was signalled"))
    for number in (str(os.getpid()), "", "none"):
        (home / "proxy/nginx.pid").write_text(number)
        (home / "proxy/object.conf").unlink(missing_ok=True)
        deploy._fit_proxy(home, load_experiment(EXPERIMENT))
        assert limits(home)[1] > 0


def test_a_new_federation_bounds_the_samples_that_a_client_may_claim(made: Path) -> None:
    """Every client of the experiment holds 24 training samples; twice as many is the bound."""
    assert read_federation(made / "federation.toml").max_samples == 48


@pytest.mark.parametrize(
    ("host", "name"), [("server.example", "DNS:server.example"), ("10.0.0.7", "IP Address:10.0.0.7")]
)
def test_the_certificate_holds_for_the_host_and_is_signed_by_the_authority(
    host: str, name: str, tmp_path: Path
) -> None:
    certify(tmp_path, host)
    names = openssl(tmp_path, "x509", "-in", "server.crt", "-noout", "-ext", "subjectAltName")
    assert all(each in names for each in ("DNS:localhost", "IP Address:127.0.0.1", name))
    assert "server.crt: OK" in openssl(tmp_path, "verify", "-CAfile", "ca.crt", "server.crt")


def test_a_program_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"certify\.sh failed in .*openssl: .*not found"):
        certify(tmp_path, "localhost")


def test_a_folder_that_holds_something_is_left_alone(made: Path) -> None:
    with pytest.raises(RecordError, match="expected a new or empty"):
        deploy.init(made, EXPERIMENT)


def test_init_without_flower_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(InputError, match=r"expected Flower, found .*pip install 'fedstrata\[flower\]'"):
        deploy.init(tmp_path / "federation", EXPERIMENT)
    assert not (tmp_path / "federation").exists()


OWN = keys(
    in_process.KEYS,
    data={"clients": 2},
    partition={"scheme": "iid"},
    model={"name": "deployed_net:net"},
    local={"loss": "deployed_losses.plain:loss"},
    algorithm={"name": "fedavg"},
)


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a network in a module, and a loss in a package."""
    (tmp_path / "deployed_net.py").write_text(
        "from torch import nn\n\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    (tmp_path / "deployed_losses").mkdir()
    (tmp_path / "deployed_losses/__init__.py").touch()
    (tmp_path / "deployed_losses/plain.py").write_text("from torch.nn.functional import cross_entropy as loss\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("deployed_net", "deployed_losses", "deployed_losses.plain"):
        sys.modules.pop(name, None)


def test_a_module_that_needs_one_that_is_nowhere_else_is_refused_and_nothing_is_made(own_modules: Path) -> None:
    (own_modules / "deployed_helper.py").write_text("from torch import nn\n")
    (own_modules / "deployed_net.py").write_text("from deployed_helper import nn\n\nnet = nn.Linear\n")
    with pytest.raises(InputError, match="No module named 'deployed_helper'; put it there"):
        deploy.init("federation", OWN)
    assert not Path("federation").exists()


def test_modules_of_ones_own_are_put_where_the_servers_and_the_nodes_programs_start(own_modules: Path) -> None:
    """One that the server's programs do not find is named before anything starts."""
    deploy.init("federation", OWN)
    for folder in ("federation", "federation/nodes/site-0", "federation/nodes/site-1"):
        for module in ("deployed_net.py", "deployed_losses/plain.py"):
            assert (Path(folder) / module).read_bytes() == Path(module).read_bytes()
    Path("federation/deployed_net.py").unlink()
    with pytest.raises(InputError, match=r"model.name = 'deployed_net:net': .*No module named 'deployed_net'; put it"):
        deploy.run_on_federation(OWN, "federation", "real")


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
            grid, public = Loopback(devices), read_public_keys(self.folder)
            grid.public_keys = {node: bytes.fromhex(public[device.key]) for node, device in devices.items()}
            server_app.serve(grid, config)


def test_the_server_runs_and_resumes_elsewhere_without_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of the data is relative to the directory of the command. FedTSDP groups by the server's own samples."""
    monkeypatch.chdir(tmp_path)
    np.savez("visits.npz", x=np.random.default_rng(0).random((120, 3), dtype=np.float32), y=np.arange(120) % 2)
    data = {"name": "visits.npz", "clients": 3, "samples": 20, "test": 0.2, "public": 16}
    tables = keys(EXPERIMENT, data=data, partition={"scheme": "iid"})
    deploy.init("federation", tables)
    flwr = Flwr(tmp_path / "federation")

    def elsewhere(*given: Any, **named: Any) -> None:
        with monkeypatch.context() as patch:
            patch.chdir(flwr.folder)
            flwr(*given, **named)

    monkeypatch.setattr(deploy, "subprocess", SimpleNamespace(run=elsewhere))
    out = deploy.run_on_federation(tables, "federation", "real", ["rounds=2"])
    simulated = run_experiment(load_experiment(tables, ["rounds=2"]), tmp_path / "simulated", quiet=True)
    assert json.loads((out / "summary.json").read_text())["acc_client"] == simulated.summary["acc_client"]
    assert models(out) == models(tmp_path / "simulated") != {}
    (out / "summary.json").unlink()
    deploy.resume(out, "federation")
    assert json.loads((out / "summary.json").read_text())["acc_client"] == simulated.summary["acc_client"]


def test_a_run_that_was_lost_is_resumed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = Flwr(made, works=False)
    monkeypatch.setattr(deploy, "subprocess", SimpleNamespace(run=flwr))
    out = tmp_path / "real"
    with pytest.raises(EngineError, match=r"did not finish; .*No round has begun: give the same command again"):
        deploy.run_on_federation(EXPERIMENT, made, out)
    (out / "network").mkdir(parents=True)  # where the server waits for clients
    with pytest.raises(EngineError, match=f"No round has begun: remove {out} and give the same command again"):
        deploy._submit(made, out, {})
    (out / "network").rmdir()
    run_experiment(load_experiment(EXPERIMENT, ["rounds=3"]), out, quiet=True)
    (out / "summary.json").unlink()
    flwr.works = True
    with pytest.raises(RecordError, match="expected the nodes of the run, found no such file; start a new run"):
        deploy.resume(out, made)
    flwr.works = False
    members = Members(["site-0", "site-1", "site-2"], 3)
    members.joins = dict.fromkeys(range(3), 0)
    members.save(out / "network/nodes.json")
    with pytest.raises(EngineError, match=f"did not finish; .*fedstrata deploy resume {out} --federation") as lost:
        deploy.resume(out, made)
    assert lost.value.says_how, "the command that was given would find the folder taken"
    flwr.works = True
    assert deploy.resume(out, made) == out and flwr.configs[-1]["resume"]
    with pytest.raises(RecordError, match="expected a run folder"):
        deploy.resume(tmp_path / "nothing", made)
    flwr.works = False
    with pytest.raises(EngineError, match="did not finish"):
        deploy.resume(out, made)


def test_a_folder_that_is_no_federation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"expected federation\.toml in it"):
        deploy.run_on_federation(EXPERIMENT, tmp_path, tmp_path / "run")


SAMPLES = Samples((1, 8, 8), 10, (0.5,), (0.25,))


FEDERATION = Federation(("a", "b"), SAMPLES, RoundRules(30.0, 0.5, 2, 4), 1, 10.0, 500, (0, 1), "public.npz")


def test_a_federation_survives_its_file(tmp_path: Path) -> None:
    write_federation(tmp_path / "federation.toml", FEDERATION)
    assert read_federation(tmp_path / "federation.toml") == FEDERATION


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (8,)},
        {"classes": 1},
        {"mean": ()},
        {"std": (0.0,)},
        {"dtype": "int8"},
        {"names": ("a",)},
        {"test": 1.0},
        {"features": ("a", "b")},
    ],
    ids=str,
)
def test_samples_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"samples: expected that .*{next(iter(wrong))}"):
        replace(SAMPLES, **wrong)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients", "cleints", "cleints: unknown key; did you mean clients"),
        ("deadline", "deadlines", r"rounds\.deadlines: unknown key; did you mean deadline"),
        ("wait_seconds = 300.0", 'wait_seconds = "long"', "wait_seconds = 'long': expected a valid number"),
        ("min_reply_fraction = 1.0", "min_reply_fraction = 0.0", "rounds.min_reply_fraction = 0.0: expected a number"),
        ("max_samples = 0", "max_samples = -1", "max_samples = -1: expected a number greater than or equal"),
        ("wait_seconds = 300.0", "wait_seconds", "expected the file of a federation"),
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
        server_app.read_public_samples(tmp_path, Federation(("a",), SAMPLES, public="public.npz"))


def test_the_nodes_fetch_the_app_as_flower_packs_it_and_another_one_starts_no_run(home: Path) -> None:
    """That nodes fetch no other is tried in `test_takeover.py`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        packed = hashlib.sha256(build_fab_from_disk(home / "app")).hexdigest()
    assert f'"~{packed}" 1;' in (home / "nodes/site-0/nginx.conf").read_text()
    refuse_another_app(home)
    (home / "app/LICENSE").write_text("another")
    with pytest.raises(InputError, match="expected the app that was there when the federation was made"):
        deploy._submit(home, home / "out", {})
    (home / "app/pyproject.toml").write_text("no app")
    with pytest.raises(InputError, match="flwr build failed in "):
        refuse_another_app(home)


def test_the_operators_public_keys_are_read_as_flower_tells_them(made: Path, tmp_path: Path) -> None:
    found = read_public_keys(made)
    private = load_ssh_private_key((made / "nodes/site-1/key").read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    assert found["site-1"] == public_key_to_bytes(private.public_key()).hex()
    (tmp_path / "nodes/site-0").mkdir(parents=True)
    (tmp_path / "nodes/site-0/key.pub").write_text("no key")
    with pytest.raises(InputError, match=r"key\.pub: expected a public key as ssh-keygen writes it"):
        read_public_keys(tmp_path)


def test_the_keys_of_nodes_are_safe_names_and_no_two_are_alike() -> None:
    names = ("Ghent", "Hôpital St. Jean", "3", "上海", "ghent", "../etc", "a" * 200)
    found = node_keys(names)
    assert found[:6] == ("Ghent", "H-pital-St.-Jean", "3", "site-3", "ghent-4", "etc")
    assert len(set(found)) == len(names) and len(found[6]) == 60


def test_a_federation_has_the_names_of_the_clients_of_the_data(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 2, site=np.repeat(["Gent (BE)", "Lyon"], 20))
    experiment = {
        "rounds": 1,
        "data": {"name": str(tmp_path / "mine.npz")},
        "partition": {"scheme": "natural", "column": "site"},
        "model": {"name": "mlp"},
    }
    deploy.init(tmp_path / "federation", experiment)
    federation = read_federation(tmp_path / "federation" / "federation.toml")
    assert federation.clients == ("Gent-BE", "Lyon") and federation.names == ("Gent (BE)", "Lyon")
    assert (tmp_path / "federation/nodes/Gent-BE/data.npz").exists()
