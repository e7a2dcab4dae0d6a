"""What faults of the network and of Flower's processes cost a federation of real SuperNodes on this machine.

    PYTHONPATH=examples/flower python -m experiments.trust.network_faults --runs 7
    PYTHONPATH=examples/flower python -m experiments.trust.network_faults half_open stopped --runs 7

A SuperLink and three SuperNodes with TLS and keys train FedPer on digits, and a TCP proxy lies between each node and
the server. Every case has some runs. The same clients that were absent are absent in a simulation, whose models and
accuracies a run must equal in every bit. Adds to ``experiments/results/network_faults.json`` after each run; a run
that is there is not done again. One run of each case takes about 25 minutes on two cores that other work shares.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from machines import Machines, free_ports, within
from safetensors import safe_open

from experiments.trust.tcp_proxy import Faults, TcpProxy
from fedstrata.base.files import folder_lock
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.core import Plan
from fedstrata.engine.device import one_thread
from fedstrata.flower import deploy
from fedstrata.flower.federation import RoundRules, read_federation, write_federation
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.steps import run_steps

CLIENTS = ("site-0", "site-1", "site-2")
VICTIM = CLIENTS[2]
"""The client that a fault of one client hits."""

EXPERIMENT: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": len(CLIENTS), "samples": 24, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedper"},
    "engine": {"name": "loop", "device": "cpu"},
}
"""FedPer, so that what a client keeps to itself must survive as well."""

DEADLINE = 90.0
"""Seconds after which a client is absent where a fault leaves it silent."""

PATIENCE = 900.0
"""Seconds until a case gives up; a machine may be busy."""

WORKING = "ROUND {}]"
"""What a SuperNode says when it takes a message of a round."""


@dataclass
class Network:
    """A federation that is up, each of its nodes behind a proxy.

    Attributes:
        folder: The folder of the federation.
        machines: Its processes.
        proxies: The proxy of each client.
    """

    folder: Path
    machines: Machines
    proxies: Mapping[str, TcpProxy]

    def state(self, client: str) -> Path:
        """The folder of what a client keeps to itself."""
        return self.folder / "nodes" / client / "state"

    def said(self, client: str) -> str:
        """What a client's SuperNode has said."""
        return self.machines.log(client).read_text()

    def set_faults(self, faults: Faults | None = None) -> None:
        """Let something happen to the connections of all nodes; by default nothing. Those that there are end."""
        for proxy in self.proxies.values():
            proxy.faults = faults or Faults()
            # Nodes keep connections, which would go on as before.
            proxy.end_connections()

    def set_rules(self, deadline: float) -> None:
        """Set the deadline of the rounds of the next run."""
        path = self.folder / "federation.toml"
        rules = RoundRules(deadline=deadline, min_replies=2)
        write_federation(path, replace(read_federation(path), rounds=rules))

    @contextmanager
    def started(self, command: str, *words: str, out: Path) -> Iterator[subprocess.Popen[str]]:
        """Let a command of `fedstrata deploy` run beside this program, and end it if it has not ended by itself."""
        line = [sys.executable, "-m", "fedstrata", "deploy", command, *words, "--federation", str(self.folder)]
        with out.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def run(self, out: Path) -> Iterator[subprocess.Popen[str]]:
        """Begin a run."""
        with self.started("run", str(self.folder / "experiment.toml"), "--out", str(out), out=out) as process:
            yield process


@contextmanager
def network(folder: Path, seed: int = 0) -> Iterator[Network]:
    """Make a federation in a new folder and start its processes; all of them are ended in the end.

    Args:
        folder: The folder.
        seed: The seed of which connections are cut.
    """
    n = len(CLIENTS)
    port = free_ports(2 + 3 * n)
    deploy.init(folder, EXPERIMENT, port=port)
    proxies = dict[str, TcpProxy]()
    with ExitStack() as stack:
        for place, client in enumerate(CLIENTS):
            between = port + 2 + 2 * n + place
            proxies[client] = stack.enter_context(TcpProxy(between, port, seed=n * seed + place))
            config = folder / "nodes" / client / "nginx.conf"
            text = config.read_text()
            direct = f"server 127.0.0.1:{port};"
            if direct not in text:
                raise RuntimeError(f"{config}: expected {direct}")
            config.write_text(text.replace(direct, f"server 127.0.0.1:{between};"))
        machines = stack.enter_context(Machines(folder, port))
        machines.server()
        machines.register()
        for client in CLIENTS:
            machines.node(client)
        yield Network(folder, machines, proxies)


def until(what: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    if not within(PATIENCE, what):
        raise RuntimeError("it did not happen in time")


def finish(process: subprocess.Popen[str], out: Path) -> None:
    """Wait until a run has ended well."""
    if process.wait(PATIENCE):
        raise RuntimeError(out.with_suffix(".log").read_text())


def whole_run(up: Network, out: Path, faults: Faults) -> dict[str, Any]:
    """A run with faults of all connections from its begin to its end."""
    up.set_rules(600.0)
    before = {client: (proxy.opened, len(proxy.cut)) for client, proxy in up.proxies.items()}
    up.set_faults(faults)
    try:
        with up.run(out) as process:
            finish(process, out)
    finally:
        up.set_faults()
    opened = sum(proxy.opened - before[client][0] for client, proxy in up.proxies.items())
    cut = sum(len(proxy.cut) - before[client][1] for client, proxy in up.proxies.items())
    return {"connections": opened, "connections_cut": cut}


def no_fault(up: Network, out: Path) -> dict[str, Any]:
    """No fault."""
    return whole_run(up, out, Faults())


def latency(up: Network, out: Path) -> dict[str, Any]:
    """200 ms in each direction, of every connection."""
    return whole_run(up, out, Faults(delay=0.2))


def resets(up: Network, out: Path) -> dict[str, Any]:
    """Every connection is reset within its first 256 KiB; one that is kept takes many requests."""
    return whole_run(up, out, Faults(cut_share=1.0, cut_within=2**18))


def bandwidth(up: Network, out: Path) -> dict[str, Any]:
    """20 KB/s in each direction of every connection, and 50 ms."""
    return whole_run(up, out, Faults(rate=20e3, delay=0.05))


@contextmanager
def at_work(up: Network, out: Path) -> Iterator[tuple[subprocess.Popen[str], ExitStack]]:
    """A run whose victim has taken the message of round 2, and works on it as soon as the stack is closed.

    What a process does when is not left to chance: a device works only while its folder is free.
    """
    before = up.said(VICTIM).count(WORKING.format(2)) if up.machines.log(VICTIM).exists() else 0
    with ExitStack() as victim, up.run(out) as process:
        with folder_lock(up.state(CLIENTS[0]), wait=lambda: None):
            # While the first client is held, round 1 lasts, and nobody can be at work in round 2.
            until(lambda: round_kept(up.state(VICTIM)) == {1} or process.poll() is not None)
            victim.enter_context(folder_lock(up.state(VICTIM), wait=lambda: None))
        until(lambda: up.said(VICTIM).count(WORKING.format(2)) > before or process.poll() is not None)
        yield process, victim


def half_open(up: Network, out: Path) -> dict[str, Any]:
    """One client's connections stay open and nothing passes, from its work in round 2 until the round is over."""
    up.set_rules(DEADLINE)
    with at_work(up, out) as (process, victim):
        up.proxies[VICTIM].faults = Faults(half_open=True)
        victim.close()
        until(lambda: 2 in missed(out) or process.poll() is not None)
        up.proxies[VICTIM].faults = Faults()
        return back(up, process, out)


def stopped(up: Network, out: Path) -> dict[str, Any]:
    """One client's processes are stopped (SIGSTOP) at their work in round 2, and go on when the round is over."""
    up.set_rules(DEADLINE)
    with at_work(up, out) as (process, victim):
        up.machines.send_signal(VICTIM, signal.SIGSTOP)
        victim.close()
        until(lambda: 2 in missed(out) or process.poll() is not None)
        up.machines.send_signal(VICTIM, signal.SIGCONT)
        return back(up, process, out)


def node_killed(up: Network, out: Path) -> dict[str, Any]:
    """One client's SuperNode is killed at its work in round 2, and started again at once."""
    up.set_rules(DEADLINE)
    with at_work(up, out) as (process, victim):
        up.machines.kill(VICTIM)
        up.machines.node(VICTIM)
        victim.close()
        return back(up, process, out)


def server_killed(up: Network, out: Path) -> dict[str, Any]:
    """The SuperLink is killed in round 2 and started again, and the run is resumed."""
    up.set_rules(600.0)
    with at_work(up, out) as (process, victim):
        up.machines.kill("superlink")
        killed = time.monotonic()
        victim.close()
        process.wait(PATIENCE)
    up.machines.server()
    with up.started("resume", str(out), out=out) as process:
        until(lambda: len(missed(out)) > 1 or process.poll() is not None)
        recovery = time.monotonic() - killed
        finish(process, out)
    return {"seconds_to_recover": round(recovery, 1)}


def back(up: Network, process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    """Wait for the end of a run, and measure until the victim has taken a message again."""
    began = time.monotonic()
    heard = len(up.said(VICTIM))
    until(lambda: "ROUND" in up.said(VICTIM)[heard:] or process.poll() is not None)
    recovery = time.monotonic() - began if "ROUND" in up.said(VICTIM)[heard:] else None
    finish(process, out)
    return {"seconds_to_recover": None if recovery is None else round(recovery, 1)}


CASES = (no_fault, latency, resets, bandwidth, half_open, stopped, node_killed, server_killed)
"""The cases, in the order of the table."""


def round_kept(state: Path) -> set[int]:
    """The rounds of which a device keeps tensors of the newest run."""
    files = sorted(state.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    if not files:
        return set()
    with safe_open(files[-1], framework="pt") as file:
        return {int(name.split("/")[2]) for name in file.keys()}  # noqa: SIM118 (not a dict)


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, one for each round; none while there is no file."""
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missed(out: Path) -> dict[int, list[int]]:
    """Who was absent from each plan that is over. A resumed run tells of its last one again."""
    return {line["round"]: [int(client) for client in line["absent"]] for line in records(out / "network")}


def simulate(out: Path, absent: Mapping[int, list[int]]) -> None:
    """The run with clients that do not answer some plans."""
    experiment = load_experiment(EXPERIMENT)
    setup = build_run(experiment)

    def reply(plan: Plan) -> PlanReply:
        gone = torch.tensor(absent.get(plan.round, []), dtype=torch.int64)
        scored = {name: each.only(~torch.isin(each.clients, gone)) for name, each in plan.evaluations.items()}
        asked = replace(plan.only(~torch.isin(plan.cohort, gone)), evaluations=scored)
        return PlanReply(setup.clients.run(asked), 0.0)

    with one_thread():
        answer_plans(run_steps(experiment, setup, out), reply)


def same_run(out: Path, twin: Path) -> bool:
    """Whether two runs have the same models, and the same accuracies, which are those of the clients' own layers."""
    models = [path.name for path in (twin / "models").glob("cluster-*")]
    equal = all((out / "models" / name).read_bytes() == (twin / "models" / name).read_bytes() for name in models)
    scores = [[each["acc_client"] for each in records(folder)] for folder in (out, twin)]
    return bool(models) and equal and scores[0] == scores[1]


def measured(up: Network, case: Callable[[Network, Path], dict[str, Any]], out: Path) -> dict[str, Any]:
    """One case, beside its simulation."""
    began = time.monotonic()
    figures = case(up, out)
    seconds = time.monotonic() - began
    absent = {round: clients for round, clients in missed(out).items() if clients}
    rejected = [line["rejected"] for line in records(out / "network") if line["rejected"]]
    simulate(out.with_name(f"{out.name}-simulated"), absent)
    lines = [line for line in records(out / "network") if line["round"] <= EXPERIMENT["rounds"]]
    return {
        "case": case.__name__,
        "rounds": len(records(out)),
        "seconds": round(seconds, 1),
        "seconds_per_round": [round(line["seconds"], 1) for line in lines],
        "absent": {str(each): clients for each, clients in absent.items()},
        "rows_lost": sum(map(len, absent.values())),
        "rejected": len(rejected),
        "same_bits": same_run(out, out.with_name(f"{out.name}-simulated")),
        **figures,
    }


def kept(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs that are in a file of results, by case and number."""
    known = json.loads(path.read_text()) if path.exists() else []
    return {(each["case"], each["run"]): each for each in known}


def main() -> None:
    """Do the runs that are not there yet, of all cases or of those that are named, and write the results."""
    cases = {case.__name__: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *cases], help="by default all")
    parser.add_argument("--runs", type=int, default=1, help="runs of each case, those included that are there")
    given = parser.parse_args()
    # So that the processes are ended when this one is told to end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    path = Path(__file__).parents[1] / "results" / "network_faults.json"
    known = kept(path)
    wanted = [(name, run) for run in range(given.runs) for name in given.cases or cases if (name, run) not in known]
    with (
        tempfile.TemporaryDirectory() as folder,
        network(Path(folder) / "federation", seed=len(known)) as up,
    ):
        for name, run in wanted:
            found = measured(up, cases[name], Path(folder) / f"{name}-{run}")
            known[name, run] = {"case": name, "run": run, **found}
            print(json.dumps(known[name, run]), flush=True)
            rows = [
                json.dumps(known[each])
                for each in sorted(known, key=lambda each: (list(cases).index(each[0]), each[1]))
            ]
            path.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
