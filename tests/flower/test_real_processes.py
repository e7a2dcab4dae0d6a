"""Real processes and sockets on 127.0.0.1, with TLS and keys: what is lost comes back, and costs what it should.

What a process does when is not left to chance: a device works only while its folder is free, and a test can hold it.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from experiments.trust.network_faults import (
    CLIENTS,
    EXPERIMENT,
    PATIENCE,
    WORKING,
    Network,
    finish,
    missed,
    records,
    round_kept,
    same_run,
    simulate,
    until,
)
from machines import Machines, free_ports

from fedstrata.base.files import folder_lock
from fedstrata.flower import deploy
from fedstrata.flower.credentials import certify, make_node_keys

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def port() -> int:
    """The port of the federation's server. The tenth one after it is for a node that is refused."""
    return free_ports(11)


@pytest.fixture(scope="module")
def up(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Three nodes that are up, and an intruder who claims a client's key."""
    folder = tmp_path_factory.mktemp("real") / "federation"
    deploy.init(folder, EXPERIMENT, port=port)
    intrude(folder, port)
    with Machines(folder, port) as machines:
        machines.server()
        machines.register()
        for client in (*CLIENTS, "intruder"):
            machines.node(client)
        up = Network(folder, machines, {})
        up.set_rules(deadline=600.0)
        yield up


def intrude(folder: Path, port: int) -> None:
    """A node with a key of its own, registered as such, whose configuration says that it is the client site-0."""
    own, other = folder / "nodes" / "site-0", folder / "nodes" / "intruder"
    make_node_keys(other)
    for name in ("ca.crt", "data.npz"):
        shutil.copy(own / name, other / name)
    for name in ("start.sh", "nginx.conf"):
        text = (own / name).read_text()
        for theirs, mine in ((port + 2, port + 8), (port + 3, port + 9)):
            text = text.replace(str(theirs), str(mine))
        (other / name).write_text(text)
    with (folder / "register.sh").open("a") as script:
        script.write("flwr supernode register nodes/intruder/key.pub here --name intruder\n")


@pytest.fixture(scope="module")
def lost(up: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a SuperNode is killed while its client is at work in round 2, and started again."""
    machines = up.machines
    out = tmp_path_factory.mktemp("lost") / "real"
    with up.run(out) as run, ExitStack() as others, ExitStack() as victim:
        with folder_lock(up.state("site-0"), wait=lambda: None):
            # While site-0 is held, the first round lasts, and nobody can be at work in the second.
            until(lambda: round_kept(up.state("site-1")) == round_kept(up.state("site-2")) == {1} or ended(run))
            others.enter_context(folder_lock(up.state("site-1"), wait=lambda: None))
            victim.enter_context(folder_lock(up.state("site-2"), wait=lambda: None))
        until(lambda: WORKING.format(2) in up.said("site-2"))
        activated = up.said("site-2").count("SuperNode ID")
        machines.kill("site-2")
        machines.node("site-2")
        # Should what it was training live on, it comes too late.
        victim.close()
        # While site-1 is held, the second round lasts.
        until(lambda: up.said("site-2").count("SuperNode ID") > activated)
        others.close()
        finish(run, out)
    return out


def ended(run: subprocess.Popen[str]) -> bool:
    return run.poll() is not None


def equals_the_simulation(out: Path, absent: dict[int, list[int]]) -> bool:
    """Whether a run has the bits of a simulated one, in which some clients do not answer in some rounds."""
    assert not any(line["rejected"] for line in records(out / "network"))
    assert missed(out) == {round: absent.get(round, []) for round in range(1, EXPERIMENT["rounds"] + 2)}
    simulate(out.with_name("simulated"), absent)
    return same_run(out, out.with_name("simulated"))


def test_a_node_that_is_killed_in_mid_round_costs_its_row_in_that_round_alone(lost: Path) -> None:
    assert {round: clients for round, clients in missed(lost).items() if clients} == {2: [2]}


def test_a_node_that_is_started_again_goes_on_with_its_own_layers(lost: Path) -> None:
    assert equals_the_simulation(lost, {2: [2]})


def test_a_node_of_another_name_is_refused_and_the_run_goes_on(lost: Path) -> None:
    said = lost.with_suffix(".log").read_text()
    assert "is refused: no place is left for intruder beside site-0" in said


def test_a_superlink_that_is_killed_is_started_again_and_the_run_resumed(up: Network, tmp_path: Path) -> None:
    out = tmp_path / "real"
    before = up.said("site-2").count(WORKING.format(2))
    with up.run(out) as run, ExitStack() as held:
        with folder_lock(up.state("site-0"), wait=lambda: None):
            until(lambda: round_kept(up.state("site-1")) == {1} or ended(run))
            held.enter_context(folder_lock(up.state("site-1"), wait=lambda: None))
        until(lambda: up.said("site-2").count(WORKING.format(2)) > before)
        up.machines.kill("superlink")
        held.close()
        assert run.wait(PATIENCE) == 1 and "deploy resume" in out.with_suffix(".log").read_text()
    assert not (out / "summary.json").exists()
    up.machines.server()
    with up.started("resume", str(out), out=out) as resumed:
        finish(resumed, out)
    assert equals_the_simulation(out, {})


@pytest.mark.parametrize(
    ("place", "authority", "key", "said"),
    [
        (2, "other.crt", "key", "CERTIFICATE_VERIFY_FAILED"),
        (2, "tls.crt", None, "404 Not Found"),
        (2, "tls.crt", "other/key", "[code: 2004]"),
        (2, "tls.crt", "key", "[code: 2004]"),
        (0, "ca.crt", "key", "400 Bad Request"),
    ],
    ids=["wrong certificate", "no key", "unregistered key", "key in use", "no certificate of its own"],
)
def test_a_node_that_may_not_come_in_is_refused(
    up: Network, port: int, place: int, authority: str, key: str | None, said: str, tmp_path: Path
) -> None:
    """By way of the proxy on the machine of site-0, which shows that node's certificate, or straight to the server."""
    node, log = up.folder / "nodes/site-0", tmp_path / "log"
    certify(tmp_path / "elsewhere", "localhost")
    make_node_keys(tmp_path / "other")
    for path in (node / "key", node / "ca.crt", node / "tls.crt"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "other.crt").symlink_to(tmp_path / "elsewhere/ca.crt")
    command = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{port + place}"]
    command += ["--host", "127.0.0.1", "--port", str(port + 10), "--root-certificates", authority]
    command += [] if key is None else ["--auth-supernode-private-key", key]
    with log.open("wb") as room:
        refused = subprocess.Popen(
            command, cwd=tmp_path, stdout=room, stderr=room, env=up.machines.environment, start_new_session=True
        )
        try:
            until(lambda: said in log.read_text() or refused.poll() is not None)
            assert said in log.read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(refused.pid, signal.SIGKILL)
            refused.wait()


def test_the_example_ends_with_the_labels_and_models_of_the_simulator(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "loopback.py"), "--rounds", "2", "--folder", str(tmp_path / "example")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "labels equal in 2 of 2 rounds, 4 of 4 files of models equal" in done.stdout
