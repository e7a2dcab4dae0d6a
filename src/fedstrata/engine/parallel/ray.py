"""Workers that are tasks of Ray, on this machine or many."""

from __future__ import annotations

import logging
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from itertools import cycle
from time import monotonic
from types import ModuleType
from typing import Any

import torch

from fedstrata.base.errors import EngineError, ExperimentError, ResourceError
from fedstrata.engine.client_data import SimulationSpec
from fedstrata.engine.loop import Loop
from fedstrata.engine.parallel.messages import pack, unpack
from fedstrata.engine.parallel.processes import DEFAULT_TIMEOUT, MAX_ATTEMPTS, cores
from fedstrata.engine.parallel.sharding import Shard, ShardReply, ShardRequest, perform

_logger = logging.getLogger(__name__)

_MAX_HUNG = 2
"""Times that the same work may hang before the run fails."""

_SLOWER = 10
"""How many times as long as the longest wait so far a wait may take before tasks are taken for hung."""

MISSING = 'engine.name = "ray": expected Ray, found none; pip install "fedstrata[ray]", or use "processes"'
"""The message where Ray is not installed."""


class Ray:
    """A transport to Ray, which is started or joined when the first round needs it and stays until Python ends.

    It joins the cluster of ``RAY_ADDRESS``. Without that it starts a cluster on this machine alone.

    Nodes may join and leave the cluster. What a lost node had to do is done by others, and the next round counts the
    cores anew. Tasks that wait for a core are what Ray's autoscaler adds nodes for.

    Args:
        spec: The network and the data.
        workers: The number of tasks of a round at most; 0 is one for each core that the cluster has in that round.
        timeout: Seconds in which one more task of a round has to end. Otherwise those that have not ended are given to
            other workers too. If 10 times the longest wait so far is more, that counts. 0 waits without end.

    Raises:
        ExperimentError: When Ray is not installed.
    """

    def __init__(self, spec: SimulationSpec, workers: int = 0, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Start nothing yet."""
        self._spec = spec
        self._wanted = workers
        self._timeout = timeout
        self._longest = 0.0
        self._address = os.environ.get("RAY_ADDRESS") or "local"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address == "local":
            # Otherwise Ray replaces 127.0.0.1 by an address that others can reach, and listens to everyone. It reads
            # this, which is meant for systems on which it has no clusters, when it is imported.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError as error:
            raise ExperimentError(MISSING) from error
        self._ray = ray

    @property
    def workers(self) -> int:
        """The number of tasks of a round at most. A cluster that has no core yet gets one task, which asks for one."""
        return self._wanted or max(1, self._cores())

    def run(self, request: ShardRequest, shards: Sequence[Shard]) -> Sequence[ShardReply]:
        """As `Transport.run`. Ray repeats the tasks of a lost worker."""
        with self._errors():
            sent = self._cluster.put(_boxed(request))
            # Inside a list the specification stays where it is until a worker needs it.
            given = [([self._data], sent, shard, sys.path, _versions()) for shard in shards]
            tasks = {self._task.remote(*each): place for place, each in enumerate(given)}
            # After an error the other tasks go on to their end: Ray has crashed when one was cancelled as it ended.
            answers = dict[int, ShardReply]()
            attempts = 1
            while waiting := {task: place for task, place in tasks.items() if place not in answers}:
                limit = max(self._timeout, _SLOWER * self._longest) if self._timeout else None
                began = monotonic()
                done, _ = self._cluster.wait(list(waiting), num_returns=1, timeout=limit)
                if done:
                    self._longest = max(self._longest, monotonic() - began)
                    answers[waiting[done[0]]] = _opened(self._cluster.get(done[0]))
                    continue
                if not self._cores():
                    _logger.warning("Ray's cluster has no core now; waiting for a node")
                    continue
                if attempts == _MAX_HUNG:
                    raise EngineError(
                        f"expected answers from Ray's workers, found none for {limit:g} s, from {attempts} in turn "
                        "with the same clients; if their work takes longer, raise engine.timeout"
                    )
                _logger.warning("no worker of Ray answered for %g s; others do the same work too", limit)
                attempts += 1
                # The same work gives the same bits, whichever task is first.
                again = zip(waiting.values(), cycle(self._tasks_beside_others()))
                tasks |= {task.remote(*given[place]): place for place, task in again}
        return [answers[place] for place in range(len(shards))]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what a task raised as if this process had raised it, and Ray's own failures in one line."""
        errors = self._cluster.exceptions
        try:
            yield
        except errors.RayTaskError as error:
            raise error.cause from error
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise ResourceError(
                f"expected room for what Ray's workers share, found: {_line(error)}; free some in /dev/shm and in the "
                "folder for temporary files, or lower engine.workers"
            ) from error
        except errors.RayError as error:
            found = f"{type(error).__name__}: {_line(error)}"
            raise EngineError(f"expected answers from Ray's workers, found {found}") from error

    def close(self) -> None:
        """Do nothing: tasks end with their round, and Ray with Python."""

    @cached_property
    def _cluster(self) -> ModuleType:
        """Ray, which is started if it does not run."""
        if not self._ray.is_initialized():
            here: dict[str, Any] = {
                "num_cpus": max(self._wanted, cores()),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
            where = {"address": self._address, **(here if self._address == "local" else {})}
            try:
                self._ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:  # any of Ray's many parts may fail to start
                raise EngineError(f"expected Ray at {self._address!r}, found none: {_line(error)}") from error
        return self._ray

    @cached_property
    def _task(self) -> Any:
        """The work of a shard as a task of Ray, made once, because Ray keeps every task until it ends."""
        return self._cluster.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_work)

    def _tasks_beside_others(self) -> list[Any]:
        """The task for each node that has cores, where it asks for none: a worker that hangs keeps its core.

        Without a place Ray could give all of them to the head, which often has no cores so that no work goes there.
        """
        at = self._cluster.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [node["NodeID"] for node in self._cluster.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return [self._task.options(num_cpus=0, scheduling_strategy=at(node, soft=True)) for node in nodes]

    def _cores(self) -> int:
        """The number of cores that the cluster has now."""
        return int(self._cluster.cluster_resources().get("CPU", 0))

    @cached_property
    def _data(self) -> Any:
        return self._cluster.put(_boxed(self._spec))


def _work(spec: list[Any], request: Any, shard: Shard, path: list[str], versions: Mapping[str, str]) -> Any:
    """The work of a task. It finds the networks of users where the program that asks finds them.

    Raises:
        EngineError: When this node has other versions, which may compute other bits.
    """
    for name, expected in versions.items():
        if (found := _versions()[name]) != expected:
            raise EngineError(
                f"expected {name} {expected} on all nodes of Ray's cluster, as where the run was started, "
                f"found {found} on {platform.node()!r}; install the same there"
            )
    sys.path += [place for place in path if place not in sys.path]
    torch.set_num_threads(1)
    return _boxed(perform(_engine(spec[0]), _opened(request), shard))


@lru_cache(maxsize=1)
def _engine(spec: Any) -> Loop:
    """The engine of a worker, which serves all rounds."""
    import ray

    made: SimulationSpec = _opened(ray.get(spec))
    return Loop.at(made)


@cache
def _versions() -> dict[str, str]:
    """The versions on which the bits of results depend."""
    return {name: version(name) for name in ("fedstrata", "torch", "numpy")}


def _line(error: BaseException) -> str:
    """The first line of a message."""
    return str(error).strip().partition("\n")[0]


def _boxed(thing: Any) -> Any:
    """A thing as Ray shares it in memory: a frame, and arrays of bytes."""
    frame, tensors = pack(thing)
    return frame, [tensor.numpy() for tensor in tensors]


def _opened(box: Any) -> Any:
    frame, arrays = box
    with warnings.catch_warnings():
        # Ray's arrays cannot be written to, and nothing here does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return unpack(frame, [torch.from_numpy(array) for array in arrays])
