"""A cluster of Ray on one machine: each node is a real `ray start`, with all its processes, on 127.0.0.1.

The processes are started and ended by their own ids, and nothing else is touched.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import psutil
from machines import family, free_ports, processes, send, within

PATIENCE = 120.0
"""Seconds in which a node has to start; a machine may be busy."""

STARTS = 3
"""Times that a node is started until it has joined: Ray gives a node up that has not joined within 30 s."""

STORE_BYTES = 100 * 2**20
"""Bytes of the shared memory of a node."""

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable that, as 0, keeps a program of Ray at 127.0.0.1."""

START = """
import sys
from ray._private import ray_constants, services
from ray.scripts import scripts
services.node_ip_address_from_perspective = lambda address=None: "127.0.0.1"
services.get_localhost_ip = services.node_ip_address_from_perspective
sys.argv[0] = "ray"
scripts.main()
"""
"""`ray start`, which replaces 127.0.0.1 by an address that others can reach. Here nobody else is to reach it."""


class RayNodes:
    """The nodes of a cluster. The first one is the head, at which programs join it.

    Attributes:
        address: The address of the head.
        environment: The environment of programs that join the cluster.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        # Ray's sockets lie in this folder, and their paths must be short.
        self._room = TemporaryDirectory(prefix="ray-", dir="/tmp")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"127.0.0.1:{free_ports(3)}"
        self.environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
        self.environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # With this a node refuses to join another one. The programs that join need it (`joined`).
        self.environment.pop(LOOPBACK, None)

    def __enter__(self) -> RayNodes:
        """Nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all nodes, the head at last."""
        for name in reversed(list(self._running)):
            self.kill(name)
        self._room.cleanup()

    def start(self, name: str, cpus: int, most: int = 0) -> None:
        """Start a node, and wait until it has joined.

        Args:
            name: The name of the node here.
            cpus: The cores that it has, as Ray is told.
            most: For the head: the nodes of one core that Ray's autoscaler may add. They are processes of the head.
        """
        port = int(self.address.rpartition(":")[2])
        if self._running:
            place = [f"--address={self.address}"]
        else:
            place = ["--head", f"--port={port}", f"--ray-client-server-port={port + 1}", "--include-dashboard=false"]
        extra = {}
        if most:
            config = Path(self._room.name) / "autoscaling.json"
            config.write_text(json.dumps(_autoscaling(most, self.address)))
            place.append(f"--autoscaling-config={config}")
            extra = {
                "RAY_FAKE_CLUSTER": "1",
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
                # Ray's own programs, which know nothing of `START`, then stay at 127.0.0.1, too.
                LOOPBACK: "0",
            }
        words = [
            *place,
            "--block",
            "--node-ip-address=127.0.0.1",
            f"--num-cpus={cpus}",
            f"--object-store-memory={STORE_BYTES}",
            f"--temp-dir={self._room.name}",
        ]
        for _ in range(STARTS):
            with self.log(name).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-c", START, "start", *words],
                    stdout=log,
                    stderr=log,
                    env={**self.environment, **extra},
                    start_new_session=True,
                )
            self._running[name] = process
            within(PATIENCE, lambda process=process: self._is_up(name) or process.poll() is not None)  # type: ignore[misc]
            if self._is_up(name):
                return
            self.kill(name)
        raise RuntimeError(f"the node {name!r} did not start:\n{self.log(name).read_text()}")

    def kill(self, name: str) -> None:
        """End all processes of a node at once, as when its machine loses its power."""
        process = self._running.pop(name)
        ended = self._signal(process, signal.SIGKILL)
        process.wait()
        if not within(PATIENCE, lambda: not ended & processes().keys()):
            raise RuntimeError(f"processes of the node {name!r} do not end: {ended & processes().keys()}")

    def stop(self, name: str) -> None:
        """Stop all processes of a node, as when its machine loses its network: nobody is told."""
        self._signal(self._running[name], signal.SIGSTOP)

    def pid(self, name: str) -> int:
        """The id of the process that has started the others of a node."""
        return self._running[name].pid

    def log(self, name: str) -> Path:
        """What a node said."""
        return Path(self._room.name) / f"{name}.log"

    def _is_up(self, name: str) -> bool:
        return "Ray runtime started" in self.log(name).read_text()

    def _signal(self, process: subprocess.Popen[bytes], sign: signal.Signals) -> set[psutil.Process]:
        reached = family({process.pid})
        send(sign, reached)
        return reached


FAKE_HEAD_NODE_ID = "f" * 51 + "0" * 5
"""The id that a head has for Ray's provider of nodes on one machine."""


def _autoscaling(most: int, address: str) -> dict[str, Any]:
    """What Ray's autoscaler is told, with the provider that Ray tests it with: nodes on this machine."""
    worker = {"CPU": 1, "object_store_memory": STORE_BYTES}
    return {
        "cluster_name": "here",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 30,
        "provider": {"type": "fake_multinode", "gcs_address": address, "launch_multiple": True},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": most},
        },
        "auth": {},
        "docker": {},
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }
