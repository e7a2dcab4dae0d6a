"""An algorithm and a network of one's own on real devices, as the page on adding one says."""

import subprocess
import sys
from pathlib import Path

import pytest
from machines import Machines, free_ports

import fedstrata
from blocks import blocks

pytestmark = pytest.mark.deploy

CLIENTS = ("site-0", "site-1", "site-2")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of the page, which is on no search path: nothing but the library itself is found."""
    for block in blocks("methods/adding.md"):
        if block.file and block.file.startswith(("known_groups", "small_net")):
            (tmp_path / block.file).write_text(block.text)
    monkeypatch.setenv("PYTHONPATH", str(Path(fedstrata.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def do(command: str, *words: str) -> str:
    """Run a command as a user does, and return what it printed."""
    program = str(Path(sys.executable).parent / command.split()[0])
    done = subprocess.run([program, *command.split()[1:], *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_ends_with_the_models_of_the_simulator(desk: Path) -> None:
    consoles = [block for block in blocks("methods/adding.md") if block.language == "console"]
    commands = [command for block in consoles for command, _ in block.commands]
    init, run = (command for command in commands if command.startswith("fedstrata deploy"))
    port = free_ports(2 + 2 * len(CLIENTS))
    do(init, "--port", str(port))
    with Machines(desk / "federation", port) as machines:
        machines.server()
        machines.register()
        for client in CLIENTS:
            machines.node(client)
        assert "run folder: runs/devices" in do(run)
    do("fedstrata run known_groups.toml --out runs/known --set engine.name=loop --quiet")
    known, devices = desk / "runs/known", desk / "runs/devices"
    models = sorted(path.name for path in (known / "models").iterdir())
    assert {"cluster-1.safetensors", "cluster-2.safetensors", "clients.json"} <= set(models)
    for name in models:
        assert (known / "models" / name).read_bytes() == (devices / "models" / name).read_bytes(), name
    assert "known_groups:KnownGroups" in (devices / "report.html").read_text()
    assert do("fedstrata export runs/devices exported").splitlines()[0] == "exported/models.json"
