"""An algorithm and a network of one's own on real devices, as the page on adding one says."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from machines import Machines, free_ports

import fedstrata
from blocks import blocks

pytestmark = pytest.mark.deploy

CLIENTS = ("site-0", "site-1", "site-2")


class Page(NamedTuple):
    """A directory with the files of the page, which is on no search path, and the commands for real devices."""

    desk: Path
    init: str
    run: str

    def do(self, command: str, *words: str) -> str:
        """Run a command there as a user does, and return what it printed."""
        program = str(Path(sys.executable).parent / command.split()[0])
        done = subprocess.run(
            [program, *command.split()[1:], *words], cwd=self.desk, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def environment() -> dict[str, str]:
    """Nothing but the library itself is found."""
    return {**os.environ, "PYTHONPATH": str(Path(fedstrata.__file__).parents[1])}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    for block in blocks("methods/adding.md"):
        if block.file and block.file.startswith(("known_groups", "small_net")):
            (tmp_path / block.file).write_text(block.text)
    consoles = [
        command for block in blocks("methods/adding.md") if block.language == "console" for command in block.commands
    ]
    init, run = (command for command, _ in consoles if command.startswith("fedstrata deploy"))
    return Page(tmp_path, init, run)


def test_it_ends_with_the_models_of_the_simulator(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    port = free_ports(2 + 2 * len(CLIENTS))
    page.do(page.init, "--port", str(port))
    with Machines(page.desk / "federation", port) as machines:
        machines.server()
        machines.register()
        for client in CLIENTS:
            machines.node(client)
        assert "run folder: runs/devices" in page.do(page.run)
    page.do("fedstrata run known_groups.toml --out runs/known --set engine.name=loop --quiet")
    known, devices = page.desk / "runs/known", page.desk / "runs/devices"
    models = sorted(path.name for path in (known / "models").iterdir())
    assert {"cluster-1.safetensors", "cluster-2.safetensors", "clients.json"} <= set(models)
    for name in models:
        assert (known / "models" / name).read_bytes() == (devices / "models" / name).read_bytes(), name
    assert "known_groups:KnownGroups" in (devices / "report.html").read_text()
    assert page.do("fedstrata export runs/devices exported").splitlines()[0] == "exported/models.json"
