"""A cluster of Ray with nodes of several sizes: the bits of runs, what is sent, and nodes that come and go.

    PYTHONPATH=tests:tests/engine:examples/flower python -m experiments.speed.cluster
    PYTHONPATH=tests:tests/engine:examples/flower python -m experiments.speed.cluster --parts equal killed

The nodes are real `ray start` processes on 127.0.0.1: a head without cores for work, and nodes of one, one and two
cores. Their bytes are real, their network is not. Parts:

- ``equal``: runs on the cluster, compared with the loop.
- ``shipped``: the bytes that each node gets in the first rounds, and whether its workers read them where they lie.
- ``overhead``: rounds in turn on worker processes and on the cluster.
- ``killed``: all processes of a node are killed while it works.
- ``silent``: all processes of a node are stopped while it works. Nobody is told, as when a cable is cut.
- ``added``: a node joins in the middle of a round whose tasks wait for cores.
- ``autoscaling``: a cluster without any core but the head's autoscaler, which adds nodes.

A run counts as equal if it leaves what a run of the loop leaves, as in `kills.py`. Writes
``experiments/results/cluster.json``; about 12 minutes on two cores that other work shares.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic
from typing import Any

import torch
from small import fit_of, partition_of, plan_of
from torch import nn

import fedstrata as fs
from builders import left
from experiments.speed.ray_nodes import LOOPBACK, RayNodes
from experiments.trust import kills
from experiments.trust.kills import tasks_of_ray
from fedstrata.core import Plan
from fedstrata.data import Dataset
from fedstrata.engine import Parallel, Processes, Ray, SimulationSpec
from fedstrata.engine.parallel import ray as engine
from fedstrata.engine.parallel.sharding import Transport
from fedstrata.models import layout_of, row_of

RESULT = Path(__file__).parents[1] / "results" / "cluster.json"

NODES = {"first": 1, "second": 1, "third": 2}
"""The cores of the nodes that work."""

VICTIM = "third"
"""The node that is lost."""

ATTEMPTS = 5
"""So often at most a node is killed until a round was at work meanwhile."""

ROUNDS = 5
CLIENTS = 24
DISTURBED = 3
"""The round in which something happens to a node."""

MOST = 2
"""The nodes that the autoscaler may add."""

IMAGES = 600
"""Images of each of 30 clients, where it is measured what is sent."""

PAIRS = 40
"""Rounds on processes and on the cluster, in turn."""


def keys(algorithm: str, **engine: Any) -> dict[str, Any]:
    """An experiment whose rounds take a second or more."""
    experiment = kills.keys(algorithm, ROUNDS, CLIENTS, **engine)
    return {**experiment, "local": {**experiment["local"], "epochs": 80}}


@cache
def whole(algorithm: str) -> object:
    """What a run of the loop leaves."""
    with TemporaryDirectory() as room:
        return left(fs.run(keys(algorithm), Path(room) / "run", quiet=True).folder)


def equal(algorithm: str, workers: int = 0) -> bool:
    """Whether a run on the cluster leaves what the loop leaves."""
    with TemporaryDirectory() as room:
        run = fs.run(keys(algorithm, name="ray", workers=workers), Path(room) / "run", quiet=True)
        return left(run.folder) == whole(algorithm)


@contextmanager
def joined(cores: Mapping[str, int], most: int = 0) -> Iterator[RayNodes]:
    """A cluster that runs of this process use.

    Args:
        cores: The cores of each node beside the head, which has none.
        most: The nodes of one core that the autoscaler may add.
    """
    with RayNodes() as nodes:
        nodes.start("head", 0, most)
        for name, count_of in cores.items():
            nodes.start(name, count_of)
        os.environ.update(nodes.environment)
        os.environ.update({LOOPBACK: "0", "RAY_ADDRESS": nodes.address})
        try:
            yield nodes
        finally:
            sys.modules["ray"].shutdown()


@dataclass
class Watch:
    """What is seen of the rounds of a run.

    Attributes:
        seconds: The seconds of each round's work.
        workers: The number of tasks of each round.
        in_time: Whether what was to happen in a round was over before the round was.
    """

    seconds: list[float] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    in_time: bool = False

    def found(self) -> dict[str, Any]:
        """The figures of the round with the deed and of the others; the first one starts the workers."""
        others = [each for round, each in enumerate(self.seconds[1:], 2) if round != DISTURBED]
        return {"seconds": round(self.seconds[DISTURBED - 1], 1), "seconds_of_others": round(median(others), 1)}


@contextmanager
def during_a_round(deed: Callable[[Event], None]) -> Iterator[Watch]:
    """Let something happen while the tasks of one round of a run are at work.

    Args:
        deed: What happens, in a thread. It is given an event that is set when the round is over.
    """
    run, calls, watch = Ray.run, count(1), Watch()

    def disturbed(self: Ray, request: Any, shards: Any) -> Any:
        done = list[float]()
        round_over = Event()
        disturbing = next(calls) == DISTURBED

        def act() -> None:
            deed(round_over)
            done.append(monotonic())

        thread = Thread(target=act)
        if disturbing:
            thread.start()
        began = monotonic()
        found = run(self, request, shards)
        ended = monotonic()
        round_over.set()
        watch.seconds.append(ended - began)
        watch.workers.append(len(shards))
        if disturbing:
            thread.join()
            watch.in_time = bool(done) and done[0] < ended
        return found

    Ray.run = disturbed  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        Ray.run = run  # type: ignore[method-assign]


def works(nodes: RayNodes, name: str) -> bool:
    """Whether a task works on a node now."""
    return bool(tasks_of_ray(nodes.pid(name)))


def bits(nodes: RayNodes) -> list[dict[str, Any]]:
    """Runs on the cluster."""
    runs = []
    for algorithm in kills.ALGORITHMS:
        with during_a_round(lambda over: None) as watch:
            runs.append({"algorithm": algorithm, "equal": equal(algorithm), "tasks": max(watch.workers)})
    return runs


def lost(how: Callable[[RayNodes, str], None], algorithms: tuple[str, ...], nodes: RayNodes) -> list[dict[str, Any]]:
    """Runs during which a node is lost. On a busy machine the round may be over before: then once more."""
    runs = list[dict[str, Any]]()
    for place, algorithm in enumerate(algorithms):
        whole(algorithm)
        for attempt in range(ATTEMPTS):
            found = _lost_once(how, algorithm, nodes, f"{VICTIM} {place} {attempt}")
            if found["in_round"] or not found["equal"]:
                break
        runs.append(found)
    return runs


def _lost_once(how: Callable[[RayNodes, str], None], algorithm: str, nodes: RayNodes, name: str) -> dict[str, Any]:
    """A run during which a new node of a name is lost."""
    nodes.start(name, NODES[VICTIM])

    def deed(round_over: Event) -> None:
        # A task may take a few milliseconds.
        while not works(nodes, name) and not round_over.wait(0.002):
            pass
        how(nodes, name)

    with during_a_round(deed) as watch:
        same = equal(algorithm)
    return {"algorithm": algorithm, "equal": same, "in_round": watch.in_time, **watch.found()}


def added(nodes: RayNodes) -> list[dict[str, Any]]:
    """A run during which a node is added. The rounds after that have more tasks."""
    whole("layercfl")
    with during_a_round(lambda over: nodes.start("added", 2)) as watch:
        same = equal("layercfl")
    nodes.kill("added")
    return [{"algorithm": "layercfl", "equal": same, "tasks": watch.workers}]


def autoscaling(nodes: RayNodes) -> list[dict[str, Any]]:
    """A run whose first tasks wait until the autoscaler has added the nodes that they need."""
    whole("layercfl")
    with during_a_round(lambda over: None) as watch:
        same = equal("layercfl", workers=MOST)
    working = len(sys.modules["ray"].nodes()) - 1
    seconds = [round(each, 1) for each in watch.seconds]
    return [{"algorithm": "layercfl", "equal": same, "nodes_before": 0, "nodes_after": working, "seconds": seconds}]


def network() -> nn.Module:
    """A network with few parameters for large images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32, 3))


def wide_network() -> nn.Module:
    """A network with many parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64, 7_000), nn.ReLU(), nn.Linear(7_000, 3)
        )


def spec_of(make: Callable[[], nn.Module], clients: int, samples: int) -> SimulationSpec:
    """Random images of 36 x 36, on which nothing is to be learnt."""
    total, draw = clients * (samples + 4), torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (total, 1, 36, 36), generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, 3, (total,), generator=draw)
    dataset = Dataset("random", images, labels, 3, mean=(0.5,), std=(0.3,))
    return SimulationSpec(make, dataset.channels_last(), partition_of([samples] * clients), 0)


def plan_for(spec: SimulationSpec) -> Plan:
    """One round of training of all clients."""
    module = spec.network()
    layout = layout_of(module)
    return plan_of(row_of(module, layout)[None], fit_of(layout, [[0]] * len(spec.client_data)))


def shipped(nodes: RayNodes) -> dict[str, Any]:
    """What each node gets in two rounds, and where its workers read it."""
    warm_up, spec = spec_of(network, 8, 10), spec_of(network, 30, IMAGES)
    Parallel(warm_up, Ray(warm_up)).run(plan_for(warm_up))
    transport = Ray(spec)
    clients = Parallel(spec, transport)
    plan = plan_for(spec)
    received = [received_bytes()]
    for _ in range(2):
        clients.run(plan)
        received.append(received_bytes())
    shared = where_data_lie(transport._data)
    return {
        "data_bytes": spec.dataset.inputs.nbytes + spec.dataset.labels.nbytes,
        "model_bytes": plan.models.nbytes,
        "nodes": [
            {"cores": cores, "first_round": one[1] - zero, "second_round": two[1] - one[1]}
            for (cores, zero), one, two in zip(*(each.values() for each in received), strict=True)
            if cores
        ],
        "workers": len({worker for worker, _ in shared}),
        "in_shared_memory": all(lies for _, lies in shared),
    }


def where_data_lie(data: Any) -> list[tuple[int, bool]]:
    """For workers of each node that has cores: which worker, and whether it reads the samples in shared memory."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = sys.modules["ray"]
    where = ray.remote(num_cpus=1)(lies_in_shared_memory)
    cores = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    # A task goes to any node else, and one worker may be quick enough for all tasks.
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node, own in cores.items() for _ in range(4 * own)]
    found: list[tuple[int, bool]] = ray.get([where.options(scheduling_strategy=at).remote([data]) for at in places])
    return found


def received_bytes() -> dict[str, tuple[int, int]]:
    """For each node its cores, and the bytes of all objects that its shared memory has had."""
    from ray._private.internal_api import node_stats

    found = {}
    for node in sys.modules["ray"].nodes():
        if node["Alive"]:
            place = node["NodeManagerAddress"], node["NodeManagerPort"]
            stats = node_stats(*place, include_memory_info=False)  # type: ignore[no-untyped-call]
            cores = int(node["Resources"].get("CPU", 0))
            found[node["NodeID"]] = cores, int(stats.store_stats.cumulative_created_bytes)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def lies_in_shared_memory(spec: list[Any]) -> tuple[int, bool]:
    """A worker, and whether the samples from which it trains lie in the memory that all workers of its node share."""
    address = engine._engine(spec[0])._client_data.dataset.inputs.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return os.getpid(), "plasma" in path
    return os.getpid(), False


def overhead(nodes: RayNodes) -> list[dict[str, Any]]:
    """Seconds of a round on worker processes and on the cluster, in turn."""
    found = []
    for make, clients, samples in ((network, 40, 5), (wide_network, 10, 5)):
        spec = spec_of(make, clients, samples)
        plan = plan_for(spec)
        transports: dict[str, Transport] = {"processes": Processes(spec, 2), "cluster": Ray(spec, 2)}
        engines = {name: Parallel(spec, transport) for name, transport in transports.items()}
        # Two tasks may go to any of the nodes, and a new worker takes seconds to import torch.
        Parallel(spec, Ray(spec)).run(plan)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(PAIRS + 2):
            for name, each in engines.items():
                began = monotonic()
                each.run(plan)
                if turn >= 2:  # the first ones start workers
                    seconds[name].append(monotonic() - began)
        transports["processes"].close()
        pairs = [two - one for one, two in zip(seconds["processes"], seconds["cluster"], strict=True)]
        found.append(
            {
                "clients": clients,
                "update_bytes": plan.models.nbytes * clients,
                "processes": median(seconds["processes"]),
                "cluster": median(seconds["cluster"]),
                "difference": quantiles(pairs, n=4),
            }
        )
    return found


PARTS: Mapping[str, Callable[[RayNodes], Any]] = {
    "equal": bits,
    "shipped": shipped,
    "overhead": overhead,
    "added": added,
    "killed": partial(lost, RayNodes.kill, tuple(kills.ALGORITHMS)),
    "silent": partial(lost, RayNodes.stop, ("fedrep",)),
    "autoscaling": autoscaling,
}
"""What each part does with a cluster."""


def main() -> None:
    """Do the parts that are named, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are kept")
    given = parser.parse_args()
    # The autoscaler has a cluster of its own, for it would replace nodes that are lost.
    clusters = [([part for part in given.parts if part != "autoscaling"], NODES, 0)]
    clusters += [([part for part in given.parts if part == "autoscaling"], {}, MOST)]
    for parts, cores, most in clusters:
        if not parts:
            continue
        with joined(cores, most) as nodes:
            for part in parts:
                found = PARTS[part](nodes)
                print(part, json.dumps(found), flush=True)
                known = json.loads(given.out.read_text()) if given.out.exists() else {}
                given.out.write_text(json.dumps({**known, part: found}, indent=1) + "\n")


if __name__ == "__main__":
    # Worker processes look for the networks in the module of this name.
    importlib.import_module("cluster").main()
