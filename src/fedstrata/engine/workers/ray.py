"""Workers that are tasks of Ray, on this machine or many."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import torch

from fedstrata.engine.loop import Loop
from fedstrata.engine.site import Site
from fedstrata.engine.workers.parcel import pack, unpack
from fedstrata.engine.workers.processes import TRIES, cores
from fedstrata.engine.workers.sharding import Answer, Order, Shard, perform
from fedstrata.errors import EngineError, ExperimentError

MISSING = 'engine.name = "ray": expected Ray, found none; pip install "fedstrata[ray]", or use "processes"'
"""What is said where the extra is not installed."""


class Ray:
    """A transport to Ray, which is started or joined when the first round needs it and stays until Python ends.

    Args:
        site: the network and the data.
        workers: tasks of a round at most; 0 is one for each core of the cluster.
        address: of a running cluster; None is that of ``RAY_ADDRESS``, or else a new one on this machine alone.

    Raises:
        ExperimentError: when Ray is not installed.
    """

    def __init__(self, site: Site, workers: int = 0, address: str | None = None) -> None:
        """Start nothing yet."""
        self._site, self._wanted = site, workers
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"
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

    @cached_property
    def workers(self) -> int:
        """Tasks of a round at most."""
        return self._wanted or int(self._cluster.cluster_resources()["CPU"])

    def run(self, order: Order, shards: Sequence[Shard]) -> Sequence[Answer]:
        """As `Transport.run`; lost tasks are repeated by Ray."""
        errors = self._cluster.exceptions
        sent = self._cluster.put(_boxed(order))
        # Inside a list the site stays where it is until a worker has need of it.
        tasks = [self._task.remote([self._data], sent, shard, sys.path) for shard in shards]
        # After an error the other tasks go on to their end: to cancel one just when it is done has brought Ray down.
        try:
            return [_opened(box) for box in self._cluster.get(tasks)]
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            found = f"{type(error).__name__}: {_line(error)}"
            raise EngineError(f"expected answers from Ray's workers, found {found}") from error

    def close(self) -> None:
        """Tasks end with their round, and Ray with Python."""

    @cached_property
    def _cluster(self) -> ModuleType:
        """Ray, running."""
        if not self._ray.is_initialized():
            here: dict[str, Any] = {
                "num_cpus": max(self._wanted, cores()),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
            where = {"address": self._address, **(here if self._address == "local" else {})}
            try:
                self._ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:  # of whatever of Ray's many parts did not start, or was not there
                raise EngineError(f"expected Ray at {self._address!r}, found none: {_line(error)}") from error
        return self._ray

    @cached_property
    def _task(self) -> Any:
        """A shard's work as a task of Ray, which keeps each one that it was given until it ends."""
        return self._cluster.remote(num_cpus=1, max_retries=TRIES - 1)(_work)

    @cached_property
    def _data(self) -> Any:
        """The site, placed once for all workers."""
        return self._cluster.put(_boxed(self._site))


def _work(site: list[Any], order: Any, shard: Shard, path: list[str]) -> Any:
    """What a task does; the networks of users are found where the program that asks finds them."""
    sys.path += [place for place in path if place not in sys.path]
    torch.set_num_threads(1)
    return _boxed(perform(_engine(site[0]), _opened(order), shard))


@lru_cache(maxsize=1)
def _engine(site: Any) -> Loop:
    """A worker's engine, which it keeps for the rounds to come."""
    import ray

    made: Site = _opened(ray.get(site))
    return made.loop()


def _line(error: BaseException) -> str:
    """The first line of its message."""
    return str(error).strip().partition("\n")[0]


def _boxed(thing: Any) -> Any:
    """A thing as Ray shares it in memory: arrays, and a frame."""
    frame, tensors = pack(thing)
    return frame, [tensor.numpy() for tensor in tensors]


def _opened(box: Any) -> Any:
    frame, arrays = box
    with warnings.catch_warnings():
        # Ray's arrays cannot be written to, and nothing here does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return unpack(frame, [torch.from_numpy(array) for array in arrays])
