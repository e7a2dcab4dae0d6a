"""Real processes and sockets on 127.0.0.1, with TLS and keys: what is lost comes back, and costs what it should.

What a process does when is not left to chance: a device works only while its folder is free, and a test can hold it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from in_process import without
from machines import Machines, free_ports, within
from safetensors import safe_open

from fedstrata.base.files import folder_lock
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import Plan
from fedstrata.flower import deploy
from fedstrata.flower.credentials import certify, make_node_keys
from fedstrata.flower.federation import RoundRules, read_federation, write_federation
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.steps import run_steps

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"

pytestmark = pytest.mark.deploy

EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 3, "samples": 24, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedper"},
    "engine": {"name": "loop", "device": "cpu"},
}
PATIENCE = 900.0
"""Seconds until a test gives up; a machine may be busy."""

WORKING = "ROUND {}]"
"""What a SuperNode says when it takes a message of a round."""


class Federation(NamedTuple):
    """Three nodes that are up, and an intruder who claims a client's key."""

    folder: Path
    machines: Machines
    port: int
    started: list[subprocess.Popen[str]]

    def state(self, client: str) -> Path:
        return self.folder / "nodes" / client / "state"

    def said(self, name: str) -> str:
        return self.machines.log(name).read_text()

    def start(self, command: str, *words: str, out: Path) -> subprocess.Popen[str]:
        """A command of fedstrata's that goes on beside the test."""
        line = [sys.executable, "-m", "fedstrata", "deploy", command, *words, "--federation", str(self.folder)]
        with out.with_suffix(".log").open("a") as log:
            self.started.append(subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, text=True))
        return self.started[-1]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder, port = tmp_path_factory.mktemp("real") / "federation", free_ports(11)
    deploy.init(folder, EXPERIMENT, port=port)
    path = folder / "federation.toml"
    write_federation(path, replace(read_federation(path), rounds=RoundRules(deadline=600.0, min_replies=2)))
    intrude(folder, port)
    with Machines(folder, port) as machines:
        machines.server()
        machines.register()
        for client in ("site-0", "site-1", "site-2", "intruder"):
            machines.node(client)
        started: list[subprocess.Popen[str]] = []
        try:
            yield Federation(folder, machines, port, started)
        finally:
            for process in started:
                process.kill()
                process.wait()


def intrude(folder: Path, port: int) -> None:
    """A node with a key of its own, registered as such, whose configuration says that it is the client site-0."""
    own, other = folder / "nodes" / "site-0", folder / "nodes" / "intruder"
    make_node_keys(other)
    for name in ("ca.crt", "data.npz", "trusted.yaml"):
        shutil.copy(own / name, other / name)
    for name in ("start.sh", "nginx.conf"):
        text = (own / name).read_text()
        for theirs, mine in ((port + 2, port + 8), (port + 3, port + 9)):
            text = text.replace(str(theirs), str(mine))
        (other / name).write_text(text)
    with (folder / "register.sh").open("a") as script:
        script.write("flwr supernode register nodes/intruder/key.pub here --name intruder\n")


def until(what: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    assert within(PATIENCE, what), "it did not happen"


def kept(state: Path) -> set[int]:
    """Rounds of which a device keeps tensors of the newest run."""
    files = sorted(state.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    if not files:
        return set()
    with safe_open(files[-1], framework="pt") as file:
        return {int(name.split("/")[2]) for name in file.keys()}  # noqa: SIM118 (not a dict)


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def missed(out: Path) -> dict[int, list[int]]:
    """Who was absent in each round; nobody's answer is rejected here."""
    lines = rounds(out / "network")
    assert not any(line["rejected"] for line in lines)
    return {line["round"]: [int(client) for client in line["absent"]] for line in lines}


def by_simulator(out: Path, absent: Mapping[int, list[int]]) -> None:
    """The run with clients that do not answer in some rounds."""
    experiment = load_experiment(EXPERIMENT)
    setup = build_run(experiment)

    def reply(plan: Plan) -> PlanReply:
        gone = torch.tensor(absent.get(plan.round, []), dtype=torch.int64)
        return PlanReply(setup.clients.run(without(plan, gone)), 0.0)

    answer_plans(run_steps(experiment, setup, out), reply)


def same_run(out: Path, twin: Path) -> None:
    """The same models, and the same accuracies, which are those of the clients' own layers as well."""
    # What is a client's own is in the run folder of a simulation, and on the client's machine else.
    for path in (twin / "models").glob("cluster-*"):
        assert path.read_bytes() == (out / "models" / path.name).read_bytes(), path.name
    assert [each["acc_client"] for each in rounds(out)] == [each["acc_client"] for each in rounds(twin)]


@pytest.fixture(scope="module")
def lost(up: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a SuperNode is killed while its client is at work in round 2, and started again."""
    folder, machines = up.folder, up.machines
    out = tmp_path_factory.mktemp("lost") / "real"
    with ExitStack() as others, ExitStack() as victim:
        with folder_lock(up.state("site-0"), wait=lambda: None):
            # While site-0 is held, the first round lasts, and nobody can be at work in the second.
            run = up.start("run", str(folder / "experiment.toml"), "--out", str(out), out=out)
            until(lambda: kept(up.state("site-1")) == kept(up.state("site-2")) == {1} or run.poll() is not None)
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
    assert run.wait(PATIENCE) == 0, out.with_suffix(".log").read_text()
    return out


def test_a_node_that_is_killed_in_mid_round_costs_its_row_in_that_round_alone(lost: Path) -> None:
    assert missed(lost) == {1: [], 2: [2], 3: [], 4: []}


def test_a_node_that_is_started_again_goes_on_with_its_own_layers(lost: Path, tmp_path: Path) -> None:
    by_simulator(tmp_path / "simulated", {2: [2]})
    same_run(lost, tmp_path / "simulated")


def test_a_node_that_claims_a_taken_client_key_is_refused_and_the_run_goes_on(lost: Path) -> None:
    said = lost.with_suffix(".log").read_text()
    assert "claims the client site-0, but is registered as intruder" in said


def test_a_superlink_that_is_killed_is_started_again_and_the_run_resumed(up: Federation, tmp_path: Path) -> None:
    folder, machines = up.folder, up.machines
    out = tmp_path / "real"
    before = up.said("site-2").count(WORKING.format(2))
    with ExitStack() as held:
        with folder_lock(up.state("site-0"), wait=lambda: None):
            run = up.start("run", str(folder / "experiment.toml"), "--out", str(out), out=out)
            until(lambda: kept(up.state("site-1")) == {1} or run.poll() is not None)
            held.enter_context(folder_lock(up.state("site-1"), wait=lambda: None))
        until(lambda: up.said("site-2").count(WORKING.format(2)) > before)
        machines.kill("superlink")
    assert run.wait(PATIENCE) == 1 and "deploy resume" in out.with_suffix(".log").read_text()
    assert not (out / "summary.json").exists()
    machines.server()
    assert up.start("resume", str(out), out=out).wait(PATIENCE) == 0, out.with_suffix(".log").read_text()
    assert missed(out) == {1: [], 2: [], 3: [], 4: []}
    by_simulator(tmp_path / "simulated", {})
    same_run(out, tmp_path / "simulated")


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
    up: Federation, place: int, authority: str, key: str | None, said: str, tmp_path: Path
) -> None:
    """By way of the proxy on the machine of site-0, which shows that node's certificate, or straight to the server."""
    node, log = up.folder / "nodes/site-0", tmp_path / "log"
    certify(tmp_path / "elsewhere", "localhost")
    make_node_keys(tmp_path / "other")
    for path in (node / "key", node / "ca.crt", node / "tls.crt"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "other.crt").symlink_to(tmp_path / "elsewhere/ca.crt")
    command = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{up.port + place}"]
    command += ["--host", "127.0.0.1", "--port", str(up.port + 10), "--root-certificates", authority]
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
    assert "labels equal in 2 of 2 rounds, 5 of 5 files of models equal" in done.stdout
