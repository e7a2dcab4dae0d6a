"""Real processes and sockets on 127.0.0.1, with TLS and keys: what is lost comes back, and costs what it should."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fedstrata.config import load
from fedstrata.core import Plan, Report
from fedstrata.errors import EngineError
from fedstrata.flower import deploy
from fedstrata.flower.certificates import certify, keys
from fedstrata.flower.federation import read_federation, write_federation
from fedstrata.flower.remote import Rules
from fedstrata.setting import prepare
from fedstrata.train import Answer, ask, steps

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"
sys.path.append(str(EXAMPLES))

if TYPE_CHECKING:
    from examples.flower.machines import Machines
else:
    from machines import Machines

pytestmark = pytest.mark.deploy

PORT = 8310
EXPERIMENT: dict[str, Any] = {
    "rounds": 5,
    "data": {"name": "digits", "clients": 3, "samples": 24, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedper"},
    "engine": {"name": "loop", "device": "cpu"},
}
PATIENCE = 300.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Machines]]:
    """A federation of three nodes that is up."""
    folder = tmp_path_factory.mktemp("real") / "federation"
    deploy.init(folder, EXPERIMENT, port=PORT)
    path = folder / "federation.toml"
    write_federation(path, replace(read_federation(path), rounds=Rules(deadline=120.0, least=2)))
    with Machines(folder, PORT) as machines:
        machines.server()
        machines.register()
        for client in range(3):
            machines.node(f"site-{client}")
        yield folder, machines


def until(what: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def running(folder: Path, out: Path) -> tuple[threading.Thread, list[BaseException]]:
    """A run that goes on beside the test."""
    failed: list[BaseException] = []

    def go() -> None:
        try:
            deploy.run(EXPERIMENT, folder, out)
        except EngineError as error:
            failed.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, failed


def rounds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def absences(out: Path) -> dict[int, list[int]]:
    """Who did not answer in each round."""
    return {line["round"]: [int(client) for client in line["absent"]] for line in rounds(out / "network")}


def by_simulator(out: Path, absent: dict[int, list[int]]) -> None:
    """The run with clients that do not answer in some rounds."""
    experiment = load(EXPERIMENT)
    setting = prepare(experiment)

    def answer(plan: Plan) -> Report:
        gone = torch.tensor(absent.get(plan.round, []), dtype=torch.int64)
        score = [(use, ~torch.isin(use.clients, gone)) for use in plan.score]
        there = tuple(replace(use, clients=use.clients[rows], offers=use.offers[rows]) for use, rows in score)
        return setting.clients.run(replace(plan.only(~torch.isin(plan.cohort, gone)), score=there))

    run, given = steps(experiment, setting, out, resume=False, show=lambda record: None), None
    try:
        while True:
            given = Answer(answer(ask(run, given)), 0.0)
    except StopIteration:
        return


def same_models(one: Path, other: Path) -> bool:
    pairs = [(path, other / "models" / path.name) for path in (one / "models").iterdir()]
    return all(path.read_bytes() == twin.read_bytes() for path, twin in pairs)


def test_a_node_that_is_killed_in_mid_round_costs_its_rows_and_comes_back_with_its_own_layers(
    up: tuple[Path, Machines], tmp_path: Path
) -> None:
    folder, machines = up
    out = tmp_path / "real"
    thread, failed = running(folder, out)
    until(lambda: (out / "checkpoint/00001.sha256").exists())
    machines.end("site-2", signal.SIGKILL)
    machines.node("site-2")
    thread.join()
    assert not failed
    absent = absences(out)
    # It was working in round 2 when it died; once the SuperLink has believed that, the new process is let in.
    assert absent[1] == [] and absent[2] == [2] and absent[5] == []
    assert all(gone in ([], [2]) for gone in absent.values())
    by_simulator(tmp_path / "simulated", absent)
    assert same_models(out, tmp_path / "simulated")
    records = [rounds(path) for path in (out, tmp_path / "simulated")]
    assert [each["acc_client"] for each in records[0]] == [each["acc_client"] for each in records[1]]


def test_a_superlink_that_is_killed_is_started_again_and_the_run_resumed(
    up: tuple[Path, Machines], tmp_path: Path
) -> None:
    folder, machines = up
    out = tmp_path / "real"
    thread, failed = running(folder, out)
    until(lambda: (out / "checkpoint/00002.sha256").exists())
    machines.end("superlink", signal.SIGKILL)
    thread.join()
    assert failed and not (out / "summary.json").exists()
    machines.server()
    deploy.resume(out, folder)
    by_simulator(tmp_path / "simulated", absences(out))
    assert same_models(out, tmp_path / "simulated")


@pytest.mark.parametrize(
    ("authority", "key", "said"),
    [
        ("other.crt", "key", "CERTIFICATE_VERIFY_FAILED"),
        ("ca.crt", "other", "[code: 2004]"),
        ("ca.crt", None, "[code: 2001]"),
    ],
)
def test_a_node_with_a_wrong_certificate_or_key_or_none_is_refused(
    up: tuple[Path, Machines], authority: str, key: str | None, said: str, tmp_path: Path
) -> None:
    folder, machines = up
    node, log = folder / "nodes/site-0", tmp_path / "log"
    certify(tmp_path / "elsewhere", "localhost")
    keys(tmp_path, "other")
    for path in (node / "key", node / "ca.crt"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "other.crt").symlink_to(tmp_path / "elsewhere/ca.crt")
    command = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{PORT}"]
    command += ["--host", "127.0.0.1", "--port", str(PORT + 20), "--root-certificates", authority]
    command += [] if key is None else ["--auth-supernode-private-key", key]
    with log.open("wb") as room:
        refused = subprocess.Popen(
            command, cwd=tmp_path, stdout=room, stderr=room, env=machines.environment, start_new_session=True
        )
        try:
            until(lambda: said in log.read_text() or refused.poll() is not None)
            assert said in log.read_text()
        finally:
            os.killpg(refused.pid, signal.SIGKILL)
            refused.wait()


def test_the_example_ends_with_the_labels_and_models_of_the_simulator(tmp_path: Path) -> None:
    small = {"rounds": "2", "clients": "3", "groups": "3", "samples": "24", "data": "digits", "port": str(PORT + 30)}
    words = [word for key, value in small.items() for word in (f"--{key}", value)]
    command = [sys.executable, str(EXAMPLES / "loopback.py"), *words, "--folder", str(tmp_path / "example")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "labels equal in 2 of 2 rounds" in done.stdout
