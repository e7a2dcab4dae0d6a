"""Programs of Flower that are forked from one process, as `experiments/speed/super_nodes.py` starts them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiments.speed.forked_programs import ForkedPrograms
from machines import family, free_ports, processes, within

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with ForkedPrograms() as programs:
        yield programs.folder


def run(script: Path, *words: str, where: Path) -> subprocess.CompletedProcess[str]:
    # As a script of a federation, it finds the program first in the path.
    environment = {**os.environ, "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(where)}
    command = [script.name, *words]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_forked_program_says_what_the_installed_one_says(folder: Path, tmp_path: Path) -> None:
    done = run(folder / "flwr", "--version", where=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("Flower version: ")


def test_a_forked_program_has_its_own_arguments_directory_and_status(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    words = ("--auth-supernode-private-key", "key", "--superlink", "127.0.0.1:1", "--root-certificates", "key")
    done = run(folder / "flower-supernode", *words, where=tmp_path)
    assert done.returncode == 1 and "Unable to parse the private key file." in done.stdout + done.stderr
    assert run(folder / "flower-supernode", "--nothing", where=tmp_path).returncode == 2


def test_what_nobody_waits_for_goes_on_alone_and_ends_with_the_fork_server(tmp_path: Path) -> None:
    with ForkedPrograms() as programs:
        # It asks for work at a port where nobody listens, for as long as it lives.
        command = [str(programs.folder / "flower-superexec"), "--insecure", "--runtime-api-address", "127.0.0.1:1"]
        with (tmp_path / "log").open("w") as log:
            done = subprocess.run(command, cwd=tmp_path, stdout=log, stderr=log, check=False, timeout=60)
        assert done.returncode == 0
        # It may have started something itself for a moment: Python's `platform` asks the program `file` about itself.
        forked = [process for process, parent in processes().items() if parent == programs.process]
        assert len(forked) == 1
        started = family({programs.process})
    assert not started & processes().keys()


def test_a_program_that_is_waited_for_ends_when_its_script_is_killed(tmp_path: Path) -> None:
    with ForkedPrograms() as programs:
        # It tries to reach a server where nobody listens, for as long as it lives.
        words = ["--insecure", "--superlink", "127.0.0.1:1", "--host", "127.0.0.1", "--port", str(free_ports(1))]
        command = [str(programs.folder / "flower-supernode"), *words]
        with (tmp_path / "log").open("w") as log:
            script = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        started = within(30.0, lambda: "Uvicorn running" in (tmp_path / "log").read_text())
        script.kill()
        script.wait()
        assert started, (tmp_path / "log").read_text()
        assert within(30.0, lambda: len(family({programs.process})) == 1)
